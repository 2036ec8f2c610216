"""The paper's mountain car [section 5]: what stitching earns there, how true its walks are, what its values are worth.

One log, random actions and five episodes of an expert, and several configurations to fit it with. The first one is the
study's own: it is fitted with every seed and its policies are played. The others are fitted once, and their values and
walks are set beside the first one's. The true car judges; it chooses nothing.

A run that was stopped goes on: every fit has a folder of its own, and every plain clone a file.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int

from bats.arrays import Progress, no_progress
from bats.config import Config, preset
from bats.data.dataset import Dataset
from bats.errors import OutputError, SettingError
from bats.evaluation.episodes import Actor, evaluate
from bats.graph.solve import policy_value, start_value
from bats.model.fit import Model
from bats.policy.cloning import CloningConfig, clone
from bats.policy.demonstrations import logged_rows
from bats.policy.files import load_policy, save_policy
from bats.policy.policy import Policy
from bats.runs.folder import fingerprint
from bats.runs.pipeline import Result, fit
from bats.storage.atomic import atomic_path
from bats.studies.car_findings import Distances, Findings, LowerBound, VariantFindings
from bats.studies.car_tracks import Track, distances, follow, hopeless_rows, logged_path, states_of_rows
from bats.studies.car_values import ValueErrors, lower_bound, states_on_walks, value_errors
from bats.tasks.mountain_car import ENVIRONMENT, collect_mountain_car, expert_action

STUDY = "study.json"
"""marks a folder as a study's"""
CELLS = (90, 70)
"""across positions and velocities, where the lower bound is shown"""
LOG_SHOWN = 4000
"""states of the log that are drawn"""


@dataclass(frozen=True)
class Variant:
    """A configuration that the log is fitted with."""

    name: str
    """letters and underscores, for files and figures"""
    label: str
    """for people"""
    config: Config


def car_config(config: Config) -> Config:
    """A configuration with networks as small as the paper's for this task [appendix D.1].

    A state has two numbers here, and a few thousand of them are cloned: networks of the usual size know no more
    afterwards and take four times as long.
    """
    return replace(
        config,
        dynamics=replace(config.dynamics, hidden=(64, 64, 64)),
        cloning=replace(config.cloning, hidden=(256, 256), updates=5_000),
    )


def _raw(config: Config) -> Config:
    """The paper's distance, that of the plain numbers; a tolerance of 0.1 is its authors'."""
    return replace(config, metric="raw", stitch=replace(config.stitch, tolerance=0.1))


VARIANTS = (
    Variant("steps", "Euclidean, in ordinary steps", car_config(preset("default"))),
    Variant("raw", "Euclidean, raw numbers", _raw(car_config(preset("default")))),
    Variant("bisimulation", "bisimulation, learned", car_config(preset("bisimulation"))),
)


@dataclass(frozen=True)
class StudyConfig:
    """What is fitted and how much is measured."""

    variants: tuple[Variant, ...] = VARIANTS
    """the first one is fitted with every seed, the others with seed 0"""
    seeds: int = 5
    episodes: int = 100
    """played by each policy"""
    rows: int | None = None
    """of the log; None: the task's usual number"""
    log_seed: int = 0
    value_states: int = 200
    """states whose values are checked"""
    walks: int = 200
    """logged states whose walks are replayed"""

    def __post_init__(self) -> None:
        for name in ("seeds", "episodes", "value_states", "walks"):
            if getattr(self, name) < 1:
                raise SettingError(f"`{name}` must be at least 1; got {getattr(self, name)}.")
        if not self.variants:
            raise SettingError("A study takes at least one variant; got none.")


DEFAULT = StudyConfig()
"""the study as `bats-rl benchmark` runs it, but for the numbers that are given there"""


class Expert:
    """Who drove the log's last episodes."""

    def predict(self, observation: np.ndarray, /) -> np.ndarray:
        return np.stack([expert_action(row) for row in observation])


