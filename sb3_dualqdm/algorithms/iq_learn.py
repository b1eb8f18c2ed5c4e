"""IQ-Learn with the divergences of its paper."""

from __future__ import annotations

from typing import Any

import torch as th

from sb3_dualqdm import objectives
from sb3_dualqdm.algorithms.arguments import check_choice, check_number, value_range
from sb3_dualqdm.algorithms.reg_iq_learn import REGULARIZATION
from sb3_dualqdm.algorithms.search import VALUE_MODE
from sb3_dualqdm.algorithms.soft_actor_critic import SoftActorCritic
from sb3_dualqdm.objectives import DIVERGENCES, Rows, RowWeights


class IQLearn(SoftActorCritic):
    """
    IQ-Learn (paper, eq. iq_learn and iq_learn_infinite), which provably reduces to behavioural cloning.

    The square of ``"chi2"`` covers expert rows alone and is known to let the critic diverge;
    :class:`RegIQLearn` puts it on expert and replay rows and is what its authors run on MuJoCo.

    :param args: see :class:`ImitationAlgorithm`
    :param divergence: ``"chi2"`` (default), ``"tv"``, ``"hellinger"``, ``"kl"`` or ``"js"``; phi' is evaluated inside its
        domain and the clamped share of expert rows is logged
    :param regularization: weight of chi2's square; None (default): 0.5 for ``objective="reference"``, 0.25 for ``"paper"``
    :param q_range: bounds of the Q-class, by a tanh head; ``"auto"`` (default): (-1, 1) / (1 - gamma) for ``"tv"``, whose
        objective is linear in Q and unbounded otherwise, none for the others; None: unbounded
    :param kwargs: see :class:`ImitationAlgorithm`
    """

    has_paper_objective = True
    search_space = SoftActorCritic.search_space | VALUE_MODE
    divergence_advice = "use RegIQLearn (the square on expert and replay rows) or lower learning_rate"

    def __init__(
        self,
        *args: Any,
        divergence: str = "chi2",
        regularization: float | None = None,
        q_range: str | tuple[float, float] | None = "auto",
        **kwargs: Any,
    ):
        self.divergence = divergence
        self.regularization = regularization
        self.q_range = q_range
        super().__init__(*args, **kwargs)

    def _check_arguments(self) -> None:
        super()._check_arguments()
        check_choice("divergence", self.divergence, DIVERGENCES)
        if self.regularization is not None:
            check_number("regularization", self.regularization, alternative=", or None,")
        is_auto = isinstance(self.q_range, str) and self.q_range == "auto"
        if self.q_range is not None and not is_auto:
            value_range("q_range", self.q_range, alternative=", 'auto' or None")
        if "q_range" in self.policy_kwargs and not is_auto:
            raise ValueError(
                f"q_range is {self.q_range} but policy_kwargs has q_range={self.policy_kwargs['q_range']} too: leave out one."
            )

    def _policy_arguments(self) -> dict[str, Any]:
        q_range = self.q_range
        if q_range == "auto":
            bound = 1 / (1 - self.gamma) if self.gamma < 1 else None
            q_range = (-bound, bound) if self.divergence == "tv" and bound is not None else None
        return {"q_range": q_range, **super()._policy_arguments()}

    def critic_loss(self, rows: Rows, weights: RowWeights) -> th.Tensor:
        coefficient = REGULARIZATION[self.objective] if self.regularization is None else self.regularization
        return objectives.iq_learn_loss(rows, weights, self.value_mode, self.gamma, self.divergence, coefficient)

    def extra_statistics(self, rows: Rows, weights: RowWeights) -> dict[str, th.Tensor]:
        if self.divergence not in objectives.SLOPE_FLOORS:
            return {}
        _, clamped = objectives.divergence_slope(rows.q - rows.y, self.divergence)
        return {"clamped_share": (weights.expert * clamped).sum(dim=1).mean()}
