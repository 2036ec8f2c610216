"""Methods x tasks x seeds from one command: the paper's Table 1 and more, BATS among them.

    FOLDER/logs/TASK.hdf5            the log of each task
    FOLDER/METHOD/TASK-SEED/         the run of each method, task and seed
    FOLDER/models/TASK/              the dynamics model that COMBO's seeds share

All seeds and all tasks of equal sizes are trained as one program. What is done is skipped, so a study that was stopped
continues, and a larger one begins with what a smaller one left. Environments measure and choose nothing: the last
policy is the result, and the best of all snapshots is shown beside it, as what picking by the environment would give.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import groupby
from multiprocessing import get_context
from pathlib import Path

from bats.arrays import Progress, no_progress
from bats.baselines.catalogue import METHODS
from bats.baselines.config import method_name
from bats.baselines.curve import learning_curve
from bats.baselines.folder import BaselineFolder, CurvePoint
from bats.baselines.runs import Run, train_runs
from bats.baselines.training import sizes_of
from bats.bounds.certificate import load_certificate
from bats.config import ModelConfig
from bats.data.dataset import Dataset
from bats.data.formats.hdf5 import write_hdf5
from bats.data.formats.load import load_dataset
from bats.errors import DataError, SettingError
from bats.evaluation.comparison import ReturnEstimate, compare
from bats.model.fit import Model, fit_model, load_model, save_model
from bats.policy.files import load_policy
from bats.report.benchmark import RunScore, as_csv, as_markdown, benchmark_page
from bats.report.html import render
from bats.report.logs import LogScore, log_tables
from bats.runs.folder import RunFolder
from bats.runs.pipeline import fit
from bats.runs.records import BATS as STITCHED
from bats.runs.records import seconds_by_stage
from bats.storage.atomic import write_text
from bats.storage.json_records import from_plain, read_json
from bats.storage.lock import locked
from bats.studies.published import PUBLISHED
from bats.studies.settings import BATS, BATS_PAPER, ComparisonConfig
from bats.tasks.catalogue import collect, find_task
from bats.tasks.locomotion import MixedCollector
from bats.tasks.maze2d import find_maze

FIGURE_MAZE, FIGURE_METHODS = "medium", ("brac-v", "combo", BATS)
"""of the paper's figure 3"""


@dataclass(frozen=True)
class StudyFolder:
    """Where a study keeps its logs, models and runs."""

    path: Path

    def log(self, task: str) -> Path:
        return self.path / "logs" / f"{task}.hdf5"

    def run(self, method: str, task: str, seed: int) -> Path:
        return self.path / method / f"{task}-{seed}"

    def model(self, task: str) -> Path:
        return self.path / "models" / task / "model.safetensors"


def run_comparison(
    folder: Path, config: ComparisonConfig, *, workers: int = 1, progress: Progress = no_progress
) -> list[str]:
    """Collects the logs, trains every run that is not finished, and evaluates every snapshot that is not evaluated.

    Returns in words which fits of BATS failed; these do not stop the others.
    """
    study, failures = StudyFolder(folder), []
    logs = {task: task_log(study, task, config, progress) for task in config.tasks}
    for method in config.methods:

        def of_method(stage: str, done: int, total: int, method: str = method) -> None:
            progress(f"{method}: {stage}", done, total)

        if method in (BATS, BATS_PAPER):
            failures += _fit_bats(study, method, logs, config, of_method)
        else:
            _train_baseline(study, method, logs, config, of_method)
            _evaluate(study, method, config, workers, of_method)
    return failures


def task_log(study: StudyFolder, task: str, config: ComparisonConfig, progress: Progress = no_progress) -> Dataset:
    """The log of a task, collected once."""
    path = study.log(task)
    with locked(path.with_suffix(".lock"), wait=True):  # several processes may share a study
        if not path.exists():
            unfinished = path.with_suffix(".unfinished")
            log = collect(task, config.rows, unfinished=unfinished, progress=progress)
            write_hdf5(log, path)
            unfinished.unlink(missing_ok=True)
    log = load_dataset(path, progress=progress)
    may_be_shorter = isinstance(find_task(task).collector, MixedCollector)  # it ends when its policy is good enough
    if config.rows is not None and not (len(log) == config.rows or (may_be_shorter and len(log) < config.rows)):
        raise SettingError(f"{path} has {len(log):,} rows and not {config.rows:,}; choose another folder.")
    return log


