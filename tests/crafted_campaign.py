"""Crafted files: right checksums, wrong content. Every reader must refuse them, or what they hold must be usable.

    python -m tests.crafted_campaign --count 10000 --seed 0 [--kind mdp]

Takes a valid file of each kind, changes types, shapes, numbers, names and facts at random, writes it with the package's
own writer, reads it and uses it. Allowed are a `BatsError`, and answers that are finite and legal. Prints how many of
the files were refused and used, and everything else with its seed, which `--seed SEED --count 1 --kind KIND` repeats.
"""

from __future__ import annotations

import argparse
import math
import random
import shutil
import signal
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

from bats.bounds.certificate import load_certificate, save_certificate
from bats.config import BisimulationConfig, ModelConfig
from bats.data.dataset import Dataset
from bats.errors import BatsError
from bats.graph.files import load_mdp, save_mdp, save_round
from bats.graph.mdp import TabularMDP, add_stitches, from_dataset
from bats.graph.relabel import final_graph, prune, stitch_errors
from bats.graph.rollouts import roll_out, undiscounted_return
from bats.graph.solve import boltzmann_policy, checked_policy, policy_iteration, possible_values
from bats.metric.bisimulation import learn_bisimulation, load_metric, save_metric
from bats.metric.policy_steps import PolicySteps
from bats.metric.scaled import ScaledMetric
from bats.model import fit
from bats.model.ensemble import unroll_batches
from bats.model.fit import fit_model, load_model, save_model
from bats.model.held_out import LocalErrors
from bats.policy.demonstrations import Selection
from bats.policy.files import load_policy, save_policy
from bats.runs.folder import RunFolder
from bats.stitching.history import History
from bats.storage.tensors import write_tensors
from tests.bounds.test_certificate import simple_certificate
from tests.crafted import entries_of
from tests.mdps import random_stitches
from tests.model_logs import linear_log
from tests.policy.policies import observations, some_policy, some_support
from tests.runs.hand_made import hand_made_run

SECONDS = 60
"""for one file; the first of a kind have programs to compile"""
QUICK = ModelConfig(members=2, elites=2, hidden=(8,), batch_size=16, updates=40, evaluate_every=20, passes=0.0)
DTYPES = ("float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint32", "uint64", "bool")
NUMBERS = (math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -1.0, 0.5, 2.0, 1e-45, 1e18, 1e30, 1e38, -1e38, 1e300, 2**31)
FACTS: tuple[Any, ...] = (
    *(None, True, False, -1, 0, 1, 2, 7, 10**6, 10**9, 2**31, 2**63, 10**400, 0.0, 0.5, 1.5, 1 - 1e-16, -0.5),
    *(math.nan, math.inf, -math.inf, 1e308, 1e-320, "x", "", "1", "NaN", [], [1], [[1]], {}, {"a": 1}, ["x", None]),
)


class Case(NamedTuple):
    """A kind of file."""

    make: Callable[[Path], Path]
    """writes a valid one into a folder, with what belongs to it, and returns its path"""
    use: Callable[[Path], None]
    """reads what is in the folder and uses it"""


def finite(*arrays: Any) -> None:
    for array in arrays:
        assert np.isfinite(np.asarray(array, dtype=np.float64)).all(), "an answer that is not finite"


def make_policy(folder: Path, *, action_count: int | None = None) -> Path:
    save_policy(some_policy(action_count=action_count, support=some_support()), folder / "policy.safetensors")
    return folder / "policy.safetensors"


def use_policy(folder: Path) -> None:
    policy, rng = load_policy(folder / "policy.safetensors"), np.random.default_rng(0)
    with np.errstate(over="ignore"):
        rows = observations(20, policy)
    assert policy.valid(policy.mean)
    for row in (*rows, policy.mean, np.full(len(policy.mean), 1e300), np.full(len(policy.mean), np.nan)):
        for deterministic in (True, False):
            try:
                action = policy.predict(row, deterministic=deterministic, rng=rng)
            except BatsError:
                assert not policy.valid(row)
                continue
            if policy.action_count is None:
                assert np.all((action >= policy.low) & (action <= policy.high)), "an action beyond its limits"
            else:
                assert 0 <= action < policy.action_count, "an action that does not exist"
    if policy.support is not None:
        finite(policy.support_distance(rows[np.isfinite(rows).all(axis=1)]))
    save_policy(policy, folder / "again.safetensors", overwrite=True)
    assert len(repr(policy)) < 200


