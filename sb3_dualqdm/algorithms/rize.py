"""RIZE: implicit rewards towards learned levels, with quantile critics."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar

import torch as th
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.preprocessing import get_action_dim
from torch import nn

from sb3_dualqdm import objectives
from sb3_dualqdm.algorithms.arguments import check_choice, check_number
from sb3_dualqdm.algorithms.base import own_defaults
from sb3_dualqdm.algorithms.batches import Batch
from sb3_dualqdm.algorithms.search import REGULARIZATION_WEIGHT, Choice
from sb3_dualqdm.algorithms.soft_actor_critic import SoftActorCritic
from sb3_dualqdm.objectives import Rows, RowWeights, sampled_soft_value
from sb3_dualqdm.policies import CnnPolicy, ContinuousSoftQ, Draw, MultiInputPolicy, SoftActorCriticPolicy

N_COSINES = 64
VALUE_MODES = ("value", "v0_expert")
TARGET_INITS = ("random", "copy")


class QuantileNetwork(nn.Module):
    """
    Quantiles Z(s, a, tau) of a return: features of state and action times features of cosines of tau.

    :param input_dim: size of state features and action together
    :param width: of every layer, default 256
    """

    frequencies: th.Tensor

    def __init__(self, input_dim: int, width: int = 256):
        super().__init__()
        self.base = nn.Sequential(nn.Linear(input_dim, width), nn.LayerNorm(width), nn.ReLU())
        self.embedding = nn.Sequential(nn.Linear(N_COSINES, width), nn.LayerNorm(width), nn.Sigmoid())
        self.merge = nn.Sequential(nn.Linear(width, width), nn.LayerNorm(width), nn.ReLU(), nn.Linear(width, 1))
        self.register_buffer("frequencies", math.pi * th.arange(1, N_COSINES + 1))

    def forward(self, x: th.Tensor, tau: th.Tensor) -> th.Tensor:
        """
        :param x: shape ``(N, input_dim)``
        :param tau: shape ``(N, K)``
        :return: shape ``(N, K)``
        """
        cosines = th.cos(tau.unsqueeze(-1) * self.frequencies)
        return self.merge(self.base(x).unsqueeze(1) * self.embedding(cosines)).squeeze(-1)


def fractions(uniform: th.Tensor) -> tuple[th.Tensor, th.Tensor]:
    """
    Shares of probability proportional to ``u + 0.1``, and the midpoints of their cumulative sums.

    :param uniform: u, shape ``(N, K)``
    :return: shares and midpoints, same shape
    """
    share = uniform + 0.1
    share = share / share.sum(dim=-1, keepdim=True)
    return share, share.cumsum(dim=-1) - share / 2


class QuantileSoftQ(ContinuousSoftQ):
    """
    Critics whose value is the mean of their quantiles.

    :param n_quantiles: quantiles of each return, default 24
    """

    def __init__(self, *args: Any, n_quantiles: int = 24, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.n_quantiles = n_quantiles
        arch, dim = self.net_arch, self.features_dim + get_action_dim(self.action_space)
        self.q_networks = []
        for index in range(self.n_critics):
            network = QuantileNetwork(dim, arch[0] if arch else 256)
            setattr(self, f"qf{index}", network)
            self.q_networks.append(network)  # type: ignore[arg-type]
        # Uniform numbers behind the fractions of each state's quantiles; None: equal fractions
        self.uniform: th.Tensor | None = None

    def _get_constructor_parameters(self) -> dict[str, Any]:
        return {**super()._get_constructor_parameters(), "n_quantiles": self.n_quantiles}

    def quantiles(self, obs: Any, actions: th.Tensor) -> tuple[th.Tensor, th.Tensor]:
        """
        Quantiles of every critic, shape ``(C, k * N, K)``, and their shares of probability; see :meth:`q_values`.
        """
        with th.set_grad_enabled(th.is_grad_enabled() and not self.share_features_extractor):
            features = self.extract_features(obs, self.features_extractor)
        times = len(actions) // len(features)
        uniform = self.uniform
        if uniform is None:
            uniform = features.new_ones(len(features), self.n_quantiles)
        share, tau = (tensor.repeat(times, 1) for tensor in fractions(uniform))
        x = th.cat([features.repeat(times, 1), actions], dim=1)
        return th.stack([self.bounded(network(x, tau)) for network in self.q_networks]), share

    def q_values(self, obs: Any, actions: th.Tensor) -> th.Tensor:
        z, share = self.quantiles(obs, actions)
        return (share * z).sum(dim=-1)


class QuantilePolicy(SoftActorCriticPolicy):
    """
    Squashed-Gaussian actor with quantile critics.

    :param n_quantiles: see :class:`QuantileSoftQ`
    """

    critic: QuantileSoftQ

    def __init__(self, *args: Any, n_quantiles: int = 24, **kwargs: Any):
        self.n_quantiles = n_quantiles
        super().__init__(*args, **kwargs)

    def _get_constructor_parameters(self) -> dict[str, Any]:
        return {**super()._get_constructor_parameters(), "n_quantiles": self.n_quantiles}

    def make_critic(self, features_extractor: Any = None) -> QuantileSoftQ:
        kwargs = self._update_features_extractor(self.critic_kwargs, features_extractor)
        return QuantileSoftQ(**kwargs, **self._critic_style, n_quantiles=self.n_quantiles).to(self.device)

    def value(self, critic: Any, obs: Any, draw: Draw, ent_coef: th.Tensor | float) -> th.Tensor:
        """Soft value by the smaller of the critics' quantiles, shape ``(N,)``."""
        actions, log_prob = draw.detach()
        z, share = critic.quantiles(obs, actions.flatten(0, 1))
        return self._soft_value(z, share, log_prob, ent_coef)

    def q_and_value(
        self, obs: Any, actions: th.Tensor, draw: Draw, ent_coef: th.Tensor | float
    ) -> tuple[th.Tensor, th.Tensor]:
        """Online Q(s, a), shape ``(C, N)``, and V(s) as :meth:`value` has it, by one pass through the critics."""
        policy_actions, log_prob = draw.detach()
        z, share = self.critic.quantiles(obs, th.cat([actions, policy_actions.flatten(0, 1)]))
        n = len(actions)
        return (share * z).sum(dim=-1)[:, :n], self._soft_value(z[:, n:], share[n:], log_prob, ent_coef)

    @staticmethod
    def _soft_value(z: th.Tensor, share: th.Tensor, log_prob: th.Tensor, ent_coef: th.Tensor | float) -> th.Tensor:
        q = (share * z.amin(dim=0)).sum(dim=-1)
        return sampled_soft_value(q.view_as(log_prob), log_prob, ent_coef).mean(dim=0)