def _train_baseline(
    study: StudyFolder, method: str, logs: dict[str, Dataset], config: ComparisonConfig, progress: Progress
) -> None:
    takes_discrete = METHODS[method_name(config.of_baseline(method, next(iter(logs))))].discrete
    kinds = {
        task: (config.of_baseline(method, task), sizes_of(log))
        for task, log in logs.items()
        if takes_discrete or log.action_count is None
    }
    for (settings, _), tasks in groupby(sorted(kinds, key=lambda task: str(kinds[task])), key=lambda task: kinds[task]):
        needs_model = METHODS[method_name(settings)].extend is not None
        runs = []
        for task in tasks:
            log = logs[task]
            model = _shared_model(study, task, log, progress) if needs_model else None
            folders = [BaselineFolder(study.run(method, task, seed)) for seed in range(config.seeds)]
            runs += [Run(log, seed, folder, model) for seed, folder in enumerate(folders)]
        train_runs(settings, runs, progress=progress)


def _shared_model(study: StudyFolder, task: str, log: Dataset, progress: Progress) -> Model:
    path = study.model(task)
    with locked(path.with_suffix(".lock"), wait=True):
        if not path.exists():
            save_model(fit_model(log, ModelConfig(), seed=0, progress=progress), path)
    return load_model(path)


def _evaluate(study: StudyFolder, method: str, config: ComparisonConfig, workers: int, progress: Progress) -> None:
    """Evaluates the snapshots of all runs, several runs at a time."""
    jobs = [
        (study.run(method, task, seed), find_task(task).environment, config.episodes)
        for task in config.tasks
        for seed in range(config.seeds)
        if BaselineFolder(study.run(method, task, seed)).is_finished  # a method may not take the actions of a task
    ]
    if workers == 1:
        for number, job in enumerate(jobs):
            progress("evaluating", number, len(jobs))
            _curve_of(*job)
        return
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        for number, _ in enumerate(pool.map(_curve_of, *zip(*jobs, strict=True))):
            progress("evaluating", number + 1, len(jobs))


def _curve_of(path: Path, environment: str, episodes: int | None) -> None:
    learning_curve(BaselineFolder(path), environment, episodes=episodes)


def _fit_bats(
    study: StudyFolder, method: str, logs: dict[str, Dataset], config: ComparisonConfig, progress: Progress
) -> list[str]:
    """Fits and evaluates every run; returns in words which fits failed."""
    failures = []
    for task, log in logs.items():
        for seed in range(config.seeds):
            run = RunFolder(study.run(method, task, seed))
            try:
                result = fit(log, config.of_bats(method, task), seed=seed, folder=run.path, progress=progress)
            except DataError as error:
                failures.append(f"{method} on {task}, seed {seed}: {error}")
                continue
            environment, episodes = find_task(task).environment, config.episodes
            if not run.evaluation.exists():
                found = compare(result.policy, environment, run=run, episodes=episodes, progress=progress)
                found.save(run.evaluation)
            if result.summary.policy != STITCHED and not _stitched_evaluation(run).exists():
                stitched = load_policy(run.compared(STITCHED))
                found = compare(stitched, environment, episodes=episodes, progress=progress)
                found.save(_stitched_evaluation(run))
    return failures


def _stitched_evaluation(run: RunFolder) -> Path:
    """The returns of the clone of the stitched graph's policy, where the run kept another policy."""
    return run.policies / "bats-evaluation.json"


def read_scores(folder: Path, config: ComparisonConfig) -> list[RunScore]:
    """What the runs of a study earned, those that are finished and evaluated."""
    study = StudyFolder(folder)
    scores = []
    for method in config.methods:
        runs = [(task, seed) for task in config.tasks for seed in range(config.seeds)]
        if method in (BATS, BATS_PAPER):
            found = [_bats_score(study, method, task, seed) for task, seed in runs]
            # where every run kept the clone of its graph's policy, both would be the same
            if any(_keeps_another(study.run(method, task, seed)) for task, seed in runs):
                found += [_bats_score(study, method, task, seed, alone=True) for task, seed in runs]
        else:
            found = [_baseline_score(study, method, task, seed) for task, seed in runs]
        scores += [score for score in found if score is not None]
    return scores


def _keeps_another(path: Path) -> bool:
    """Whether a run is finished with a policy other than the clone of its graph's policy."""
    run = RunFolder(path)
    return run.is_finished and run.summary().policy != STITCHED


