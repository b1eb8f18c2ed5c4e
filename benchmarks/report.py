"""
The results page, with its tables and figures, from the files in ``benchmarks/results``.

    python benchmarks/report.py

``benchmarks/results/notes.md`` is the text of the page. A line of it that starts with ``@`` becomes what was measured:
``@table FOLDER`` and ``@figures FOLDER [ENV ...]`` for runs made by ``evidence.py``, ``@suite NAME`` for runs made by
``python -m sb3_dualqdm.benchmark``, ``@experts`` for the experts of the built-in demonstrations. Only last evaluations are
reported, and what has not been run is called missing. The table of built-in sets in ``docs/builtin_sets.md`` is written too.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pandas as pd

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from sb3_dualqdm.benchmark import analysis, figures
from sb3_dualqdm.benchmark.suites import expand, label
from sb3_dualqdm.demonstrations.builtin import manifest, random_return

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "results.md"
BUILTIN_SETS = ROOT / "docs" / "builtin_sets.md"


def read_runs(folder: Path) -> pd.DataFrame:
    """All evaluations; the variant of a run is what its file name says between the environment and the seed."""
    frames = []
    for path in sorted(folder.glob("*_s[0-9]*.csv")):
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
        fewest_steps=("step", "min"),
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
            f"| {row.env} | {row.variant} | {analysis.steps_of([row.fewest_steps, row.steps])} | {row.seeds} | {row.mean:.1f} "
            f"| {row.worst_seed:.1f} to {row.best_seed:.1f} | {row.expert:.1f} | {row.demonstrations} |"
        )
    return "\n".join(lines) + "\n"


def plot(runs: pd.DataFrame, env: str, path: Path) -> None:
    """Learning curves of one environment: the mean over seeds, the range between seeds, and the expert."""
    figure, axis = plt.subplots(figsize=(6, 3.8), layout="constrained")
    runs = runs[runs.env == env]
    lengths = runs.groupby("variant").step.max()
    if len(lengths) > 10:  # each curve a colour of its own
        axis.set_prop_cycle(color=plt.get_cmap("tab20").colors)
    if lengths.max() > 6 * lengths.min():
        axis.set_xscale("log")
        axis.xaxis.set_minor_formatter(matplotlib.ticker.NullFormatter())
    for variant, group in runs.groupby("variant"):
        curve = group.groupby("step")["mean"].agg(["mean", "min", "max"])
        (line,) = axis.plot(curve.index, curve["mean"], marker=".", label=label(variant))
        axis.fill_between(curve.index, curve["min"], curve["max"], alpha=0.2, color=line.get_color(), linewidth=0)
    experts = np.unique(runs.expert_return.round(1))  # more than one where runs learn from different demonstrations
    for expert in experts:
        axis.axhline(expert, color="black", linestyle="--", linewidth=1)
        offset, side = ((0, 3), "bottom") if expert == experts.max() else ((0, -3), "top")
        place = {"xytext": offset, "textcoords": "offset points", "va": side}
        axis.annotate(f"expert {expert:.0f}", (runs.step.min(), expert), fontsize=8, **place)
    axis.set(title=env, xlabel="time steps", ylabel="return (10 deterministic episodes)")
    axis.xaxis.set_major_formatter(matplotlib.ticker.EngFormatter())
    if runs.variant.nunique() > 3:  # too many to find room among the curves
        figure.legend(loc="outside right upper", frameon=False, fontsize=8)
    else:
        axis.legend(frameon=False, fontsize=8)
    axis.spines["top"].set_visible(False)
    if env in manifest():
        low, high = random_return(env), experts.max()
        scores = (lambda returns: (returns - low) / (high - low), lambda scores: low + scores * (high - low))
        axis.secondary_yaxis("right", functions=scores).set_ylabel("normalised score (0 random, 1 expert)")
    else:
        axis.spines["right"].set_visible(False)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def plot_experts(folder: Path, path: Path) -> None:
    """Evaluations of the experts along their training, with what they were trained to reach."""
    curves = {file.stem: pd.read_csv(file) for file in sorted(folder.glob("*.csv"))}
    rows = -(-len(curves) // 4)
    figure, grid = plt.subplots(rows, 4, figsize=(16.8, 3.2 * rows), layout="constrained", squeeze=False)
    for axis in grid.flat[len(curves) :]:
        axis.remove()
    for (env, curve), axis in zip(curves.items(), grid.flat):
        axis.errorbar(curve.steps, curve["mean"], curve["std"], marker=".", elinewidth=0.8, capsize=2)
        axis.axhline(manifest()[env]["expert"]["target"], color="black", linestyle="--", linewidth=1, label="target")
        axis.set(title=env, xlabel="steps", ylabel="return")
        axis.xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(6))
        axis.xaxis.set_major_formatter(matplotlib.ticker.EngFormatter())
        axis.legend(frameon=False, fontsize=8)
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def image(path: Path, width: str = "49%") -> str:
    """A figure, as the page shows it."""
    return f"```{{image}} {os.path.relpath(path, PAGE.parent)}\n:width: {width}\n```\n"


def table_of(folder: str) -> str:
    """``@table``."""
    if not list((RESULTS / folder).glob("*_s[0-9]*.csv")):
        return f"*Missing: there is no run in `benchmarks/results/{folder}`.*\n"
    return to_markdown(summarise(read_runs(RESULTS / folder)))


def figures_of(folder: str, *envs: str) -> str:
    """``@figures``."""
    return "".join(image(RESULTS / folder / f"{env}.png") for env in envs or _envs(folder))


def _envs(folder: str) -> list[str]:
    paths = list((RESULTS / folder).glob("*_s[0-9]*.csv"))
    return sorted(read_runs(RESULTS / folder).env.unique()) if paths else []


def suite(name: str) -> str:
    """``@suite``."""
    records, runs = analysis.read(RESULTS / name), expand(name)
    if not records:
        return f"### {name}\n\n*Missing: none of its {len(runs)} runs is finished.*\n"
    images = "".join(image(path, "100%") for path in sorted((RESULTS / name).glob("*.png")))
    return f"### {name}\n\n{analysis.report(records, runs, {})}\n{images}"


def extremes(expert: dict[str, Any]) -> str:
    """Lowest and highest return of an expert's evaluation, empty if only their mean was kept."""
    return f"{expert['min_return']:,.1f} to {expert['max_return']:,.1f}" if "min_return" in expert else ""


