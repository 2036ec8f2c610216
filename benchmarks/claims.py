"""How a stitch's claimed error grows with its length, and how its true error does: windows of held-out rows.

    python -m benchmarks.claims runs/medium

Two claims about where a plan ends, each with the members' disagreement: the largest residual of the held-out rows
nearest to any state on its way, and the mean residuals near every state on its way added up, which is what stitches are
judged by.
Half of the held-out rows make the claims, windows of the other half are followed in the model. Nothing is fitted.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from scipy.spatial import cKDTree

from bats.model.ensemble import states_along
from bats.model.local_error import NEAREST, LocalError
from bats.planning.planner import error_of
from bats.runs.pipeline import load_result

LENGTHS = (4, 12, 20, 25)
ACCEPTED = 0.3
"""claims below this, in ordinary steps, are taken for accepted"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    result = load_result(parser.parse_args().run)
    judging, unseen = result.model.held_out.halves()
    embed, quantile = result.metric.embed, result.config.stitch.planner.quantile
    local = LocalError.measured(result.metric, judging.observations, judging.next_observations, judging.predicted_next)
    tree = cKDTree(local.places)
    left = np.searchsorted(unseen.stretch, unseen.stretch, side="right") - np.arange(len(unseen.rewards))
    for length in LENGTHS:
        first = np.flatnonzero(left >= length)[:: max(length // 4, 1)]
        actions = unseen.actions[first[:, None] + np.arange(length)]
        source = unseen.observations[first]
        visited = np.asarray(
            states_along(result.model.dynamics, jnp.asarray(source, jnp.float32), jnp.asarray(actions, jnp.float32))
        )
        mean = visited.mean(axis=0)
        aim = embed(mean[:, -1])
        disagreement = error_of(np.linalg.norm(embed(visited[:, :, -1]) - aim, axis=2).T, quantile)
        missed = np.linalg.norm(aim - embed(unseen.next_observations[first + length - 1]), axis=1)
        way = embed(np.concatenate([source[:, None], mean[:, :-1]], axis=1))
        near = tree.query(way.reshape(-1, way.shape[2]), k=NEAREST, workers=-1)[1]
        residual = local.residual[near].reshape(len(first), length, NEAREST)
        claims = {"largest": residual.max(axis=(1, 2)), "sum": residual.mean(axis=2).sum(axis=1)}
        for name, added in claims.items():
            claimed = disagreement + added
            ratio, kept = missed / np.maximum(claimed, 1e-3), claimed < ACCEPTED
            print(f"figure claims_{name}_{length}_ratio95 {np.quantile(ratio, 0.95):.3g} times")
            print(f"figure claims_{name}_{length}_missed {np.mean(missed[kept] > ACCEPTED):.3g} share")


if __name__ == "__main__":
    main()
