"""
Checkpoints from which a killed run goes on as if it had never stopped.

A checkpoint is the model's own zip, so that ``load`` reads it too, with two more members: the replay buffer and the state of
the run (random generators, VecNormalize, running means). An environment cannot be stored; instead the episode ends at every
checkpoint, by a reset whose seed is stored, in a run that goes on as well as in one that is resumed.
"""

from __future__ import annotations

import inspect
import json
import os
import pathlib
import pickle
import random
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Any, TypeVar

import numpy as np
import torch as th
from stable_baselines3.common.noise import ActionNoise
from stable_baselines3.common.utils import get_device

from sb3_dualqdm.acceleration import MACHINE_ARGUMENTS, CompiledUpdate

STATE_MEMBER = "resume/state.pkl"
REPLAY_MEMBER = "resume/replay_buffer.pkl"
# What decides how VecNormalize treats observations and rewards
VEC_NORMALIZE_FIELDS = (
    *("obs_rms", "ret_rms", "training", "norm_obs", "norm_obs_keys", "norm_reward"),
    *("clip_obs", "clip_reward", "gamma", "epsilon"),
)
# Arguments that may differ in a model that goes on from a checkpoint
LOOSE_ARGUMENTS = ("verbose", "tensorboard_log", "stats_window_size", "demonstrations", "extra_transitions", "seed")
# Remaining progress at which schedules are compared
SAMPLED_PROGRESS = (1.0, 0.75, 0.5, 0.25, 0.0)

Model = TypeVar("Model", bound=Any)


def _global_states() -> dict[str, Any]:
    """States of the generators that every library of the process shares."""
    cuda = th.cuda.get_rng_state_all() if th.cuda.is_available() and th.cuda.is_initialized() else []
    return {"python": random.getstate(), "numpy": np.random.get_state(), "torch": th.get_rng_state(), "cuda": cuda}


def _set_global_states(states: dict[str, Any]) -> None:
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
    th.set_rng_state(states["torch"])
    if states["cuda"] and th.cuda.device_count() == len(states["cuda"]):
        th.cuda.set_rng_state_all(states["cuda"])


@contextmanager
def unchanged_global_generators() -> Iterator[None]:
    """Whatever is drawn or seeded inside leaves no trace in the generators of Python, NumPy and torch."""
    states = _global_states()
    try:
        yield
    finally:
        _set_global_states(states)


class RunState:
    """
    What a run consists of beside model, replay buffer and environment.

    :param model: the model that learns
    :param reset_seed: seed of the reset that follows
    """

    def __init__(self, model: Any, reset_seed: int):
        self.reset_seed = reset_seed
        self.algorithm = type(model).__name__
        self.n_envs = model.n_envs
        self.device_type = model.device.type
        self.machine_arguments = {name: getattr(model, name) for name in MACHINE_ARGUMENTS}
        self.global_states = _global_states()
        self.sampling = model._rng.bit_generator.state
        self.action_space = model.action_space.np_random.bit_generator.state
        means = vars(model._statistics)
        self.statistics = {k: v.cpu() if isinstance(v, th.Tensor) else v for k, v in means.items()}
        venv = model.get_vec_normalize_env()
        self.vec_normalize = None if venv is None else {name: getattr(venv, name) for name in VEC_NORMALIZE_FIELDS}

    def arguments_on(self, device: th.device | str) -> dict[str, str]:
        """How the run was accelerated, as far as that applies to a device."""
        same = get_device(device).type == getattr(self, "device_type", None)  # earlier versions kept neither
        return self.machine_arguments if same else {}

    def restore_vec_normalize(self, model: Any, path: Any) -> None:
        """
        :raises ValueError: when only one of run and environment is normalised
        """
        venv = model.get_vec_normalize_env()
        if (venv is None) != (self.vec_normalize is None):
            found, needed = ("no ", "") if venv is None else ("a ", "out")
            raise ValueError(
                f"env has {found}VecNormalize but the run saved in {path} was one with{needed} it: pass an environment "
                "wrapped as in that run."
            )
        if venv is not None:
            vars(venv).update(self.vec_normalize)

    def restore_generators(self, model: Any) -> None:
        """Put every random generator, and the running means, back to where they were."""
        device = model.device
        vars(model._statistics).update(
            {k: v.to(device) if isinstance(v, th.Tensor) else v for k, v in self.statistics.items()}
        )
        model._rng.bit_generator.state = self.sampling
        model.action_space.np_random.bit_generator.state = self.action_space
        _set_global_states(self.global_states)


