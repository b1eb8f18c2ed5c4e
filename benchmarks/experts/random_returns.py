"""
Measure what uniformly random actions return in the tasks of the built-in demonstrations, and store it in their manifest.

    python benchmarks/experts/random_returns.py
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

MANIFEST = Path(__file__).resolve().parents[2] / "sb3_dualqdm" / "demonstrations" / "data" / "manifest.json"
SEED = 50_000


def random_returns(env_id: str, episodes: int) -> dict[str, Any]:
    """
    Mean return of uniformly random actions.

    :param env_id: environment id.
    :param episodes: episodes; episode i starts from ``env.reset(seed=SEED + i)``.
    :return: mean and standard deviation over episodes, their number, the first seed and gymnasium's version.
    """
    env = gym.make(env_id)
    env.action_space.seed(SEED)
    returns = np.zeros(episodes)
    for episode in range(episodes):
        env.reset(seed=SEED + episode)
        done = False
        while not done:
            _, reward, terminated, truncated, _ = env.step(env.action_space.sample())
            returns[episode] += float(reward)
            done = terminated or truncated
    statistics = {"mean_return": round(float(returns.mean()), 2), "std_return": round(float(returns.std()), 2)}
    return statistics | {"episodes": episodes, "seed": SEED, "gymnasium": gym.__version__}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=100)
    parser.add_argument("env_ids", nargs="*", help="default: every task of the manifest")
    args = parser.parse_args()
    manifest = json.loads(MANIFEST.read_text())
    for env_id in args.env_ids or manifest:
        manifest[env_id]["random"] = random_returns(env_id, args.episodes)
        print(env_id, manifest[env_id]["random"], flush=True)
    MANIFEST.write_text(json.dumps(manifest, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
