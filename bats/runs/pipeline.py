"""The whole flow, as the paper has it: learn a model of the log, stitch the log together, solve it, clone its policy.

Last, the policy is bounded from below and above, and it is said whether to deploy it.

Every stage is kept in the run's folder as soon as it is done, and loaded instead of made where it is there already.
Chance comes from the seed alone, so a run that was stopped and went on ends as one that was not. What `fit` returns is
what `load_result` reads from the folder.
"""

from __future__ import annotations

import shutil
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import mkdtemp

import numpy as np

from bats.arrays import Metric, Progress, no_progress
from bats.bounds.certificate import Certified, load_certified, save_certified
from bats.bounds.certify import certified, check_rewards
from bats.bounds.choose_penalty import judged_options, options
from bats.bounds.verdict import Verdict
from bats.config import Config, preset
from bats.data.dataset import Dataset
from bats.errors import OutputError, SettingError
from bats.graph.mdp import TabularMDP, from_dataset
from bats.graph.pricing import finished_graph, penalty_in_rewards
from bats.graph.solve import Solution, logged_value, policy_iteration, start_value
from bats.metric.bisimulation import BisimulationMetric
from bats.metric.bisimulation_files import load_metric
from bats.metric.scaled import ScaledMetric
from bats.model.fit import Model, check_model, fit_dynamics, load_model, save_model
from bats.policy.cloning import clone
from bats.policy.demonstrations import Demonstrations, demonstrate
from bats.policy.files import load_policy, save_policy
from bats.policy.policy import Familiar, Policy
from bats.runs.folder import Finished, Identity, RunFolder, Timing, fingerprint
from bats.runs.solve_again import Changes, Resolved, resolve
from bats.stitching.acceptance import Learned
from bats.stitching.history import Experience
from bats.stitching.loop import stitch
from bats.stitching.phases import Stretches, in_ordinary_steps
from bats.stitching.records import Attempts, LogCard, Option, RoundRecord

DEFAULT = preset("default")


@dataclass(frozen=True, eq=False)
class Result:
    """What became of a log."""

    folder: Path
    """where all of it lies; where none was asked for, it goes when the result does"""
    log: str
    """its name"""
    config: Config
    seed: int
    model: Model
    metric: ScaledMetric
    """what errors are measured in, unless that was learned; then ordinary steps"""
    value_metric: BisimulationMetric | None
    """the learned metric that the run ended with, in units of value"""
    mdp: TabularMDP
    """with all stitches that were kept, charged for their errors"""
    solution: Solution
    policy: Policy
    """the network that was cloned from it, ready to act"""
    records: tuple[RoundRecord, ...]
    """what each round did"""
    options: tuple[Option, ...]
    """penalties and tolerances of the finished graph that were chosen between, the best first; empty: no choice"""
    logged_value: float
    """what the logged behaviour earned from the starts"""
    log_value: float
    """the best value that the log alone allows there"""
    value: float
    """and that with the stitches"""
    timings: tuple[Timing, ...]
    certificate: Certified | None
    """what both policies are worth at least and at most at the starts; None if that was not asked for"""

    @property
    def verdict(self) -> Verdict | None:
        """Whether to deploy the policy, and if not, why not; None if that was not asked for."""
        return None if self.certificate is None else self.certificate.verdict

    def save(self, folder: Path | str) -> None:
        """Keeps all of it in a folder of its own; `load_result`, `bats-rl report` and the others read it from there."""
        folder = Path(folder)
        if folder.exists():
            raise OutputError(f"{folder} exists already; choose another name.")
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            unfinished = Path(mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        except OSError as error:
            raise OutputError(f"{folder} could not be written: {error.strerror or error}.") from error
        try:
            shutil.copytree(self.folder, unfinished / "run")
            (unfinished / "run").replace(folder)
        except OSError as error:
            raise OutputError(f"{folder} could not be written: {error.strerror or error}.") from error
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)


def unheard(record: RoundRecord) -> None:
    """For those who do not want to hear of every round."""


def fit(
    dataset: Dataset,
    config: Config | str = DEFAULT,
    *,
    seed: int = 0,
    folder: Path | str | None = None,
    model: Model | None = None,
    progress: Progress = no_progress,
    on_record: Callable[[RoundRecord], None] = unheard,
) -> Result:
    """Learns a model of the log, stitches the log together with it, solves the result exactly and clones its policy.

    `config` may be the name of a preset. `folder` is made, or gone on with if it holds the same run; `on_record` hears
    of every round as it is done. A `model` that was trained before, on another machine say, is taken instead of
    training one; a folder keeps its own.
    """
    config = preset(config) if isinstance(config, str) else config
    if seed < 0:
        raise SettingError(f"`seed` must not be negative; got {seed}.")
    check_rewards(dataset, config.certificate)
    place = Path(mkdtemp(prefix="bats-") if folder is None else folder)
    run = RunFolder(place)
    try:
        with run.claimed(Identity(dataset.name, fingerprint(dataset), seed, config)):
            if not run.is_finished:
                _Fit(dataset, config, seed, run, progress).run(model, on_record)
        result = load_result(place)
    except BaseException:
        if folder is None:
            shutil.rmtree(place, ignore_errors=True)
        raise
    if folder is None:
        weakref.finalize(result, shutil.rmtree, place, ignore_errors=True)
    return result


