"""
One training run with periodic evaluation, as a CSV row per evaluation: the raw data behind the results tables.

    python benchmarks/evidence.py --algo dual_qdm --env CartPole-v1 --demonstrations builtin:CartPole-v1 --steps 20000

Evaluations use an environment of their own with fixed seeds and deterministic actions. A long run is resumed from its last
checkpoint when the same command is given again.
"""

from __future__ import annotations

import argparse
import ast
import csv
import dataclasses
import importlib.metadata
import platform
import shlex
import sys
import time
from pathlib import Path

import gymnasium as gym
import numpy as np
import torch as th
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from sb3_dualqdm import algorithms, demonstrations
from sb3_dualqdm.acceleration import MACHINE_ARGUMENTS
from sb3_dualqdm.benchmark.recording import evaluate
from sb3_dualqdm.zoo import ALGOS

ALGORITHMS = {name: getattr(algorithms, cls) for name, cls in ALGOS.items()}
FIELDS = ["algo", "env", "seed", "step", "mean", "std", "min", "max", "episodes", "expert_return", "demo_indices", "seconds"]


def constant_expert(env_id: str, action: int, n_episodes: int) -> demonstrations.Demonstrations:
    """A deliberately bad expert that always takes the same action."""
    return demonstrations.collect_demonstrations(lambda obs: np.array(action), gym.make(env_id), n_episodes, seed=0)


def random_transitions(env_id: str, n_episodes: int) -> demonstrations.Demonstrations:
    """Episodes of uniformly random actions, the worst of what an offline method may be given beside demonstrations."""
    env = gym.make(env_id)
    env.action_space.seed(0)
    return demonstrations.collect_demonstrations(lambda obs: env.action_space.sample(), env, n_episodes, seed=0)


def shuffled_actions(demos: demonstrations.Demonstrations) -> demonstrations.Demonstrations:
    """Demonstrations whose actions are randomly permuted over their transitions, so that states say nothing of them."""
    order = np.random.default_rng(0).permutation(len(demos))
    return dataclasses.replace(demos, actions=demos.actions[order], spec=None, sha256=None)


class EvaluateAndSave(BaseCallback):
    """Write a row of the CSV every ``eval_every`` steps, and a checkpoint every ``save_every``."""

    def __init__(self, args: argparse.Namespace, facts: dict, started: float):
        super().__init__()
        self.args, self.facts, self.started = args, facts, started
        self.venv = make_vec_env(args.env, args.episodes)

    def _on_step(self) -> bool:
        if self.num_timesteps % self.args.eval_every == 0:
            self.write()
        if self.args.save_every and self.num_timesteps % self.args.save_every == 0:
            save_checkpoint(self.model, self.args.out)
        return True

    def write(self) -> None:
        returns = evaluate(self.model, self.venv)
        row = dict(self.facts, step=self.num_timesteps, mean=returns.mean(), std=returns.std(), min=returns.min())
        row |= {"max": returns.max(), "episodes": len(returns), "seconds": round(time.time() - self.started, 1)}
        with self.args.out.open("a", newline="") as file:
            csv.DictWriter(file, FIELDS).writerow(row)
        print({key: row[key] for key in ("algo", "env", "seed", "step", "mean", "std")}, flush=True)


def save_checkpoint(model, out: Path) -> None:
    """Replay buffer first, then the model whose presence marks the checkpoint as complete."""
    if not model.offline:
        model.save_replay_buffer(out.with_suffix(".replay.pkl"))
    if model.get_vec_normalize_env() is not None:
        model.get_vec_normalize_env().save(out.with_suffix(".normalization.pkl"))
    temporary = out.with_suffix(".part.zip")
    model.save(temporary)
    temporary.replace(out.with_suffix(".zip"))


