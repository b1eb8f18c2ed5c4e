"""Demonstrations: one flat internal type, readers at the edge, recording, built-in sets."""

from sb3_dualqdm.demonstrations.builtin import builtin_ids, builtin_path, expert_return, normalized_score
from sb3_dualqdm.demonstrations.collect import collect_demonstrations
from sb3_dualqdm.demonstrations.readers import load_demonstrations
from sb3_dualqdm.demonstrations.types import Demonstrations

__all__ = [
    "Demonstrations",
    "builtin_ids",
    "builtin_path",
    "collect_demonstrations",
    "expert_return",
    "load_demonstrations",
    "normalized_score",
]
