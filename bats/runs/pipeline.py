"""The whole flow: log -> tabular MDP -> stitch with a learned model -> solve exactly -> clone -> improve -> certify.

Every stage is saved in the run's folder as soon as it is done, and loaded instead of made where it is there already.
All randomness comes from the seed, so a run that was interrupted and continued ends as one that was not. Stages hand
their results on, and nothing is read back in the process that wrote it; what `fit` returns equals what `load_result`
reads from the folder.
"""

from __future__ import annotations

import shutil
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from tempfile import mkdtemp

import numpy as np

from bats.arrays import Metric, Progress, no_progress
from bats.bounds.certificate import Certificate, Option, load_certificate, save_certificate
from bats.bounds.certify import certify
from bats.bounds.choose_penalty import rank_options
from bats.config import READ_LOG, Config, FilePath, Function, Seed, checked
from bats.data.dataset import Dataset
from bats.graph.mdp import TabularMDP, from_dataset
from bats.graph.relabel import final_graph, stitch_errors, value_of_a_step, with_errors
from bats.graph.solve import (
    Solution,
    logged_value,
    policy_iteration,
    reward_limits,
    value_of_dead_ends,
)
from bats.improvement.improve import improve
from bats.metric.bisimulation import BisimulationMetric, load_metric, save_metric
from bats.metric.scaled import ScaledMetric
from bats.model.fit import Model, check_model, fit_model, load_model, save_model
from bats.planning.context import PlanningContext
from bats.policy.cloning import clone
from bats.policy.demonstrations import Selection, demonstrate
from bats.policy.files import load_policy, save_policy
from bats.policy.policy import Policy
from bats.policy.support import Support
from bats.presets import preset
from bats.runs.folder import RunFolder
from bats.runs.interrupts import noted_interrupts, stoppable
from bats.runs.policy_selection import clone_log, policies_to_compare, select_policy
from bats.runs.records import BATS, CLONED_SHARES, IMPROVED, Header, Summary, Timing
from bats.runs.result import Result, load_result, run_metric, value_of_log
from bats.runs.reuse import check_reuse, history_with_reused, reused_graph, reused_model
from bats.stitching.loop import Round, stitch
from bats.stitching.metric_refresh import Finished, Refresh, remeasured_errors, stitch_with_refresh
from bats.stitching.records import RoundRecord
from bats.storage.atomic import output_errors
from bats.streams import Stream, generator

OnRound = Callable[[RoundRecord], None]
OR_PRESET = "It may also be the name of a preset, such as 'default'."
Stitched = tuple[TabularMDP, tuple[RoundRecord, ...], BisimulationMetric | None]


def fit(
    dataset: Dataset,
    config: Config | str = "default",
    *,
    seed: int = 0,
    folder: Path | str | None = None,
    model: Model | None = None,
    reuse: Path | str | None = None,
    progress: Progress = no_progress,
    on_round: OnRound = lambda record: None,
) -> Result:
    """Learns a model of the log, stitches the log with it, solves the result exactly, clones, improves and certifies
    its policy.

    `config` may be the name of a preset. `folder` is made, or continued if it holds the same run. A `model` that was
    trained before, on another machine say, is taken instead of training one. `reuse` is the folder of a finished run of
    the same log, perhaps with other rewards: its model is taken, and stitching continues from its graph. `on_round`
    gets the record of every round.
    """
    dataset = checked("dataset", Dataset, dataset, READ_LOG)
    config = preset(config) if isinstance(config, str) else checked("config", Config, config, OR_PRESET)
    seed, model = checked("seed", Seed, seed), checked("model", Model | None, model)
    folder, reuse = checked("folder", FilePath | None, folder), checked("reuse", FilePath | None, reuse)
    progress, on_round = checked("progress", Function, progress), checked("on_round", Function, on_round)
    check_settings(dataset, config)
    header, reused = Header.of(dataset, seed, reuse), None if reuse is None else RunFolder(reuse)
    if reused is not None:
        check_reuse(reused, header, config)
    run = RunFolder(mkdtemp(prefix="bats-") if folder is None else folder)
    with ExitStack() as on_error:
        if folder is None:
            on_error.callback(shutil.rmtree, run.path, ignore_errors=True)
        with noted_interrupts(), run.claimed(header, config):
            if run.is_finished:
                return load_result(run.path)
            run.describe_log(dataset)
            metric, progress = ScaledMetric.of(dataset, config.metric), stoppable(progress)
            job = Job(run, header, dataset, config, metric, reused, progress)
            model = trained(job, model)
            log = solved_log(job)
            mdp, records, value_metric = stitched(job, log, model, on_round)
            options = chosen(job, log, mdp, model)
            solution = final_solution(job, log, mdp, options[0])
            policies = cloned(job, log, solution, model)
            summary = summarized(job, log, solution, options[0])
            certificates = certified(job, solution, policies, model, summary)
            name = select_policy(certificates) if certificates else BATS
            policy, certificate, summary = policies[name], certificates.get(name), replace(summary, policy=name)
            run.keep(policy, certificate)
            run.finish(summary)
        result = Result(
            folder=run.path,
            log=dataset.name,
            config=config,
            seed=seed,
            model=model,
            metric=job.metric,
            value_metric=value_metric,
            solution=solution,
            policy=policy,
            records=records,
            options=run.options(),
            summary=summary,
            timings=run.timings(),
            certificate=certificate,
        )
        on_error.pop_all()
    if folder is None:
        weakref.finalize(result, shutil.rmtree, run.path, ignore_errors=True)
    return result


