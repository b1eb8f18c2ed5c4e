"""The demonstration sets that come with the package, named ``"builtin:<env id>"``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

_DATA = Path(__file__).parent / "data"


def manifest() -> dict[str, dict[str, Any]]:
    """
    What is known of the built-in sets: expert, selection, seeds, returns, versions, hash, what random actions return.

    :return: one entry per environment id.
    """
    return json.loads((_DATA / "manifest.json").read_text())


def builtin_ids() -> list[str]:
    """
    Environments that have a built-in set.

    :return: their ids, sorted.
    """
    return sorted(manifest())


def builtin_path(env_id: str) -> Path:
    """
    File of a built-in set.

    :param env_id: environment id, such as ``"CartPole-v1"``.
    :return: path of its ``.npz``.
    :raises ValueError: if there is no set for this environment.
    """
    return _DATA / _entry(env_id)["file"]


def expert_return(env_id: str) -> float:
    """
    What the expert of a built-in set reaches.

    :param env_id: environment id, such as ``"HalfCheetah-v4"``.
    :return: mean undiscounted return of the expert's evaluation episodes (of which the set holds a few).
    :raises ValueError: if there is no set for this environment.
    """
    return float(_entry(env_id)["expert"]["mean_return"])


def random_return(env_id: str) -> float:
    """
    What uniformly random actions reach in the task of a built-in set.

    :param env_id: environment id.
    :return: mean undiscounted return.
    :raises ValueError: if there is no set for this environment.
    """
    return float(_entry(env_id)["random"]["mean_return"])


def normalized_score(env_id: str, returns: Any) -> Any:
    """
    Returns on the scale on which random actions score 0 and the expert of the built-in set scores 1.

    :param env_id: environment id.
    :param returns: undiscounted return or array of them, in units of the task's reward.
    :return: scores of the same shape, a float for a single return; not clipped.
    :raises ValueError: if there is no set for this environment.
    """
    low, high = random_return(env_id), expert_return(env_id)
    scores = (np.asarray(returns, dtype=np.float64) - low) / (high - low)
    return scores if scores.ndim else float(scores)


def _entry(env_id: str) -> dict[str, Any]:
    entries = manifest()
    if env_id not in entries:
        raise ValueError(
            f"there are no built-in demonstrations for {env_id!r}, only for {', '.join(sorted(entries))}: pass trajectories "
            "or a path, or record some with collect_demonstrations."
        )
    return entries[env_id]
