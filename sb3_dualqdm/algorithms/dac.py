"""DAC: discriminator-actor-critic, adversarial imitation with SAC."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch as th

from sb3_dualqdm import objectives
from sb3_dualqdm.algorithms.arguments import check_choice, check_layers, check_number
from sb3_dualqdm.algorithms.base import own_defaults
from sb3_dualqdm.algorithms.batches import Batch
from sb3_dualqdm.algorithms.search import GRADIENT_PENALTY, Range
from sb3_dualqdm.algorithms.soft_actor_critic import SoftActorCritic
from sb3_dualqdm.networks import StateActionNetwork
from sb3_dualqdm.objectives import Rows, RowWeights

REWARDS = ("airl", "gail", "fairl")


class DAC(SoftActorCritic):
    """
    Discriminator-actor-critic on SAC (Kostrikov et al., 2019, as the Dual Q-DM paper's baseline runs it).

    A discriminator of demonstrations and replay gives the reward, computed anew for every batch. With
    ``terminal_value="absorbing"`` (default) a terminated row is followed by an absorbing one, which the discriminator sees
    as a zero input with an indicator bit and the critics as a value of its own. With Discrete actions the learner is soft
    Q-learning.

    :param args: see :class:`ImitationAlgorithm`; ``value_mode`` is unused, ``objective`` must be left out
    :param reward: ``"airl"`` (default), ``"gail"`` or ``"fairl"``, see :func:`sb3_dualqdm.objectives.discriminator_reward`
    :param discriminator_learning_rate: float, schedule or ``"lin_<float>"``, default 3e-5
    :param discriminator_weight_decay: of AdamW, default 10
    :param discriminator_arch: hidden layers, default ``[64]``
    :param spectral_norm: of the discriminator's layers, default True
    :param gradient_penalty: weight of the squared gradient norm between demonstrations and replay, default 1
    :param kwargs: see :class:`ImitationAlgorithm`; ``gamma`` 0.97, ``tau`` 0.01, ``ent_coef="auto"``,
        ``learning_starts`` 1000, ``target_entropy`` ``-|A| / 2`` and two critics are the defaults of this class
    """

    offline_support = "none"
    entropy_factor = 0.5
    n_uniform = 1
    search_space = SoftActorCritic.search_space | GRADIENT_PENALTY | {"discriminator_learning_rate": Range(1e-5, 1e-3)}
    divergence_advice = "raise gradient_penalty or lower learning_rate"

    def __init__(
        self,
        *args: Any,
        reward: str = "airl",
        discriminator_learning_rate: float | str | Callable[[float], float] = 3e-5,
        discriminator_weight_decay: float = 10.0,
        discriminator_arch: list[int] | None = None,
        spectral_norm: bool = True,
        gradient_penalty: float = 1.0,
        **kwargs: Any,
    ):
        self.reward = reward
        self.discriminator_learning_rate = discriminator_learning_rate
        self.discriminator_weight_decay = discriminator_weight_decay
        self.discriminator_arch = [64] if discriminator_arch is None else discriminator_arch
        self.spectral_norm = spectral_norm
        self.gradient_penalty = gradient_penalty
        own = {"gamma": 0.97, "tau": 0.01, "ent_coef": "auto", "learning_starts": 1000}
        super().__init__(*args, **own_defaults(args, kwargs, **own))

    def _check_arguments(self) -> None:
        super()._check_arguments()
        check_choice("reward", self.reward, REWARDS)
        for name in ("gradient_penalty", "discriminator_weight_decay"):
            check_number(name, getattr(self, name))
        check_layers("discriminator_arch", self.discriminator_arch)
        self._rate_schedule("discriminator_learning_rate")

    def _policy_arguments(self) -> dict[str, Any]:
        return {"n_critics": 2, **super()._policy_arguments()}

    def _make_networks(self) -> dict[str, th.nn.Module]:
        discriminator = StateActionNetwork(self.policy, self.discriminator_arch, spectral_norm=self.spectral_norm)
        decay = self.discriminator_weight_decay
        rate = self._network_rate("discriminator", 1.0)
        return {"discriminator": discriminator.optimised_by(th.optim.AdamW, rate, weight_decay=decay)}

    def _network_rate(self, name: str, progress: float) -> float:
        return self._rate_schedule("discriminator_learning_rate")(progress)

    def _largest_reward(self) -> float:
        return -math.log(objectives.PROBABILITY_FLOOR)

    def _update(self, batch: Batch) -> dict[str, th.Tensor]:
        statistics = self._discriminator_step(batch)
        n_replay = self._n_replay(batch)
        replay = batch.replay_part(n_replay)
        with th.no_grad():
            logits = self.networks["discriminator"].of_batch(replay, self.terminal_value)
            rewards = objectives.discriminator_reward(logits, self.reward)
        statistics["learned_reward"] = rewards[:n_replay].mean()
        statistics["learned_reward_min"], statistics["learned_reward_max"] = rewards[:n_replay].aminmax()

        def critic_loss(rows: Rows, weights: RowWeights) -> th.Tensor:
            return objectives.td_loss(rows, rewards, weights.replay)

        return {**statistics, **self._soft_actor_critic_step(replay, critic_loss, n_replay)}

    def _discriminator_step(self, batch: Batch) -> dict[str, th.Tensor]:
        discriminator = self.networks["discriminator"]
        assert batch.noise.uniform is not None
        discriminator.train()  # spectral norms are estimated anew
        logits = discriminator.of_batch(batch, self.terminal_value)
        discriminator.eval()
        loss = objectives.discriminator_loss(logits, batch.weights)
        n_replay = self._n_replay(batch)
        inputs = discriminator.inputs(batch.obs, batch.actions)
        pairs = min(n_replay, len(inputs) - n_replay)
        replay, expert = inputs[:pairs], inputs[n_replay : n_replay + pairs]
        mix = batch.noise.uniform[:pairs]
        penalty = objectives.gradient_penalty(discriminator.of_inputs, expert, replay, mix, centre=0.0)
        self._descend(discriminator.optimizer, loss + self.gradient_penalty * penalty)
        with th.no_grad():
            is_right = (logits > 0).float()
            accuracy = {
                "discriminator_accuracy_expert": (batch.weights.expert * is_right).sum() / batch.weights.expert.sum(),
                "discriminator_accuracy_replay": (batch.weights.replay * (1 - is_right)).sum() / batch.weights.replay.sum(),
            }
        return {"discriminator_loss": loss.detach(), "gradient_penalty": penalty.detach(), **accuracy}
