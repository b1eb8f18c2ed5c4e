"""
Memory and sampling time of large demonstration sets: ``python benchmarks/demonstrations.py``.

Each line is a process of its own that loads a set, makes a model and trains it for a few updates. Memory is its peak resident
size less that of the same process with 1,000 transitions, next to the size of the arrays in the file (for small sets it is
within the noise). The sampling time is the median over draws of 256 rows. Writes ``benchmarks/results/demonstrations.csv``.
"""

from __future__ import annotations

import argparse
import csv
import json
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

RESULTS = Path(__file__).parent / "results" / "demonstrations.csv"
SMALL = 1000
EPISODE = 1000
KINDS = {
    "vector": ((17,), np.float32, (6,)),
    "image": ((84, 84, 1), np.uint8, (2,)),
}
CASES = [
    ("vector", "npz", 10_000),
    ("vector", "npz", 100_000),
    ("vector", "npz", 1_000_000),
    ("vector", "npz", 10_000_000),
    ("vector", "hdf5", 10_000_000),
    ("vector", "own", 10_000_000),
    ("image", "npz", 100_000),
    ("image", "hdf5", 100_000),
]


class Blank(gym.Env):
    """An environment with given spaces and nothing in it."""

    def __init__(self, kind: str):
        shape, dtype, action = KINDS[kind]
        low, high = (0, 255) if dtype == np.uint8 else (-np.inf, np.inf)
        self.observation_space = gym.spaces.Box(low, high, shape, dtype)
        self.action_space = gym.spaces.Box(-1, 1, action, np.float32)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        return np.zeros(self.observation_space.shape, self.observation_space.dtype), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        return np.zeros(self.observation_space.shape, self.observation_space.dtype), 0.0, False, False, {}


def write(kind: str, layout: str, n: int, path: Path) -> int:
    """A set of episodes of 1,000 steps; returns the bytes of its arrays."""
    shape, dtype, action = KINDS[kind]
    rng, episodes = np.random.default_rng(0), n // EPISODE
    rows = n + episodes
    obs = rng.integers(256, size=(rows, *shape), dtype=dtype) if dtype == np.uint8 else rng.random((rows, *shape), dtype)
    actions = rng.random((n, *action), np.float32)
    terminated = np.arange(n) % EPISODE == EPISODE - 1
    if layout == "npz":  # one observation more than actions in each episode
        arrays = {"obs": obs, "actions": actions, "terminated": terminated}
        np.savez(path, **arrays)
    else:
        from sb3_dualqdm.demonstrations.readers.arrays import from_arrays

        demos = from_arrays(
            {"obs": obs, "actions": actions, "terminated": terminated}, max_episode_steps=None, drop_last=False, source="made"
        )
        del obs
        if layout == "own":
            demos.save(path)
            arrays = {"obs": demos.obs, "final": demos.next_obs.final, "actions": actions, "terminated": terminated}
        else:  # D4RL's layout, with the observations twice
            import h5py

            arrays = {"observations": demos.obs, "next_observations": np.asarray(demos.next_obs), "actions": actions}
            arrays |= {"terminals": terminated, "timeouts": np.zeros(n, dtype=bool)}
            with h5py.File(path, "w") as file:
                for name, array in arrays.items():
                    file[name] = array
    return sum(array.nbytes for array in arrays.values())


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(kind: str, path: str) -> dict[str, float]:
    """Load, make, train, sample; in a process of its own."""
    import torch as th

    from sb3_dualqdm import DualQDM, load_demonstrations

    th.set_num_threads(1)
    env = Blank(kind)
    spaces = {"observation_space": env.observation_space, "action_space": env.action_space}
    start = time.perf_counter()
    demos = load_demonstrations(path, **spaces)
    seconds, loaded = time.perf_counter() - start, peak_mib()
    policy = "MlpPolicy" if kind == "vector" else "CnnPolicy"
    model = DualQDM(
        policy, env, demonstrations=demos, learning_starts=16, buffer_size=64, batch_size=16, seed=0, device="cpu"
    ).learn(24)
    trained = peak_mib()
    buffer, rng = model.demo_buffer, np.random.default_rng(0)
    times = []
    for _ in range(300):
        start = time.perf_counter()
        buffer.rows(256, rng)
        times.append(time.perf_counter() - start)
    return {"loaded": loaded, "trained": trained, "seconds": seconds, "microseconds": 1e6 * float(np.median(times))}


def run(kind: str, layout: str, n: int, folder: Path) -> tuple[int, dict[str, float]]:
    path = folder / f"{kind}-{n}.{'hdf5' if layout == 'hdf5' else 'npz'}"
    code = f"from demonstrations import Path, write; print(write({kind!r}, {layout!r}, {n}, Path({str(path)!r})))"
    size = int(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=HERE).stdout)
    code = f"import json; from demonstrations import measure; print(json.dumps(measure({kind!r}, {str(path)!r})))"
    shown = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=HERE).stdout
    path.unlink()
    return size, json.loads(shown.splitlines()[-1])


HERE = Path(__file__).parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--most", type=int, default=10_000_000, help="leave out larger sets (default: 10,000,000)")
    most = parser.parse_args().most
    lines = []
    with tempfile.TemporaryDirectory() as name:
        base: dict[str, dict[str, float]] = {}
        for kind, layout, n in CASES:
            if n > most:
                continue
            key = f"{kind} {layout}"
            if key not in base:
                base[key] = run(kind, layout, SMALL, Path(name))[1]
            size, found = run(kind, layout, n, Path(name))
            lines.append(
                {
                    "observations": kind,
                    "file": layout,
                    "transitions": n,
                    "raw_mib": round(size / 2**20, 1),
                    "load_peak_mib": round(found["loaded"] - base[key]["loaded"], 1),
                    "train_peak_mib": round(found["trained"] - base[key]["trained"], 1),
                    "train_peak_over_raw": round((found["trained"] - base[key]["trained"]) * 2**20 / size, 2),
                    "load_seconds": round(found["seconds"], 2),
                    "rows256_microseconds": round(found["microseconds"], 1),
                }
            )
            print("  ".join(f"{key}={value}" for key, value in lines[-1].items()), flush=True)
    RESULTS.parent.mkdir(exist_ok=True)
    with open(RESULTS, "w", newline="") as file:
        file.write(f"# {platform.machine()}, Python {platform.python_version()}, numpy {np.__version__}\n")
        writer = csv.DictWriter(file, lines[0].keys(), lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)


if __name__ == "__main__":
    main()