def run_study(out: Path, config: StudyConfig = DEFAULT, *, progress: Progress = no_progress) -> Findings:
    """Fits, plays and measures; `out` holds the runs, and may hold those of a study that was stopped."""
    log = collect_mountain_car(config.rows, config.log_seed, progress=progress)
    _claim(out, log)
    steps = _Steps(progress, total=2 * config.seeds + 2 * len(config.variants) - 1)
    returns: dict[str, list[Float[np.ndarray, "episodes"]]] = {"expert": [], "plain": [], "bats": []}
    fitted: list[Result] = []
    for seed in range(config.seeds):
        steps.now(f"seed {seed}: fitting")
        result = _fitted(out, log, config.variants[0], seed, None, progress)
        steps.now(f"seed {seed}: cloning the whole log")
        plain = _plain_clone(out, log, config.variants[0].config.cloning, seed, progress)
        actors: dict[str, Actor] = {"expert": Expert(), "plain": plain, "bats": result.policy}
        for who, actor in actors.items():
            returns[who].append(evaluate(actor, ENVIRONMENT, episodes=config.episodes, seed=seed).returns)
        fitted = fitted or [result]
    for variant in config.variants[1:]:
        steps.now(f"{variant.name}: fitting")
        alike = variant.config.dynamics == config.variants[0].config.dynamics
        fitted.append(_fitted(out, log, variant, 0, fitted[0].model if alike else None, progress))
    found = []
    for variant, result in zip(config.variants, fitted, strict=True):
        steps.now(f"{variant.name}: playing walks and values")
        found.append(_judged(variant, result, log, config, progress))
    steps.done()
    row, shown = first_arrival(fitted[0], log)
    drawn = np.random.default_rng(0).choice(len(log), min(LOG_SHOWN, len(log)), replace=False)
    return Findings(
        settings=_settings(log, config),
        returns={who: np.stack(earned) for who, earned in returns.items()},
        variants=tuple(found),
        logged=log.observations[drawn],
        original=logged_path(log, row),
        shown=shown,
        bound=_bound(fitted[0], log, found[0].errors, _called("lower bound", progress)),
    )


def first_arrival(result: Result, log: Dataset) -> tuple[int, Track]:
    """Of the logged episodes that never reach the goal, the first whose beginning the graph knows a way to it from.

    Its first row, and the graph's walk from there; where there is none, the first of all.
    """
    rows = np.intersect1d(hopeless_rows(log), np.flatnonzero(np.append(True, log.episode_ends[:-1])))
    if len(rows) == 0:
        raise SettingError("Every episode of the log reaches the goal; the study needs one that does not.")
    tracks = follow(result, states_of_rows(log, rows))
    chosen = next((number for number, track in enumerate(tracks) if track.arrives), 0)
    return int(rows[chosen]), tracks[chosen]


