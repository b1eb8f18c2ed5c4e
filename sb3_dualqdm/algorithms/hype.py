"""HyPE: hybrid inverse reinforcement learning."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch as th
from stable_baselines3.common.callbacks import BaseCallback

from sb3_dualqdm import objectives
from sb3_dualqdm.acceleration import set_learning_rate
from sb3_dualqdm.algorithms.arguments import check_layers, check_number, whole_number
from sb3_dualqdm.algorithms.base import own_defaults
from sb3_dualqdm.algorithms.batches import Batch
from sb3_dualqdm.algorithms.search import GRADIENT_PENALTY, Range
from sb3_dualqdm.algorithms.soft_actor_critic import SoftActorCritic
from sb3_dualqdm.buffers import concatenate
from sb3_dualqdm.networks import StateActionNetwork
from sb3_dualqdm.objectives import Rows, RowWeights
from sb3_dualqdm.optimizers import OptimisticAdam

COST_FIELDS = ("cost_interval", "cost_window", "cost_batch_size")


class HyPE(SoftActorCritic):
    """
    HyPE (Ren et al., 2024): SAC on a mixture of replay and demonstrations, under a cost f that is rarely updated.

    f is lowered on demonstrations and raised on the learner's newest transitions, once every ``cost_interval`` steps; the
    reward is -f, computed anew for every batch. The authors' code rolls out four further episodes for each update of f and
    does not count them; here f sees the newest ``cost_window`` transitions, so that every step counts. Its restarts of SAC's
    step counter (a learning rate that falls to zero in every round, random actions at its beginning) are left out.

    :param args: see :class:`ImitationAlgorithm`; ``value_mode`` is unused, ``objective`` and ``demo_batch_size`` must be left
        out
    :param expert_fraction: share rho of demonstrations in ``batch_size``, a float or a function of the remaining progress,
        default 0.2
    :param cost_interval: environment steps between two updates of f, default 10,000
    :param cost_window: newest transitions of the learner (no ``extra_transitions``) that f is updated on, default 4000
    :param cost_batch_size: rows of the learner, and as many of demonstrations, in an update of f, default 4096
    :param cost_learning_rate: in the first two updates of f, default 8e-4; the third has half of it, the fourth a third, ...
    :param cost_arch: hidden layers of f, default ``[256, 256]``
    :param gradient_penalty: weight of ``(|grad f| - centre)^2``, default 10
    :param gradient_penalty_centre: gradient norm that costs nothing, default 0.4
    :param kwargs: see :class:`ImitationAlgorithm`; ``learning_rate`` 7.3e-4, ``gamma`` 0.98, ``tau`` 0.02,
        ``ent_coef="auto"``, two critics and :class:`sb3_dualqdm.optimizers.OptimisticAdam` are the defaults of this class
    """

    offline_support = "none"
    n_uniform = 1
    search_space = (
        SoftActorCritic.search_space
        | GRADIENT_PENALTY
        | {"cost_interval": Range(500, 10_000), "expert_fraction": Range(0.05, 0.5, log=False)}
    )
    divergence_advice = "raise gradient_penalty or lower cost_learning_rate"

    def __init__(
        self,
        *args: Any,
        expert_fraction: float | Callable[[float], float] = 0.2,
        cost_interval: int = 10_000,
        cost_window: int = 4000,
        cost_batch_size: int = 4096,
        cost_learning_rate: float = 8e-4,
        cost_arch: list[int] | None = None,
        gradient_penalty: float = 10.0,
        gradient_penalty_centre: float = 0.4,
        **kwargs: Any,
    ):
        self.expert_fraction = expert_fraction
        self.cost_interval = cost_interval
        self.cost_window = cost_window
        self.cost_batch_size = cost_batch_size
        self.cost_learning_rate = cost_learning_rate
        self.cost_arch = [256, 256] if cost_arch is None else cost_arch
        self.gradient_penalty = gradient_penalty
        self.gradient_penalty_centre = gradient_penalty_centre
        self._n_cost_updates = 0
        self._next_cost_update = 0
        own = {"learning_rate": 7.3e-4, "gamma": 0.98, "tau": 0.02, "ent_coef": "auto"}
        super().__init__(*args, **own_defaults(args, kwargs, **own))

    def _check_arguments(self) -> None:
        super()._check_arguments()
        for name in COST_FIELDS:
            setattr(self, name, whole_number(name, getattr(self, name)))
        for name in ("gradient_penalty", "gradient_penalty_centre", "cost_learning_rate"):
            check_number(name, getattr(self, name))
        check_layers("cost_arch", self.cost_arch)
        if self.demo_batch_size is not None:
            raise ValueError(
                f"demo_batch_size is {self.demo_batch_size} but HyPE splits batch_size by expert_fraction: leave it out."
            )
        if not callable(self.expert_fraction):
            check_number("expert_fraction", self.expert_fraction, "(0, 1)", ", or a schedule,")
        for progress in (1.0, 0.0):
            self._expert_share(progress)

    def _policy_arguments(self) -> dict[str, Any]:
        return {"n_critics": 2, "optimizer_class": OptimisticAdam, **super()._policy_arguments()}

    def _make_networks(self) -> dict[str, th.nn.Module]:
        cost = StateActionNetwork(self.policy, self.cost_arch)
        return {"cost": cost.optimised_by(OptimisticAdam, self.cost_learning_rate)}

    def _network_rate(self, name: str, progress: float) -> float:
        return self.cost_learning_rate / max(self._n_cost_updates, 1)

    def _expert_share(self, progress: float) -> float:
        rho = self.expert_fraction
        if not callable(rho):
            return rho
        share = rho(progress)
        check_number(f"expert_fraction at the remaining progress {progress:.3g}", share, "[0, 1]")
        return share

    def _demo_batch_size(self) -> int:
        share = self._expert_share(self._current_progress_remaining)
        return min(max(int(self.batch_size * share), 1), max(self.batch_size - 1, 1))

    def _sample_batches(self, n_batches: int, batch_size: int) -> Batch:
        return super()._sample_batches(n_batches, max(batch_size - self._demo_batch_size(), 1))

    def _update(self, batch: Batch) -> dict[str, th.Tensor]:
        with th.no_grad():
            rewards = -self.networks["cost"].of_batch(batch, self.terminal_value)

        def critic_loss(rows: Rows, weights: RowWeights) -> th.Tensor:
            return objectives.td_loss(rows, rewards, weights.value)

        statistics = self._soft_actor_critic_step(batch, critic_loss, self._n_replay(batch))
        n = len(batch.actions)
        # not the first rows: a compiled or captured update would keep the number of replay rows it began with
        return {**statistics, "learned_reward_replay": (batch.weights.replay[:n] * rewards[:n]).sum()}

    def _setup_learn(self, *args: Any, **kwargs: Any) -> tuple[int, BaseCallback]:
        before = self.num_timesteps
        prepared = super()._setup_learn(*args, **kwargs)
        self._next_cost_update -= before - self.num_timesteps  # learn() may have begun to count anew
        return prepared

    def _before_updates(self) -> None:
        wait = self._next_cost_update - self.num_timesteps
        if 0 < wait <= self.cost_interval:  # more than that, and cost_interval was lowered
            return
        self._next_cost_update = self.num_timesteps + self.cost_interval
        shape = (1, self.cost_batch_size)
        learner = self.replay_buffer.rows(shape, self._rng, n_newest=self.cost_window)
        expert = self._require_demonstrations().rows(shape, self._rng)
        rows = concatenate(learner, expert, self._storage_device(self.device))
        self._cost_step(self._to_batches(rows, self.cost_batch_size).at(0))
        self._n_cost_updates += 1

    def _cost_step(self, batch: Batch) -> None:
        """One step of f by an optimiser that remembers nothing, as in the authors' code."""
        cost = self.networks["cost"]
        n = self.cost_batch_size
        loss = objectives.moment_loss(cost.of_batch(batch, self.terminal_value), batch.weights)
        inputs = cost.inputs(batch.obs, batch.actions)
        mix = batch.noise.uniform[:n]  # type: ignore[index]
        penalty = objectives.gradient_penalty(cost.of_inputs, inputs[n:], inputs[:n], mix, self.gradient_penalty_centre)
        cost.optimizer.state.clear()
        set_learning_rate(cost.optimizer, self._network_rate("cost", 1.0))
        self._descend(cost.optimizer, loss + self.gradient_penalty * penalty)
        self.logger.record("train/cost_loss", loss.item())
        self.logger.record("train/cost_gradient_penalty", penalty.item())
        self.logger.record("train/n_cost_updates", self._n_cost_updates + 1)

    def _largest_reward(self) -> float:
        return math.inf  # the cost has no range