def read_logs(folder: Path, config: ComparisonConfig) -> list[LogScore]:
    """What the episodes of the logs earned, in tasks that have reference scores."""
    found = []
    for name in config.tasks:
        log, task = load_dataset(StudyFolder(folder).log(name)), find_task(name)
        if task.score is not None:
            found.append(LogScore(name, len(log), float(task.score(log.episode_returns).mean())))
    return found


def _baseline_score(study: StudyFolder, method: str, task: str, seed: int) -> RunScore | None:
    run = BaselineFolder(study.run(method, task, seed))
    if not run.is_finished:
        return None
    end, points = run.finished(), run.curve()
    curve = tuple((point.update, *_score_of(point)) for point in points)
    # without a point, training has diverged before the first snapshot: that is shown, too
    last, low, high = curve[-1][1:] if curve else (None, None, None)
    picked_update, picked, *_ = max(curve, key=lambda point: point[1], default=(None, None))
    return RunScore(
        method=method,
        task=task,
        seed=seed,
        updates=end.updates,
        last=last,
        low=low,
        high=high,
        picked=picked,
        picked_update=picked_update,
        episodes=points[-1].episodes if points else 0,
        seconds=sum(seconds_by_stage(run.timings()).values()),
        together=end.together,
        divergence=end.divergence,
        curve=curve,
    )


def _bats_score(study: StudyFolder, method: str, task: str, seed: int, *, alone: bool = False) -> RunScore | None:
    """Of a run's policy or, `alone`, of the clone of its graph's policy. It has no snapshots, so nothing is picked."""
    run = RunFolder(study.run(method, task, seed))
    if not run.evaluation.exists():
        return None
    file, certificate = run.evaluation, run.path
    if alone and _keeps_another(run.path):
        file, certificate = _stitched_evaluation(run), run.certificates / STITCHED
    if not file.exists():  # a study that was stopped in between
        return None
    estimate = from_plain(ReturnEstimate, read_json(file)["cloned"], file=str(file))
    last, low, high = _score_of(estimate)
    return RunScore(
        method=f"{method} alone" if alone else method,
        task=task,
        seed=seed,
        updates=run.settings().cloning.updates,
        last=last,
        low=low,
        high=high,
        picked=None,
        picked_update=None,
        episodes=estimate.episodes,
        seconds=sum(seconds_by_stage(run.timings()).values()),
        together=1,
        divergence="",
        certificate=load_certificate(certificate),
    )


def _score_of(estimate: ReturnEstimate | CurvePoint) -> tuple[float, float, float]:
    """The score with its interval; the mean return where there is no score."""
    if estimate.score is None or estimate.score_low is None or estimate.score_high is None:
        return estimate.mean_return, estimate.low, estimate.high
    return estimate.score, estimate.score_low, estimate.score_high


def write_trajectories(folder: Path, config: ComparisonConfig) -> Path | None:
    """Draws the paper's figure 3, with those of its methods that have a policy; None without any of them."""
    from bats.studies.drawing import save_figure  # with matplotlib, which other studies do without
    from bats.studies.maze_figure import draw_trajectories, far_starts, record_trajectories

    study, maze = StudyFolder(folder), find_maze(FIGURE_MAZE)
    files = {method: study.run(method, maze.task, 0) / "policy.safetensors" for method in FIGURE_METHODS}
    drawn = {name: file for name, file in files.items() if name in config.methods and file.exists()}
    if maze.task not in config.tasks or not drawn:
        return None
    starts, target = far_starts(maze), folder / "trajectories.svg"
    paths = {name: record_trajectories(load_policy(file), maze, starts) for name, file in drawn.items()}
    save_figure(draw_trajectories(paths, maze), target)
    return target


def write_results(
    folder: Path, title: str, scores: Sequence[RunScore], logs: Sequence[LogScore] = ()
) -> tuple[Path, ...]:
    """Writes the comparison as Markdown, CSV and a page; with `logs`, also log by log."""
    tables = log_tables(logs, scores) if logs else ()
    texts = {
        "results.md": as_markdown(scores, PUBLISHED, tables),
        "results.csv": as_csv(scores),
        "results.html": render(benchmark_page(title, scores, PUBLISHED, tables)),
    }
    for name, text in texts.items():
        write_text(folder / name, text)
    return tuple(folder / name for name in texts)