def _claim(out: Path, log: Dataset) -> None:
    """Marks the folder, or refuses one that holds something else."""
    mark = {"study": "mountain-car", "log": fingerprint(log)}
    if (out / STUDY).exists():
        try:
            found = json.loads((out / STUDY).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            found = None
        if found != mark:
            raise OutputError(f"{out} holds another study; choose another folder.")
        return
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise OutputError(f"{out} is there already and holds no study; choose another folder.")
    with atomic_path(out / STUDY) as temporary:
        temporary.write_text(json.dumps(mark) + "\n", encoding="utf-8")


def _fitted(out: Path, log: Dataset, variant: Variant, seed: int, model: Model | None, progress: Progress) -> Result:
    told, folder = _called(f"{variant.name}, seed {seed}", progress), out / f"{variant.name}-{seed}"
    return fit(log, variant.config, seed=seed, folder=folder, model=model, progress=told)


def _plain_clone(out: Path, log: Dataset, config: CloningConfig, seed: int, progress: Progress) -> Policy:
    """A clone of the whole log, whole episodes held back; one that was made before is taken from its file."""
    path = out / f"plain-{seed}.safetensors"
    wanted = {"cloning": json.loads(json.dumps(asdict(config))), "seed": seed, "rows": len(log)}
    if path.exists():
        policy = load_policy(path)
        if {name: policy.card.get(name) for name in wanted} != wanted:
            raise OutputError(f"{path} was cloned under other settings; choose another folder.")
        return policy
    told = _called(f"whole log, seed {seed}", progress)
    episode = np.cumsum(log.episode_ends) - log.episode_ends
    policy = clone(logged_rows(log, np.arange(len(log)), episode), config, seed=seed, progress=told)
    save_policy(policy, path)
    return policy


def _judged(variant: Variant, result: Result, log: Dataset, config: StudyConfig, progress: Progress) -> VariantFindings:
    """Walks from states of hopeless episodes, and values of states on the policy's walks."""
    states, told = states_on_walks(result, config.value_states, seed=0), _called(f"{variant.name}, values", progress)
    errors = value_errors(result, states, progress=told)
    told = _called(f"{variant.name}, walks", progress)
    tracks = follow(result, _hopeless_states(log, config.walks), progress=told)
    arriving = [track for track in tracks if track.arrives]
    raw, metric = distances(arriving), distances(arriving, result.metric)
    return VariantFindings(
        name=variant.name,
        label=variant.label,
        errors=errors,
        walks=len(tracks),
        arrive=len(arriving) / max(len(tracks), 1),
        replays_arrive=sum(track.replay_arrives for track in arriving) / max(len(arriving), 1),
        replays_on_time=sum(track.on_time for track in arriving) / max(len(arriving), 1),
        raw=Distances(**raw),
        metric=Distances(**metric),
    )


def _hopeless_states(log: Dataset, count: int) -> Int[np.ndarray, "n"]:
    rows = hopeless_rows(log)
    drawn = np.random.default_rng([0, 12]).choice(rows, min(count, len(rows)), replace=False)
    return np.unique(states_of_rows(log, np.sort(drawn)))


def _bound(result: Result, log: Dataset, errors: ValueErrors, progress: Progress) -> LowerBound:
    """The lower bound of the graph's policy in cells of position and velocity."""
    (bounds, factors), mdp = lower_bound(result, log, progress=progress), result.mdp
    promised = policy_value(replace(mdp, penalty=0.0), bounds.policy, dead_end_value=bounds.floor)
    alive = np.flatnonzero(~mdp.only_ended_in[: mdp.real_count])  # whoever is over is worth nothing any more
    states, lower = mdp.states[alive].astype(np.float64), bounds.lower[alive]
    least, most = states.min(axis=0), states.max(axis=0)
    size = np.maximum(most - least, 1e-9) / CELLS
    place = np.minimum((states - least) / size, np.array(CELLS) - 1).astype(np.int64)
    cell, member = np.unique(place[:, 0] * CELLS[1] + place[:, 1], return_inverse=True)
    mean = np.bincount(member, weights=lower) / np.bincount(member)
    corner = least + np.stack([cell // CELLS[1], cell % CELLS[1]], axis=1) * size
    return LowerBound(
        corners=corner,
        size=(float(size[0]), float(size[1])),
        values=mean,
        start_lower=bounds.start_lower,
        start_value=start_value(mdp, promised),
        start_upper=bounds.start_upper,
        holds=float(np.mean(bounds.lower[errors.number] <= errors.actions)),
        factor=factors.value,
    )


def _settings(log: Dataset, config: StudyConfig) -> dict[str, object]:
    return {
        "log_rows": len(log),
        "log_seed": config.log_seed,
        "seeds": config.seeds,
        "episodes": config.episodes,
        "gamma": config.variants[0].config.gamma,
        "variants": {variant.name: asdict(variant.config) for variant in config.variants},
    }


def _called(name: str, progress: Progress) -> Progress:
    """A reporter whose stages carry a name of their own: the time left is told for each."""

    def told(stage: str, done: int, total: int) -> None:
        progress(f"{name}: {stage}", done, total)

    return told


class _Steps:
    """Tells how many parts of the study are done."""

    def __init__(self, progress: Progress, *, total: int) -> None:
        self._report, self._total, self._begun = progress, total, 0

    def now(self, what: str) -> None:
        self._report(f"study ({what})", self._begun, self._total)
        self._begun += 1

    def done(self) -> None:
        self._report("study (done)", self._total, self._total)