def restart_episodes(model: Any, seed: int) -> None:
    """
    End the current episodes, which go on in no later run either, and begin new ones.

    :param model: the model that learns
    :param seed: seed of the environments
    """
    model.env.seed(seed)
    model._last_obs = model.env.reset()
    model._last_episode_starts = np.ones(model.n_envs, dtype=bool)
    raw = model._raw(model._last_obs)
    if model.get_vec_normalize_env() is not None:
        model._last_original_obs = raw
    model.replay_buffer.start_episodes(raw)
    if model.action_noise is not None:
        model.action_noise.reset()


def reset_seed(model: Any) -> int:
    """Seed that follows from the run's seed and its number of steps; drawn by the operating system without a seed."""
    entropy = None if model.seed is None else [model.seed, model.num_timesteps]
    return int(np.random.SeedSequence(entropy).generate_state(1)[0] >> 1)


def with_suffix(path: Any) -> pathlib.Path:
    """The path with SB3's default suffix."""
    path = pathlib.Path(path)
    return path if path.suffix else path.with_suffix(".zip")


def save_checkpoint(model: Any, path: Any) -> None:
    """
    Write a checkpoint, whole or not at all, and begin new episodes as a resumed run will.

    :param model: one of this package's models, between two rollouts
    :param path: file to write or to replace
    """
    path = with_suffix(path)
    if isinstance(model._step, CompiledUpdate):
        model._step.begin_again()  # as a resumed run does
    state = RunState(model, reset_seed(model))
    temporary = path.with_name(f"{path.name}.tmp")
    with open(temporary, "w+b") as file:
        model.save(file)
        with zipfile.ZipFile(file, "a") as archive:
            members = {STATE_MEMBER: state} if model.offline else {STATE_MEMBER: state, REPLAY_MEMBER: model.replay_buffer}
            for name, member in members.items():
                with archive.open(name, "w", force_zip64=True) as stream:
                    pickle.dump(member, stream, protocol=pickle.HIGHEST_PROTOCOL)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    if os.name == "posix":  # the new name is on disk when its folder is
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    if not model.offline:
        restart_episodes(model, state.reset_seed)


def load_checkpoint(model_class: type[Model], path: Any, env: Any, **kwargs: Any) -> Model:
    """
    The model of a checkpoint; what is left to restore waits for ``learn``.

    :param model_class: class of the model
    :param path: file that :func:`save_checkpoint` wrote
    :param env: environment like that of the run
    :param kwargs: arguments of ``load``
    :raises ValueError: when the file is no checkpoint, or one of another algorithm, or the environment another one
    """
    path = with_suffix(path)
    if path.exists() and not zipfile.is_zipfile(path):
        raise ValueError(f"{path} is no zip file, or is cut off, but a checkpoint is needed: name another file.")
    with zipfile.ZipFile(path) as archive:
        if STATE_MEMBER not in archive.namelist():
            raise ValueError(
                f"{path} holds a saved model alone but a checkpoint of ResumableCheckpoint is needed: use load() to read it."
            )
        with archive.open(STATE_MEMBER) as stream:
            state: RunState = pickle.load(stream)
        found = getattr(state, "algorithm", model_class.__name__)  # earlier versions did not keep it
        if found != model_class.__name__:
            raise ValueError(
                f"{path} is a checkpoint of {found} but {model_class.__name__} is to go on from it: name another file, or use "
                f"{found}."
            )
        replay_buffer = None
        if REPLAY_MEMBER in archive.namelist():
            with archive.open(REPLAY_MEMBER) as stream:
                replay_buffer = pickle.load(stream)
    model = model_class.load(path, env, **{**state.arguments_on(kwargs.get("device", "auto")), **kwargs})
    if model.n_envs != state.n_envs:
        raise ValueError(
            f"env has {model.n_envs} copies but the run saved in {path} has {state.n_envs}: use as many, or load() to "
            "continue in another way."
        )
    state.restore_vec_normalize(model, path)
    if replay_buffer is not None:
        replay_buffer.device = model.device
        replay_buffer.storage_device = th.device(model._storage_device(model.replay_device))
        model.replay_buffer = replay_buffer
    model._resumed = state
    return model


