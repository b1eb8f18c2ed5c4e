"""Reg IQ-Learn: IQ-Learn as its authors run it, with the square of the implicit reward on expert and replay rows."""

from __future__ import annotations

from typing import Any

import torch as th

from sb3_dualqdm import objectives
from sb3_dualqdm.algorithms.arguments import check_number
from sb3_dualqdm.algorithms.search import REGULARIZATION_WEIGHT, VALUE_MODE
from sb3_dualqdm.algorithms.soft_actor_critic import SoftActorCritic
from sb3_dualqdm.objectives import Rows, RowWeights

# Weight of the square: 1 / (4 * 0.5) in IQ-Learn's code, 1/4 in the paper.
REGULARIZATION = {"reference": 0.5, "paper": 0.25}


class RegIQLearn(SoftActorCritic):
    """
    Reg IQ-Learn (paper, app. comparison): IQ-Learn plus ``c E[r_Q^2]`` over expert and replay rows (paper: replay rows).

    :param args: see :class:`ImitationAlgorithm`
    :param regularization: weight c of the square; None (default): 0.5 for ``objective="reference"``, 0.25 for ``"paper"``
    :param kwargs: see :class:`ImitationAlgorithm`
    """

    has_paper_objective = True
    search_space = SoftActorCritic.search_space | VALUE_MODE | REGULARIZATION_WEIGHT
    divergence_advice = "raise regularization or lower learning_rate"

    def __init__(self, *args: Any, regularization: float | None = None, **kwargs: Any):
        self.regularization = regularization
        super().__init__(*args, **kwargs)

    def _check_arguments(self) -> None:
        super()._check_arguments()
        if self.regularization is not None:
            check_number("regularization", self.regularization, alternative=", or None,")

    def critic_loss(self, rows: Rows, weights: RowWeights) -> th.Tensor:
        coefficient = REGULARIZATION[self.objective] if self.regularization is None else self.regularization
        return objectives.reg_iq_learn_loss(rows, weights, self.value_mode, self.gamma, coefficient)
