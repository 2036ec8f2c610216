"""Published scores, to show beside our own. Their logs and environments are D4RL's, ours are made again.

CORL        corl-team/CORL, README, "last" table: the policy after all updates, 4 seeds, ± standard deviation
D4RL        Fu et al., 2020, as the BATS paper quotes them in its Table 1
BATS paper  Char, Mehta et al., 2021, Table 1: their own COMBO and BATS, three seeds, ± standard error
"""

from __future__ import annotations

from bats.report.benchmark import Published
from bats.studies.settings import BEST_TENTH, STUDIES

CORL, D4RL, PAPER = "(CORL, last)", "(D4RL)", "(BATS paper)"
MEDIUM_REPLAY = "(CORL, last, on D4RL's medium-replay-v2)"
_MAZES = (
    ("bc", D4RL, (3.8, 30.3, 5.0), None),
    ("bc", CORL, (0.4, 0.8, 2.3), (8.7, 3.3, 4.4)),
    (BEST_TENTH, CORL, (12.2, 14.3, 11.3), (4.3, 2.3, 5.1)),
    ("sac", D4RL, (88.2, 26.1, -1.9), None),
    ("brac-v", D4RL, (-16.0, 33.8, 40.6), None),
    ("bear", D4RL, (3.4, 29.0, 4.6), None),
    ("cql", D4RL, (5.7, 5.0, 12.5), None),
    ("cql", CORL, (-8.9, 86.1, 23.8), (6.1, 9.7, 36.7)),
    ("combo", PAPER, (76.2, 74.8, 150.3), (0.5, 35.2, 22.0)),
    ("td3-bc", CORL, (29.4, 59.5, 97.1), (12.3, 36.3, 25.4)),
    ("iql", CORL, (42.1, 34.9, 61.7), (0.6, 2.7, 3.5)),
    ("rebrac", CORL, (106.9, 105.1, 78.3), (22.2, 31.7, 61.8)),
    ("awac", CORL, (65.7, 84.6, 215.5), (5.3, 35.5, 3.1)),
    ("bats", PAPER, (141.8, 133.6, 107.7), (4.4, 11.6, 22.0)),
)
_ROBOTS = (
    ("bc", MEDIUM_REPLAY, (29.8, 21.8, 35.7), (2.1, 10.2, 2.3)),
    (BEST_TENTH, MEDIUM_REPLAY, (70.4, 54.4, 23.6), (8.7, 6.3, 7.0)),
    ("td3-bc", MEDIUM_REPLAY, (64.4, 85.6, 44.8), (21.5, 4.0, 0.6)),
    ("awac", MEDIUM_REPLAY, (98.9, 80.6, 45.1), (2.1, 3.6, 0.9)),
    ("cql", MEDIUM_REPLAY, (95.1, 73.1, 45.0), (5.3, 13.2, 0.3)),
    ("iql", MEDIUM_REPLAY, (97.4, 82.2, 44.5), (6.4, 3.0, 0.2)),
    ("rebrac", MEDIUM_REPLAY, (95.0, 84.3, 51.2), (6.5, 2.3, 0.3)),
)
PUBLISHED = tuple(
    Published(method, task, score, source, None if errors is None else errors[number])
    for study, published in (("maze2d", _MAZES), ("mujoco", _ROBOTS))
    for method, source, scores, errors in published
    for number, (task, score) in enumerate(zip(STUDIES[study].tasks, scores, strict=True))
)
