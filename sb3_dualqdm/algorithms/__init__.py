"""The methods, as Stable-Baselines3 algorithms."""

from sb3_dualqdm.algorithms.base import ImitationAlgorithm
from sb3_dualqdm.algorithms.bc import BC
from sb3_dualqdm.algorithms.dac import DAC
from sb3_dualqdm.algorithms.dual_qdm import DualQDM
from sb3_dualqdm.algorithms.hype import HyPE
from sb3_dualqdm.algorithms.iq_learn import IQLearn
from sb3_dualqdm.algorithms.ls_iq import LSIQ
from sb3_dualqdm.algorithms.recoil import ReCOIL
from sb3_dualqdm.algorithms.reg_iq_learn import RegIQLearn
from sb3_dualqdm.algorithms.rize import RIZE
from sb3_dualqdm.algorithms.sqil import SQIL
from sb3_dualqdm.algorithms.value_dice import ValueDICE

__all__ = [
    "BC",
    "DAC",
    "LSIQ",
    "RIZE",
    "SQIL",
    "DualQDM",
    "HyPE",
    "IQLearn",
    "ImitationAlgorithm",
    "ReCOIL",
    "RegIQLearn",
    "ValueDICE",
]