def some_mdp(*, discrete: bool = False) -> TabularMDP:
    rng = np.random.default_rng(0)
    actions = rng.integers(0, 3, 60) if discrete else rng.normal(size=(60, 1))
    ends = np.arange(60) % 20 == 19
    states = rng.normal(size=(60, 2)).astype(np.float32)
    return from_dataset(Dataset.from_arrays(states, actions, rng.normal(size=60), terminations=ends), gamma=0.9)


def make_mdp(folder: Path, mdp: TabularMDP) -> Path:
    save_mdp(mdp, folder)
    return folder / "base.safetensors"


def make_round(folder: Path) -> Path:
    mdp = some_mdp()
    save_mdp(mdp, folder)
    save_round(random_stitches(mdp, np.random.default_rng(0)), folder, stitch_round=1)
    return folder / "round-0001.safetensors"


def stitched_mdp() -> TabularMDP:
    mdp = some_mdp()
    return add_stitches(mdp, random_stitches(mdp, np.random.default_rng(0)), stitch_round=1)


def use_mdp(folder: Path) -> None:
    mdp = load_mdp(folder)
    check_mdp(mdp)
    check_mdp(final_graph(mdp, penalty=mdp.penalty, tolerance=0.5))


def check_mdp(mdp: TabularMDP) -> None:
    solution = policy_iteration(mdp)
    finite(solution.value, solution.start_value, possible_values(mdp))
    checked_policy(mdp, solution.policy)
    finite(undiscounted_return(mdp, roll_out(mdp, solution.policy, mdp.starts, 20)))
    finite(boltzmann_policy(mdp, solution.value, temperature=1.0))
    prune(mdp, stitch_errors(mdp) < 0.5)
    assert len(repr(mdp)) < 300


def make_model(folder: Path) -> Path:
    save_model(fit_model(linear_log(300, noise=0.05, seed=0), QUICK, seed=1), folder / "model.safetensors")
    return folder / "model.safetensors"


def use_model(folder: Path) -> None:
    """What it predicts may diverge, as any model may: a plan that does is refused, and so is a rollout."""
    model = load_model(folder / "model.safetensors")
    states = model.held_out.observations[:3].astype(np.float32)
    actions = np.repeat(model.held_out.actions[:3, None], 2, axis=1)
    visited, rewards = unroll_batches(model.dynamics, states, actions, np.full(len(states), 2))
    assert visited.shape == (model.config.elites, len(states), 2, states.shape[1])
    assert rewards.shape == visited.shape[:3]
    metric = ScaledMetric(np.ones(states.shape[1], np.float32))
    finite(LocalErrors.of(model.held_out, metric).near(metric.embed(states)))
    model.held_out.halves()


def make_checkpoint(folder: Path) -> Path:
    path = folder / "training.safetensors"

    def stop(stage: str, done: int, total: int) -> None:
        if path.exists():
            raise KeyboardInterrupt

    before, fit.CHECKPOINT_SECONDS = fit.CHECKPOINT_SECONDS, 0.0
    try:
        fit_model(linear_log(300, noise=0.05, seed=0), QUICK, seed=1, checkpoint=path, progress=stop)
    except KeyboardInterrupt:
        return path
    finally:
        fit.CHECKPOINT_SECONDS = before
    raise AssertionError("training was not interrupted")


def use_checkpoint(folder: Path) -> None:
    model = fit_model(linear_log(300, noise=0.05, seed=0), QUICK, seed=1, checkpoint=folder / "training.safetensors")
    finite(model.held_out.predicted_next)


def make_metric(folder: Path) -> Path:
    mdp = some_mdp()
    steps = PolicySteps.of(mdp, policy_iteration(mdp).policy)
    config = BisimulationConfig(hidden=(8,), horizon=5, updates=5, batch_size=8)
    save_metric(learn_bisimulation(steps, config, seed=0), folder / "metric.safetensors")
    return folder / "metric.safetensors"


