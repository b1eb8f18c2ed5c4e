"""The constructor's arguments: their domains, with one sentence for each value outside of them, and what they stand for."""

from __future__ import annotations

import math
import pathlib
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.noise import ActionNoise, VectorizedActionNoise

from sb3_dualqdm.acceleration import resolve
from sb3_dualqdm.algorithms.environments import is_placeholder
from sb3_dualqdm.buffers import ImitationDictReplayBuffer, ImitationReplayBuffer
from sb3_dualqdm.demonstrations.readers import until_endless
from sb3_dualqdm.objectives import VALUE_MODES
from sb3_dualqdm.resume import unchanged_global_generators

OBJECTIVES = ("reference", "paper")
TERMINAL_VALUES = ("absorbing", "zero")
WARMUPS = ("policy", "uniform")
# Arguments that are whole numbers, with the least that makes sense
WHOLE_NUMBERS = {
    **dict.fromkeys(("buffer_size", "batch_size", "n_action_samples", "subsample", "target_update_interval"), 1),
    **dict.fromkeys(("learning_starts", "bc_warmup_steps"), 0),
}
# What demonstrations_kwargs may hold: what the other arguments and the environment do not say
DEMONSTRATION_OPTIONS = ("max_episode_steps", "clip_actions", "drop_last")
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


def whole_number(name: str, value: Any, least: int = 1, alternative: str = "") -> int:
    """
    A whole number such as 8 or 8.0, as an int.

    :param alternative: what is accepted beside it, for the message
    :raises ValueError: for anything else, or less than ``least``
    """
    is_number = isinstance(value, Real)
    if not is_number or not math.isfinite(value) or int(value) != value or value < least:
        raise ValueError(f"{name} is {value!r} but a whole number of at least {least}{alternative} is needed.")
    return int(value)


def check_number(name: str, value: Any, interval: str = "[0, inf)", alternative: str = "") -> None:
    """
    :param interval: as it is written, such as ``"(0, 1]"``; a finite weight by default
    :param alternative: what is accepted beside it, for the message
    :raises ValueError: unless the value is a real number in the interval
    """
    low, high = (float(bound) for bound in interval[1:-1].split(","))
    is_number, borders = isinstance(value, Real), {"[": low, "]": high}
    if not is_number or not (low < value < high or value in (borders.get(interval[0]), borders.get(interval[-1]))):
        raise ValueError(f"{name} is {value!r} but a number in {interval}{alternative} is needed.")


def value_range(name: str, value: Any, relation: str = "<", alternative: str = "") -> tuple[float, float]:
    """
    A pair of numbers that are in order.

    :param relation: ``"<"``, or ``"<="`` where they may be the same
    :param alternative: what is accepted beside it, for the message
    :raises ValueError: for anything else
    """
    pair = tuple(value) if isinstance(value, (Sequence, np.ndarray)) else ()
    is_range = len(pair) == 2 and all(isinstance(bound, Real) for bound in pair)
    if not is_range or not (pair[0] < pair[1] or (pair[0] == pair[1] and relation == "<=")):
        raise ValueError(f"{name} is {value!r} but (lo, hi) with lo {relation} hi{alternative} is needed.")
    return float(pair[0]), float(pair[1])


def check_layers(name: str, value: Any) -> None:
    """
    :raises ValueError: unless the value is a list of layer sizes
    """
    sizes = value if isinstance(value, (list, tuple)) else (0,)
    if not all(isinstance(size, (int, np.integer)) and size > 0 for size in sizes):
        raise ValueError(f"{name} is {value!r} but a list of layer sizes, such as [64], is needed.")


