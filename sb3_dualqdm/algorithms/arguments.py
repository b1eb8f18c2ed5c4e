"""The constructor's arguments: their domains, with one sentence for each value outside of them, and what they stand for."""

from __future__ import annotations

import math
import pathlib
from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any

import numpy as np
from gymnasium import spaces

from sb3_dualqdm.acceleration import resolve
from sb3_dualqdm.algorithms.environments import is_placeholder
from sb3_dualqdm.buffers import ImitationDictReplayBuffer, ImitationReplayBuffer
from sb3_dualqdm.objectives import VALUE_MODES

OBJECTIVES = ("reference", "paper")
TERMINAL_VALUES = ("absorbing", "zero")
WARMUPS = ("policy", "uniform")
# What a stored replay buffer must have in common with a model
REPLAYED = ("n_envs", "observation_space", "action_space")
# Replay buffers of SB3 that make no sense here
REFUSED_REPLAY_BUFFERS = {
    "HerReplayBuffer": "hindsight relabels goals to change rewards, which are never read",
    "NStepReplayBuffer": "the implicit reward is defined over one step",
}


def check_choice(name: str, value: Any, options: Sequence[str]) -> None:
    """
    :raises ValueError: unless the value is one of the options
    """
    if value not in options:
        raise ValueError(f"{name} is {value!r} but must be one of {options}.")


def check_count(name: str, value: float | None) -> None:
    """
    :raises ValueError: unless the value is a whole number of at least 1, or None
    """
    if value is not None and (int(value) != value or value < 1):
        raise ValueError(f"{name} is {value} but a whole number of at least 1 is needed.")


def check_arguments(algorithm: Any) -> None:
    """
    Check the arguments that every method has.

    :param algorithm: its attributes are the constructor's arguments
    :raises ValueError: for the first one that is outside its domain, or that others do not go with
    """
    check_choice("value_mode", algorithm.value_mode, VALUE_MODES)
    check_choice("objective", algorithm.objective, OBJECTIVES)
    check_choice("terminal_value", algorithm.terminal_value, TERMINAL_VALUES)
    check_choice("warmup", algorithm.warmup, WARMUPS)
    resolve(algorithm.acceleration, algorithm.device)
    _check_actions_and_steps(algorithm)
    for name in ("batch_size", "demo_batch_size", "n_action_samples", "subsample", "target_update_interval"):
        check_count(name, getattr(algorithm, name))
    if not 0 < algorithm.gamma <= 1:
        raise ValueError(f"gamma is {algorithm.gamma} but must be in (0, 1].")
    if not 0 <= algorithm.tau <= 1:
        raise ValueError(f"tau is {algorithm.tau} but must be in [0, 1].")
    if not algorithm.replay_buffer_kwargs.get("handle_timeout_termination", True):
        raise ValueError(
            "handle_timeout_termination=False was given but time limits would be stored as terminations: leave it out."
        )
    _check_objective(algorithm)
    if algorithm.optimize_memory_usage:
        raise ValueError(
            "optimize_memory_usage=True was given but it cannot tell time limits from terminations: leave it False."
        )
    _check_replay_buffer_class(algorithm.replay_buffer_class)
    if algorithm.actor_learning_rate is not None and isinstance(algorithm.action_space, spaces.Discrete):
        raise ValueError(
            f"actor_learning_rate is {algorithm.actor_learning_rate!r} but Discrete actions have no actor (the policy is the "
            "softmax of Q): leave it out and set learning_rate."
        )


def check_offline_data(algorithm: Any) -> None:
    """
    Check what an offline method learns from beside the demonstrations, which a model that only predicts does without.

    :param algorithm: its attributes are the constructor's arguments
    :raises ValueError: when there is nothing
    """
    if algorithm.offline and algorithm.offline_support == "extra_transitions" and algorithm.extra_transitions is None:
        raise ValueError(
            f"offline=True was given but {type(algorithm).__name__} needs transitions beside the demonstrations: pass "
            "extra_transitions=."
        )


def _check_actions_and_steps(algorithm: Any) -> None:
    """Whether the method is defined for the actions, and has an environment if it needs one."""
    name = type(algorithm).__name__
    if isinstance(algorithm.action_space, spaces.Discrete) and not algorithm.supports_discrete:
        raise ValueError(
            f"The action space is {algorithm.action_space} but {name} is defined for Box actions only: use DualQDM, IQLearn "
            "or SQIL with Discrete actions."
        )
    if algorithm.offline and algorithm.offline_support == "none":
        raise ValueError(f"offline=True was given but {name} needs rollouts of its policy: leave it False.")
    if not algorithm.offline and algorithm.env is not None and is_placeholder(algorithm.env):
        raise ValueError(f"env is None but {name} makes environment steps: pass an environment, or offline=True.")


