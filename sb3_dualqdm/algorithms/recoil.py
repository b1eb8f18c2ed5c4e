"""ReCOIL: imitation by matching mixtures, with an implicit maximiser."""

from __future__ import annotations

import math
from typing import Any

import torch as th

from sb3_dualqdm import objectives
from sb3_dualqdm.algorithms.arguments import check_number
from sb3_dualqdm.algorithms.base import ImitationAlgorithm, own_defaults
from sb3_dualqdm.algorithms.batches import Batch
from sb3_dualqdm.algorithms.search import DISCOUNT, Range
from sb3_dualqdm.networks import StateNetwork
from sb3_dualqdm.objectives import LSIQTargets


class ReCOIL(ImitationAlgorithm):
    """
    ReCOIL (Sikchi et al., 2024): V by Gumbel regression on Q, the policy by weighted cloning, Q towards fixed targets.

    Published as an offline method (``offline=True``, with suboptimal data as ``extra_transitions``). Learning online, with the
    replay buffer as suboptimal data and one update for each environment step, is this package's own adaptation. The mixture
    of suboptimal and expert data is one of weights (``expert_fraction``) instead of a data set. The actor is the authors'
    :class:`~sb3_dualqdm.policies.ClippedGaussianActor` unless ``policy_kwargs`` says ``actor_distribution="squashed"``.

    :param args: see :class:`ImitationAlgorithm`; ``value_mode`` is unused, ``objective``, ``ent_coef`` and ``terminal_value``
        must be left out (a terminated transition leads to the smallest value, as in the authors' code)
    :param regularization: c of the targets ``1 / (c (1 - gamma))`` on expert rows and ``-1 / c + gamma V(s')`` on the mixture,
        default 0.5
    :param value_temperature: temperature of the Gumbel regression, default 1; the authors raise it when Q diverges
    :param value_clip: largest exponent of the Gumbel regression, default 7
    :param policy_temperature: inverse temperature of the cloning weights, default 3
    :param weight_clip: largest cloning weight, default 100
    :param expert_fraction: share of expert rows in the mixture, default 0.2; 1 where there is no other data
    :param kwargs: see :class:`ImitationAlgorithm`; two critics are the default of this class
    """

    supports_discrete = False
    search_space = DISCOUNT | {"value_temperature": Range(0.5, 20.0), "policy_temperature": Range(0.5, 10.0)}
    divergence_advice = "raise value_temperature or lower learning_rate"

    def __init__(
        self,
        *args: Any,
        regularization: float = 0.5,
        value_temperature: float = 1.0,
        value_clip: float = 7.0,
        policy_temperature: float = 3.0,
        weight_clip: float = 100.0,
        expert_fraction: float = 0.2,
        **kwargs: Any,
    ):
        self.regularization = regularization
        self.value_temperature = value_temperature
        self.value_clip = value_clip
        self.policy_temperature = policy_temperature
        self.weight_clip = weight_clip
        self.expert_fraction = expert_fraction
        own = {"ent_coef": 0.0, "terminal_value": "zero"}
        super().__init__(*args, **own_defaults(args, kwargs, **own))

    def _check_arguments(self) -> None:
        super()._check_arguments()
        for name in ("regularization", "value_temperature", "value_clip", "policy_temperature", "weight_clip"):
            check_number(name, getattr(self, name), "(0, inf)")
        check_number("expert_fraction", self.expert_fraction, "[0, 1]")
        if self.ent_coef != 0:
            raise ValueError(f"ent_coef is {self.ent_coef!r} but ReCOIL has no entropy term: leave it out.")
        if self.terminal_value != "zero":
            raise ValueError("terminal_value was given but ReCOIL has a fixed value after terminations: leave it out.")
        if self.gamma == 1:
            raise ValueError("gamma is 1 but the largest value of ReCOIL is 1 / (c (1 - gamma)): use gamma < 1.")

    def _policy_arguments(self) -> dict[str, Any]:
        return {"n_critics": 2, "actor_distribution": "clipped", **super()._policy_arguments()}

    def _make_networks(self) -> dict[str, th.nn.Module]:
        v = StateNetwork(self.policy, self.policy.critic_kwargs["net_arch"], gain=math.sqrt(2))
        return {"v": v.optimised_by(th.optim.Adam, self.lr_schedule(1))}

    @property
    def _targets(self) -> LSIQTargets:
        return LSIQTargets.of(self.regularization, self.gamma)

    def _largest_reward(self) -> float:
        return self._targets.r_max

    def _value(self, critic: Any, obs: Any, noise: th.Tensor | None, ent_coef: th.Tensor | float) -> th.Tensor:
        return self.networks["v"](obs)

    def _discounted(self, critic: Any, next_v: th.Tensor, not_terminated: th.Tensor) -> th.Tensor:
        """``gamma V(s')``; after a termination V is the smallest value."""
        return self.gamma * (not_terminated * next_v - (1 - not_terminated) * self._targets.q_max)

    def _update(self, batch: Batch) -> dict[str, th.Tensor]:
        v, targets = self.networks["v"], self._targets
        n_replay, n = self._n_replay(batch), len(batch.not_terminated)
        share = self.expert_fraction if n_replay > 0 else 1.0
        expert = batch.weights.expert[:n] / batch.weights.expert[:n].sum()
        mixture = (1 - share) * batch.weights.replay[:n] + share * expert

        with th.no_grad():
            q_target = self.critic_target.q_values(batch.obs, batch.actions).amin(dim=0)
        z = ((q_target - v(batch.obs)) / self.value_temperature).clamp(max=self.value_clip)
        value_loss = objectives.gumbel_loss(z, mixture)
        self._descend(v.optimizer, value_loss)

        with th.no_grad():
            values = v(batch.obs)
            weights = (self.policy_temperature * (q_target - values)).exp().clamp(max=self.weight_clip)
        actor_loss = -(mixture * weights * self.policy.log_prob(batch.obs, batch.actions)).sum()
        self._descend(self.actor.optimizer, actor_loss)

        with th.no_grad():
            y = self._discounted(self.critic, v(batch.next_obs), batch.not_terminated)
        q = self.critic.q_values(batch.obs, batch.actions)
        critic_loss = objectives.recoil_critic_loss(q, y, expert, mixture, targets)
        self._descend(self.critic.optimizer, critic_loss)
        with th.no_grad():
            return {
                "critic_loss": critic_loss.detach(),
                "value_loss": value_loss.detach(),
                "actor_loss": actor_loss.detach(),
                "cloning_weight": (mixture * weights).sum(),
                "value_expert": (expert * values).sum(),
                "q_expert": (expert * q).sum(dim=-1).mean(),
                "q_abs_mean": q.abs().mean(),
            }
