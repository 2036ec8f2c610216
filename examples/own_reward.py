"""Another reward for a finished run, without planning anew: python examples/own_reward.py run

The graph knows what actions do, not what they are for. A reward is a function of arrays, row by row.
"""

import sys

import numpy as np

import bats


def near_the_middle(states: np.ndarray, actions: np.ndarray, next_states: np.ndarray) -> np.ndarray:
    """Stay near the middle of the log's states, with small actions."""
    middle = (states.min(axis=0) + states.max(axis=0)) / 2
    near = np.linalg.norm(next_states - middle, axis=1) < 0.2 * np.linalg.norm(np.ptp(states, axis=0))
    return near - 0.01 * np.square(actions).sum(axis=1)


run = sys.argv[1]
changes = bats.Changes(reward=near_the_middle)
solution = bats.solve_again(run, changes)  # exact, in seconds
print(f"value at the starts {solution.start_value:.3g}, with {solution.mdp.kept_stitches:,} stitches")

policy = bats.clone_again(run, changes)
bats.save_policy(policy, f"{run}/policies/middle.safetensors")
print(policy.card["rollouts_cloned"], "rollouts were cloned")
