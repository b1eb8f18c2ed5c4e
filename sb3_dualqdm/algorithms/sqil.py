"""SQIL: soft Q imitation learning."""

from __future__ import annotations

from typing import Any

import torch as th

from sb3_dualqdm import objectives
from sb3_dualqdm.algorithms.arguments import check_number
from sb3_dualqdm.algorithms.search import Range
from sb3_dualqdm.algorithms.soft_actor_critic import SoftActorCritic
from sb3_dualqdm.objectives import Rows, RowWeights


class SQIL(SoftActorCritic):
    """
    SQIL (Reddy et al., 2020): SAC, or soft Q-learning with Discrete actions, under reward 1 on demonstrations and 0 on replay.

    Half of every batch is demonstrations. ``terminal_value="absorbing"`` (default) goes on rewarding the absorbing state
    that demonstrated terminations lead to by 1, and that of the learner's own by 0; ``"zero"`` is the original.

    :param args: see :class:`ImitationAlgorithm`; ``value_mode`` is unused, ``objective`` must be left out
    :param replay_weight: weight lambda_samp of the error on replay rows, default 1
    :param kwargs: see :class:`ImitationAlgorithm`
    """

    offline_support = "extra_transitions"
    search_space = SoftActorCritic.search_space | {"replay_weight": Range(0.1, 10.0)}
    divergence_advice = "lower learning_rate or use policy_kwargs=dict(n_critics=2)"

    def __init__(self, *args: Any, replay_weight: float = 1.0, **kwargs: Any):
        self.replay_weight = replay_weight
        super().__init__(*args, **kwargs)

    def _check_arguments(self) -> None:
        super()._check_arguments()
        check_number("replay_weight", self.replay_weight)

    def critic_loss(self, rows: Rows, weights: RowWeights) -> th.Tensor:
        return objectives.sqil_loss(rows, weights, self.replay_weight)
