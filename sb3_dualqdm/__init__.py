"""Dual Q-DM and its relatives as Stable-Baselines3 algorithms.

Names are imported on first use, so that ``import sb3_dualqdm`` alone loads neither torch nor gymnasium.
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_MODULE_OF = {
    "DualQDM": "algorithms",
    "IQLearn": "algorithms",
    "RegIQLearn": "algorithms",
    "BC": "algorithms",
    "SQIL": "algorithms",
    "LSIQ": "algorithms",
    "DAC": "algorithms",
    "ValueDICE": "algorithms",
    "HyPE": "algorithms",
    "ReCOIL": "algorithms",
    "RIZE": "algorithms",
    "Demonstrations": "demonstrations",
    "load_demonstrations": "demonstrations",
    "collect_demonstrations": "demonstrations",
    "expert_return": "demonstrations",
    "normalized_score": "demonstrations",
    "to_sac": "transfer",
}

__all__ = [
    "BC",
    "DAC",
    "LSIQ",
    "RIZE",
    "SQIL",
    "Demonstrations",
    "DualQDM",
    "HyPE",
    "IQLearn",
    "ReCOIL",
    "RegIQLearn",
    "ValueDICE",
    "collect_demonstrations",
    "expert_return",
    "load_demonstrations",
    "normalized_score",
    "to_sac",
]

if TYPE_CHECKING:
    from sb3_dualqdm.algorithms import BC, DAC, LSIQ, RIZE, SQIL, DualQDM, HyPE, IQLearn, ReCOIL, RegIQLearn, ValueDICE
    from sb3_dualqdm.demonstrations import (
        Demonstrations,
        collect_demonstrations,
        expert_return,
        load_demonstrations,
        normalized_score,
    )
    from sb3_dualqdm.transfer import to_sac


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    globals()[name] = value  # found directly from now on
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


try:  # not there in a source tree that was never installed
    from _sb3_dualqdm_startup import install as _install
except ImportError:
    pass
else:
    _install()  # a running kernel has not seen the start-up file of a package installed after it
