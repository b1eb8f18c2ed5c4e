"""The demonstration sets that come with the package, named ``"builtin:<env id>"``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_DATA = Path(__file__).parent / "data"


def manifest() -> dict[str, dict[str, Any]]:
    """
    What is known of the built-in sets: expert, versions, seeds, returns, hash.

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
    entries = manifest()
    if env_id not in entries:
        raise ValueError(
            f"there are no built-in demonstrations for {env_id!r}, only for {', '.join(sorted(entries))}: pass trajectories "
            "or a path, or record some with collect_demonstrations."
        )
    return _DATA / entries[env_id]["file"]