def check_arguments(algorithm: Any) -> None:
    """
    Check the arguments that every method has; whole floats become ints, and a text learning rate becomes its schedule.

    :param algorithm: its attributes are the constructor's arguments
    :raises ValueError: for the first one that is outside its domain, or that others do not go with
    """
    check_choice("value_mode", algorithm.value_mode, VALUE_MODES)
    check_choice("objective", algorithm.objective, OBJECTIVES)
    check_choice("terminal_value", algorithm.terminal_value, TERMINAL_VALUES)
    check_choice("warmup", algorithm.warmup, WARMUPS)
    resolve(algorithm.acceleration, algorithm.device)
    _check_actions_and_steps(algorithm)
    for name, least in WHOLE_NUMBERS.items():
        setattr(algorithm, name, whole_number(name, getattr(algorithm, name), least))
    algorithm._stats_window_size = whole_number("stats_window_size", algorithm._stats_window_size)
    if algorithm.demo_batch_size is not None:
        algorithm.demo_batch_size = whole_number("demo_batch_size", algorithm.demo_batch_size)
    if algorithm.seed is not None:
        algorithm.seed = whole_number("seed", algorithm.seed, 0)  # Python's and gymnasium's generators take an int alone
    if isinstance(algorithm.learning_rate, str):
        algorithm.learning_rate = rate_schedule("learning_rate", algorithm.learning_rate)
    check_number("gamma", algorithm.gamma, "(0, 1]")
    check_number("tau", algorithm.tau, "[0, 1]")
    _check_phases(algorithm)
    _check_action_noise(algorithm)
    for name in algorithm.demonstrations_kwargs:
        check_choice("a key of demonstrations_kwargs", name, DEMONSTRATION_OPTIONS)
    _check_policy_arguments(algorithm)
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
    _check_replay_buffer_arguments(algorithm)
    if algorithm.actor_learning_rate is not None and isinstance(algorithm.action_space, spaces.Discrete):
        raise ValueError(
            f"actor_learning_rate is {algorithm.actor_learning_rate!r} but Discrete actions have no actor (the policy is the "
            "softmax of Q): leave it out and set learning_rate."
        )


