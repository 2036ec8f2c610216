"""Policies with random weights, for the tests of acting, saving and exporting."""

from __future__ import annotations

import itertools

import numpy as np

from bats.policy.policy import Policy
from bats.policy.support import Support


def some_policy(*, action_count: int | None = None, support: Support | None = None, scale: float = 1.0) -> Policy:
    """Three numbers in, two actions out, or one of several discrete ones."""
    rng = np.random.default_rng(0)
    sizes = (3, 16, 8, action_count or 4)
    weights = [rng.normal(0, scale / np.sqrt(i), (i, o)).astype(np.float32) for i, o in itertools.pairwise(sizes)]
    return Policy(
        weights=tuple(weights),
        biases=tuple(rng.normal(0, 0.1, size).astype(np.float32) for size in sizes[1:]),
        mean=np.array([1.0, -2.0, 1000.0], np.float32),
        std=np.array([0.5, 1.0, 20.0], np.float32),
        low=np.array([] if action_count else [-1.0, 0.0], np.float32),
        high=np.array([] if action_count else [1.0, 5.0], np.float32),
        action_count=action_count,
        support=support,
        card={"log": "random", "seed": 0},
    )


def some_support() -> Support:
    """The support of 300 random states of three numbers."""
    rng = np.random.default_rng(0)
    return Support.of(rng.normal(size=(300, 3)).astype(np.float32), np.ones(3, np.float32), rng)


def observations(count: int, policy: Policy, *, spread: float = 1.0) -> np.ndarray:
    noise = np.random.default_rng(1).standard_normal((count, len(policy.mean)))
    return (policy.mean + spread * policy.std * noise).astype(np.float32)