def constructor_arguments(model_class: type) -> set[str]:
    """
    Names of everything that a class and its bases are constructed with.

    :param model_class: the class
    """
    constructors = [vars(cls)["__init__"] for cls in model_class.__mro__[:-1] if "__init__" in vars(cls)]
    return {name for constructor in constructors for name in inspect.signature(constructor).parameters}


def _as_text(value: Any) -> str | None:
    """
    A value as JSON: a schedule as its values, any other object as what it is called, since it need not be equal to itself
    when it is read again; None where there is no such text.
    """
    if callable(value) and not isinstance(value, (type, th.nn.Module, ActionNoise)):
        value = [float(value(progress)) for progress in SAMPLED_PROGRESS]
    try:
        return json.dumps(value, sort_keys=True, default=_named)
    except TypeError:
        return None


def _named(value: Any) -> Any:
    if isinstance(value, (np.generic, np.ndarray)):
        return value.tolist()
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, ActionNoise):
        return repr(value)  # its parameters, without its state
    return (value if isinstance(value, type) else type(value)).__qualname__


def _check_same_arguments(model: Any, loaded: Any, path: Any) -> None:
    for name in sorted(constructor_arguments(type(model)) - {*LOOSE_ARGUMENTS, *MACHINE_ARGUMENTS}):
        wanted, found = (_as_text(getattr(each, name, None)) for each in (model, loaded))
        if wanted is not None and found is not None and wanted != found:
            raise ValueError(
                f"the run saved in {path} has {name}={found} but the model that would go on from it has {name}={wanted}: "
                "pass the arguments of that run, or name another file."
            )


def continue_from(model: Any, path: Any) -> None:
    """
    Let a model that has just begun to learn become the one of a checkpoint, with its own environment and demonstrations. Its
    seed becomes the checkpoint's; a warning says so where it had another one.

    :param model: one of this package's models, in ``learn``
    :param path: file that :func:`save_checkpoint` wrote
    :raises ValueError: when the file is no checkpoint, or one of a run with another algorithm or other arguments
    """
    own = {name: getattr(model, name) for name in ("device", *MACHINE_ARGUMENTS)}
    loaded = load_checkpoint(type(model), path, model.env, **own)
    _check_same_arguments(model, loaded, path)
    has_other_seed = model.seed != loaded.seed
    if has_other_seed and None not in (model.seed, loaded.seed):
        warnings.warn(
            f"The run saved in {path} has the seed {loaded.seed} and goes on with it, although the model was given "
            f"{model.seed}: give each seed a path of its own.",
            stacklevel=2,
        )
    kept = (
        *("env", "_vec_normalize_env", "demo_buffer", "demonstrations", "demonstrations_sha256"),
        *("extra_transitions", "_has_extra_transitions"),
        *("_total_timesteps", "_asked_timesteps", "_logger", "_custom_logger", "start_time", "_warnings", "verbose"),
        *(["_replay_buffer"] if model.offline else []),  # which holds extra transitions alone and is in no checkpoint
    )
    vars(model).update({name: value for name, value in vars(loaded).items() if name not in kept})
    state, model._resumed = model._resumed, None
    if has_other_seed:
        model._load_demonstrations()  # of which BC holds out rows by the seed
    model._num_timesteps_at_start = model.num_timesteps  # of the speed that is logged
    state.restore_generators(model)
    if not model.offline:
        restart_episodes(model, state.reset_seed)
