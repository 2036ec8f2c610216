"""What errors cost in the end: a penalty in rewards, and the finished graph pruned and charged with it.

Rewards have a unit of their own in every task. A penalty in steps says how much time a unit of error is worth: one step
of delay costs (1 - gamma) times a value, and the range of the log's own values says what values are like here.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np

from bats.errors import SettingError
from bats.graph.mdp import TabularMDP
from bats.graph.relabel import charge, prune, stitch_errors
from bats.graph.solve import policy_iteration

PenaltyUnit = Literal["step", "reward"]


def penalty_in_rewards(log: TabularMDP, penalty: float, unit: PenaltyUnit, *, dead_end_value: float = 0.0) -> float:
    """The reward lost per unit of error [c]; `log` is the MDP without stitches, and only its real states count."""
    if not (penalty >= 0 and np.isfinite(penalty)):
        raise SettingError(f"`penalty` must be finite and not negative; got {penalty}.")
    if unit == "reward":
        return penalty
    value = policy_iteration(replace(log, penalty=0.0), dead_end_value=dead_end_value).value[: log.real_count]
    spread = float(np.ptp(value)) or float(np.ptp(log.reward)) or 1.0
    return penalty * (1 - log.gamma) * spread


def finished_graph(mdp: TabularMDP, *, penalty: float, tolerance: float | None) -> TabularMDP:
    """The MDP with the stitches within the tolerance alone, charged with the penalty [section 3.3]."""
    if tolerance is not None and not tolerance > 0:
        raise SettingError(f"`tolerance` must be positive; got {tolerance}.")
    error = stitch_errors(mdp)
    kept = mdp if tolerance is None else prune(mdp, error < tolerance)
    return charge(kept, error, penalty=penalty)
