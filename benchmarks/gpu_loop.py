"""
Steps per second of the whole loop on HalfCheetah with 1, 8 and 32 environments, and device memory over 50,000 updates.

    python benchmarks/gpu_loop.py --out loop.json
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch as th
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.utils import configure_logger
from stable_baselines3.common.vec_env import SubprocVecEnv
from throughput import demonstrations

from sb3_dualqdm import DualQDM

WARM_UP, MEASURED = 2000, 4000


def loop(n_envs: int, device: str, env_id: str) -> dict[str, float]:
    """Environment steps per second with one update per step, after a warm-up."""
    env = make_vec_env(env_id, n_envs=n_envs, vec_env_cls=SubprocVecEnv if n_envs > 1 else None)
    kwargs = {"buffer_size": 100_000, "gradient_steps": -1, "device": device, "seed": 0, "replay_device": device}
    model = DualQDM("MlpPolicy", env, demonstrations=demonstrations(), **kwargs).learn(WARM_UP)
    started = time.perf_counter()
    model.learn(MEASURED, reset_num_timesteps=False)
    elapsed = time.perf_counter() - started
    env.close()
    return {"n_envs": n_envs, "steps_per_s": MEASURED / elapsed}


def memory(device: str, n_updates: int, env_id: str) -> list[float]:
    """Allocated device memory in MiB, ten times over the updates."""
    model = DualQDM("MlpPolicy", env_id, demonstrations=demonstrations(), buffer_size=10_000, device=device, seed=0).learn(
        WARM_UP
    )
    model.set_logger(configure_logger(verbose=0))
    allocated = []
    for _ in range(10):
        model.train(n_updates // 10, model.batch_size)
        allocated.append(th.cuda.memory_allocated() / 2**20 if device == "cuda" else 0.0)
    return allocated


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--env", default="HalfCheetah-v5")
    parser.add_argument("--updates", type=int, default=50_000)
    args = parser.parse_args()
    facts = {
        "card": th.cuda.get_device_name() if args.device == "cuda" else "cpu",
        "loop": [loop(n_envs, args.device, args.env) for n_envs in (1, 8, 32)],
        "memory_mib": memory(args.device, args.updates, args.env),
    }
    args.out.write_text(json.dumps(facts, indent=1) + "\n")
    print(json.dumps(facts, indent=1))


if __name__ == "__main__":
    main()
