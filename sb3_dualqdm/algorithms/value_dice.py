"""ValueDICE: distribution matching in the Donsker-Varadhan form."""

from __future__ import annotations

import math
from typing import Any

import torch as th

from sb3_dualqdm import objectives
from sb3_dualqdm.algorithms.arguments import check_number
from sb3_dualqdm.algorithms.base import ImitationAlgorithm, own_defaults
from sb3_dualqdm.algorithms.batches import Batch
from sb3_dualqdm.algorithms.search import DISCOUNT, GRADIENT_PENALTY


class ValueDICE(ImitationAlgorithm):
    """
    ValueDICE (Kostrikov et al., 2020): one function nu and the policy, in a saddle point without rewards, entropy or targets.

    nu is the policy's critic, and a cost: wherever a Q is asked for, it is -nu. Every demonstrated state counts as an initial
    state, as in the authors' code. With ``terminal_value="absorbing"`` (default) a terminated row is followed by an absorbing
    one, where nu is a value of its own; ``"zero"`` makes nu zero there. Actions are policy samples while collecting, where the
    authors add N(0, 0.1) to the mean.

    :param args: see :class:`ImitationAlgorithm`; ``value_mode`` is unused, ``objective`` must be left out
    :param replay_share: lambda, share of replay in the mixture, default 0.1; 0 offline
    :param gradient_penalty: weight of ``(|grad nu| - 1)^2`` between demonstrations and replay, default 10
    :param orthogonality: weight of the actor's squared products of different units' weights, default 1e-4
    :param kwargs: see :class:`ImitationAlgorithm`; ``learning_rate`` 1e-3 (nu), ``actor_learning_rate`` 1e-5,
        ``gradient_steps`` 5, ``learning_starts`` 1000, ``buffer_size`` 2e5, ``ent_coef`` 0 are the defaults of this class
    """

    supports_discrete = False
    critic_sign = -1
    n_uniform = 1
    search_space = DISCOUNT | GRADIENT_PENALTY
    divergence_advice = "raise gradient_penalty or lower learning_rate"

    def __init__(
        self,
        *args: Any,
        replay_share: float = 0.1,
        gradient_penalty: float = 10.0,
        orthogonality: float = 1e-4,
        **kwargs: Any,
    ):
        self.replay_share = replay_share
        self.gradient_penalty = gradient_penalty
        self.orthogonality = orthogonality
        own = {"learning_rate": 1e-3, "actor_learning_rate": 1e-5, "gradient_steps": 5, "learning_starts": 1000}
        own |= {"buffer_size": 200_000, "ent_coef": 0.0}
        super().__init__(*args, **own_defaults(args, kwargs, **own))

    def _check_arguments(self) -> None:
        super()._check_arguments()
        check_number("replay_share", self.replay_share, "[0, 1)")
        for name in ("gradient_penalty", "orthogonality"):
            check_number(name, getattr(self, name))
        if self.ent_coef != 0:
            raise ValueError(f"ent_coef is {self.ent_coef!r} but ValueDICE has no entropy term: leave it out.")
        if self.gamma == 1:
            raise ValueError("gamma is 1 but the weight of initial states is 1 - gamma: use gamma < 1.")
        if self.policy_kwargs.get("n_critics", 1) != 1:
            raise ValueError(f"n_critics is {self.policy_kwargs['n_critics']} but ValueDICE has one nu: leave it out.")

    def _largest_reward(self) -> float:
        return math.inf  # nu is free up to a constant

    def _update(self, batch: Batch) -> dict[str, th.Tensor]:
        n_replay, noise = self._n_replay(batch), batch.noise
        assert noise.obs is not None and noise.next_obs is not None and noise.uniform is not None
        next_actions = self.policy.draw(batch.next_obs, noise.next_obs[:1]).actions[0]
        actions = self.policy.draw(batch.obs, noise.obs[:1]).actions[0]
        # nu of the batch's own actions and of the policy's in the same states, the expert's being the initial states
        values, initial = self.critic.q_values(batch.obs, th.cat([batch.actions, actions]))[0].chunk(2)
        d = self._differences(batch, values, self.critic.q_values(batch.next_obs, next_actions)[0])
        replay_share = self.replay_share if n_replay > 0 else 0.0
        log_term, linear = objectives.value_dice_terms(d, initial[n_replay:], batch.weights, replay_share, self.gamma)
        objective = log_term - linear
        penalty = self._penalty(batch, next_actions.detach(), n_replay, noise.uniform)
        linear_layers = [layer.weight for layer in self.actor.modules() if isinstance(layer, th.nn.Linear)]
        orthogonality = objectives.orthogonality(linear_layers)
        # both from the same parameters
        self._differentiate(self.critic.optimizer, objective + self.gradient_penalty * penalty, retain_graph=True)
        self._differentiate(self.actor.optimizer, self.orthogonality * orthogonality - objective)
        self.critic.optimizer.step()
        self.actor.optimizer.step()
        with th.no_grad():
            n = len(values)
            statistics = {
                "critic_loss": objective.detach(),
                "gradient_penalty": penalty.detach(),
                "difference_expert": d[n_replay:n].mean(),
                "nu_std": values.std(correction=0),
            }
            if n_replay > 0:
                statistics["difference_replay"] = d[:n_replay].mean()
        return statistics

    def _differences(self, batch: Batch, values: th.Tensor, next_values: th.Tensor) -> th.Tensor:
        """``nu(s, a) - gamma nu(s', a')`` of the rows, and of the absorbing rows that follow them."""
        next_values = batch.not_terminated * next_values
        if self.terminal_value == "zero":
            return values - self.gamma * next_values
        absorbing = self._absorbing_value(self.critic)[0]
        d = values - self.gamma * (next_values + (1 - batch.not_terminated) * absorbing)
        return th.cat([d, ((1 - self.gamma) * absorbing).expand_as(d)])

    def _penalty(self, batch: Batch, next_actions: th.Tensor, n_replay: int, uniform: th.Tensor) -> th.Tensor:
        """Of the gradient norm's distance to 1 between expert and replay rows, at (s, a) and at (s', a')."""
        penalties = []
        for obs, actions in ((batch.obs, batch.actions), (batch.next_obs, next_actions)):
            points = th.cat([self.critic.extract_features(obs, self.critic.features_extractor), actions], dim=1)
            expert = points[n_replay:]
            other = points[:n_replay] if n_replay > 0 else expert.roll(1, dims=0)
            pairs = min(len(expert), len(other))
            mix = uniform[:pairs]
            penalties.append(objectives.gradient_penalty(self._nu, expert[:pairs], other[:pairs], mix, centre=1.0))
        return (penalties[0] + penalties[1]) / 2

    def _nu(self, points: th.Tensor) -> th.Tensor:
        return self.critic.bounded(self.critic.q_networks[0](points).squeeze(-1))
