"""The methods, as Stable-Baselines3 algorithms."""

from sb3_dualqdm.algorithms.base import ImitationAlgorithm
from sb3_dualqdm.algorithms.bc import BC
from sb3_dualqdm.algorithms.dual_qdm import DualQDM
from sb3_dualqdm.algorithms.iq_learn import IQLearn
from sb3_dualqdm.algorithms.reg_iq_learn import RegIQLearn

__all__ = ["BC", "DualQDM", "IQLearn", "ImitationAlgorithm", "RegIQLearn"]
