"""
Returns of the built-in experts on the seeds that learners are evaluated on.

    python benchmarks/experts/evaluate_experts.py --out benchmarks/results/experts.csv

The models are those that ``train_experts.py`` left; an expert whose model is not there keeps its row.
"""

import argparse
import csv
from pathlib import Path

from stable_baselines3.common.env_util import make_vec_env
from train_experts import EXPERTS, MODELS, load_model

from sb3_dualqdm.benchmark.recording import EVALUATION_SEED, evaluate

FIELDS = ["env", "algorithm", "first_seed", "mean", "std", "returns"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, default=MODELS)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    rows = {row["env"]: row for row in csv.DictReader(args.out.open())} if args.out.exists() else {}
    for env_id, expert in EXPERTS.items():
        if (args.models / env_id / "best.zip").exists():
            returns = evaluate(load_model(env_id, args.models / env_id), make_vec_env(env_id, 10))
            numbers = " ".join(f"{value:.1f}" for value in returns)
            values = (env_id, expert.algorithm, EVALUATION_SEED, f"{returns.mean():.1f}", f"{returns.std():.1f}", numbers)
            rows[env_id] = dict(zip(FIELDS, map(str, values)))
    with args.out.open("w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS)
        writer.writeheader()
        writer.writerows(rows[env_id] for env_id in sorted(rows))


if __name__ == "__main__":
    main()
