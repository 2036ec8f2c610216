"""Settings of the baselines. The defaults are those published for D4RL's mazes, the same for all three of them.

`Baseline` has what all methods share; each method adds its own settings. Nothing here needs JAX.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from bats.config import BatchSize, Count, Finite, Fraction, NonNegative, Positive, Rule, Settings, Share, Units

Rate = Annotated[float, Rule("positive and at most 1", lambda number: 0 < number <= 1)]


@dataclass(frozen=True)
class Baseline(Settings):
    """What every method has."""

    updates: Count = 1_000_000
    """training updates"""
    batch_size: BatchSize = 256
    """rows per update"""
    gamma: Fraction = 0.99
    """discount per step"""
    hidden: tuple[Units, ...] = (256, 256)
    """units of the hidden layers of the policy"""
    critic_hidden: tuple[Units, ...] = (256, 256)
    """units of the hidden layers of each critic"""
    learning_rate: Rate = 3e-4
    """learning rate of the policy"""
    critic_learning_rate: Rate = 3e-4
    """learning rate of the critics"""
    target_rate: Rate = 0.005
    """fraction by which the target networks move towards the trained ones in each update [tau]"""
    normalize: bool = False
    """standardise the observations"""
    snapshots: Count = 20
    """number of policies that are saved during training, at equal intervals; the last one is the result"""


@dataclass(frozen=True)
class BCConfig(Baseline):
    """Behaviour cloning of all rows, or of the best episodes."""

    best_share: Annotated[Share, Rule("above 0", lambda share: share > 0)] = 1.0
    """share of the log to clone, from the episodes with the largest returns"""


@dataclass(frozen=True)
class SACConfig(Baseline):
    """Soft actor-critic (Haarnoja et al., 2018), trained on the log as if it were its own replay buffer."""

    entropy_bonus: bool = True
    """include the entropy of the next action in the critics' targets"""
    target_entropy: Finite | None = None
    """target entropy to which the temperature is tuned; none: minus the number of action dimensions"""
    temperature: NonNegative | None = None
    """weight of the entropy, tuned automatically if none"""


@dataclass(frozen=True)
class OnlineConfig(Settings):
    """Soft actor-critic in an environment; the defaults are those of the runs that D4RL's MuJoCo logs come from."""

    sac: SACConfig = field(default_factory=SACConfig)
    """`updates`, `normalize` and `snapshots` have no effect here: there is one update per step, on raw observations"""
    steps: Count = 1_000_000
    """maximum number of steps in the environment"""
    random_steps: Count = 5_000
    """first steps, with uniformly random actions and without updates"""
    block: Count = 1_000
    """number of steps with the same policy, followed by as many updates"""
    evaluate_every: Count = 5_000
    """steps between two evaluations"""
    episodes: Count = 10
    """episodes per evaluation, in which the policy acts without noise"""
    enough: Finite | None = None
    """training ends when the mean return of an evaluation reaches this; none: after all steps"""


@dataclass(frozen=True)
class CQLConfig(SACConfig):
    """Conservative Q-learning (Kumar et al., 2020), variant CQL(H)."""

    hidden: tuple[Units, ...] = (256, 256, 256)
    critic_hidden: tuple[Units, ...] = (256, 256, 256)
    learning_rate: Rate = 3e-5
    normalize: bool = True
    entropy_bonus: bool = False
    alpha: NonNegative = 10.0
    """weight of the conservative term"""
    target_gap: Positive | None = 5.0
    """the weight of the conservative term is tuned until the values of other actions exceed those of logged actions by
    this much; none: not tuned"""
    sampled_actions: Count = 10
    """sampled actions per row from each of three sources: uniform, the policy, and the policy in the next state"""


@dataclass(frozen=True)
class COMBOConfig(SACConfig):
    """COMBO (Yu et al., 2021): CQL that also pushes down the values of rollouts in a learned model."""

    updates: Count = 300_000
    hidden: tuple[Units, ...] = (256, 256, 256)
    critic_hidden: tuple[Units, ...] = (256, 256, 256)
    learning_rate: Rate = 1e-4
    entropy_bonus: bool = False
    beta: NonNegative = 0.5
    """weight of the conservative term"""
    rollout_length: Count = 1
    """number of steps in the model from a logged state [h]"""
    real_share: Annotated[Share, Rule("above 0", lambda share: share > 0)] = 0.5
    """share of logged rows in a batch; the others are from rollouts [f]"""
    sampled_actions: Count = 10


