"""Small episodes whose numbers say which episode and step they belong to."""

from types import SimpleNamespace
from typing import Any

import numpy as np


def trajectory(episode: int, length: int, terminal: bool = True, **extra: Any) -> SimpleNamespace:
    """One trajectory in imitation's layout: observation 100 e + t (and its negative), action t / 10, reward t + 1."""
    number = 100.0 * episode + np.arange(length + 1)
    return SimpleNamespace(
        obs=np.stack([number, -number], axis=1).astype(np.float32),
        acts=(np.arange(length)[:, None] / 10).astype(np.float32),
        rews=np.arange(1.0, length + 1),
        terminal=terminal,
        infos=None,
        **extra,
    )


def flat(lengths: list[int]) -> dict[str, np.ndarray]:
    """The same episodes as flat arrays with next_obs, without any flag."""
    parts = [trajectory(episode, length) for episode, length in enumerate(lengths)]
    return {
        "obs": np.concatenate([part.obs[:-1] for part in parts]),
        "next_obs": np.concatenate([part.obs[1:] for part in parts]),
        "acts": np.concatenate([part.acts for part in parts]),
    }


def ends(lengths: list[int], which: list[bool]) -> np.ndarray:
    """Flags that are set at the last step of the given episodes."""
    flags = np.zeros(sum(lengths), dtype=bool)
    flags[np.cumsum(lengths) - 1] = which
    return flags


def last_flags(demos: Any) -> list[tuple[bool, bool]]:
    """(terminated, truncated) of each episode's last row."""
    last = np.append(np.flatnonzero(np.diff(demos.episode)), len(demos) - 1)
    return list(zip(demos.terminated[last].tolist(), demos.truncated[last].tolist()))
