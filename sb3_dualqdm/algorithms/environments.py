"""What the algorithms ask of an environment, and what stands for one where only spaces were given."""

from __future__ import annotations

import re
from typing import Any, NoReturn

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from stable_baselines3.common.preprocessing import check_for_nested_spaces, is_image_space, maybe_transpose
from stable_baselines3.common.vec_env import VecEnv, VecNormalize, unwrap_vec_normalize

from sb3_dualqdm.buffers import Obs


class UnsupportedSpaceError(ValueError, AssertionError):
    """A space that no policy here serves; an AssertionError too, which is what SB3 raises for it."""


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
    """Whether an environment is a vectorised one that stands for spaces alone."""
    envs = getattr(getattr(venv, "unwrapped", None), "envs", [])
    return len(envs) == 1 and isinstance(getattr(envs[0], "unwrapped", None), SpacesOnly)


def _check_start(name: str, space: spaces.Space) -> None:
    start = getattr(space, "start", 0)  # MultiDiscrete has one from gymnasium 1.0 on
    if np.any(start):
        raise UnsupportedSpaceError(
            f"The {name} space {space} starts at {start} but 0 is needed: shift the {name}s in a wrapper."
        )


def check_observation_space(space: spaces.Space) -> None:
    """
    :raises UnsupportedSpaceError: unless it is a Box, Discrete, MultiDiscrete or MultiBinary space, or a Dict of these
    """
    check_for_nested_spaces(space)
    for part in space.spaces.values() if isinstance(space, spaces.Dict) else [space]:
        if not isinstance(part, (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)):
            raise UnsupportedSpaceError(
                f"The observation space is {space} but Box, Discrete, MultiDiscrete, MultiBinary, or a Dict of these, is "
                "needed: wrap the environment to convert its observations."
            )
        _check_start("observation", part)


def check_action_space(space: spaces.Space) -> None:
    """
    :raises UnsupportedSpaceError: unless it is a bounded Box of real numbers, of positive size, or a Discrete space that
        starts at 0
    """
    if not isinstance(space, (spaces.Box, spaces.Discrete)):
        raise UnsupportedSpaceError(
            f"The action space is {space} but Box or Discrete is needed: wrap the environment to convert its actions."
        )
    _check_start("action", space)
    if isinstance(space, spaces.Box) and not np.issubdtype(space.dtype, np.floating):
        raise UnsupportedSpaceError(
            f"The action space {space} has the type {space.dtype} but the policy's actions are real numbers: round them in a "
            "wrapper whose space is a Box of floats."
        )
    if isinstance(space, spaces.Box) and not (space.low < space.high).all():
        raise UnsupportedSpaceError(
            f"The action space {space} has an empty range but low < high is needed: drop constant actions."
        )
    if isinstance(space, spaces.Box) and not (np.isfinite(space.low).all() and np.isfinite(space.high).all()):
        raise UnsupportedSpaceError(
            f"The action space {space} has infinite bounds but finite ones are needed to squash actions: wrap the "
            "environment with gymnasium.wrappers.RescaleAction or set bounds from percentiles of the recorded actions."
        )


def check_wrapper_order(venv: VecEnv) -> None:
    """
    :raises ValueError: when observations are transposed or stacked after they were normalised, so that their raw form, which
        is stored, is unknown
    """
    while unwrap_vec_normalize(venv) is not None and not isinstance(venv, VecNormalize):
        name, inner = type(venv).__name__, venv.venv  # type: ignore[attr-defined]
        if venv.observation_space != inner.observation_space:
            raise ValueError(
                f"{name} changes observations that VecNormalize has normalised but they are stored raw, as it got them: wrap "
                f"the environment as VecNormalize({name}(env), ...)."
            )
        venv = inner


def _ask(venv: VecEnv | None, method: str, *args: Any) -> Any:
    """What a method of the first environment answers, if there is one: text or a number, which subprocesses can send."""
    try:
        return None if venv is None else venv.env_method(method, *args, indices=[0])[0]
    except (AttributeError, NotImplementedError):
        return None


def channels_first(obs: Obs, space: spaces.Space) -> Obs:
    """Images as the space has them, whichever way round they were given; anything else as it is."""
    if isinstance(space, spaces.Dict):
        return {key: channels_first(obs[key], part) for key, part in space.spaces.items()}
    return maybe_transpose(np.asarray(obs), space) if is_image_space(space) else obs


def time_limit(venv: VecEnv | None) -> int | None:
    """The environment's own step limit, if it is known."""
    # rl_zoo3 has a PatchedTimeLimit; what follows is the inner environment's own text, which it may have changed
    is_limited = "TimeLimit" in (_ask(venv, "__str__") or "")
    return _ask(venv, "get_wrapper_attr", "_max_episode_steps") if is_limited else None


def environment_id(venv: VecEnv | None) -> str | None:
    """The id that the environment was made by, if it is known."""
    # a spec can hold what cannot be sent; an environment is written <TimeLimit<PendulumEnv<Pendulum-v1>>>
    innermost = re.search(r"<([^<>]+)>+$", _ask(venv, "__str__") or "")
    return innermost[1] if innermost else None


def show(venv: VecNormalize, obs: Obs) -> None:
    """Let VecNormalize see raw observations, as if its environments had returned them."""
    if isinstance(obs, dict):
        for key in venv.norm_obs_keys or ():
            venv.obs_rms[key].update(obs[key])
    else:
        venv.obs_rms.update(obs)
