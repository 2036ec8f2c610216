"""Further policies and certificates of a finished run. Training and stitching are reused as they are.

Another policy network, another choice of rollouts or another setting of the graph gives another policy; another
confidence or another policy gives another certificate. The command line keeps them beside the run's first ones:

    RUN/policies/NAME.safetensors, NAME.json            a further policy
    RUN/certificates/NAME/certificate.json, …           a further certificate
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from bats.arrays import Progress, no_progress
from bats.bounds.certificate import Certificate
from bats.config import CertificateConfig, Config, FilePath, Function, checked
from bats.errors import SettingError
from bats.model.fit import load_model
from bats.policy.files import load_policy
from bats.policy.policy import Policy
from bats.runs.folder import RunFolder
from bats.runs.pipeline import certify_solved, clone_solved
from bats.runs.result import Changes, run_metric, solve_again


def cloning_settings(run: RunFolder, changes: Changes) -> Config:
    """The run's own settings to clone a graph with that was solved under these changes."""
    config = run.settings()
    # a smallest return that was set for the run's own reward says nothing of another one
    rollouts = config.rollouts if changes.reward is None else replace(config.rollouts, min_return=None)
    return replace(config, rollouts=rollouts)


def clone_again(
    run: RunFolder | Path | str,
    changes: Changes | None = None,
    *,
    config: Config | None = None,
    progress: Progress = no_progress,
) -> Policy:
    """Clones the policy of a finished run again, from its graph as it is or as it is solved under some changes.

    `config` has other settings for the rollouts and the network. The policy's card lists the changes.
    """
    run = RunFolder.of(checked("run", FilePath | RunFolder, run))
    changes = checked("changes", Changes | None, changes) or Changes()
    config, progress = checked("config", Config | None, config), checked("progress", Function, progress)
    summary, header, config = run.summary(), run.header(), config or cloning_settings(run, changes)
    support, solution = load_policy(run.policy).support, solve_again(run, changes)
    policy, _ = clone_solved(solution, run_metric(summary), config, support, header, progress)
    given = changes.given()
    card = {**policy.card, **run.log_card().names()} | ({"solved_under": given} if given else {})
    return replace(policy, card=card)


def certify_again(
    run: RunFolder | Path | str,
    settings: CertificateConfig,
    *,
    policy: Policy | None = None,
    progress: Progress = no_progress,
) -> Certificate:
    """Bounds the policy of a finished run, or another clone of the same graph, with other settings."""
    run = RunFolder.of(checked("run", FilePath | RunFolder, run))
    settings, policy = checked("settings", CertificateConfig, settings), checked("policy", Policy | None, policy)
    progress = checked("progress", Function, progress)
    summary, config = run.summary(), replace(run.settings(), certificate=settings)
    own = load_policy(run.policy)
    clone = own if policy is None else policy
    given, expected = _interface(clone), _interface(own)
    reasons = [f"its {name} {given[name]}, not {expected[name]}" for name in given if given[name] != expected[name]]
    if clone.card.get("solved_under"):
        reasons.append("its graph was solved with other settings than the run's; use `bats-rl fit --reuse` instead")
    if reasons:
        raise SettingError(f"This policy cannot be certified: {'; '.join(reasons)}.")
    clones, model = {"policy": clone}, load_model(run.model)
    return certify_solved(run, solve_again(run), clones, model, summary, config, progress)["policy"]


def _interface(policy: Policy) -> dict[str, str]:
    """What a policy takes and answers, in words."""
    bounds = ", ".join(f"{low:g} to {high:g}" for low, high in zip(policy.low, policy.high, strict=True))
    actions = f"{policy.action_count} discrete" if policy.action_count else f"continuous with bounds {bounds}"
    return {"observations have": f"{len(policy.mean)} numbers", "actions are": actions}