@dataclass(frozen=True, eq=False)
class Job:
    """What every stage of a fit needs."""

    run: RunFolder
    header: Header
    dataset: Dataset
    config: Config
    metric: ScaledMetric
    reused: RunFolder | None
    """a finished run whose model and graph it begins with"""
    progress: Progress

    @property
    def seed(self) -> int:
        return self.header.seed


def check_settings(dataset: Dataset, config: Config) -> None:
    """Refuses settings that do not fit the log, before any work."""
    if config.certificate is not None:
        reward_limits(dataset.rewards, config.certificate.reward_range)


def trained(job: Job, given: Model | None) -> Model:
    """The saved model, the given one, or a new one."""
    run, dataset = job.run, job.dataset
    with run.timed("training"):
        if run.model.exists():
            model = load_model(run.model)
        else:
            if given is not None:
                check_model(given, dataset)
                model = given
            elif job.reused is not None:
                model = reused_model(job.reused, dataset, job.header, progress=job.progress)
            else:
                settings, seed, checkpoint = job.config.model, job.seed, run.training
                model = fit_model(dataset, settings, seed=seed, checkpoint=checkpoint, progress=job.progress)
            save_model(model, run.model)
    with output_errors(run.training, "removed"):
        run.training.unlink(missing_ok=True)  # also where a process died after saving the model
    return model


def solved_log(job: Job) -> Solution:
    """The MDP of the log alone, solved once: its values say what a step of delay costs."""
    with job.run.timed("building the MDP"):
        mdp = from_dataset(job.dataset, gamma=job.config.gamma)
        return policy_iteration(mdp, dead_end_value=job.config.stitch.dead_end_value)


def own_penalty(config: Config) -> float:
    """The penalty setting, in steps or in reward."""
    return config.penalty_steps if config.penalty is None else config.penalty


def penalty_unit(config: Config, log: Solution) -> float:
    """What the penalty setting is multiplied by to be in reward."""
    return value_of_a_step(log.mdp, log.value) if config.penalty is None else 1.0