@dataclass(frozen=True)
class BRACConfig(SACConfig):
    """BRAC-v (Wu et al., 2019): SAC with a penalty on the KL divergence from the policy that made the log."""

    hidden: tuple[Units, ...] = (200, 200)
    critic_hidden: tuple[Units, ...] = (300, 300)
    learning_rate: Rate = 3e-5
    critic_learning_rate: Rate = 1e-3
    temperature: NonNegative | None = 0.0
    penalty: NonNegative = 0.1
    """weight of the divergence from the behaviour policy [alpha]"""
    sampled_actions: Count = 4
    """number of sampled actions that estimate the divergence in each state"""
    behaviour_updates: Count = 100_000
    """number of updates at the beginning that train only the behaviour policy, which imitates the log"""
    behaviour_learning_rate: Rate = 5e-4
    """learning rate of the behaviour policy"""
    warm_start: Count = 20_000
    """number of updates after `behaviour_updates` in which the policy only minimises the divergence"""


@dataclass(frozen=True)
class BEARConfig(Baseline):
    """BEAR (Kumar et al., 2019): a limit on a kernel distance (MMD) keeps actions within the support of logged ones."""

    updates: Count = 300_000
    learning_rate: Rate = 1e-4
    behaviour_hidden: tuple[Units, ...] = (750, 750)
    """units of the hidden layers of the variational autoencoder of logged actions"""
    kernel_width: Positive = 50.0
    """sigma of the Gaussian kernel exp(-d^2 / (2 sigma))"""
    threshold: Positive = 0.05
    """limit on the kernel distance (MMD)"""
    sampled_actions: Count = 100
    """number of actions of the policy, and of the autoencoder, that are compared in each state"""
    target_actions: Count = 10
    """number of actions of the policy in the next state; the best one gives the target"""
    warm_start: Count = 40_000
    """number of updates at the beginning in which the policy only reduces the kernel distance"""


@dataclass(frozen=True)
class TD3BCConfig(Baseline):
    """TD3+BC (Fujimoto and Gu, 2021)."""

    normalize: bool = True
    alpha: Positive = 2.5
    """weight of the critic's term in the policy's loss, relative to cloning"""
    policy_every: Count = 2
    """updates of the critics per update of the policy"""
    target_noise: NonNegative = 0.2
    """std of the noise on target actions, which lie between -1 and 1"""
    noise_limit: NonNegative = 0.5
    """limit at which the noise on target actions is clipped"""


@dataclass(frozen=True)
class ReBRACConfig(Baseline):
    """ReBRAC (Tarasov et al., 2023): TD3+BC with a penalty in the critics as well, deeper networks and layer norm."""

    hidden: tuple[Units, ...] = (256, 256, 256)
    critic_hidden: tuple[Units, ...] = (256, 256, 256)
    policy_penalty: NonNegative = 0.003
    """weight of the cloning term in the policy's loss"""
    critic_penalty: NonNegative = 0.001
    """weight of the squared distance between the policy's and the logged next action in the critics' targets"""
    policy_every: Count = 2
    target_noise: NonNegative = 0.2
    noise_limit: NonNegative = 0.5


@dataclass(frozen=True)
class IQLConfig(Baseline):
    """Implicit Q-learning (Kostrikov et al., 2021)."""

    normalize: bool = True
    expectile: Fraction = 0.7
    """the value of a state is this expectile of the values of its logged actions [tau]"""
    inverse_temperature: NonNegative = 3.0
    """beta in the weight of a row in cloning, exp(beta * advantage)"""
    max_weight: Positive = 100.0
    """largest weight of a row in cloning"""


@dataclass(frozen=True)
class AWACConfig(Baseline):
    """AWAC (Nair et al., 2020), offline."""

    hidden: tuple[Units, ...] = (256, 256, 256)
    critic_hidden: tuple[Units, ...] = (256, 256, 256)
    normalize: bool = True
    temperature: Positive = 0.1
    """lambda in the weight of a row in cloning, exp(advantage / lambda)"""
    max_weight: Positive = 100.0


CONFIGS: dict[str, type[Baseline]] = {
    "bc": BCConfig,
    "sac": SACConfig,
    "brac-v": BRACConfig,
    "bear": BEARConfig,
    "cql": CQLConfig,
    "combo": COMBOConfig,
    "td3-bc": TD3BCConfig,
    "iql": IQLConfig,
    "rebrac": ReBRACConfig,
    "awac": AWACConfig,
}
"""the settings of each method, by its name"""


def method_name(config: Baseline) -> str:
    """The method that some settings are of."""
    return next(name for name, kind in CONFIGS.items() if kind is type(config))
