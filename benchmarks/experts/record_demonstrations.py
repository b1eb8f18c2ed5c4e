"""
Record episodes of a trained expert, or take recorded ones, as the built-in demonstrations of a task.

    python benchmarks/experts/record_demonstrations.py Swimmer-v4
    python benchmarks/experts/record_demonstrations.py Walker2d-v4 --env Walker2d-v5
    python benchmarks/experts/record_demonstrations.py Hopper-v4 --rollouts rollouts/Hopper-v4 --full-length

The expert is the one that ``train_experts.py`` left. Its episodes start from consecutive seeds; their mean is the expert's
return, and the first few of them become the set, which is written to ``sb3_dualqdm/demonstrations/data`` with an entry of
``manifest.json``. A folder of rollouts is in imitation's format and has a ``manifest.json`` of its own.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import platform
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from train_experts import EXPERTS, MODELS, load_model

from sb3_dualqdm.demonstrations import Demonstrations, collect_demonstrations, load_demonstrations
from sb3_dualqdm.demonstrations.files import file_sha256

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "sb3_dualqdm" / "demonstrations" / "data"
CURVES = ROOT / "benchmarks" / "results" / "experts"
ROLLOUT_SEED = 30_000


def from_expert(task: str, env_id: str, models: Path, n_episodes: int) -> tuple[Demonstrations, dict[str, Any]]:
    """
    Roll out an expert.

    :param task: environment id that the expert was trained in.
    :param env_id: environment id to record it in.
    :param models: folder of the experts.
    :param n_episodes: episodes; episode i starts from ``env.reset(seed=ROLLOUT_SEED + i)``.
    :return: all episodes, and what the manifest says of the expert.
    """
    model = load_model(task, models / task)
    if (models / task / "curve.csv").exists():
        shutil.copy(models / task / "curve.csv", CURVES / f"{task}.csv")
    demonstrations = collect_demonstrations(model, env_id, n_episodes, seed=ROLLOUT_SEED)
    packages = {"gymnasium", "numpy", "stable_baselines3", "torch", EXPERTS[task].trainer}
    packages |= {simulator for simulator in ("mujoco", "box2d") if simulator in str(gym.spec(env_id).entry_point)}
    distributions = importlib.metadata.packages_distributions()  # sbx comes from sbx-rl
    versions = {name: importlib.metadata.version(distributions.get(name, [name])[0]) for name in packages}
    versions["python"] = platform.python_version()
    expert = asdict(EXPERTS[task]) | {"trained_in": task, "steps": model.num_timesteps}
    return demonstrations, {"expert": expert, "versions": versions, "seeds": [ROLLOUT_SEED + i for i in range(n_episodes)]}


def from_rollouts(task: str, env_id: str, folder: Path) -> tuple[Demonstrations, dict[str, Any]]:
    """
    Read rollouts that were recorded when the expert was trained.

    :param task: environment id that the expert was trained in.
    :param env_id: environment id of the rollouts.
    :param folder: imitation's format, with a manifest of trainer, steps, versions, seeds and returns.
    :return: all episodes, and what the manifest says of the expert.
    :raises SystemExit: if the folder's manifest and its episodes disagree.
    """
    facts = json.loads((folder / "manifest.json").read_text())
    demonstrations = load_demonstrations(folder, max_episode_steps=gym.spec(env_id).max_episode_steps)
    agrees = np.allclose(demonstrations.episode_returns, facts["returns"], rtol=1e-5)
    if facts["env"] != env_id or not agrees or demonstrations.episode_lengths.tolist() != facts["lengths"]:
        raise SystemExit(f"the manifest of {folder} does not describe its episodes")
    trainer, version = facts["trainer"].split()
    hyperparameters = dict(facts["hyperparameters"])
    expert = {
        "trainer": trainer,
        "algorithm": facts["algorithm"],
        "steps": facts["steps"],
        "target": EXPERTS[task].target,
        "n_envs": hyperparameters.pop("n_envs"),
        "seed": hyperparameters.pop("seed"),
        "trained_in": task,
        "hyperparameters": hyperparameters,
    }
    return demonstrations, {
        "expert": expert,
        "versions": facts["versions"] | {trainer: version},
        "seeds": facts["rollout_seeds"],
    }


def choose(demonstrations: Demonstrations, n: int, full_length: int | None) -> tuple[list[int], str]:
    """
    Which episodes become the set.

    :param demonstrations: all episodes.
    :param n: how many are wanted.
    :param full_length: take only episodes of this length; None: take them as they come.
    :return: their indices, and the rule in words.
    """
    if full_length is None:
        return list(range(min(n, demonstrations.n_episodes))), f"the first {n} episodes as they came"
    whole = np.flatnonzero(demonstrations.episode_lengths == full_length)[:n].tolist()
    left_out = [i for i in range(whole[-1]) if i not in whole]
    falls = int((demonstrations.episode_lengths != full_length).sum())
    return whole, (
        f"the first {n} episodes that reach the time limit; {falls} of the expert's {demonstrations.n_episodes} end early, "
        f"{len(left_out)} of which came before the last one chosen and was left out"
        if left_out
        else f"the first {n} episodes, all of which reach the time limit; {falls} of {demonstrations.n_episodes} end early"
    )


def write(env_id: str, demonstrations: Demonstrations, facts: dict[str, Any], chosen: list[int], selection: str) -> None:
    """
    Write the set and its entry of the manifest.

    :param env_id: environment id.
    :param demonstrations: all episodes of the expert.
    :param facts: expert, versions and the seeds of all episodes.
    :param chosen: episodes that become the set.
    :param selection: why these.
    """
    env = gym.make(env_id)
    subset = demonstrations.select(chosen).validate(env.observation_space, env.action_space)
    # what tells copies apart is left out of the file, so that equal data have equal hashes
    subset = subset._replace(source="built-in", episode_indices=np.arange(len(chosen)), spec=None, sha256=None, notes=())
    path = subset.save(DATA / f"{env_id}.npz")
    manifest_path = DATA / "manifest.json"
    manifest = json.loads(manifest_path.read_text()) if manifest_path.exists() else {}
    sha256 = file_sha256(path)
    same = [entry["file"] for other, entry in manifest.items() if entry["sha256"] == sha256 and other != env_id]
    if same and same[0] != path.name:  # another version of the task, in which these episodes are the same
        path.unlink()
    returns = demonstrations.episode_returns
    assert returns is not None
    last = np.append(np.flatnonzero(np.diff(subset.episode)), len(subset) - 1)
    expert = facts["expert"] | {
        "episodes": demonstrations.n_episodes,
        "mean_return": round(float(returns.mean()), 2),
        "std_return": round(float(returns.std()), 2),
        "min_return": round(float(returns.min()), 2),
        "max_return": round(float(returns.max()), 2),
    }
    entry = manifest.get(env_id, {})
    manifest[env_id] = {key: entry[key] for key in ("random",) if key in entry} | {
        "file": same[0] if same else path.name,
        "sha256": sha256,
        "observation_size": int(np.prod(env.observation_space.shape or ())),
        "expert": expert,
        "below_target": expert["mean_return"] < expert["target"],
        "deterministic": True,
        "selection": selection,
        "seeds": [facts["seeds"][i] for i in chosen],
        "returns": [round(float(returns[i]), 4) for i in chosen],
        "lengths": subset.episode_lengths.tolist(),
        "terminated": subset.terminated[last].tolist(),
        "truncated": subset.truncated[last].tolist(),
        "versions": facts["versions"],
    }
    manifest_path.write_text(json.dumps(manifest, indent=1, sort_keys=True) + "\n")
    print(f"{env_id}: expert {expert['mean_return']} +- {expert['std_return']}, {selection}: {manifest[env_id]['returns']}")


def bad_cartpole_expert(observation: np.ndarray) -> int:
    """Always push the cart to the right: the pole falls after about 9 steps."""
    return 1


def bad_acrobot_expert(observation: np.ndarray) -> int:
    """Never apply torque: the acrobot hangs until the time limit, return -500."""
    return 1


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=EXPERTS, help="environment that the expert was trained in")
    parser.add_argument("--env", help="environment to record it in, default: the same")
    parser.add_argument("--rollouts", type=Path, help="take these episodes instead of recording")
    parser.add_argument("--models", type=Path, default=MODELS, help="folder of the experts")
    parser.add_argument("--expert-episodes", type=int, default=25, help="episodes that the expert's return is the mean of")
    parser.add_argument("--episodes", type=int, default=5, help="episodes of the set")
    parser.add_argument("--full-length", action="store_true", help="leave out episodes that end before the time limit")
    args = parser.parse_args()
    env_id = args.env or args.task
    if args.rollouts:
        demonstrations, facts = from_rollouts(args.task, env_id, args.rollouts)
    else:
        demonstrations, facts = from_expert(args.task, env_id, args.models, args.expert_episodes)
    limit = gym.spec(env_id).max_episode_steps if args.full_length else None
    write(env_id, demonstrations, facts, *choose(demonstrations, args.episodes, limit))


if __name__ == "__main__":
    main()
