"""Published scores on D4RL's mazes, to show beside our own. Logs and environments are D4RL's, ours are made again.

CORL        corl-team/CORL, README, "last" table: the policy after all updates, 4 seeds
D4RL        Fu et al., 2020, as the BATS paper quotes them in its Table 1
BATS        Char, Mehta et al., 2021, Table 1: their own COMBO and BATS, three seeds, ± standard error
"""

from __future__ import annotations

from bats.report.benchmark import Published

MAZES = ("maze2d-umaze", "maze2d-medium", "maze2d-large")
CORL, D4RL, PAPER = "(CORL, last)", "(D4RL)", "(BATS paper)"
_SCORES = (
    ("bc", D4RL, (3.8, 30.3, 5.0), None),
    ("bc", CORL, (0.4, 0.8, 2.3), None),
    ("sac", D4RL, (88.2, 26.1, -1.9), None),
    ("brac-v", D4RL, (-16.0, 33.8, 40.6), None),
    ("bear", D4RL, (3.4, 29.0, 4.6), None),
    ("cql", D4RL, (5.7, 5.0, 12.5), None),
    ("cql", CORL, (-8.9, 86.1, 23.8), None),
    ("combo", PAPER, (76.2, 74.8, 150.3), (0.5, 35.2, 22.0)),
    ("td3-bc", CORL, (29.4, 59.5, 97.1), None),
    ("iql", CORL, (42.1, 34.9, 61.7), None),
    ("rebrac", CORL, (106.9, 105.1, 78.3), (22.2, 31.7, 61.8)),
    ("awac", CORL, (65.7, 84.6, 215.5), None),
    ("bats", PAPER, (141.8, 133.6, 107.7), (4.4, 11.6, 22.0)),
)
PUBLISHED = tuple(
    Published(method, task, score, source, None if errors is None else errors[number])
    for method, source, scores, errors in _SCORES
    for number, (task, score) in enumerate(zip(MAZES, scores, strict=True))
)