def use_metric(folder: Path) -> None:
    metric = load_metric(folder / "metric.safetensors")
    states = metric.mean + 2 * np.random.default_rng(0).standard_normal((20, len(metric.mean))) * metric.std
    finite(metric.embed(states))
    metric.split.rows(metric.mean[None], "calibrate")


def make_attempts(folder: Path) -> Path:
    hand_made_run(folder / "run", [0.1, 0.2, 0.3])
    return folder / "run" / "attempts" / "round-0001.safetensors"


def use_attempts(folder: Path) -> None:
    history = History.of(RunFolder(folder / "run").attempts(), 3)
    history.is_open(np.array([1, 5]), np.array([1, 2]))
    finite(history.expected_error(1.0), history.success_rate(np.array([0.5]), np.array([2])))


def make_errors(folder: Path) -> Path:
    hand_made_run(folder / "run", [0.1, 0.2, 0.3]).save_errors(np.array([0.3, 0.2, 0.1]))
    return folder / "run" / "errors.safetensors"


def use_errors(folder: Path) -> None:
    mdp = RunFolder(folder / "run").load_graph()
    finite(policy_iteration(final_graph(mdp, penalty=1.0, tolerance=0.5)).value)


def make_rollouts(folder: Path) -> Path:
    kept, numbers = np.array([True, False]), np.array([0.25, 0.75])
    selection = Selection(np.array([0, 2]), numbers, numbers, numbers, kept, 0.5, by_return=True, steps=10)
    RunFolder(folder / "run").save_selection(selection)
    return folder / "run" / "rollouts.safetensors"


def use_rollouts(folder: Path) -> None:
    found = RunFolder(folder / "run").selection()
    finite(found.start_weights @ found.returns, found.share[found.kept], found.threshold)
    assert found.measure


def make_bounds(folder: Path) -> Path:
    save_certificate(simple_certificate(1.0, 2.0), folder)
    return folder / "bounds.safetensors"


def use_bounds(folder: Path) -> None:
    certificate = load_certificate(folder)
    assert certificate is not None
    at = certificate.at_starts
    finite(*(at.weights @ bound for bound in (at.graph_lower, at.graph_upper, at.clone_lower, at.clone_upper)))
    certificate.is_better_than(certificate)


CASES = {
    "policy": Case(make_policy, use_policy),
    "discrete policy": Case(lambda folder: make_policy(folder, action_count=5), use_policy),
    "mdp": Case(lambda folder: make_mdp(folder, stitched_mdp()), use_mdp),
    "discrete mdp": Case(lambda folder: make_mdp(folder, some_mdp(discrete=True)), use_mdp),
    "round": Case(make_round, use_mdp),
    "model": Case(make_model, use_model),
    "checkpoint": Case(make_checkpoint, use_checkpoint),
    "metric": Case(make_metric, use_metric),
    "attempts": Case(make_attempts, use_attempts),
    "errors": Case(make_errors, use_errors),
    "rollouts": Case(make_rollouts, use_rollouts),
    "bounds": Case(make_bounds, use_bounds),
}


def craft(arrays: dict[str, np.ndarray], facts: dict[str, Any], rng: random.Random) -> None:
    """One to three changes, in place."""
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        if facts and (rng.random() < 0.4 or not arrays):
            change_fact(facts, rng)
        elif arrays:
            change_arrays(arrays, rng)


def change_fact(facts: dict[str, Any], rng: random.Random) -> None:
    name = rng.choice(sorted(facts))
    if isinstance(facts[name], dict) and facts[name] and rng.random() < 0.8:
        change_fact(facts[name], rng)
    elif rng.random() < 0.1:
        facts[rng.choice(("other", "x"))] = facts.pop(name)
    else:
        facts[name] = copy_of(rng.choice(FACTS))


def change_arrays(arrays: dict[str, np.ndarray], rng: random.Random) -> None:
    name, other = (rng.choice(sorted(arrays)) for _ in range(2))
    fault = rng.randrange(10)
    if fault == 0:
        del arrays[name]
    elif fault == 1:
        arrays[name], arrays[other] = arrays[other], arrays[name]
    elif fault == 2:
        arrays[rng.choice(("other", other))] = arrays.pop(name)
    else:
        change = change_shape if fault in (3, 4) else change_type if fault in (5, 6) else change_numbers
        arrays[name] = change(arrays[name], rng)


