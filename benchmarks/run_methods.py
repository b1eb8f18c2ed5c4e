"""
Evidence for every method on Pendulum-v1: one training run after another, one seed of all of them first.

    python benchmarks/run_methods.py --steps 10000 --seeds 3

A run whose CSV is complete is left alone and a broken one goes on from its checkpoint, so that the same command resumes the
queue. `--only` picks runs by name.
"""

import argparse
import subprocess
import sys
from pathlib import Path

ENV_ID = "Pendulum-v1"
# The Pendulum-v1 entries of hyperparams/*.yml; names are those of the CSV files
RUNS = {
    "sqil": ("sqil", []),
    "ls_iq": ("ls_iq", []),
    "dac": ("dac", ["discriminator_learning_rate=3e-4", "discriminator_weight_decay=0.0"]),
    "value_dice": ("value_dice", ["gradient_steps=1", "actor_learning_rate=1e-4"]),
    "hype": ("hype", ["cost_interval=1000", "cost_window=1000"]),
    "recoil": ("recoil", []),
    "rize": ("rize", ["actor_learning_rate=3e-4"]),
    "reg_iq_learn_offline": ("reg_iq_learn", ["offline=True"]),
    "iq_learn_offline": ("iq_learn", ["offline=True"]),
    "ls_iq_offline": ("ls_iq", ["offline=True"]),
    "value_dice_offline": ("value_dice", ["offline=True", "actor_learning_rate=1e-4"]),
    "recoil_offline": ("recoil", ["offline=True"]),
}


def is_complete(csv: Path, steps: int) -> bool:
    """Whether the last row of a run's CSV is that of its last step."""
    rows = [line for line in csv.read_text().splitlines() if line and not line.startswith("#")] if csv.exists() else []
    return len(rows) > 1 and int(rows[-1].split(",")[3]) >= steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10_000, help="environment steps, or updates offline")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", nargs="*", choices=RUNS, default=list(RUNS))
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/methods"))
    args = parser.parse_args()
    for seed in range(args.seeds):
        for name in args.only:
            out = args.out / f"{ENV_ID}_{name}_s{seed}.csv"
            if is_complete(out, args.steps):
                continue
            algo, options = RUNS[name]
            command = [sys.executable, "benchmarks/evidence.py", "--algo", algo, "--env", ENV_ID, "--seed", seed]
            command += ["--demonstrations", f"builtin:{ENV_ID}", "--steps", args.steps, "--eval-every", args.steps // 4]
            command += ["--save-every", args.steps // 4, "--out", out, *(["--set", *options] if options else [])]
            print(name, seed, flush=True)
            subprocess.run([*map(str, command)], check=False)


if __name__ == "__main__":
    main()