class QuantileCnnPolicy(QuantilePolicy, CnnPolicy):
    """With image observations."""


class QuantileMultiInputPolicy(QuantilePolicy, MultiInputPolicy):
    """With Dict observations."""


class Level(nn.Module):
    """A number that is learned: the implicit reward that rows are drawn to."""

    def __init__(self, start: float):
        super().__init__()
        self.value = nn.Parameter(th.tensor(float(start)))


class RIZE(SoftActorCritic):
    """
    RIZE (Karimi and Ebadzadeh, 2025): implicit rewards drawn to levels that follow them, quantile critics averaged before the
    loss, a target policy.

    In the authors' code targets begin at random and only follow by Polyak steps (``target_init="random"``, default).

    :param args: see :class:`ImitationAlgorithm`; ``objective`` must be left out, ``value_mode`` is ``"value"`` (Q of the
        batch's own actions on all rows) or ``"v0_expert"`` (V of the policy on expert rows)
    :param regularization: weight of the squared distance to the levels, default 0.1
    :param expert_level: initial level of expert rows, default 10
    :param policy_level: initial level of replay rows, default 5
    :param expert_level_learning_rate: default 1e-4
    :param policy_level_learning_rate: default 0: the level stays
    :param target_init: ``"random"`` (default) or ``"copy"``
    :param kwargs: see :class:`ImitationAlgorithm`; ``actor_learning_rate`` 5e-5, ``ent_coef`` 0.05, two critics of width 256,
        an actor of three layers of 256 are the defaults of this class; ``policy_kwargs`` takes ``n_quantiles`` (24), and the
        first entry of its ``net_arch`` (``"qf"``) is the width of the critics' layers, whose number and activations are fixed
    """

    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = {
        "MlpPolicy": QuantilePolicy,
        "CnnPolicy": QuantileCnnPolicy,
        "MultiInputPolicy": QuantileMultiInputPolicy,
    }
    supports_discrete = False
    offline_support = "extra_transitions"
    policy_rows = "replay"
    search_space = SoftActorCritic.search_space | {"value_mode": Choice([*VALUE_MODES])} | REGULARIZATION_WEIGHT
    divergence_advice = "raise regularization or lower learning_rate"

    def __init__(
        self,
        *args: Any,
        regularization: float = 0.1,
        expert_level: float = 10.0,
        policy_level: float = 5.0,
        expert_level_learning_rate: float | Callable[[float], float] = 1e-4,
        policy_level_learning_rate: float | Callable[[float], float] = 0.0,
        target_init: str = "random",
        **kwargs: Any,
    ):
        self.regularization = regularization
        self.expert_level = expert_level
        self.policy_level = policy_level
        self.expert_level_learning_rate = expert_level_learning_rate
        self.policy_level_learning_rate = policy_level_learning_rate
        self.target_init = target_init
        own = {"actor_learning_rate": 5e-5, "ent_coef": 0.05}
        super().__init__(*args, **own_defaults(args, kwargs, **own))

    def _check_arguments(self) -> None:
        super()._check_arguments()
        check_choice("value_mode", self.value_mode, VALUE_MODES)
        check_choice("target_init", self.target_init, TARGET_INITS)
        check_number("regularization", self.regularization)
        for name in ("expert_level", "policy_level"):
            check_number(name, getattr(self, name), "(-inf, inf)")
        if not issubclass(self.policy_class, QuantilePolicy):
            raise ValueError(
                f"policy is {self.policy_class.__name__} but RIZE needs quantile critics: use 'MlpPolicy', 'CnnPolicy', "
                "'MultiInputPolicy' or a subclass of sb3_dualqdm.algorithms.rize.QuantilePolicy."
            )
        self.n_uniform = self.policy_kwargs.get("n_quantiles", 24)

    def _policy_arguments(self) -> dict[str, Any]:
        arch = {"pi": [256, 256, 256], "qf": [256]}
        return {"n_critics": 2, "net_arch": arch, **super()._policy_arguments()}

    def _make_networks(self) -> dict[str, nn.Module]:
        policy = self.policy
        actor = policy.make_actor()
        if self.target_init == "random":
            policy.critic_target = policy.make_critic()
        else:
            actor.load_state_dict(policy.actor.state_dict())
        policy.critic_target.set_training_mode(False)
        networks: dict[str, Any] = {"actor_target": actor}
        for name in ("expert_level", "policy_level"):
            networks[name] = Level(getattr(self, name))
            rate = self._network_rate(name, 1.0)
            networks[name].optimizer = th.optim.Adam(networks[name].parameters(), lr=rate, fused=True)
        return networks

    def _network_rate(self, name: str, progress: float) -> float:
        return self._rate_schedule(f"{name}_learning_rate")(progress)

    def _levels(self) -> tuple[th.Tensor, th.Tensor]:
        return self.networks["expert_level"].value, self.networks["policy_level"].value

    def critic_loss(self, rows: Rows, weights: RowWeights) -> th.Tensor:
        levels = self._levels()
        return objectives.rize_loss(
            rows, weights, self.value_mode, self.gamma, self.regularization, levels[0].detach(), levels[1].detach()
        )

    def _largest_reward(self) -> float:
        return max(abs(self.expert_level), abs(self.policy_level)) + 1 / max(self.regularization, 1e-3)

    def _next_draw(self, batch: Batch) -> Draw:
        return self.networks["actor_target"].draw(batch.next_obs, batch.noise.next_obs)

    def _update(self, batch: Batch) -> dict[str, th.Tensor]:
        self.critic.uniform = self.critic_target.uniform = batch.noise.uniform
        statistics = super()._update(batch)
        self.critic.uniform = self.critic_target.uniform = None
        return statistics

    def _after_critic_step(self, rows: Rows, weights: RowWeights) -> None:
        r = (rows.q - rows.y_target).mean(dim=0).detach()
        for name, weight in (("expert_level", weights.expert), ("policy_level", weights.replay)):
            level = self.networks[name]
            self._descend(level.optimizer, 0.5 * (weight * (r - level.value).square()).sum())

    def extra_statistics(self, rows: Rows, weights: RowWeights) -> dict[str, th.Tensor]:
        expert, policy = self._levels()
        return {"expert_level": expert.detach().clone(), "policy_level": policy.detach().clone()}

    def _target_networks(self) -> list[tuple[Any, Any, float]]:
        return [*super()._target_networks(), (self.actor, self.networks["actor_target"], self.tau)]
