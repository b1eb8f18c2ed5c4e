"""
Comparisons of evidence: one training run after another, seed by seed.

    python benchmarks/compare.py Pendulum-v1
    python benchmarks/compare.py HalfCheetah-v4 --seeds 0
    python benchmarks/compare.py switches --seeds 0

``Pendulum-v1`` and ``HalfCheetah-v4`` compare the methods, ``switches`` the settings of Dual Q-DM, one changed at a time.
The settings are the task's entries of ``hyperparams/*.yml``; what all runs of a comparison share instead is here.
A run whose CSV is complete is left alone and a broken one goes on from its checkpoint, so that the same command resumes the
queue. `--only` picks runs by name.
"""

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from sb3_dualqdm.zoo import ALGOS, hyperparams_path


class Run(NamedTuple):
    """What one kind of run adds to the settings of its task."""

    algo: str
    arguments: tuple[str, ...] = ()
    options: dict[str, Any] = {}


class Comparison(NamedTuple):
    """Runs on one task, by the names of their CSV files, and what they share."""

    env: str
    folder: str
    demonstrations: str
    steps: int
    shared: dict[str, Any]
    runs: dict[str, Run]


ONLINE = [algo for algo in ALGOS if algo != "bc"]
# From five demonstrations alone, with what a method is given beside them; IQ-Learn's initial-state term is the paper's (with
# value_mode="value" its objective is, offline, that of Reg IQ-Learn)
OFFLINE: dict[str, dict[str, Any]] = {
    **{algo: {} for algo in ("bc", "dual_qdm", "reg_iq_learn", "ls_iq", "value_dice", "recoil")},
    "iq_learn": {"value_mode": "initial"},
}
# From one demonstration and 10,000 transitions of random actions
WITH_RANDOM = ["recoil", "ls_iq", "dual_qdm", "reg_iq_learn", "iq_learn", "sqil"]
COMPARISONS = {
    "Pendulum-v1": Comparison(
        env="Pendulum-v1",
        folder="methods",
        demonstrations="builtin:Pendulum-v1",
        steps=10_000,
        # Small, so that the whole comparison takes hours on one core
        shared={"policy_kwargs": {"net_arch": [64, 64]}, "batch_size": 128, "learning_rate": 1e-3},
        runs={
            **{algo: Run(algo) for algo in ONLINE},
            **{
                f"{algo}_offline": Run(algo, ("--n-demonstrations", "5"), {"offline": True, **options})
                for algo, options in OFFLINE.items()
            },
            "bc_one": Run("bc", options={"offline": True}),
            **{f"{algo}_random": Run(algo, ("--random-episodes", "50"), {"offline": True}) for algo in WITH_RANDOM},
        },
    ),
    "HalfCheetah-v4": Comparison(
        env="HalfCheetah-v4",
        folder="methods",
        demonstrations="demos/HalfCheetah-v4",
        steps=50_000,
        shared={"acceleration": "compile"},
        runs={algo: Run(algo) for algo in ("sqil", "ls_iq", "dac", "hype", "value_dice")},
    ),
    "switches": Comparison(
        env="HalfCheetah-v4",
        folder="switches",
        demonstrations="demos/HalfCheetah-v4",
        steps=50_000,
        # The authors' penalty; smaller than the default networks, for a third of the time
        shared={
            "acceleration": "compile",
            "normalize": True,
            "policy_kwargs": {"net_arch": [128, 128]},
            "bellman_penalty": 0.5,
        },
        runs={
            "authors": Run("dual_qdm"),
            "two_critics": Run("dual_qdm", options={"policy_kwargs": {"n_critics": 2}}),
            "penalty_5": Run("dual_qdm", options={"bellman_penalty": 5.0}),
            "penalty_20": Run("dual_qdm", options={"bellman_penalty": 20.0}),
            "bounds_5": Run("dual_qdm", options={"bellman_bounds": (-5.0, 5.0)}),
            "entropy_0.01": Run("dual_qdm", options={"ent_coef": 0.01}),
            "learned_entropy": Run("dual_qdm", options={"ent_coef": "auto"}),
            "paper_objective": Run("dual_qdm", options={"objective": "paper"}),
            "v0": Run("dual_qdm", options={"value_mode": "v0"}),
            "slow_actor": Run("dual_qdm", options={"actor_learning_rate": 3e-5}),
            "five_demonstrations": Run("dual_qdm", ("--n-demonstrations", "5")),
        },
    ),
}
N_EVALUATIONS = 5


def settings(run: Run, comparison: Comparison) -> dict[str, Any]:
    """Constructor arguments of the task's entry, with those that the comparison shares and those of the run."""
    entry = yaml.safe_load(hyperparams_path(run.algo).read_text())[comparison.env]
    for key in ("n_timesteps", "policy", "demonstrations", "n_demonstrations"):
        entry.pop(key, None)
    layers = (entry, comparison.shared, run.options)
    policy_kwargs = {key: value for layer in layers for key, value in layer.get("policy_kwargs", {}).items()}
    return {**entry, **comparison.shared, **run.options, **({"policy_kwargs": policy_kwargs} if policy_kwargs else {})}


def is_complete(csv: Path, steps: int) -> bool:
    """Whether the last row of a run's CSV is that of its last step."""
    rows = [line for line in csv.read_text().splitlines() if line and not line.startswith("#")] if csv.exists() else []
    return len(rows) > 1 and int(rows[-1].split(",")[3]) >= steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("comparison", choices=COMPARISONS)
    parser.add_argument("--steps", type=int, help="environment steps, or updates offline; default: those of the comparison")
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--only", nargs="*", help="names of runs; default: all of the comparison")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    args = parser.parse_args()
    comparison = COMPARISONS[args.comparison]
    steps = args.steps or comparison.steps
    if unknown := set(args.only or ()) - set(comparison.runs):
        parser.error(f"no run {', '.join(sorted(unknown))} in {args.comparison}; there are {', '.join(comparison.runs)}")
    every = steps // N_EVALUATIONS
    for seed in args.seeds:
        for name in args.only or comparison.runs:
            run = comparison.runs[name]
            folder = args.out / (comparison.folder + ("_offline" if run.options.get("offline") else ""))
            out = folder / f"{comparison.env}_{name}_s{seed}.csv"
            if is_complete(out, steps):
                continue
            command = [sys.executable, "benchmarks/evidence.py", "--algo", run.algo, "--env", comparison.env]
            command += ["--seed", seed, "--demonstrations", comparison.demonstrations, *run.arguments]
            command += ["--steps", steps, "--eval-every", every, "--save-every", every, "--out", out]
            kwargs = settings(run, comparison)
            if kwargs.pop("normalize", False):
                command.append("--normalize")
            command += ["--set", *(f"{key}={value!r}" for key, value in kwargs.items())]
            print(name, seed, flush=True)
            subprocess.run([*map(str, command)], check=False)


if __name__ == "__main__":
    main()
