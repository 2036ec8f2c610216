"""Whether certificates hold: the share of starts whose true value lies within the certified bounds.

    python -m benchmarks.certificate_coverage RUN ...                   folders of finished runs of known tasks

The true value of a start is a discounted return in the task's environment, put into exactly that state, over 1,400
steps and without a time limit. There are two for each start:

    graph       of the actions of the graph's rollout, open loop; where the rollout ends before the task does, its last
                action is repeated
    clone       of the cloned policy

Some environments cannot be put into a state. There the policy plays from their own starts, with the bounds of the
graph's nearest ones, and nothing is said of the graph.

The promise is the mean value of the starts in the graph. It is kept where it is not above the policy's true value by
more than the width of the bounds. The task of a run is that which its log is named after.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import gymnasium
import numpy as np
from jaxtyping import Float, Int

from bats.arrays import TabularPolicy
from bats.errors import SettingError
from bats.evaluation.comparison import nearest_starts
from bats.graph.kernels import NO_EDGE
from bats.graph.mdp import TabularMDP
from bats.graph.rollouts import roll_out
from bats.runs.result import Result, load_result
from bats.studies.car_values import discounted_return
from bats.tasks import find_task, task_of_log
from bats.tasks.catalogue import Task
from bats.tasks.episodes import ChooseActions, Episode, open_loop, play
from benchmarks.common import print_figures, script_parser

STEPS = 1400
"""after these, discounts of 0.99 are below a millionth"""
STARTS = 200
"""starts of a run that are played from, if it has that many"""
ROUNDING = 1e-6
"""of a value, as a share of the range of all values"""


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN")
    parser.add_argument("--task", help="task to simulate, where the names of the logs do not say it")
    parser.add_argument("--seed", type=int, default=0, help="of the starts (default: 0)")
    arguments = parser.parse_args()
    for folder in arguments.runs:
        result = load_result(folder)
        task = task_of_log(result.log) if arguments.task is None else find_task(arguments.task)
        if task is None:
            raise SettingError(f"The name of the log of {folder}, {result.log}, is not that of a task: give --task.")
        name = folder.resolve().name.replace("-", "_")
        print_figures(coverage(result, task.name, seed=arguments.seed), prefix=f"coverage_{name}_")


def coverage(result: Result, task: str, *, seed: int) -> Iterator[tuple[str, float, str]]:
    """Figures of both policies: how many true values lie within the bounds, below and above them."""
    certificate, mdp, of_task = result.certificate, result.mdp, find_task(task)
    if certificate is None:
        raise SettingError(f"{result.folder} has no certificate; `bats-rl certify {result.folder}` makes one.")
    at_starts, possible = certificate.at_starts, certificate.ceiling - certificate.floor

    def act(observations: np.ndarray, episodes: Sequence[int], step: int) -> np.ndarray:
        return result.policy.predict(observations)

    episodes: dict[str, list[Episode]] = {}
    if of_task.takes_states or of_task.set_state is not None:
        # playing is slow in pure Python, and 200 starts tell a share of 95% from one of 90%
        sample = np.random.default_rng([seed, 12]).permutation(len(at_starts.starts))[:STARTS]
        starts = at_starts.starts[sample]
        actions = graph_actions(mdp, result.solution.policy, starts)
        episodes["graph"] = play_from(of_task, mdp.states[starts], open_loop(actions))
        episodes["clone"] = play_from(of_task, mdp.states[starts], act)
    else:
        episodes["clone"] = play_from(of_task, None, act)
        observed = np.stack([episode.observations[0] for episode in episodes["clone"]])
        starts = nearest_starts(mdp, observed, result.metric)
        sample = np.searchsorted(at_starts.starts, starts)
        assert (at_starts.starts[sample] == starts).all()
    for policy, played in episodes.items():
        values = np.array([discounted_return(episode.rewards, mdp.gamma) for episode in played])
        lower, upper = (getattr(at_starts, f"{policy}_{end}")[sample] for end in ("lower", "upper"))
        below, above = values < lower - ROUNDING * possible, values > upper + ROUNDING * possible
        yield f"{policy}_covered", float(np.mean(~below & ~above)), "share"
        yield f"{policy}_below", float(np.mean(below)), "share"
        yield f"{policy}_above", float(np.mean(above)), "share"
        yield f"{policy}_width", float(np.mean(upper - lower) / possible), "share"
        yield f"{policy}_lower", float(lower.mean()), "value"
        yield f"{policy}_true", float(values.mean()), "value"
        yield f"{policy}_upper", float(upper.mean()), "value"
        if policy == "clone":
            promised = result.solution.value[starts]
            yield "promised", float(promised.mean()), "value"
            yield "promise_kept", float(promised.mean() <= values.mean() + (upper - lower).mean()), "yes or no"


def graph_actions(mdp: TabularMDP, policy: TabularPolicy, starts: Int[np.ndarray, "n"]) -> list[np.ndarray]:
    """The actions of the graph's rollouts; the last one is repeated until the end."""
    edges = roll_out(mdp, policy, starts, STEPS).edge
    # the last step so far that has an edge: after the end of a rollout its action is repeated
    step = np.minimum(np.arange(STEPS), edges.shape[1] - 1)
    last = np.maximum.accumulate(np.where(edges[:, step] != NO_EDGE, step, 0), axis=1)
    actions = mdp.action if mdp.action_count is None else mdp.action.astype(np.int64)
    return list(actions[np.take_along_axis(edges, last, axis=1)])


def play_from(task: Task, states: Float[np.ndarray, "n D"] | None, act: ChooseActions) -> list[Episode]:
    """Episodes without the task's time limit, from states or from the environment's own starts."""
    seeds = list(range(STARTS if states is None else len(states)))
    environments = [gymnasium.make(task.environment, max_episode_steps=STEPS, disable_env_checker=True) for _ in seeds]
    played = play(environments, act, seeds=seeds, states=states, set_state=task.set_state, keep_observations=False)
    for environment in environments:
        environment.close()
    return played


if __name__ == "__main__":
    main()