def stitched(job: Job, log: Solution, model: Model, on_round: OnRound) -> Stitched:
    """The MDP and the records after all rounds, those that were saved before included, and the last learned metric."""
    run, config = job.run, job.config
    if run.has_base:
        mdp = run.load_graph()
    else:
        penalty = own_penalty(config) * penalty_unit(config, log) if config.penalize_rounds else 0.0
        mdp = replace(log.mdp, penalty=penalty)
        if job.reused is not None:
            mdp = reused_graph(mdp, job.reused, model, job.header, config)
        run.save_base(mdp)
    records, learned = run.records(), None

    def context_of(metric: Metric) -> PlanningContext:
        local_error, progress = config.stitch.local_error, job.progress
        return PlanningContext.of(model, metric, log.mdp, local_error=local_error, progress=progress)

    total = config.stitch.rounds + config.stitch.recovery_rounds
    events: Iterator[Round | Refresh | Finished]
    if config.metric == "bisimulation":
        if (number := run.last_metric) is not None:
            learned = Refresh(number, load_metric(run.metric(number)))
        events = stitch_with_refresh(
            replace(log.mdp, penalty=mdp.penalty),
            context_of,
            config,
            seed=job.seed,
            step_value=value_of_a_step(log.mdp, log.value),
            saved_rounds=list(zip(run.stitches(), run.attempts(), strict=True)),
            saved_metric=learned,
            progress=job.progress,
        )
    else:
        history, rounds = history_with_reused(mdp, run.attempts()), range(len(records) + 1, total + 1)
        events = stitch(mdp, context_of(job.metric), config.stitch, seed=job.seed, history=history, rounds=rounds)

    job.progress("stitching", len(records), total)
    began = time.perf_counter()
    for event in events:
        if isinstance(event, Round):
            mdp, records = event.solution.mdp, (*records, event.record)
            run.add_round(event.record.round, event.stitches, event.attempts, records)
            run.add_timing(Timing("stitching", event.record.round, time.perf_counter() - began))
            job.progress("stitching", event.record.round, total)
            on_round(event.record)
        elif isinstance(event, Refresh):
            learned = event
            save_metric(event.metric, run.metric(event.rounds))
            run.add_timing(Timing("learning the metric", event.rounds, time.perf_counter() - began))
        else:
            mdp = event.mdp
            run.save_errors(event.error)
        began = time.perf_counter()
    return mdp, records, None if learned is None else learned.metric


def chosen(job: Job, log: Solution, mdp: TabularMDP, model: Model) -> tuple[Option, ...]:
    """Penalties and tolerances for the finished graph; where there are several, the best lower bound comes first."""
    run, config = job.run, job.config
    penalties = dict.fromkeys((own_penalty(config), *config.choice.penalties))
    tolerances = dict.fromkeys((config.kept_tolerance, *config.choice.tolerances))
    options = tuple(Option(penalty, tolerance) for penalty, tolerance in product(penalties, tolerances))
    if len(options) == 1:
        return options
    if saved := run.options():
        return saved

    context = PlanningContext.of(model, job.metric, log.mdp, local_error=config.stitch.local_error)
    unit = penalty_unit(config, log)
    with run.timed("choosing"):
        ranked = rank_options(mdp, options, context, config, penalty_unit=unit, seed=job.seed, progress=job.progress)
        run.save_options(ranked)
    return ranked


def final_solution(job: Job, log: Solution, mdp: TabularMDP, option: Option) -> Solution:
    """The finished graph, solved exactly."""
    with job.run.timed("solving"):
        penalty = option.penalty * penalty_unit(job.config, log)
        mdp = final_graph(mdp, penalty=penalty, tolerance=option.tolerance)
        return policy_iteration(mdp, dead_end_value=job.config.stitch.dead_end_value)


def cloned(job: Job, log: Solution, solution: Solution, model: Model) -> dict[str, Policy]:
    """The clone of the graph's policy and, where bounds can compare them, the same improved in the model and clones of
    the log; saved ones are loaded."""
    run, config, progress, policies = job.run, job.config, job.progress, {}
    support = Support.of(job.dataset.observations, job.metric.weight, generator(job.seed, Stream.SUPPORT_SAMPLE))
    for name in policies_to_compare(job.dataset, config):
        file = run.compared(name)
        if file.exists():
            policies[name] = load_policy(file)
            continue
        with run.timed("improving" if name == IMPROVED else "cloning"):
            if name == BATS:
                policy, selection = clone_solved(solution, job.metric, config, support, job.header, progress)
                run.save_selection(selection)
            elif name == IMPROVED:
                policy = improved(job, log, solution, policies[BATS], model)
            else:
                share = CLONED_SHARES[name]
                policy = clone_log(job.dataset, share, config.cloning, support, seed=job.seed, progress=progress)
            policies[name] = replace(policy, card={**policy.card, **run.log_card().names()})
            save_policy(policies[name], file)
    return policies