def keep_rows_until(step: int, out: Path) -> float:
    """Drop the evaluations after a checkpoint, which will be made again; the seconds that training took until then."""
    lines = out.read_text().splitlines(keepends=True)
    rows = list(csv.DictReader(lines[2:]))
    n_kept = sum(int(row["step"]) <= step for row in rows)
    out.write_text("".join(lines[: 3 + n_kept]))
    return float(rows[n_kept - 1]["seconds"]) if n_kept else 0.0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algo", choices=ALGORITHMS, required=True)
    parser.add_argument("--env", required=True)
    parser.add_argument("--demonstrations", required=True, help="path, builtin:<id>, or constant:<action>")
    parser.add_argument("--n-demonstrations", type=int, default=1)
    parser.add_argument("--shuffle-actions", action="store_true")
    parser.add_argument("--random-episodes", type=int, default=0, help="episodes of random actions as extra_transitions")
    parser.add_argument("--normalize", action="store_true", help="VecNormalize, which sees the demonstrations first")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--eval-every", type=int, default=2000)
    parser.add_argument("--save-every", type=int, default=0)
    parser.add_argument("--episodes", type=int, default=10)
    parser.add_argument("--out", type=Path, required=True, help="CSV file to write")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="constructor arguments")
    return parser.parse_args()


def environment(args: argparse.Namespace) -> gym.Env | VecNormalize:
    """The training environment; with ``--normalize``, its observations are normalised, as in a checkpoint if there is one."""
    if not args.normalize:
        return gym.make(args.env)
    env, saved = DummyVecEnv([lambda: gym.make(args.env)]), args.out.with_suffix(".normalization.pkl")
    return VecNormalize.load(str(saved), env) if saved.exists() else VecNormalize(env, norm_reward=False)


def load(args: argparse.Namespace) -> demonstrations.Demonstrations:
    if args.demonstrations.startswith("constant:"):
        return constant_expert(args.env, int(args.demonstrations.split(":")[1]), args.n_demonstrations)
    limit = gym.spec(args.env).max_episode_steps
    demos = demonstrations.load_demonstrations(
        args.demonstrations, n_demonstrations=args.n_demonstrations, max_episode_steps=limit
    )
    return shuffled_actions(demos) if args.shuffle_actions else demos


def main() -> None:
    args = parse_arguments()
    th.set_num_threads(1)
    demos = load(args)
    kwargs = {key: ast.literal_eval(value) for key, value in (item.split("=", 1) for item in args.set)}
    kwargs.setdefault("buffer_size", min(1_000_000, args.steps))
    kwargs.setdefault("normalize_by_demonstrations", args.normalize)
    data = {"demonstrations": demos}
    if args.random_episodes:
        data["extra_transitions"] = random_transitions(args.env, args.random_episodes)
    cls = ALGORITHMS[args.algo]
    facts = {
        "algo": args.algo,
        "env": args.env,
        "seed": args.seed,
        "expert_return": float(np.mean(demos.episode_returns)),
        "demo_indices": " ".join(map(str, demos.episode_indices)),
    }
    checkpoint = args.out.with_suffix(".zip")
    if checkpoint.exists():
        machine = {name: kwargs[name] for name in MACHINE_ARGUMENTS if name in kwargs}  # a zip does not hold them
        model = cls.load(checkpoint, env=environment(args), device="cpu", **data, **machine)
        if not model.offline:
            model.load_replay_buffer(args.out.with_suffix(".replay.pkl"))
        seconds = keep_rows_until(model.num_timesteps, args.out)
    else:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        packages = ("sb3-dualqdm", "stable-baselines3", "gymnasium", "torch", "numpy")
        versions = {name: importlib.metadata.version(name) for name in packages} | {"python": platform.python_version()}
        with args.out.open("w", newline="") as file:
            file.write(f"# python {shlex.join(sys.argv)}\n# {versions}\n")
            csv.DictWriter(file, FIELDS).writeheader()
        model = cls("MlpPolicy", environment(args), seed=args.seed, device="cpu", **data, **kwargs)
        seconds = 0.0
    callback = EvaluateAndSave(args, facts, time.time() - seconds)
    model.learn(args.steps - model.num_timesteps, callback=callback, log_interval=100, reset_num_timesteps=False)
    if args.save_every:
        checkpoint.unlink(missing_ok=True)
        for suffix in (".replay.pkl", ".normalization.pkl"):
            args.out.with_suffix(suffix).unlink(missing_ok=True)


if __name__ == "__main__":
    main()
