"""
Speed of every method next to SB3's SAC, measured in one run.

    python benchmarks/throughput.py --threads 1 2 --out benchmarks/results/throughput/cpu
    python benchmarks/throughput.py --scaling --out benchmarks/results/throughput/cpu_scaling

Models take turns in short blocks and medians over blocks are reported: a slow minute of the machine slows all of them.
The floor of an update is the floating-point operations of its matrix products over the best matrix product of the same run;
``products_ms`` is the time of the update's own matrix products, one after the other and nothing else, ``operations_ms`` that
of all its operations, which no program that makes the same calls of torch can beat.
Writes ``<out>.json``, ``<out>.md`` and ``<out>.png``.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import math
import platform
import resource
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import matplotlib
import numpy as np
import pandas as pd
import torch as th
from rich.progress import track
from stable_baselines3 import SAC
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.utils import configure_logger
from torch.utils._python_dispatch import TorchDispatchMode

from sb3_dualqdm import Demonstrations, algorithms, collect_demonstrations
from sb3_dualqdm.zoo import ALGOS

matplotlib.use("Agg")
import matplotlib.pyplot as plt

FILL = 2000  # transitions in the buffer before anything is timed


class RandomEnv(gym.Env):
    """Costs next to nothing: observations of HalfCheetah's size drawn once, episodes of 1000 steps."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (17,), np.float32)
    action_space = gym.spaces.Box(-1, 1, (6,), np.float32)

    def __init__(self) -> None:
        self.pool = np.random.default_rng(0).standard_normal((1000, 17), dtype=np.float32)
        self.t = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.t = 0
        return self.pool[0], {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.t += 1
        return self.pool[self.t % 1000], 0.0, False, self.t >= 1000, {}


def processor() -> str:
    """What the operating system calls the processor; ``platform.processor()`` is empty on many Linux machines."""
    info = Path("/proc/cpuinfo")
    names = [line for line in info.read_text().splitlines() if line.startswith("model name")] if info.exists() else []
    return names[0].split(":")[1].strip() if names else platform.processor() or platform.machine()


def synchronise(device: str) -> None:
    if device != "cpu":
        th.cuda.synchronize()


def seconds(function: Callable[[], Any], n: int, device: str) -> float:
    """Seconds per call over n calls."""
    synchronise(device)
    started = time.perf_counter()
    for _ in range(n):
        function()
    synchronise(device)
    return (time.perf_counter() - started) / n


def demonstrations(n: int = 1000) -> Demonstrations:
    env = RandomEnv()
    env.action_space.seed(0)
    return collect_demonstrations(lambda obs: env.action_space.sample(), env, -(-n // 1000), seed=0)


def build(name: str, device: str, n_envs: int = 1, demos: Demonstrations | None = None, **kwargs: Any) -> Any:
    """
    A model of one method with some transitions in its buffer, which has been updated a few times.

    :param name: ``"sac"`` of SB3, ``"sbx_sac"``, or one of ours, with ``+compile`` for the compiled update
    """
    env = make_vec_env(RandomEnv, n_envs=n_envs)
    arguments: dict[str, Any] = {"buffer_size": 20_000, "learning_starts": FILL, "seed": 0, "device": device, **kwargs}
    name, _, acceleration = name.partition("+")
    if acceleration:
        arguments["acceleration"] = acceleration
    if name in ("sac", "sbx_sac"):
        for ours in ("acceleration", "replay_device", "demo_batch_size"):
            arguments.pop(ours, None)
        cls = SAC if name == "sac" else importlib.import_module("sbx").SAC
        model: Any = cls("MlpPolicy", env, **arguments)
    else:
        cls = getattr(algorithms, ALGOS[name])
        model = cls("MlpPolicy", env, demonstrations=demonstrations() if demos is None else demos, **arguments)
    if getattr(model, "offline", False):
        model.learn(10)
    else:
        model.learn(FILL + 10 * n_envs)
    model.set_logger(configure_logger(verbose=0))
    return model


def matrix_peak(device: str) -> float:
    """Best matrix product of the machine, FLOP per second."""
    best = 0.0
    for n in (512, 1024, 2048):
        a, b = th.randn(n, n, device=device), th.randn(n, n, device=device)
        best = max(best, 2 * n**3 / min(seconds(lambda a=a, b=b: a @ b, 3, device) for _ in range(10)))
    return best


class Operations(TorchDispatchMode):
    """Records every operation with its operands."""

    PRODUCTS = ("aten.mm.default", "aten.bmm.default", "aten.addmm.default", "aten.baddbmm.default")

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any]] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not str(function).startswith("profiler"):
            self.calls.append((function, args, kwargs or {}))
        return function(*args, **(kwargs or {}))

    def flop(self) -> int:
        """Floating-point operations of the matrix products."""
        factors = [call[1][-2:] for call in self.calls if str(call[0]) in self.PRODUCTS]
        return sum(2 * a.numel() * b.shape[-1] for a, b in factors)

    def milliseconds(self, device: str, only: tuple[str, ...] | None = None) -> float:
        """Time of the operations one after the other, on operands that are there already: no autograd, no Python between."""
        calls = [call for call in self.calls if only is None or str(call[0]) in only]

        def repeat() -> None:
            for function, args, kwargs in calls:
                function(*args, **kwargs)

        with th.no_grad():
            return min(seconds(repeat, 5, device) for _ in range(5)) * 1e3


def update_of(model: Any) -> Callable[[], Any]:
    return lambda: model.train(gradient_steps=1, batch_size=model.batch_size)


def floor_of(model: Any, device: str) -> dict[str, float]:
    """FLOP of one update, and the time of its matrix products alone and of all its operations alone."""
    # cast once: what is measured is the update as it is written, not a captured one
    step, model._step = getattr(model, "_step", None), getattr(model, "_update", None)
    with Operations() as operations:
        model.train(1, model.batch_size)
    model._step = step
    return {
        "mflop": operations.flop() / 1e6,
        "products_ms": operations.milliseconds(device, Operations.PRODUCTS),
        "n_operations": len(operations.calls),
        "operations_ms": operations.milliseconds(device),
    }


def interleaved(functions: dict[str, Callable[[], Any]], rounds: int, n: int, device: str) -> dict[str, float]:
    """Median seconds per call of each function; they take turns."""
    times: dict[str, list[float]] = {name: [] for name in functions}
    for _ in track(range(rounds), description=f"{len(functions)} functions, {th.get_num_threads()} threads", transient=True):
        for name, function in functions.items():
            times[name].append(seconds(function, n, device))
    return {name: float(np.median(values)) for name, values in times.items()}


def learning(model: Any, n: int) -> Callable[[], Any]:
    return lambda: model.learn(n, reset_num_timesteps=False, log_interval=10**9)


def compare(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Updates and environment steps per second of every method, for every number of threads."""
    rows = []
    # SBX is measured where it is installed; it has no graph of torch's to count
    names = ["sac", *(["sbx_sac"] if importlib.util.find_spec("sbx") else []), *args.methods]
    for threads in args.threads:
        th.set_num_threads(threads)
        # built here because a compiled update is compiled for a number of threads
        models = {name: build(name, args.device, acceleration=args.acceleration) for name in names}
        peak = matrix_peak(args.device)
        floors = {name: floor_of(model, args.device) for name, model in models.items() if name != "sbx_sac"}
        updates = interleaved({name: update_of(model) for name, model in models.items()}, args.rounds, 20, args.device)
        steps = interleaved(
            {name: learning(model, 50) for name, model in models.items()}, max(args.rounds // 3, 3), 1, args.device
        )
        for name in names:
            update, step = updates[name], steps[name] / 50
            floor = floors.get(name, {"mflop": math.nan, "products_ms": math.nan, "operations_ms": math.nan})
            row = {"method": name, "threads": threads, "peak_gflops": peak / 1e9, "update_ms": update * 1e3, **floor}
            row |= {"updates_per_s": 1 / update, "of_flop_floor": floor["mflop"] * 1e6 / peak / update}
            row |= {"of_products": floor["products_ms"] / 1e3 / update, "against_sac": updates["sac"] / update}
            row |= {"steps_per_s": 1 / step, "step_over_update": step / update}
            rows.append(row)
    return rows


def scaling(args: argparse.Namespace) -> list[dict[str, Any]]:
    """How an update of Dual Q-DM and a step of its loop grow with the sizes involved."""
    th.set_num_threads(args.threads[0])
    rows: list[dict[str, Any]] = []

    def add(name: str, value: int, model: Any, per: int = 1) -> None:
        update = float(np.median([seconds(update_of(model), 5, args.device) for _ in range(args.rounds)]))
        row: dict[str, Any] = {"vary": name, "value": value, "update_ms": update * 1e3}
        if name == "n_envs":
            row["steps_per_s"] = 1 / (seconds(learning(model, 20 * per), 1, args.device) / (20 * per))
        rows.append(row)
        print(row, flush=True)

    for value in (64, 256, 1024, 4096, 8192):
        add("batch_size", value, build("dual_qdm", args.device, batch_size=value))
    for value in (64, 128, 256, 512, 1024):
        add("width", value, build("dual_qdm", args.device, policy_kwargs={"net_arch": [value, value]}))
    for value in (1, 4, 16, 64):
        add("n_envs", value, build("dual_qdm", args.device, n_envs=value, gradient_steps=-1), value)
    for value in (10_000, 100_000, 1_000_000):
        model = build("dual_qdm", args.device, buffer_size=value)
        buffer = model.replay_buffer
        for array in (buffer.observations, buffer.next_observations, buffer.actions):
            array[:] = np.random.default_rng(0).standard_normal(array.shape, dtype=np.float32)
        buffer.full = True
        add("replay", value, model)
    for value in (1000, 10_000, 100_000, 1_000_000, 10_000_000):
        add("demonstrations", value, build("dual_qdm", args.device, demos=tiled(value)))
    return rows


def tiled(n: int) -> Demonstrations:
    """Demonstrations of n transitions, by repetition of one episode."""
    one, times = demonstrations(), n // 1000
    names = ("obs", "next_obs", "actions", "terminated", "truncated", "step")
    arrays = {name: np.tile(np.asarray(getattr(one, name)), (times,) + (1,) * (getattr(one, name).ndim - 1)) for name in names}
    return Demonstrations(
        **arrays,
        rewards=None,
        episode=np.repeat(np.arange(times), 1000),
        episode_returns=None,
        episode_lengths=np.full(times, 1000),
        episode_indices=np.arange(times),
    )


def start_up() -> dict[str, float]:
    """Seconds to import the package and to construct a model, in fresh processes."""
    task = "'MlpPolicy', 'Pendulum-v1', demonstrations='builtin:Pendulum-v1'"
    code = {
        "import_s": "import sb3_dualqdm",
        "import_algorithms_s": "from sb3_dualqdm import DualQDM",
        "construct_s": f"from sb3_dualqdm import DualQDM; DualQDM({task})",
        "import_sac_s": "from stable_baselines3 import SAC",
    }
    times = {}
    for name, statement in code.items():
        started = time.perf_counter()
        subprocess.run([sys.executable, "-c", statement], check=True, capture_output=True)
        times[name] = time.perf_counter() - started
    return times


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    frame = pd.DataFrame(rows)
    if "vary" in frame:
        figure, axes = plt.subplots(1, frame.vary.nunique(), figsize=(15, 3.2), layout="constrained")
        for axis, (name, group) in zip(axes, frame.groupby("vary", sort=False)):
            axis.loglog(group.value, group.update_ms, "o-")
            axis.set(xlabel=name, ylabel="ms per update", ylim=(group.update_ms.min() / 3, group.update_ms.max() * 3))
    else:
        table = frame.pivot(index="method", columns="threads", values="updates_per_s").loc[frame.method.unique()]
        figure, axis = plt.subplots(figsize=(8, 4), layout="constrained")
        table.plot.bar(ax=axis, ylabel="updates per second", rot=20)
        axis.legend(title="threads")
    figure.savefig(path, dpi=120)


def markdown(frame: pd.DataFrame) -> str:
    lines = ["| " + " | ".join(frame.columns) + " |", "|" + "---|" * len(frame.columns)]
    for values in frame.itertuples(index=False):
        cells = [("" if math.isnan(value) else f"{value:.3g}") if isinstance(value, float) else str(value) for value in values]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="*", default=["dual_qdm", "dual_qdm+compile", *list(ALGOS)[1:]])
    parser.add_argument("--threads", nargs="*", type=int, default=[1])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--acceleration", default="auto")
    parser.add_argument("--scaling", action="store_true", help="vary the sizes instead of the methods")
    parser.add_argument("--out", type=Path, required=True, help="path without suffix")
    args = parser.parse_args()
    args.out.parent.mkdir(parents=True, exist_ok=True)
    rows = scaling(args) if args.scaling else compare(args)
    packages = ["sb3-dualqdm", "stable-baselines3", "torch", "numpy", *(["sbx-rl"] if importlib.util.find_spec("sbx") else [])]
    facts = {
        "command": f"python {shlex.join(sys.argv)}",
        "hardware": th.cuda.get_device_name() if args.device != "cpu" else f"{processor()}, {th.get_num_threads()} threads",
        "versions": {name: importlib.metadata.version(name) for name in packages} | {"python": platform.python_version()},
        "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "cuda_peak_memory_mb": th.cuda.max_memory_allocated() / 2**20 if args.device != "cpu" else None,
        "start_up": start_up(),
        "rows": rows,
    }
    args.out.with_suffix(".json").write_text(json.dumps(facts, indent=1) + "\n")
    table = markdown(pd.DataFrame(rows))
    args.out.with_suffix(".md").write_text(f"`{facts['command']}`\n\n{table}")
    print(table)
    plot(rows, args.out.with_suffix(".png"))


if __name__ == "__main__":
    main()