def experts() -> str:
    """``@experts``."""
    lines = [
        "| expert of | trainer | steps | episodes | return, mean ± std | lowest to highest | target |",
        "|---|---|---|---|---|---|---|",
    ]
    for env, entry in sorted(manifest().items()):
        expert = entry["expert"]
        below = ", **below target**" if entry["below_target"] else ""
        lines.append(
            f"| {env} | {expert['trainer']}.{expert['algorithm']} | {expert['steps']:,} | {expert['episodes']} "
            f"| {expert['mean_return']:,.1f} ± {expert['std_return']:,.1f} | {extremes(expert)} "
            f"| {expert['target']:,g}{below} |"
        )
    return "\n".join(lines) + "\n\n" + image(RESULTS / "experts" / "curves.png", "90%")


COMMANDS = {"table": table_of, "figures": figures_of, "suite": suite, "experts": experts}


def page() -> str:
    """The results page."""
    lines = []
    for line in (RESULTS / "notes.md").read_text().splitlines():
        command, *arguments = line[1:].split() if line.startswith("@") else [""]
        lines.append(COMMANDS[command](*arguments).rstrip("\n") if command else line)
    return "\n".join(lines) + "\n"


def builtin_sets() -> str:
    """The table of the built-in sets."""
    lines = [
        "| id | observation size | demonstrations | their returns | expert | its return, mean (range) | episodes end by |",
        "|---|---|---|---|---|---|---|",
    ]
    for env, entry in sorted(manifest().items()):
        expert, returns = entry["expert"], entry["returns"]
        ends = sorted({"termination" if terminated else "time limit" for terminated in entry["terminated"]})
        lines.append(
            f"| `builtin:{env}` | {entry['observation_size']} | {len(returns)} | {', '.join(map('{:,.1f}'.format, returns))} "
            f"| {expert['algorithm']}, {expert['steps']:,} steps{', **below target**' if entry['below_target'] else ''} "
            f"| {expert['mean_return']:,.1f}{f' ({extremes(expert)})' if extremes(expert) else ''} | {', '.join(ends)} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    for folder in sorted({path.parent for path in RESULTS.glob("*/*_s[0-9]*.csv")}):
        runs = read_runs(folder)
        table = summarise(runs)
        table.round(2).to_csv(folder / "summary.csv", index=False)
        for env in runs.env.unique():
            plot(runs, env, folder / f"{env}.png")
    plot_experts(RESULTS / "experts", RESULTS / "experts" / "curves.png")
    for folder in sorted({path.parent for path in RESULTS.glob("*/[!.]*_s[0-9]*.json")}):
        figures.plot(folder.name, analysis.evaluations(analysis.read(folder)), folder)
    PAGE.write_text(page())
    BUILTIN_SETS.write_text(builtin_sets())


if __name__ == "__main__":
    main()
