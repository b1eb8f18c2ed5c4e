"""Behavioural cloning, the supervised baseline, with the same networks, demonstrations, saving and callbacks."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.callbacks import BaseCallback
from torch.nn import functional as F

from sb3_dualqdm.algorithms.arguments import check_choice, check_number, whole_number
from sb3_dualqdm.algorithms.base import ImitationAlgorithm, own_defaults
from sb3_dualqdm.algorithms.batches import Batch
from sb3_dualqdm.algorithms.search import Choice, SearchSpace

LOSSES = ("nll", "mse")


class BC(ImitationAlgorithm):
    """
    Behavioural cloning (paper, eq. bc_objective). ``learn(n)`` makes n updates and no environment step.

    :param args: see :class:`ImitationAlgorithm`; those of the critic (``terminal_value`` among them), the replay buffer and a
        learned temperature are unused, ``objective``, ``extra_transitions`` and ``bc_warmup_steps`` must be left out
    :param loss: ``"nll"`` (default): negative log-likelihood of the squashed Gaussian (recorded actions clamped 1e-6 inside
        the border) or of the categorical; ``"mse"``: squared error of ``tanh(mean)`` in [-1, 1] (the paper's runs), Box only
    :param validation_fraction: share of the transitions held out, default 0.1 (rounded up, but never all of them)
    :param validation_interval: updates between two evaluations of the held-out loss, default 1000
    :param early_stopping_patience: stop after this many evaluations without a new best held-out loss; None (default): never
    :param kwargs: see :class:`ImitationAlgorithm`; ``offline=True`` and ``ent_coef`` 1 (a categorical's logits are Q over it)
        are the defaults of this class
    :raises ValueError: for early stopping on a single transition, which cannot be held out
    """

    divergence_advice = "lower learning_rate"
    search_space: ClassVar[SearchSpace] = {}
    box_search_space: ClassVar[SearchSpace] = {"loss": Choice(list(LOSSES))}

    def __init__(
        self,
        *args: Any,
        loss: str = "nll",
        validation_fraction: float = 0.1,
        validation_interval: int = 1000,
        early_stopping_patience: int | None = None,
        **kwargs: Any,
    ):
        self.loss = loss
        self.validation_fraction = validation_fraction
        self.validation_interval = validation_interval
        self.early_stopping_patience = early_stopping_patience
        # the logits of a categorical are Q / alpha
        super().__init__(*args, **own_defaults(args, kwargs, ent_coef=1.0, offline=True))

    def _check_arguments(self) -> None:
        super()._check_arguments()
        if not self.offline:
            raise ValueError("offline=False was given but BC makes no environment step: leave it out.")
        check_choice("loss", self.loss, LOSSES)
        if self.loss == "mse" and isinstance(self.action_space, spaces.Discrete):
            raise ValueError("loss='mse' was given but Discrete actions have no mean action: use loss='nll'.")
        check_number("validation_fraction", self.validation_fraction, "[0, 1)")
        self.validation_interval = whole_number("validation_interval", self.validation_interval)
        if self.early_stopping_patience is not None:
            self.early_stopping_patience = whole_number("early_stopping_patience", self.early_stopping_patience)
        if self.bc_warmup_steps > 0:
            raise ValueError(f"bc_warmup_steps is {self.bc_warmup_steps} but BC is that warm-up itself: leave it out.")
        if self.extra_transitions is not None:
            raise ValueError(
                "extra_transitions was given but BC clones every transition it has: leave it out, or pass what is to be "
                "cloned as demonstrations=."
            )
        if self.ent_coef == 0 and isinstance(self.action_space, spaces.Discrete):
            raise ValueError("ent_coef is 0 but the logits of BC are Q / ent_coef: use the default of 1.")
        if self.early_stopping_patience is not None and self.validation_fraction == 0:
            raise ValueError("early_stopping_patience needs held-out transitions: set validation_fraction above 0.")

    def _load_demonstrations(self) -> None:
        previous = self.demo_buffer
        super()._load_demonstrations()
        assert self.demo_buffer is not None
        order = np.random.default_rng(0 if self.seed is None else self.seed).permutation(len(self.demo_buffer))
        n_held_out = min(int(np.ceil(self.validation_fraction * len(order))), len(order) - 1)
        if n_held_out == 0 and self.early_stopping_patience is not None:
            self.demo_buffer = previous
            raise ValueError(
                f"early_stopping_patience is {self.early_stopping_patience} but the demonstrations have a single transition, "
                "which cannot be held out: leave it out or pass more demonstrations."
            )
        self._held_out, self._kept = order[:n_held_out], order[n_held_out:]

    def _keeps_terminated(self) -> bool:
        return False  # cloning knows no absorbing state

    def _setup_learn(self, *args: Any, **kwargs: Any) -> tuple[int, BaseCallback]:
        if self._resumed is None:
            self._best_validation_loss, self._evaluations_since_best = np.inf, 0
        return super()._setup_learn(*args, **kwargs)

    def _sample_batches(self, n_batches: int, batch_size: int) -> Batch:
        at = self._kept[self._rng.integers(len(self._kept), size=(n_batches, self._demo_batch_size()))]
        return self._to_batches(self._require_demonstrations().stored.take(at), 0)

    def _bc_loss(self, obs: Any, actions: th.Tensor) -> th.Tensor:
        if self.loss == "nll":
            return super()._bc_loss(obs, actions)
        return F.mse_loss(th.tanh(self.actor.get_action_dist_params(obs)[0]), actions)

    def _update(self, batch: Batch) -> dict[str, th.Tensor]:
        return {"bc_loss": self._bc_step(batch.obs, batch.actions)}

    def _after_update(self) -> None:
        if self._n_updates % self.validation_interval > 0 or len(self._held_out) == 0:
            return
        self.policy.set_training_mode(False)
        with th.no_grad():
            # no batch, whose noise would come from the stream that training draws from
            rows = self._require_demonstrations().stored.take(self._held_out)
            loss = self._bc_loss(self._inputs.obs(rows.obs), self._inputs.actions(rows.actions)).item()
        self.policy.set_training_mode(True)
        self.logger.record("train/validation_loss", loss)
        improved = loss < self._best_validation_loss
        self._best_validation_loss = min(loss, self._best_validation_loss)
        self._evaluations_since_best = 0 if improved else self._evaluations_since_best + 1

    def _finished(self) -> bool:
        return self.early_stopping_patience is not None and self._evaluations_since_best >= self.early_stopping_patience

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), "_held_out", "_kept"]
