"""Further policies and certificates of a run lie beside its first ones and leave these as they are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bats.bounds.certificate import Certificate, load_certificate, save_certificate
from bats.config import CertificateConfig, RolloutConfig
from bats.errors import DataError, SettingError
from bats.graph.relabel import goal_reward
from bats.policy.files import load_policy, save_policy
from bats.runs.folder import RunFolder
from bats.runs.result import Changes
from bats.runs.variants import certify_again, clone_again
from bats.storage.json_records import write_record
from tests.logs import folder_bytes
from tests.runs.relisted import relisted
from tests.small_runs import SMALL, small_log

CORNER = Changes(reward=goal_reward(np.zeros(2), 0.4))
FIXED = ("logged_value", "coverage", "floor", "ceiling")
"""numbers of a certificate that no confidence changes"""


@pytest.fixture
def run(run_copy: Path) -> RunFolder:
    return RunFolder(run_copy)


def own_certificate(run: RunFolder) -> Certificate:
    certificate = load_certificate(run.path)
    assert certificate is not None
    return certificate


def test_another_certificate_lies_beside_the_first_and_only_the_bounds_differ(run: RunFolder) -> None:
    before = folder_bytes(run.path)
    certificate = certify_again(run, CertificateConfig(confidence=0.5))
    save_certificate(certificate, run.certificates / "half")
    own = own_certificate(run)
    assert certificate.confidence == 0.5
    assert {name: getattr(certificate, name) for name in FIXED} == {name: getattr(own, name) for name in FIXED}
    assert np.array_equal(certificate.at_starts.starts, own.at_starts.starts)
    assert np.array_equal(certificate.at_starts.weights, own.at_starts.weights)
    assert certificate.graph_factors.value < own.graph_factors.value
    assert certificate.graph.lower > own.graph.lower  # less is to be covered, so the bounds are tighter
    assert certificate.graph.upper < own.graph.upper
    loaded = load_certificate(run.certificates / "half")
    assert loaded is not None
    assert loaded.verdict == certificate.verdict
    assert np.array_equal(loaded.at_starts.clone_lower, certificate.at_starts.clone_lower)
    after = folder_bytes(run.path)
    assert {name: after[name] for name in before} == before
    assert set(after) - set(before) == {
        *("certificates/half", "certificates/half/certificate.json", "certificates/half/bounds.safetensors"),
    }


def test_the_same_settings_give_the_same_certificate(run: RunFolder) -> None:
    save_certificate(certify_again(run, CertificateConfig()), run.certificates / "same")
    for name in ("certificate.json", "bounds.safetensors"):
        assert (run.certificates / "same" / name).read_bytes() == (run.path / name).read_bytes()


def test_the_same_settings_give_the_same_policy(run: RunFolder) -> None:
    save_policy(clone_again(run), run.policies / "same.safetensors")
    for name in ("bats.safetensors", "bats.json"):
        assert (run.policies / name.replace("bats", "same")).read_bytes() == (run.policies / name).read_bytes()


def test_another_policy_lies_beside_the_first_and_can_be_certified(run: RunFolder) -> None:
    before = folder_bytes(run.path)
    even = replace(SMALL, rollouts=RolloutConfig(uniform_share=1.0))
    policy = clone_again(run, config=even)
    save_policy(policy, run.policies / "even.safetensors")
    own_policy, states = load_policy(run.policy), small_log().observations
    assert not np.array_equal(policy.predict(states), own_policy.predict(states))
    loaded = load_policy(run.policies / "even.safetensors")
    assert np.array_equal(loaded.predict(states), policy.predict(states))
    assert np.array_equal(loaded.support_distance(states), own_policy.support_distance(states))
    certificate = certify_again(run, CertificateConfig(), policy=policy)
    own = own_certificate(run)
    assert certificate.graph == own.graph  # the graph's policy is the same
    assert certificate.graph_factors == own.graph_factors
    after = folder_bytes(run.path)
    assert {name: after[name] for name in before} == before
    assert RunFolder(run.path).settings() == SMALL


def test_a_policy_for_another_reward_says_so_and_is_not_certified(run: RunFolder) -> None:
    policy = clone_again(run, CORNER)
    assert policy.card["solved_under"] == {"reward": "goal 0,0 with radius 0.4"}
    with pytest.raises(SettingError, match="cannot be certified: its graph was solved with other settings than"):
        certify_again(run, CertificateConfig(), policy=policy)


def test_a_policy_of_another_log_is_not_certified_and_the_error_says_what_differs(run: RunFolder) -> None:
    own = load_policy(run.policy)
    weights = (np.zeros((3, 8), dtype=np.float32), *own.weights[1:])
    wide = replace(own, weights=weights, mean=np.zeros(3), std=np.ones(3), support=None)
    discrete = replace(own, low=own.low[:0], high=own.high[:0], action_count=4)
    for policy, message in (
        (wide, "its observations have 3 numbers, not 2"),
        (discrete, r"its actions are 4 discrete, not continuous with bounds -0\.09.* to 0\.09"),
        (replace(own, high=own.high + 1), r"its actions are continuous with bounds .* to 1\.09.*, not continuous with"),
    ):
        with pytest.raises(SettingError, match=f"This policy cannot be certified: {message}"):
            certify_again(run, CertificateConfig(), policy=policy)


def test_a_smallest_return_is_ignored_only_if_it_was_set_for_another_reward(run: RunFolder) -> None:
    high = replace(SMALL, rollouts=RolloutConfig(min_return=1e9))
    with pytest.raises(DataError, match=r"Lower `rollouts.min_return`"):
        clone_again(run, CORNER, config=high)  # it is given for this reward
    write_record(run.path / "settings.json", high)
    relisted(run.path)
    assert clone_again(run, CORNER).card["threshold_measure"] != "return"
    with pytest.raises(DataError, match=r"Lower `rollouts.min_return`"):
        clone_again(run, Changes(penalty=0.0))


def test_an_unfinished_run_has_no_further_certificates(run: RunFolder) -> None:
    (run.path / "finished.json").unlink()
    relisted(run.path)
    with pytest.raises(DataError, match="expected a finished run"):
        certify_again(run, CertificateConfig())
