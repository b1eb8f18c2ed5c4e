"""
Train the experts of the built-in demonstrations, one task at a time, on one thread, resumable.

    nice -n 15 python benchmarks/experts/train_experts.py Walker2d-v4

The trainer of a task is what reaches its target with little processor time: Stable-Baselines3, ARS from sb3-contrib, SAC or
PPO from SBX (``pip install sbx-rl``), which the package itself never imports. The folder of a run holds ``curve.csv`` (mean of
deterministic evaluation episodes), ``best.zip`` (with ``best.pkl``, the VecNormalize statistics), and what a later call of the
same command goes on from: ``state.zip``, ``state.pkl``, ``replay.npz``. A run ends at its number of steps, earlier with
``--minutes``, or when the mean of 25 episodes has reached the target.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import importlib
import os
import time
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import numpy as np
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecNormalize

MODELS = Path(__file__).resolve().parents[2] / "runs" / "experts"
EVALUATION_SEED = 40_000
FIELDS = ["steps", "mean", "std", "episodes", "seconds"]
REPLAY = ("observations", "next_observations", "actions", "rewards", "dones", "timeouts")


@dataclass(frozen=True)
class Expert:
    """
    What to train.

    :param trainer: package of the algorithm
    :param algorithm: its class
    :param steps: environment steps at most
    :param target: mean return over 25 episodes that ends the training; a set of an expert below it is marked so
    :param n_envs: parallel environments
    :param seed: seed of model and environments
    :param policy: policy class by name
    :param eval_every: steps between evaluations; None: none, and no early end
    :param normalize: train under VecNormalize
    :param hyperparameters: further arguments; ``"lin_x"`` decays linearly from x to 0
    """

    trainer: str
    algorithm: str
    steps: int
    target: float
    n_envs: int = 1
    seed: int = 0
    policy: str = "MlpPolicy"
    eval_every: int | None = None
    normalize: bool = False
    hyperparameters: dict[str, Any] = field(default_factory=dict)

    @property
    def model_class(self) -> Any:
        """The class to train with, imported when it is needed."""
        return getattr(importlib.import_module(self.trainer), self.algorithm)


# One update per environment step; SAC's defaults otherwise
SBX_SAC = {"n_envs": 8, "eval_every": 20_000, "hyperparameters": {"learning_starts": 10_000, "gradient_steps": 8}}
# PPO with annealed steps and normalised observations and returns
PPO_LOCOMOTION = {
    "n_envs": 8,
    "eval_every": 100_000,
    "normalize": True,
    "hyperparameters": {
        "n_steps": 256,
        "batch_size": 64,
        "n_epochs": 10,
        "learning_rate": "lin_3e-4",
        "vf_coef": 0.25,
        "policy_kwargs": {"log_std_init": -0.5},
    },
}
LUNAR_LANDER = {
    "n_envs": 16,
    "eval_every": 50_000,
    "hyperparameters": {"n_steps": 1024, "gae_lambda": 0.98, "gamma": 0.999, "n_epochs": 4, "ent_coef": 0.01},
}
BIPEDAL_WALKER = {
    "n_envs": 32,
    "eval_every": 100_000,
    "normalize": True,
    "hyperparameters": {
        "n_steps": 256,
        "batch_size": 256,
        "n_epochs": 10,
        "gae_lambda": 0.95,
        "gamma": 0.999,
        "clip_range": 0.18,
        "learning_rate": "lin_5e-4",
    },
}

EXPERTS = {
    "CartPole-v1": Expert(
        "stable_baselines3",
        "PPO",
        steps=150_000,
        target=500.0,
        n_envs=8,
        hyperparameters={
            "n_steps": 32,
            "batch_size": 256,
            "gae_lambda": 0.8,
            "gamma": 0.98,
            "n_epochs": 20,
            "ent_coef": 0.0,
            "learning_rate": "lin_0.001",
            "clip_range": "lin_0.2",
        },
    ),
    "Pendulum-v1": Expert("stable_baselines3", "SAC", 20_000, target=-170.0, hyperparameters={"learning_rate": 1e-3}),
    "Acrobot-v1": Expert(
        "stable_baselines3",
        "PPO",
        steps=300_000,
        target=-85.0,
        n_envs=16,
        hyperparameters={"n_steps": 256, "gae_lambda": 0.94, "gamma": 0.99, "n_epochs": 4, "ent_coef": 0.0},
    ),
    "MountainCarContinuous-v0": Expert(
        "stable_baselines3",
        "SAC",
        steps=50_000,
        target=90.0,
        hyperparameters={
            "learning_rate": 3e-4,
            "buffer_size": 50_000,
            "batch_size": 512,
            "ent_coef": 0.1,
            "train_freq": 32,
            "gradient_steps": 32,
            "gamma": 0.9999,
            "tau": 0.01,
            "learning_starts": 0,
            "use_sde": True,
            "policy_kwargs": {"log_std_init": -3.67, "net_arch": [64, 64]},
        },
    ),
    "HalfCheetah-v4": Expert("sbx", "SAC", 2_000_000, target=8_000, seed=11, **SBX_SAC),
    "Hopper-v4": Expert("sbx", "SAC", 2_000_000, target=3_000, seed=12, **SBX_SAC),
    "Walker2d-v4": Expert("stable_baselines3", "PPO", 4_000_000, target=4_000, seed=13, **PPO_LOCOMOTION),
    "Ant-v4": Expert("sbx", "PPO", 4_000_000, target=4_000, seed=14, **PPO_LOCOMOTION),
    "Humanoid-v4": Expert("sbx", "PPO", 4_000_000, target=5_000, seed=15, **PPO_LOCOMOTION),
    # ARS compares undiscounted returns of whole episodes: a gamma of 1, which this task needs
    "Swimmer-v4": Expert(
        "sb3_contrib",
        "ARS",
        500_000,
        target=300,
        policy="LinearPolicy",
        eval_every=20_000,
        hyperparameters={"n_delta": 1, "n_top": 1, "learning_rate": 0.02, "delta_std": 0.01, "alive_bonus_offset": 0.0},
    ),
    "LunarLander-v3": Expert("stable_baselines3", "PPO", 2_000_000, target=240, **LUNAR_LANDER),
    "LunarLanderContinuous-v3": Expert("stable_baselines3", "PPO", 2_000_000, target=240, **LUNAR_LANDER),
    "BipedalWalker-v3": Expert("sbx", "PPO", 3_000_000, target=280, seed=16, **BIPEDAL_WALKER),
}


class Finished(Exception):
    """Ends a training: ARS does not look at what a callback returns."""


class Curve(BaseCallback):
    """Evaluate every ``eval_every`` steps, keep the best model, save the state, and stop when there is reason to."""

    def __init__(self, env_id: str, expert: Expert, folder: Path, minutes: float):
        super().__init__()
        self.expert, self.folder, self.deadline = expert, folder, time.time() + 60 * minutes
        self.env: Any = make_vec_env(env_id, 1, seed=EVALUATION_SEED)
        self.started = time.time()
        self.file = folder / "curve.csv"
        rows = list(csv.DictReader(self.file.open())) if self.file.exists() else []
        self.best = max((float(row["mean"]) for row in rows), default=-np.inf)
        self.seconds = float(rows[-1]["seconds"]) if rows else 0.0
        self.next = (int(rows[-1]["steps"]) if rows else 0) + (expert.eval_every or 0)
        if not rows:
            self.write(FIELDS)

    def _init_callback(self) -> None:
        statistics = self.model.get_vec_normalize_env()
        if statistics is not None:
            self.env = VecNormalize(self.env, training=False, norm_reward=False)
            self.env.obs_rms = statistics.obs_rms  # the same object, so that it stays current

    def write(self, row: list) -> None:
        with self.file.open("a", newline="") as file:
            csv.writer(file).writerow(row)

    def reaches_target(self, episodes: int) -> bool:
        mean, std = evaluate_policy(self.model, self.env, n_eval_episodes=episodes)
        seconds = self.seconds + time.time() - self.started
        self.write([self.num_timesteps, f"{mean:.1f}", f"{std:.1f}", episodes, f"{seconds:.0f}"])
        # 5 episodes may be lucky: 25 that reach the target replace what they made the best
        if mean > self.best or (episodes == 25 and mean >= self.expert.target):
            self.best = float(mean)
            save(self.model, self.folder / "best.zip")
        return bool(mean >= self.expert.target)

    def _on_step(self) -> bool:
        if self.num_timesteps < self.next:
            return True
        self.next += self.expert.eval_every or 0
        reached = self.reaches_target(5) and self.reaches_target(25)
        save_replay(self.model, self.folder / "replay.npz")
        save(self.model, self.folder / "state.zip")
        if reached or time.time() > self.deadline:
            raise Finished
        return True


def save(model, path: Path) -> None:
    """Write the model, and its VecNormalize statistics first, each replaced whole."""
    statistics = model.get_vec_normalize_env()
    if statistics is not None:
        statistics.save(str(path.with_suffix(".part")))
        path.with_suffix(".part").replace(path.with_suffix(".pkl"))
    model.save(path.with_suffix(".part.zip"))
    path.with_suffix(".part.zip").replace(path)


def save_replay(model, path: Path) -> None:
    """Write the filled part of the replay, if there is one, as float32."""
    buffer = getattr(model, "replay_buffer", None)
    if buffer is not None:
        size = buffer.buffer_size if buffer.full else buffer.pos
        arrays = {name: getattr(buffer, name)[:size].astype(np.float32) for name in REPLAY}
        np.savez(path.with_suffix(".part.npz"), pos=buffer.pos, full=buffer.full, **arrays)
        path.with_suffix(".part.npz").replace(path)


def load_replay(model, path: Path) -> None:
    """Fill the replay with what ``save_replay`` left."""
    with np.load(path) as saved:
        for name in REPLAY:
            getattr(model.replay_buffer, name)[: len(saved[name])] = saved[name]
        model.replay_buffer.pos, model.replay_buffer.full = int(saved["pos"]), bool(saved["full"])


def load_model(env_id: str, folder: Path, name: str = "best"):
    """
    A model of a run, with the environments it was trained in.

    :param env_id: environment id, one of ``EXPERTS``.
    :param folder: folder of the run.
    :param name: ``"best"`` or ``"state"``.
    :return: the model; its VecNormalize statistics, if any, are those of its environments.
    """
    expert = EXPERTS[env_id]
    venv: Any = make_vec_env(env_id, expert.n_envs, seed=expert.seed)
    if expert.normalize:
        venv = VecNormalize.load(str(folder / f"{name}.pkl"), venv)
    return expert.model_class.load(folder / f"{name}.zip", env=venv, device="cpu")


def new_model(env_id: str):
    """The untrained expert of a task."""
    from stable_baselines3.common.utils import LinearSchedule  # since 2.7; the rest runs with older versions

    expert = EXPERTS[env_id]
    options = {
        key: LinearSchedule(float(value[4:]), 0.0, 1.0) if isinstance(value, str) and value.startswith("lin_") else value
        for key, value in expert.hyperparameters.items()
    }
    venv: Any = make_vec_env(env_id, expert.n_envs, seed=expert.seed)
    if expert.normalize:
        venv = VecNormalize(venv, gamma=options.get("gamma", 0.99))
    return expert.model_class(expert.policy, venv, seed=expert.seed, device="cpu", **options)


def train(env_id: str, folder: Path, minutes: float) -> None:
    """
    Train, or go on training, the expert of one task.

    :param env_id: environment id, one of ``EXPERTS``.
    :param folder: folder of the run.
    :param minutes: stop after the first evaluation past this time.
    """
    expert = EXPERTS[env_id]
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / "state.zip").exists():
        model = load_model(env_id, folder, "state")
        if (folder / "replay.npz").exists():
            load_replay(model, folder / "replay.npz")
    else:
        (folder / "curve.csv").unlink(missing_ok=True)
        model = new_model(env_id)
    callback = Curve(env_id, expert, folder, minutes) if expert.eval_every else None
    if model.num_timesteps < expert.steps:
        with contextlib.suppress(Finished):
            model.learn(expert.steps - model.num_timesteps, callback=callback, reset_num_timesteps=False)
    if callback is None:
        save(model, folder / "best.zip")
    print(f"{env_id}: {model.num_timesteps:,} steps, in {folder}")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("env_id", choices=EXPERTS)
    parser.add_argument("--models", type=Path, default=MODELS, help="the run gets a folder of the task's name here")
    parser.add_argument("--minutes", type=float, default=np.inf, help="stop after this time; the same command goes on later")
    args = parser.parse_args()
    warnings.filterwarnings("ignore", message=".*out of date.*")
    train(args.env_id, args.models / args.env_id, args.minutes)


if __name__ == "__main__":
    main()
