"""The defaults are what the papers and their benchmarks used on D4RL's mazes."""

from __future__ import annotations

import pytest

from bats.baselines.catalogue import METHODS
from bats.errors import SettingError

PUBLISHED = {
    "cql": {
        **{"alpha": 10.0, "target_gap": 5.0, "sampled_actions": 10, "entropy_bonus": False, "normalize": True},
        **{"hidden": (256, 256, 256), "critic_hidden": (256, 256, 256), "learning_rate": 3e-5},
    },
    "td3-bc": {"alpha": 2.5, "policy_every": 2, "target_noise": 0.2, "noise_limit": 0.5, "normalize": True},
    "iql": {"expectile": 0.7, "inverse_temperature": 3.0, "max_weight": 100.0, "normalize": True},
    "awac": {"temperature": 0.1, "max_weight": 100.0, "normalize": True, "hidden": (256, 256, 256)},
    "rebrac": {
        **{"policy_penalty": 0.003, "critic_penalty": 0.001, "normalize": False},
        **{"hidden": (256, 256, 256), "critic_hidden": (256, 256, 256)},
    },
    "bear": {
        **{"kernel_width": 50.0, "threshold": 0.05, "sampled_actions": 100, "target_actions": 10},
        **{"warm_start": 40_000, "learning_rate": 1e-4, "behaviour_hidden": (750, 750), "normalize": False},
    },
    "brac-v": {
        **{"penalty": 0.1, "sampled_actions": 4, "warm_start": 20_000, "temperature": 0.0, "normalize": False},
        **{"hidden": (200, 200), "critic_hidden": (300, 300), "critic_learning_rate": 1e-3},
        **{"learning_rate": 3e-5, "behaviour_learning_rate": 5e-4},
    },
    "combo": {
        **{"rollout_length": 1, "beta": 0.5, "entropy_bonus": False, "learning_rate": 1e-4},
        **{"hidden": (256, 256, 256), "critic_hidden": (256, 256, 256)},
    },
    "sac": {"entropy_bonus": True, "temperature": None},
    "bc": {"best_share": 1.0},
}


@pytest.mark.parametrize("name", METHODS)
def test_defaults_are_the_published_settings(name: str) -> None:
    config = METHODS[name].config()
    assert (config.gamma, config.target_rate, config.batch_size) == (0.99, 0.005, 256)
    for setting, value in PUBLISHED[name].items():
        assert getattr(config, setting) == value, setting


@pytest.mark.parametrize("best_share", [0.0, 1.5])
def test_a_share_of_nothing_is_refused(best_share: float) -> None:
    with pytest.raises(SettingError, match="best_share"):
        METHODS["bc"].config(best_share=best_share)