def load_result(folder: Path | str) -> Result:
    """What a finished run came to, from its folder; `DataError` where it is none."""
    run = RunFolder(Path(folder))
    ended, identity = run.finished(), run.identity(Config)
    solved = resolve(run, Changes())
    return Result(
        folder=run.path,
        log=identity.log,
        config=identity.config,
        seed=identity.seed,
        model=load_model(run.model),
        metric=ScaledMetric(np.array(ended.metric, dtype=np.float32)),
        value_metric=None if run.last_metric is None else load_metric(run.metric(run.last_metric)),
        mdp=solved.mdp,
        solution=solved.solution,
        policy=load_policy(run.policy),
        records=run.records(RoundRecord),
        options=run.options(),
        logged_value=ended.logged_value,
        log_value=ended.log_value,
        value=ended.value,
        timings=run.timings(),
        certificate=load_certified(run.path),
    )


def clone_resolved(run: RunFolder, solved: Resolved, *, progress: Progress = no_progress) -> Policy:
    """The policy of a run that was solved again, cloned as the run's own was."""
    identity, own = run.identity(Config), load_policy(run.policy)
    metric = ScaledMetric(np.array(run.finished().metric, dtype=np.float32))
    # a least return that was set for the run's own reward says nothing of another
    config = replace(identity.config, rollouts=replace(identity.config.rollouts, threshold=None))
    shown = demonstrate(solved.mdp, solved.solution, metric, config.rollouts, seed=identity.seed)
    policy = clone(shown, config.cloning, seed=identity.seed, progress=progress)
    return replace(policy, familiar=own.familiar, card={**policy.card, **_card(identity.log, shown, config)})


