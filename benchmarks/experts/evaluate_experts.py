"""
Returns of the built-in experts on the seeds that learners are evaluated on.

    python benchmarks/experts/evaluate_experts.py --models runs/experts --out benchmarks/results/experts.csv

The models are those that ``train_builtin_experts.py`` leaves in its ``--models`` folder.
"""

import argparse
import csv
import json
import sys
from pathlib import Path

import gymnasium as gym
import stable_baselines3 as sb3

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from evidence import EVALUATION_SEED, evaluate

MANIFEST = Path(__file__).resolve().parents[2] / "sb3_dualqdm" / "demonstrations" / "data" / "manifest.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    manifest = json.loads(MANIFEST.read_text())
    with args.out.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["env", "algorithm", "first_seed", "mean", "std", "returns"])
        for env_id, entry in sorted(manifest.items()):
            algorithm = entry["expert"]["algorithm"]
            model = getattr(sb3, algorithm).load(args.models / f"{env_id}.zip", device="cpu")
            returns = evaluate(model, gym.make(env_id), 10)
            numbers = " ".join(f"{value:.1f}" for value in returns)
            writer.writerow([env_id, algorithm, EVALUATION_SEED, f"{returns.mean():.1f}", f"{returns.std():.1f}", numbers])


if __name__ == "__main__":
    main()
