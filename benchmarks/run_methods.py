"""
Evidence for every method on Pendulum-v1: one training run after another, one seed of all of them first.

    python benchmarks/run_methods.py

The settings are the Pendulum-v1 entries of ``hyperparams/*.yml``; what all methods of the comparison share instead is here.
A run whose CSV is complete is left alone and a broken one goes on from its checkpoint, so that the same command resumes the
queue. `--only` picks runs by name.
"""

import argparse
import subprocess
import sys
from pathlib import Path

import yaml

from sb3_dualqdm.zoo import ALGOS, hyperparams_path

ENV_ID = "Pendulum-v1"
# Small, so that the whole comparison takes hours on one core
SHARED = {"policy_kwargs": {"net_arch": [64, 64]}, "batch_size": 128, "learning_rate": 1e-3}
ONLINE = [algo for algo in ALGOS if algo != "bc"]
# From five demonstrations alone
OFFLINE = ["bc", "dual_qdm", "reg_iq_learn", "iq_learn", "ls_iq", "value_dice", "recoil"]
# From one demonstration and 10,000 transitions of random actions, which is how ReCOIL was published
WITH_RANDOM = ["recoil", "ls_iq", "dual_qdm", "sqil"]
# Algorithm and arguments of evidence.py by the names of the CSV files
RUNS = {
    **{algo: (algo, [], {}) for algo in ONLINE},
    **{f"{algo}_offline": (algo, ["--n-demonstrations", 5], {"offline": True}) for algo in OFFLINE},
    **{f"{algo}_random": (algo, ["--random-episodes", 50], {"offline": True}) for algo in WITH_RANDOM},
}
N_EVALUATIONS = 5


def settings(algo: str) -> dict:
    """Constructor arguments of the task's entry, with those that the comparison shares."""
    entry = yaml.safe_load(hyperparams_path(algo).read_text())[ENV_ID]
    for key in ("n_timesteps", "policy", "demonstrations", "n_demonstrations"):
        entry.pop(key, None)
    policy_kwargs = {**entry.get("policy_kwargs", {}), **SHARED["policy_kwargs"]}
    return {**entry, **SHARED, "policy_kwargs": policy_kwargs}


def is_complete(csv: Path, steps: int) -> bool:
    """Whether the last row of a run's CSV is that of its last step."""
    rows = [line for line in csv.read_text().splitlines() if line and not line.startswith("#")] if csv.exists() else []
    return len(rows) > 1 and int(rows[-1].split(",")[3]) >= steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10_000, help="environment steps, or updates offline")
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--only", nargs="*", choices=RUNS, default=list(RUNS))
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    args = parser.parse_args()
    every = args.steps // N_EVALUATIONS
    for seed in args.seeds:
        for name in args.only:
            algo, arguments, options = RUNS[name]
            folder = args.out / ("methods_offline" if options else "methods")
            out = folder / f"{ENV_ID}_{name}_s{seed}.csv"
            if is_complete(out, args.steps):
                continue
            command = [sys.executable, "benchmarks/evidence.py", "--algo", algo, "--env", ENV_ID, "--seed", seed]
            command += ["--demonstrations", f"builtin:{ENV_ID}", *arguments]
            command += ["--steps", args.steps, "--eval-every", every, "--save-every", every, "--out", out]
            command += ["--set", *(f"{key}={value!r}" for key, value in {**settings(algo), **options}.items())]
            print(name, seed, flush=True)
            subprocess.run([*map(str, command)], check=False)


if __name__ == "__main__":
    main()