def improved(job: Job, log: Solution, solution: Solution, policy: Policy, model: Model) -> Policy:
    """The clone of the graph's policy, improved in the model."""
    return improve(
        policy,
        solution,
        model.dynamics,
        job.dataset.rewards,
        job.config.improvement,
        step_value=value_of_a_step(log.mdp, log.value),
        seed=job.seed,
        progress=job.progress,
    )


def clone_solved(
    solution: Solution, metric: Metric, config: Config, support: Support | None, header: Header, progress: Progress
) -> tuple[Policy, Selection]:
    """Clones the policy of a solved graph; also returns which of its rollouts were cloned."""
    demonstrations, selection = demonstrate(solution, metric, config.rollouts, seed=header.seed)
    policy = clone(demonstrations, config.cloning, seed=header.seed, progress=progress)
    card = {
        "log": header.log,
        "rollouts": len(selection.kept),
        "rollouts_cloned": int(np.count_nonzero(selection.kept)),
        "threshold": selection.threshold,
        "threshold_measure": selection.measure,
    }
    return replace(policy, support=support, card={**policy.card, **card}), selection


def summarized(job: Job, log: Solution, solution: Solution, option: Option) -> Summary:
    """How the run ended."""
    config, given = job.config, job.config.stitch.dead_end_value
    dead_end_value = value_of_dead_ends(log.mdp, given)
    # the value of the log is linear in the value of dead ends, and the certificate needs it with another one
    without, with_one = (logged_value(job.dataset, gamma=config.gamma, dead_end_value=end) for end in (0.0, 1.0))
    return Summary(
        rounds=job.run.rounds_done,
        gamma=config.gamma,
        penalty=solution.mdp.penalty,
        penalty_steps=option.penalty if config.penalty is None else None,
        tolerance=option.tolerance,
        dead_end_value=given,
        logged_value=without + (with_one - without) * dead_end_value,
        logged_dead_end_weight=with_one - without,
        log_value=log.start_value,
        value=solution.start_value,
        metric=tuple(job.metric.weight.tolist()),
        policy=BATS,
    )


def certified(
    job: Job, solution: Solution, policies: Mapping[str, Policy], model: Model, summary: Summary
) -> dict[str, Certificate]:
    """The certificates of the policies, the saved ones or new ones; none where the settings have none."""
    run, config = job.run, job.config
    if config.certificate is None:
        return {}
    saved = {name: load_certificate(run.certificates / name) for name in policies}
    found = {name: certificate for name, certificate in saved.items() if certificate is not None}
    if len(found) < len(saved):
        with run.timed("certifying"):
            found = certify_solved(run, solution, policies, model, summary, config, job.progress)
            for name, certificate in found.items():
                save_certificate(certificate, run.certificates / name)
    return found


def certify_solved(
    run: RunFolder,
    solution: Solution,
    policies: Mapping[str, Policy],
    model: Model,
    summary: Summary,
    config: Config,
    progress: Progress,
) -> dict[str, Certificate]:
    """Bounds on the graph's policy and on clones. Errors are measured in the run's metric, or ordinary steps."""
    mdp = solution.mdp
    context = PlanningContext.of(model, run_metric(summary), mdp, local_error=config.stitch.local_error)
    if config.metric == "bisimulation":
        # stitches were accepted by a tolerance of the learned metric, which says nothing of errors in ordinary steps;
        # there the tolerance is the largest error of a stitch that was kept, or just above it: errors must stay below
        kept, error = np.isfinite(stitch_errors(mdp)), remeasured_errors(context, mdp.states, run.stitches())
        solution = replace(solution, mdp=with_errors(mdp, error, penalty=mdp.penalty))
        if kept.any():
            tolerance = float(np.nextafter(error[kept].max(), np.inf))
            config = replace(config, stitch=replace(config.stitch, tolerance=tolerance))
    logged = value_of_log(summary, mdp, config.certificate)
    return certify(solution, policies, context, config, logged_value=logged, seed=run.header().seed, progress=progress)