@dataclass(frozen=True, eq=False)
class _Fit:
    """One run under way: the stages in their order, each kept in the folder when it is done."""

    dataset: Dataset
    config: Config
    seed: int
    run_folder: RunFolder
    progress: Progress

    def run(self, given: Model | None, on_record: Callable[[RoundRecord], None]) -> None:
        config, dataset, run = self.config, self.dataset, self.run_folder
        worth = config.stitch.dead_end_value
        run.describe_log(LogCard.of(dataset))
        metric = ScaledMetric.of(dataset, "steps" if config.metric == "bisimulation" else config.metric)
        with self.timed("training"):
            model = self.model(given)
        with self.timed("building the MDP"):
            log = from_dataset(dataset, gamma=config.gamma)
            log_value = start_value(log, policy_iteration(log, dead_end_value=worth).value)
            priced = partial(penalty_in_rewards, log, unit=config.penalty_unit, dead_end_value=worth)
            price = priced(config.penalty)
        begun = replace(log, penalty=price if config.charge == "during" else 0.0)
        stitched = self.stitched(begun, model, metric, on_record)
        penalty, tolerance = self.chosen(stitched, priced, model, metric)
        with self.timed("solving"):
            price = priced(penalty)
            mdp = finished_graph(stitched, penalty=price, tolerance=tolerance)
            solution = policy_iteration(mdp, dead_end_value=worth)
        with self.timed("cloning"):
            self.clone(mdp, solution, metric)
        if config.certificate is not None:
            with self.timed("certifying"):
                self.certify(mdp, solution, self.learned(model, metric), model)
        run.finish(
            Finished(
                rounds=run.rounds_done,
                gamma=config.gamma,
                penalty=penalty,
                penalty_unit=config.penalty_unit,
                price=price,
                tolerance=tolerance,
                dead_end_value=worth,
                logged_value=logged_value(dataset, gamma=config.gamma, dead_end_value=worth),
                log_value=log_value,
                value=start_value(mdp, solution.value),
                metric=tuple(metric.weight.tolist()),
            )
        )

    def model(self, given: Model | None) -> Model:
        """The model that is there already, the given one, or a new one."""
        run = self.run_folder
        if run.model.exists():
            run.training.unlink(missing_ok=True)  # a process may have died between saving the model and this
            return load_model(run.model)
        if given is not None:
            check_model(given, self.dataset)
        model = given or fit_dynamics(
            self.dataset, self.config.dynamics, seed=self.seed, checkpoint=run.training, progress=self.progress
        )
        save_model(model, run.model)
        run.training.unlink(missing_ok=True)
        return model

    def stitched(
        self, log: TabularMDP, model: Model, metric: ScaledMetric, on_record: Callable[[RoundRecord], None]
    ) -> TabularMDP:
        """The MDP after all rounds, those that were done before included."""
        run, config = self.run_folder, self.config
        if not run.has_mdp:
            run.save_mdp(log)

        def rounds(mdp: TabularMDP, learned: Learned, experience: Experience, last: int | None) -> TabularMDP:
            return self.rounds(mdp, learned, experience, last, on_record)

        if config.metric == "bisimulation":
            return Stretches(run, config, self.seed, partial(self.learned, model), rounds, self.progress).stitched(log)
        experience = Experience.none()
        for attempts in run.attempts(Attempts):
            experience = experience.and_then(attempts, log.real_count)
        return rounds(run.load_mdp(), self.learned(model, metric), experience, None)

    def learned(self, model: Model, metric: Metric) -> Learned:
        """What planning relies on, with a given metric."""
        return Learned.of(model, metric, self.dataset, calibrate=self.config.stitch.calibrate)

    def rounds(
        self,
        mdp: TabularMDP,
        learned: Learned,
        experience: Experience,
        last: int | None,
        on_record: Callable[[RoundRecord], None],
    ) -> TabularMDP:
        """Makes and saves the rounds that follow those that are done, up to the last, and returns the MDP then."""
        run, config = self.run_folder, self.config.stitch
        records = run.records(RoundRecord)
        rounds = stitch(
            mdp, learned, config, seed=self.seed, rounds_done=len(records), last_round=last, experience=experience
        )
        self.progress("stitching", len(records), config.rounds + config.rounds_beside)
        began = time.perf_counter()
        for done in rounds:
            mdp, records = done.mdp, (*records, done.record)
            run.add_round(done.record.round, done.stitches, vars(done.attempts), records)
            run.add_timing(Timing("stitching", done.record.round, time.perf_counter() - began))
            self.progress("stitching", done.record.round, config.rounds + config.rounds_beside)
            on_record(done.record)
            began = time.perf_counter()
        return mdp

    def chosen(
        self, stitched: TabularMDP, priced: Callable[[float], float], model: Model, metric: ScaledMetric
    ) -> tuple[float, float | None]:
        """The penalty and the tolerance to solve the graph with, chosen now or before where there is a choice."""
        run, config = self.run_folder, self.config
        if len(wanted := options(config)) == 1:
            return wanted[0]
        if not run.options():
            with self.timed("choosing"):
                learned = self.learned(model, metric)
                run.save_options(
                    judged_options(
                        stitched, priced(1.0), learned, model.held_out, config, seed=self.seed, progress=self.progress
                    )
                )
        best = run.options()[0]
        return best.penalty, best.tolerance

    def clone(self, mdp: TabularMDP, solution: Solution, metric: ScaledMetric) -> None:
        """Clones the policy and saves it, unless that was done before."""
        run, config = self.run_folder, self.config
        if run.policy.exists():
            return
        shown = demonstrate(mdp, solution, metric, config.rollouts, seed=self.seed)
        policy = clone(shown, config.cloning, seed=self.seed, progress=self.progress)
        run.save_walks(
            {name: getattr(shown, name) for name in ("start", "start_weights", "returns", "share", "kept")},
            {"cut": shown.cut, "steps": config.rollouts.steps, "by": _measure(config)},
        )
        familiar = Familiar.measured(self.dataset.observations, metric, seed=self.seed)
        save_policy(
            replace(policy, familiar=familiar, card={**policy.card, **_card(self.dataset.name, shown, config)}),
            run.policy,
        )

    def certify(self, mdp: TabularMDP, solution: Solution, learned: Learned, model: Model) -> None:
        """Says what the policy is worth at least and at most, unless that was done before."""
        run, config = self.run_folder, self.config
        if run.certificate.exists():
            return
        if config.metric == "bisimulation":
            mdp, config = in_ordinary_steps(run, mdp, learned, config)
        found = certified(
            self.dataset,
            mdp,
            solution.policy,
            load_policy(run.policy),
            learned=learned,
            held_out=model.held_out,
            config=config,
            seed=self.seed,
            progress=self.progress,
        )
        save_certified(found, run.path)

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Writes down how long a stage took."""
        began = time.perf_counter()
        yield
        self.run_folder.add_timing(Timing(stage, None, time.perf_counter() - began))


def _card(log: str, shown: Demonstrations, config: Config) -> dict[str, object]:
    """Where a policy comes from, for people."""
    return {
        "log": log,
        "walks": len(shown.kept),
        "walks_cloned": int(np.count_nonzero(shown.kept)),
        "cut": shown.cut,
        "cut_by": _measure(config),
    }


def _measure(config: Config) -> str:
    """What the cut for cloning is a cut of."""
    return "share of the best nearby" if config.rollouts.threshold is None else "return"
