"""
Train the experts of the built-in demonstration sets and record their episodes.

``python benchmarks/experts/train_builtin_experts.py CartPole-v1`` trains the expert (Stable-Baselines3, one thread) unless
its model is already in ``--models``, rolls out episodes with consecutive seeds and writes them, whatever their return, to
``sb3_dualqdm/demonstrations/data`` together with an entry of ``manifest.json``. The files are written only if the expert is
good enough over 100 other episodes (``required_mean``).
"""

import argparse
import json
import os
import platform
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import gymnasium as gym
import numpy as np
import stable_baselines3 as sb3
import torch as th
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "sb3_dualqdm" / "demonstrations" / "data"
ROLLOUT_SEED = 30_000
EVALUATION_SEED = 40_000


@dataclass(frozen=True)
class Expert:
    """What to train: algorithm, steps, hyperparameters (``"lin_x"`` decays linearly to 0) and the mean it must reach."""

    algorithm: str
    steps: int
    required_mean: float
    n_envs: int = 1
    seed: int = 0
    hyperparameters: dict[str, Any] = field(default_factory=dict)


EXPERTS = {
    "CartPole-v1": Expert(
        "PPO",
        steps=150_000,
        required_mean=500.0,
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
    "Pendulum-v1": Expert("SAC", steps=20_000, required_mean=-170.0, hyperparameters={"learning_rate": 1e-3}),
    "Acrobot-v1": Expert(
        "PPO",
        steps=300_000,
        required_mean=-85.0,
        n_envs=16,
        hyperparameters={"n_steps": 256, "gae_lambda": 0.94, "gamma": 0.99, "n_epochs": 4, "ent_coef": 0.0},
    ),
    "MountainCarContinuous-v0": Expert(
        "SAC",
        steps=50_000,
        required_mean=90.0,
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
}


def train(env_id: str, expert: Expert, path: Path):
    """
    Train the expert of one environment, or load it if it was trained before.

    :param env_id: environment id.
    :param expert: what to train.
    :param path: the model's zip.
    :return: the trained Stable-Baselines3 model.
    """
    from stable_baselines3.common.utils import LinearSchedule  # since 2.7; the rest runs with older versions

    algorithm = getattr(sb3, expert.algorithm)
    if path.exists():
        return algorithm.load(path, device="cpu")
    options = {
        key: LinearSchedule(float(value[4:]), 0.0, 1.0) if isinstance(value, str) and value.startswith("lin_") else value
        for key, value in expert.hyperparameters.items()
    }
    venv = make_vec_env(env_id, expert.n_envs, seed=expert.seed)
    model = algorithm("MlpPolicy", venv, seed=expert.seed, device="cpu", verbose=1, **options)
    model.learn(expert.steps, log_interval=20)
    path.parent.mkdir(parents=True, exist_ok=True)
    model.save(path)
    return model


def record(env_id: str, expert: Expert, model, n_episodes: int) -> None:
    """
    Check the expert, roll out its episodes and write the set and its manifest entry.

    :param env_id: environment id.
    :param expert: how the model was trained.
    :param model: the trained model.
    :param n_episodes: episodes to store; episode i starts from ``env.reset(seed=ROLLOUT_SEED + i)``.
    :raises SystemExit: if the expert's mean return over 100 other episodes is below ``required_mean``.
    """
    from sb3_dualqdm.demonstrations import collect_demonstrations
    from sb3_dualqdm.demonstrations.files import file_sha256

    mean, std = evaluate_policy(model, make_vec_env(env_id, 1, seed=EVALUATION_SEED), n_eval_episodes=100)
    print(f"{env_id}: expert return {mean:.1f} +- {std:.1f} over 100 deterministic episodes")
    if mean < expert.required_mean:
        raise SystemExit(f"the {env_id} expert reaches {mean:.1f} < {expert.required_mean}: nothing written")

    demonstrations = collect_demonstrations(model, env_id, n_episodes, seed=ROLLOUT_SEED)
    name = f"{env_id}.npz"
    demonstrations.save(DATA / name)
    last = np.flatnonzero(np.diff(demonstrations.episode, append=demonstrations.n_episodes))
    manifest_path = DATA / "manifest.json"
    manifest = json.loads(manifest_path.read_text()) if manifest_path.exists() else {}
    manifest[env_id] = {
        "file": name,
        "sha256": file_sha256(DATA / name),
        "expert": {**asdict(expert), "mean_return_100": round(float(mean), 2), "std_return_100": round(float(std), 2)},
        "deterministic": True,
        "seeds": [ROLLOUT_SEED + i for i in range(n_episodes)],
        "returns": [round(float(value), 4) for value in demonstrations.episode_returns],
        "lengths": demonstrations.episode_lengths.tolist(),
        "terminated": demonstrations.terminated[last].tolist(),
        "truncated": demonstrations.truncated[last].tolist(),
        "versions": {
            "python": platform.python_version(),
            "gymnasium": gym.__version__,
            "numpy": np.__version__,
            "stable_baselines3": sb3.__version__,
            "torch": th.__version__,
        },
    }
    manifest_path.write_text(json.dumps(manifest, indent=1, sort_keys=True) + "\n")


def bad_cartpole_expert(observation: np.ndarray) -> int:
    """Always push the cart to the right: the pole falls after about 9 steps."""
    return 1


def bad_acrobot_expert(observation: np.ndarray) -> int:
    """Never apply torque: the acrobot hangs until the time limit, return -500."""
    return 1


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Train the built-in experts and record their demonstrations.")
    parser.add_argument("env_ids", nargs="*", default=list(EXPERTS), metavar="ENV", help="environment ids (default: all)")
    parser.add_argument("--episodes", type=int, default=5, help="episodes stored per environment")
    parser.add_argument("--models", type=Path, default=ROOT / "runs" / "experts", help="folder of the trained models")
    parser.add_argument("--train-only", action="store_true", help="train and keep the model, write no demonstrations")
    args = parser.parse_args()
    th.set_num_threads(1)
    for env_id in args.env_ids:
        expert = EXPERTS[env_id]
        model = train(env_id, expert, args.models / f"{env_id}.zip")
        if not args.train_only:
            record(env_id, expert, model, args.episodes)


if __name__ == "__main__":
    main()
