"""
Tables and figures of a folder of runs made by ``evidence.py``.

    python benchmarks/report.py benchmarks/results/core

Writes ``summary.csv``, ``summary.md`` and one PNG per environment into that folder. Only last evaluations are reported.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd

matplotlib.use("Agg")
import matplotlib.pyplot as plt

LABELS = {
    "dual_qdm": "Dual Q-DM",
    "reg_iq_learn": "Reg IQ-Learn",
    "iq_learn": "IQ-Learn",
    "bc": "BC",
}


def read_runs(folder: Path) -> pd.DataFrame:
    """All evaluations; the variant of a run is what its file name says between the environment and the seed."""
    frames = []
    for path in sorted(folder.glob("*_s*.csv")):
        frame = pd.read_csv(path, comment="#")
        if frame.empty:
            continue
        frame["variant"] = path.stem.removeprefix(f"{frame.env[0]}_").rsplit("_s", 1)[0]
        frames.append(frame)
    return pd.concat(frames, ignore_index=True)


def summarise(runs: pd.DataFrame) -> pd.DataFrame:
    """Last evaluation of every run, then mean, minimum and maximum over seeds."""
    last = runs.sort_values("step").groupby(["env", "variant", "seed"]).tail(1)
    groups = last.groupby(["env", "variant"])
    table = groups.agg(
        steps=("step", "max"),
        seeds=("seed", "count"),
        mean=("mean", "mean"),
        worst_seed=("mean", "min"),
        best_seed=("mean", "max"),
        expert=("expert_return", "mean"),
        demonstrations=("demo_indices", lambda column: ", ".join(sorted(set(map(str, column))))),
    )
    return table.reset_index()


def to_markdown(table: pd.DataFrame) -> str:
    lines = [
        "| environment | run | steps | seeds | return (mean over seeds) | worst to best seed | expert | demonstration |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in table.itertuples():
        lines.append(
            f"| {row.env} | {row.variant} | {row.steps:,} | {row.seeds} | {row.mean:.1f} "
            f"| {row.worst_seed:.1f} to {row.best_seed:.1f} | {row.expert:.1f} | {row.demonstrations} |"
        )
    return "\n".join(lines) + "\n"


def plot(runs: pd.DataFrame, env: str, path: Path) -> None:
    """Learning curves of one environment: the mean over seeds, the range between seeds, and the expert."""
    figure, axis = plt.subplots(figsize=(6, 3.8), layout="constrained")
    runs = runs[runs.env == env]
    for variant, group in runs.groupby("variant"):
        curve = group.groupby("step")["mean"].agg(["mean", "min", "max"])
        (line,) = axis.plot(curve.index, curve["mean"], marker=".", label=LABELS.get(variant, variant))
        axis.fill_between(curve.index, curve["min"], curve["max"], alpha=0.2, color=line.get_color(), linewidth=0)
    for expert in np.unique(runs.expert_return):
        axis.axhline(expert, color="black", linestyle="--", linewidth=1)
        axis.annotate(f"expert {expert:.0f}", (runs.step.min(), expert), xytext=(0, 3), textcoords="offset points", fontsize=8)
    axis.set(title=env, xlabel="time steps", ylabel="return (10 deterministic episodes)")
    axis.legend(frameon=False, fontsize=8)
    axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    runs = read_runs(folder)
    table = summarise(runs)
    table.round(2).to_csv(folder / "summary.csv", index=False)
    (folder / "summary.md").write_text(to_markdown(table))
    for env in runs.env.unique():
        plot(runs, env, folder / f"{env}.png")
    print(to_markdown(table))


if __name__ == "__main__":
    main()