def check_offline_data(algorithm: Any) -> None:
    """
    Check what an offline method learns from beside the demonstrations, which a model that only predicts does without.

    :param algorithm: its attributes are the constructor's arguments
    :raises ValueError: when there is nothing, or less than there was
    """
    if algorithm.offline and algorithm.offline_support == "extra_transitions" and algorithm.extra_transitions is None:
        raise ValueError(
            f"offline=True was given but {type(algorithm).__name__} needs transitions beside the demonstrations: pass "
            "extra_transitions=."
        )
    if algorithm.offline and algorithm._has_extra_transitions and algorithm.extra_transitions is None:
        raise ValueError(
            "The model learned from extra_transitions too, which were objects and are not in its file: pass "
            "extra_transitions= to load() or resume(), None to go on without them."
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


def _check_policy_arguments(algorithm: Any) -> None:
    given = algorithm.policy_kwargs
    if algorithm.use_sde or given.get("use_sde"):
        raise ValueError("use_sde=True was given but gSDE is not supported here: use action_noise or a larger ent_coef.")
    counts = {name: whole_number(name, given[name]) for name in ("n_critics", "n_quantiles") if name in given}
    algorithm.policy_kwargs = {**given, **counts}
    if given.get("q_range") is not None:
        value_range("q_range", given["q_range"], alternative=", or None,")


def _check_objective(algorithm: Any) -> None:
    is_paper = algorithm.objective == "paper"
    if is_paper and not algorithm.has_paper_objective:
        raise ValueError(
            f"objective='paper' was given but {type(algorithm).__name__} has no such form (DualQDM, IQLearn and RegIQLearn "
            "have): leave it out."
        )
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


def _check_phases(algorithm: Any) -> None:
    """When a training phase begins, and how many updates it has."""
    steps = algorithm.gradient_steps
    if steps != -1:
        algorithm.gradient_steps = whole_number("gradient_steps", steps, alternative=", or -1 for as many as transitions,")
    frequency, unit = algorithm.train_freq.frequency, algorithm.train_freq.unit.value
    whole_number("train_freq", frequency)
    if unit == "episode" and algorithm.n_envs > 1:
        raise ValueError(
            f"train_freq is ({frequency}, 'episode') but the episodes of {algorithm.n_envs} environments end at different "
            "times: give a number of steps."
        )


def noise_for(noise: ActionNoise | None, n_envs: int) -> ActionNoise | None:
    """
    The noise of a model that has learned, for another number of environments.

    :param noise: what SB3 made of the noise that was given, for the environments of then
    :param n_envs: number of environments now
    :return: the given noise where the numbers differ, of which ``learn`` makes one for each environment
    """
    if isinstance(noise, VectorizedActionNoise) and len(noise.noises) != n_envs:
        return noise.base_noise
    return noise


def _check_action_noise(algorithm: Any) -> None:
    if algorithm.action_noise is None:
        return
    if isinstance(algorithm.action_space, spaces.Discrete):
        raise ValueError("action_noise was given but Discrete actions take none: leave it out and raise ent_coef to explore.")
    if not isinstance(algorithm.action_noise, ActionNoise):
        raise ValueError(
            f"action_noise is {algorithm.action_noise!r} but an ActionNoise of Stable-Baselines3 is needed, such as "
            "NormalActionNoise(mean, sigma) with arrays of an action's shape."
        )
    if algorithm.num_timesteps > 0:
        algorithm.action_noise = noise_for(algorithm.action_noise, algorithm.n_envs)
    with unchanged_global_generators():  # which noise is drawn from
        found = np.shape(deepcopy(algorithm.action_noise)())
    needed = (algorithm.n_envs, *algorithm.action_space.shape)
    try:
        fits = np.broadcast_shapes(found, needed) == needed
    except ValueError:
        fits = False
    if not fits:
        raise ValueError(
            f"action_noise has the shape {found} but the actions of {algorithm.n_envs} environments have {needed}: give one "
            "value for each component of an action."
        )


def _check_device(name: str, device: Any) -> None:
    try:
        th.empty(0, device=device)
    except (RuntimeError, AssertionError, TypeError, NotImplementedError) as error:
        reason = str(error).splitlines()[0][:100]
        raise ValueError(f"{name} is {device!r} but that cannot be used here ({reason}): use 'cpu'.") from error


def _check_replay_buffer_arguments(algorithm: Any) -> None:
    """Whether a replay buffer, which is allocated late, can be built: the smallest one is."""
    _check_device("replay_device", algorithm.replay_device)
    try:
        algorithm._new_replay_buffer(algorithm.n_envs)
    except (TypeError, AssertionError) as error:
        raise ValueError(
            f"A {algorithm.replay_buffer_class.__name__} cannot be built for {algorithm.observation_space} with "
            f"replay_buffer_kwargs={algorithm.replay_buffer_kwargs} ({error}): leave out replay_buffer_class, or the keys "
            "that it does not know."
        ) from error


def _check_replay_buffer_class(replay_buffer_class: Any) -> None:
    bases = getattr(replay_buffer_class, "__mro__", ())
    if replay_buffer_class is None or {ImitationReplayBuffer, ImitationDictReplayBuffer} & set(bases):
        return
    given = getattr(replay_buffer_class, "__name__", repr(replay_buffer_class))
    for name, reason in REFUSED_REPLAY_BUFFERS.items():
        if any(base.__name__ == name for base in bases):
            raise ValueError(f"replay_buffer_class is {given} but {reason}: leave it out.")
    raise ValueError(
        f"replay_buffer_class is {given} but initial states and episode steps are needed "
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


def rereadable(demonstrations: Any) -> Any:
    """A path as a string, which a zip can carry to another system, an iterator as a list, anything else as it is."""
    if isinstance(demonstrations, Iterator):
        return list(until_endless(demonstrations))
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
        check_number("target_entropy", given, "(-inf, inf)", ", or 'auto',")
        return float(given)
    if isinstance(action_space, spaces.Discrete):
        return 0.1 * math.log(int(action_space.n))
    return -factor * float(np.prod(action_space.shape))


@dataclass(frozen=True)
class RateSchedule:
    """
    A learning rate by the remaining progress.

    :param rate: constant, or a function of the remaining progress
    :param is_linear: whether a constant decays linearly to 0, default False
    """

    rate: float | Callable[[float], float]
    is_linear: bool = False

    def __call__(self, progress: float) -> float:
        if callable(self.rate):
            return float(self.rate(progress))
        return self.rate * progress if self.is_linear else self.rate


def rate_schedule(name: str, rate: float | str | Callable[[float], float]) -> Callable[[float], float]:
    """
    The schedule that a learning rate stands for.

    :param name: name of the argument
    :param rate: a float, a function of the remaining progress, or ``"lin_<float>"``: linear decay to 0
    :raises ValueError: for any other text, and for numbers that are no rate
    """
    if isinstance(rate, str):
        prefix, _, initial = rate.partition("_")
        try:
            start = float(initial)
        except ValueError:
            prefix = ""
        if prefix != "lin":
            raise ValueError(f"{name} is {rate!r} but a float, a schedule or 'lin_<float>' is needed.")
        check_number(f"The beginning of {name}", start)
        return RateSchedule(start, is_linear=True)
    if callable(rate):
        return RateSchedule(rate)
    check_number(name, rate)
    return RateSchedule(float(rate))
