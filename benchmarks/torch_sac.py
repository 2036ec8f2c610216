"""Updates of soft actor-critic per second: the one here, several runs as one program, beside a plain PyTorch step.

    pip install torch
    python -m benchmarks.torch_sac               # one run
    python -m benchmarks.torch_sac --runs 9      # nine runs as one program, beside one run in PyTorch

Both have the same networks, losses and optimisers, draw their batches on the device where they compute, and use a GPU
if there is one. The PyTorch step is eager, without `torch.compile` or CUDA graphs. Compilation is not counted.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch
from torch import nn

from bats.baselines.config import SACConfig
from bats.baselines.core import Sizes
from bats.baselines.training import sizes_of
from bats.data.dataset import Dataset
from bats.policy.policy import MAX_LOG_STD, MIN_LOG_STD
from bats.tasks.catalogue import collect
from benchmarks.baselines import updates_per_second
from benchmarks.common import print_figures, script_parser

REPEATS = 3


def main() -> None:
    parser = script_parser(__doc__, quick="20 updates, 1,000 rows")
    parser.add_argument("--runs", type=int, default=1, help="runs as one program")
    parser.add_argument("--updates", type=int, default=2_000, help="that are timed, three times")
    arguments = parser.parse_args()
    log = collect("maze2d-umaze", 1_000 if arguments.quick else 100_000)
    updates = 20 if arguments.quick else arguments.updates
    runs = [(0, seed) for seed in range(arguments.runs)]
    step = torch_step(log, SACConfig())
    # in turn, and the best of each, so that other work on the machine favours neither
    plain, here = zip(
        *((steps_per_second(step, updates), updates_per_second("sac", [log], runs, updates)) for _ in range(REPEATS)),
        strict=True,
    )
    device = "gpu" if torch.cuda.is_available() else "cpu"
    figures = [
        (f"pytorch_{device}", max(plain), "updates/s"),
        (f"jax_{device}_x{len(runs)}", max(here) * len(runs), "updates/s"),
        (f"jax_over_pytorch_{device}_x{len(runs)}", max(here) * len(runs) / max(plain), "ratio"),
    ]
    print_figures(figures, prefix="sac_")


def steps_per_second(step: Callable[[], None], count: int) -> float:
    for repeats in (10, count):
        began = time.perf_counter()
        for _ in range(repeats):
            step()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
    return count / (time.perf_counter() - began)


def torch_step(log: Dataset, config: SACConfig) -> Callable[[], None]:
    """One update of soft actor-critic on a batch of a log."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_float32_matmul_precision("high")  # TF32 on a GPU, as JAX has it
    columns = (log.observations, log.actions, log.rewards, ~log.terminations, log.next_observations)
    table = [torch.as_tensor(column, dtype=torch.float32, device=device) for column in columns]
    sizes = sizes_of(log)
    actor = _mlp(sizes.states, config.hidden, 2 * sizes.actions).to(device)
    critics = nn.ModuleList(_critic(sizes, config) for _ in range(2)).to(device)
    targets = deepcopy(critics).requires_grad_(False)
    log_temperature = torch.zeros((), device=device, requires_grad=True)
    policy = [*actor.parameters(), log_temperature]
    policy_optimizer = torch.optim.Adam(policy, lr=config.learning_rate)
    critic_optimizer = torch.optim.Adam(critics.parameters(), lr=config.critic_learning_rate)

    def step() -> None:
        rows = torch.randint(len(log), (config.batch_size,), device=device)
        states, actions, rewards, continues, next_states = (column[rows] for column in table)
        with torch.no_grad():
            next_actions, log_prob = _sample(actor, next_states)
            value = _smaller(targets, next_states, next_actions) - log_temperature.exp() * log_prob
            target = rewards + config.gamma * continues * value
        both = torch.cat([states, actions], dim=-1)
        loss = sum(((critic(both)[:, 0] - target) ** 2).mean() for critic in critics)
        critic_optimizer.zero_grad()
        loss.backward()
        critic_optimizer.step()

        own, log_prob = _sample(actor, states)
        loss = (log_temperature.exp().detach() * log_prob - _smaller(critics, states, own)).mean()
        loss = loss + log_temperature * (-log_prob + sizes.actions).detach().mean()
        for parameter, gradient in zip(policy, torch.autograd.grad(loss, policy), strict=True):
            parameter.grad = gradient
        policy_optimizer.step()
        with torch.no_grad():
            for slow, trained in zip(targets.parameters(), critics.parameters(), strict=True):
                slow.lerp_(trained, config.target_rate)

    return step


def _mlp(inputs: int, hidden: tuple[int, ...], outputs: int) -> Any:
    layers: list[Any] = []
    for width_in, width_out in zip((inputs, *hidden), hidden, strict=False):
        layers += [nn.Linear(width_in, width_out), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(hidden[-1], outputs))


def _critic(sizes: Sizes, config: SACConfig) -> Any:
    return _mlp(sizes.states + sizes.actions, config.critic_hidden, 1)


def _sample(actor: Any, states: Any) -> tuple[Any, Any]:
    """Squashed actions and their log-probability."""
    mean, raw_std = actor(states).chunk(2, dim=-1)
    log_std = MIN_LOG_STD + (MAX_LOG_STD - MIN_LOG_STD) * torch.sigmoid(raw_std)
    normal = torch.distributions.Normal(mean, log_std.exp(), validate_args=False)
    raw = normal.rsample()
    slope = 2 * (math.log(2) - raw - nn.functional.softplus(-2 * raw))
    return torch.tanh(raw), (normal.log_prob(raw) - slope).sum(dim=-1)


def _smaller(critics: Any, states: Any, actions: Any) -> Any:
    """The smaller of both critics' values."""
    both = torch.cat([states, actions], dim=-1)
    return torch.minimum(*(critic(both)[:, 0] for critic in critics))


if __name__ == "__main__":
    main()