def change_type(array: np.ndarray, rng: random.Random) -> np.ndarray:
    if rng.random() < 0.1:
        return np.frombuffer(rng.randbytes(max(array.size, 1)), np.uint8)[: array.size].reshape(array.shape).view(bool)
    with np.errstate(over="ignore", invalid="ignore"):
        return array.astype(rng.choice(DTYPES))


def change_shape(array: np.ndarray, rng: random.Random) -> np.ndarray:
    changes: tuple[Callable[[np.ndarray], np.ndarray], ...] = (
        np.ravel,
        np.transpose,
        lambda whole: whole[None],
        lambda whole: whole[..., None],
        lambda whole: whole[:0],
        lambda whole: whole[:-1],
        lambda whole: whole[::-1],
        lambda whole: whole[..., :1],
        lambda whole: np.concatenate([whole, whole]),
        lambda whole: whole.reshape((1,) * (60 - whole.ndim) + whole.shape),
        lambda whole: np.zeros((0, 10**9), whole.dtype),
    )
    return rng.choice(changes)(np.atleast_1d(array))


def change_numbers(array: np.ndarray, rng: random.Random) -> np.ndarray:
    changed = array.ravel().copy()
    if changed.size == 0:
        return array
    places = [rng.randrange(changed.size) for _ in range(rng.choice((1, 1, 3, changed.size)))]
    if changed.dtype.kind == "f":
        with np.errstate(over="ignore"):
            changed[places] = rng.choice(NUMBERS)
    elif changed.dtype.kind in "iu":
        limits = np.iinfo(changed.dtype)
        drawn = rng.choice((-1, -2, 0, 1, 2, 7, 100, limits.min, limits.max, rng.randrange(0, limits.max)))
        changed[places] = min(max(drawn, limits.min), limits.max)
    else:
        changed[places] = rng.random() < 0.5
    return changed.reshape(array.shape)


def run_case(name: str, seeds: range, *, report: Callable[[str], None] = print) -> Counter[str]:
    """What became of the files with these seeds."""
    case, found = CASES[name], Counter[str]()
    with TemporaryDirectory() as temporary:
        sound, folder = Path(temporary) / "sound", Path(temporary) / "crafted"
        sound.mkdir()
        path = case.make(sound)
        kind, arrays, facts = entries_of(path)
        case.use(sound)
        for seed in seeds:
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(sound, folder)
            new_arrays, new_facts = dict(arrays), copy_of(facts)
            craft(new_arrays, new_facts, random.Random(f"{name} {seed}"))
            write_tensors(folder / path.relative_to(sound), kind, new_arrays, new_facts, overwrite=True)
            outcome = outcome_of(case.use, folder)
            found[outcome.split(":")[0]] += 1
            if outcome not in ("refused", "used"):
                report(f"{name}, seed {seed}: {outcome}")
    return found


def copy_of(facts: Any) -> Any:
    return {name: copy_of(fact) for name, fact in facts.items()} if isinstance(facts, dict) else facts


def outcome_of(use: Callable[[Path], None], folder: Path) -> str:
    """Refused, used, or what went wrong."""

    def too_long(signal_number: int, frame: object) -> None:
        raise TimeoutError(f"still running after {SECONDS} s")

    signal.signal(signal.SIGALRM, too_long)
    signal.alarm(SECONDS)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            use(folder)
    except BatsError:
        return "refused"
    except Exception:
        return f"escaped: {traceback.format_exc(limit=-4)}"
    finally:
        signal.alarm(0)
    return "used"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", choices=CASES)
    arguments = parser.parse_args()
    names = [arguments.kind] if arguments.kind else list(CASES)
    each, total, began = -(-arguments.count // len(names)), Counter[str](), time.perf_counter()
    for name in names:
        found = run_case(name, range(arguments.seed, arguments.seed + each))
        print(f"{name}: {dict(found)}", flush=True)
        total += found
    print(f"{sum(total.values()):,} files in {time.perf_counter() - began:.0f} s: {dict(total)}")
    return 0 if set(total) <= {"refused", "used"} else 1


if __name__ == "__main__":
    sys.exit(main())
