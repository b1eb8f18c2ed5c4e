"""Dual Q-DM: Q-based distribution matching with Bellman constraints."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Real
from typing import Any

import torch as th

from sb3_dualqdm import objectives
from sb3_dualqdm.algorithms.arguments import check_number, value_range
from sb3_dualqdm.algorithms.search import VALUE_MODE, Range
from sb3_dualqdm.algorithms.soft_actor_critic import SoftActorCritic
from sb3_dualqdm.objectives import Rows, RowWeights


class DualQDM(SoftActorCritic):
    """
    Dual Q-DM (paper, eq. q-dm and its practical form, Algorithms 1 and 2).

    IQ-Learn's objective under Bellman constraints ``lo <= Q(s, a) - gamma E[V(s')] <= hi``, here as a squared hinge
    on violations: they let values flow from demonstrated to unvisited states.

    :param args: see :class:`ImitationAlgorithm`
    :param bellman_bounds: ``(lo, hi)``, or ``b`` for ``(-b, b)``; default ``(-1, 1)`` (the theory's are ``(0, 1)``)
    :param bellman_penalty: weight beta of the violations, default 0.5; 0 gives IQ-Learn with total variation
    :param kwargs: see :class:`ImitationAlgorithm`
    :raises ValueError: unless ``lo <= hi`` and beta >= 0
    """

    has_paper_objective = True
    search_space = (
        SoftActorCritic.search_space | VALUE_MODE | {"bellman_bounds": Range(0.1, 10.0), "bellman_penalty": Range(0.1, 10.0)}
    )
    divergence_advice = "raise bellman_penalty or lower learning_rate"

    def __init__(
        self,
        *args: Any,
        bellman_bounds: float | Sequence[float] = (-1.0, 1.0),
        bellman_penalty: float = 0.5,
        **kwargs: Any,
    ):
        self.bellman_bounds = bellman_bounds
        self.bellman_penalty = bellman_penalty
        super().__init__(*args, **kwargs)

    def _check_arguments(self) -> None:
        super()._check_arguments()
        given: Any = self.bellman_bounds
        bounds = (-given, given) if isinstance(given, Real) else given
        self._bounds = value_range("bellman_bounds", bounds, "<=", ", or b for (-b, b),")
        check_number("bellman_penalty", self.bellman_penalty)

    def critic_loss(self, rows: Rows, weights: RowWeights) -> th.Tensor:
        return objectives.dual_qdm_loss(rows, weights, self.value_mode, self.gamma, self._bounds, self.bellman_penalty)

    def extra_statistics(self, rows: Rows, weights: RowWeights) -> dict[str, th.Tensor]:
        r = rows.q - rows.y_target
        low, high = self._bounds
        share = weights.constraint / weights.constraint.sum()
        return {"below_bounds": ((r < low) * share).sum() / len(r), "above_bounds": ((r > high) * share).sum() / len(r)}

    def _largest_reward(self) -> float:
        # a soft constraint of weight beta is exceeded by up to 1 / beta
        slack = 1 / self.bellman_penalty if self.bellman_penalty > 0 else super()._largest_reward()
        return max(abs(bound) for bound in self._bounds) + slack
