"""The policy in a program that has NumPy and safetensors only: python examples/numpy_only.py policy.safetensors

To install it there: pip install numpy safetensors, and pip install --no-deps bats-rl
"""

import sys

import numpy as np

import bats

policy = bats.load_policy(sys.argv[1])
rng = np.random.default_rng(0)
observations = policy.mean + policy.std * rng.standard_normal((5, len(policy.mean)))  # yours come from sensors

for observation in observations:
    action, distance = policy.predict(observation), policy.support_distance(observation)
    advice = "out of the log's support: better do something safe" if distance > 1 else "within support"
    print(np.round(observation, 2), "->", np.round(action, 2), f"(support distance {distance:.2f}, {advice})")

print("all at once:", policy.predict(observations).shape)
