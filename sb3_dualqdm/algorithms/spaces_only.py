"""What stands for the environment of an offline method that was given spaces alone."""

from __future__ import annotations

from typing import Any, NoReturn

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class SpacesOnly(gym.Env):
    """
    Spaces without dynamics: it can be reset, so that Stable-Baselines3 finds what it expects, and not stepped.

    :param observation_space: space of the observations
    :param action_space: space of the actions
    """

    def __init__(self, observation_space: spaces.Space, action_space: spaces.Space):
        self.observation_space, self.action_space = observation_space, action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.observation_space.seed(0)
        return self.observation_space.sample(), {}

    def step(self, action: np.ndarray) -> NoReturn:
        raise RuntimeError("A step was asked for but only spaces were given: pass an environment with set_env().")


def is_placeholder(venv: Any) -> bool:
    """Whether a vectorised environment stands for spaces alone."""
    envs = getattr(venv.unwrapped, "envs", [])
    return len(envs) == 1 and isinstance(getattr(envs[0], "unwrapped", None), SpacesOnly)