def _check_objective(algorithm: Any) -> None:
    is_paper = algorithm.objective == "paper"
    if algorithm.gamma == 1 and (
        is_paper or algorithm.terminal_value == "absorbing" or not algorithm.value_mode.startswith("value")
    ):
        raise ValueError(
            "gamma is 1, where an absorbing state has no finite value and (1 - gamma) E[V] vanishes: use gamma < 1, or "
            "terminal_value='zero' with value_mode='value' and objective='reference'."
        )
    if is_paper and algorithm.value_mode.startswith("v0"):
        raise ValueError(
            f"value_mode {algorithm.value_mode!r} is a heuristic of the reference code but objective='paper' was given: "
            "use 'initial', 'value' or 'value_expert'."
        )


def _check_replay_buffer_class(replay_buffer_class: type | None) -> None:
    if replay_buffer_class is None or issubclass(replay_buffer_class, (ImitationReplayBuffer, ImitationDictReplayBuffer)):
        return
    for name, reason in REFUSED_REPLAY_BUFFERS.items():
        if any(base.__name__ == name for base in replay_buffer_class.__mro__):
            raise ValueError(f"replay_buffer_class is {replay_buffer_class.__name__} but {reason}: leave it out.")
    raise ValueError(
        f"replay_buffer_class is {replay_buffer_class.__name__} but initial states and episode steps are needed "
        "beside the transitions: derive it from sb3_dualqdm.buffers.ImitationReplayBuffer or leave it out."
    )


def check_replay_buffer(buffer: Any, algorithm: Any, path: Any) -> None:
    """
    :param buffer: that a file holds
    :param algorithm: the model that is to use it
    :param path: of the file
    :raises ValueError: unless it is one of ours, of the model's spaces and number of environments
    """
    is_ours = isinstance(buffer, (ImitationReplayBuffer, ImitationDictReplayBuffer))
    found, needed = (f"{x.n_envs} environments with {x.observation_space} and {x.action_space}" for x in (buffer, algorithm))
    if not is_ours or any(getattr(buffer, name) != getattr(algorithm, name) for name in REPLAYED):
        raise ValueError(
            f"The replay buffer in {path} is a {type(buffer).__name__} of {found} but one that a model of this package saved, "
            f"of {needed}, is needed: use the same number of environments of the same kind."
        )


def plain_path(demonstrations: Any) -> Any:
    """A path as a string, which a zip can carry to another system; anything else as it is."""
    return str(demonstrations) if isinstance(demonstrations, pathlib.Path) else demonstrations


def initial_temperature(ent_coef: str | float) -> float:
    """
    A number as it is, that of ``"auto_<number>"``, 1 for ``"auto"``.

    :raises ValueError: for any other text, and for numbers that are no temperature
    """
    if not isinstance(ent_coef, str):
        if not isinstance(ent_coef, Real) or not 0 <= ent_coef < math.inf:
            raise ValueError(f"ent_coef is {ent_coef} but a finite temperature of at least 0, or 'auto', is needed.")
        return float(ent_coef)
    kind, _, number = ent_coef.partition("_")
    try:
        initial = float(number or 1.0)
    except ValueError:
        initial = 0.0
    if kind != "auto" or not 0 < initial < math.inf:
        raise ValueError(f"ent_coef is {ent_coef!r} but a float, 'auto' or 'auto_<initial value>' is needed.")
    return initial


def target_entropy(given: str | float, action_space: Any, factor: float) -> float:
    """A number as it is; ``"auto"``: ``0.1 log |A|`` for Discrete actions, ``factor`` times ``-|A|`` for Box."""
    if given != "auto":
        return float(given)
    if isinstance(action_space, spaces.Discrete):
        return 0.1 * math.log(int(action_space.n))
    return -factor * float(np.prod(action_space.shape))


def rate_schedule(name: str, rate: float | str | Callable[[float], float]) -> Callable[[float], float]:
    """
    The schedule of the remaining progress that a learning rate stands for.

    :param name: name of the argument
    :param rate: a float, a function of the remaining progress, or ``"lin_<float>"``: linear decay to 0
    :raises ValueError: for any other text
    """
    if callable(rate):
        return lambda progress: float(rate(progress))
    if isinstance(rate, str):
        prefix, _, initial = rate.partition("_")
        try:
            start = float(initial)
        except ValueError:
            prefix = ""
        if prefix != "lin":
            raise ValueError(f"{name} is {rate!r} but a float, a schedule or 'lin_<float>' is needed.")
        return lambda progress: progress * start
    constant = float(rate)
    return lambda _: constant
