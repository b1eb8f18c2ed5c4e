"""
The update that most methods share: soft actor-critic on the objective of a method.

In the order of the paper's Algorithm 2: critic step, actor step on the same states, temperature step; the Polyak step of the
target critic follows in :meth:`ImitationAlgorithm.train`. Discrete actions have an exact soft value and no actor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch as th

from sb3_dualqdm import objectives
from sb3_dualqdm.algorithms.base import ImitationAlgorithm
from sb3_dualqdm.algorithms.batches import Batch
from sb3_dualqdm.algorithms.statistics import row_statistics
from sb3_dualqdm.objectives import Rows, RowWeights
from sb3_dualqdm.policies import Draw


class SoftActorCritic(ImitationAlgorithm):
    """
    Base of the methods that minimise an objective over a soft Q-function (:meth:`critic_loss`) and follow it by the actor.
    """

    # States that actor and temperature are trained on: "all" rows of a batch or its "replay" rows
    policy_rows: ClassVar[str] = "all"

    def critic_loss(self, rows: Rows, weights: RowWeights) -> th.Tensor:
        """
        The method's objective, to be minimised over the critic.

        :param rows: values of the batch, absorbing rows included
        :param weights: expectations over these rows
        :return: scalar loss
        """
        raise NotImplementedError

    def extra_statistics(self, rows: Rows, weights: RowWeights) -> dict[str, th.Tensor]:
        """Further scalars of a method to log, computed without gradient."""
        return {}

    def _update(self, batch: Batch) -> dict[str, th.Tensor]:
        return self._soft_actor_critic_step(batch, self.critic_loss, self._n_replay(batch))

    def _soft_actor_critic_step(
        self, batch: Batch, critic_loss: Callable[[Rows, RowWeights], th.Tensor], n_replay: int
    ) -> dict[str, th.Tensor]:
        """
        Critic step, actor step on the same states, temperature step.

        :param critic_loss: scalar to minimise over the critic, of the rows and the expectations over them
        :return: scalars to log
        """
        ent_coef = self._current_ent_coef()
        draw = self.policy.draw(batch.obs, batch.noise.obs)
        rows = self._rows(batch, draw, self._critic_ent_coef())
        loss = critic_loss(rows, batch.weights)
        self._descend(self.critic.optimizer, loss)
        self._after_critic_step(rows, batch.weights)

        statistics: dict[str, Any] = {"critic_loss": loss.detach()}
        if draw is not None:
            statistics["actor_loss"] = self._actor_step(batch, draw, ent_coef)
        if self.log_ent_coef is not None:
            statistics["ent_coef"] = ent_coef
            statistics["ent_coef_loss"] = self._ent_coef_step(batch, draw, ent_coef)
        with th.no_grad():
            statistics.update(row_statistics(rows, batch.weights, n_replay, self.terminal_value))
            statistics.update(self.extra_statistics(rows, batch.weights))
        return statistics

    def _rows(self, batch: Batch, draw: Draw | None, ent_coef: th.Tensor | float) -> Rows:
        """Evaluate the critics on a batch and append the absorbing rows."""
        q, v = self.policy.q_and_value(batch.obs, batch.actions, draw, ent_coef)
        with th.no_grad():
            next_draw = self._next_draw(batch)
            y_target = self._next_value(self.critic_target, batch, next_draw, ent_coef)
        is_paper = self.objective == "paper"
        y = self._next_value(self.critic, batch, next_draw, ent_coef) if is_paper else y_target
        initial_v = None
        if self.value_mode == "initial":
            initial_v = self._value(self.critic, batch.initial_obs, batch.noise.initial_obs, ent_coef)
        if self.terminal_value == "absorbing":
            # The absorbing state has one action and succeeds itself: Q = V = c, y = gamma c
            c, c_target = self._absorbing_value(self.critic), self._absorbing_value(self.critic_target).detach()
            v_absorbing, v_absorbing_target = c.amin(), c_target.amin()
            q = th.cat([q, c.unsqueeze(1).expand_as(q)], dim=1)
            y_absorbing = self.gamma * (v_absorbing if is_paper else v_absorbing_target)
            v = th.cat([v, v_absorbing.expand_as(v)])
            y = th.cat([y, y_absorbing.expand_as(y)])
            y_target = th.cat([y_target, (self.gamma * v_absorbing_target).expand_as(y_target)]) if is_paper else y
        return Rows(q, v, y, y_target, initial_v)

    def _after_critic_step(self, rows: Rows, weights: RowWeights) -> None:
        """What a method adapts to the values that the critic's step has seen; part of the update."""

    def _next_draw(self, batch: Batch) -> Draw | None:
        """Policy samples at the next states."""
        return self.policy.draw(batch.next_obs, batch.noise.next_obs)

    def _next_value(self, critic: Any, batch: Batch, draw: Draw | None, ent_coef: th.Tensor | float) -> th.Tensor:
        """``gamma V(s')``."""
        next_v = self.policy.value(critic, batch.next_obs, draw, ent_coef)
        return self._discounted(critic, next_v, batch.not_terminated)

    def _actor_step(self, batch: Batch, draw: Draw, ent_coef: th.Tensor | float) -> th.Tensor:
        q = self._actor_values(batch, draw)
        rows = slice(0, len(q))  # the absorbing state has no decision to learn
        weights = batch.weights if self.policy_rows == "all" else batch.weights._replace(actor=batch.weights.replay)
        loss = objectives.actor_loss(q, draw.log_prob[0], ent_coef, RowWeights(*(w[rows] for w in weights)))
        self._descend(self.actor.optimizer, loss)
        return loss.detach()

    def _actor_values(self, batch: Batch, draw: Draw) -> th.Tensor:
        """What the actor maximises beside its entropy, shape ``(n + m,)``."""
        return self.critic.q_values(batch.obs, draw.actions[0]).amin(dim=0)

    def _ent_coef_step(self, batch: Batch, draw: Draw | None, ent_coef: th.Tensor | float) -> th.Tensor:
        assert self.log_ent_coef is not None and self.ent_coef_optimizer is not None
        if draw is None:
            with th.no_grad():
                log_pi = th.log_softmax(self.critic(batch.obs).amin(dim=0) / ent_coef, dim=-1)
                log_prob = (log_pi.exp() * log_pi).sum(dim=-1)
        else:
            log_prob = draw.log_prob[0]
        if self.policy_rows == "replay":
            log_prob = log_prob[: self._n_replay(batch)]
        loss = objectives.ent_coef_loss(self.log_ent_coef, log_prob, self._target_entropy)
        self._descend(self.ent_coef_optimizer, loss)
        self._sync_temperature()
        return loss.detach()
