"""Figures of a suite in the paper's layout: panels in a row, one for each task or parameter, and a legend below."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pandas as pd

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from sb3_dualqdm.benchmark import analysis


def _colours(methods: list[str]) -> dict[str, str]:
    return {method: f"C{i % 10}" for i, method in enumerate(methods)}


def _band(axis: Any, x: np.ndarray, middle: np.ndarray, low: np.ndarray, high: np.ndarray, **style: str) -> None:
    axis.plot(x, middle, marker="." if len(x) < 20 else None, linewidth=1.5, **style)
    axis.fill_between(x, low, high, alpha=0.2, linewidth=0, color=style["color"])


def _finish(figure: Any, axes: list[Any], path: Path) -> Path:
    handles: dict[str, Any] = {}
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
        for handle, name in zip(*axis.get_legend_handles_labels()):
            handles.setdefault(name, handle)
    figure.legend(list(handles.values()), list(handles), loc="outside lower center", ncols=min(len(handles), 6), frameon=False)
    figure.savefig(path, dpi=130)
    plt.close(figure)
    return path


def learning_curves(frame: pd.DataFrame, path: Path) -> Path:
    """
    Return against steps: mean over seeds, band of one standard deviation, dashed line for the demonstrations. Variants
    ``"<parameter> <value>"`` get a panel for each parameter.

    :param frame: see :func:`sb3_dualqdm.benchmark.analysis.evaluations`.
    :param path: PNG to write.
    """
    colours = _colours(list(frame.method.unique()))
    parameter = frame.variant.str.extract(r"^(\S+) [\d.]+$")[0]
    panels = frame.assign(panel=frame.task + (", " + parameter).fillna("")).groupby("panel")
    figure, grid = plt.subplots(1, len(panels), figsize=(max(3.0 * len(panels), 5), 3.2), layout="constrained", squeeze=False)
    for (title, panel), axis in zip(panels, grid[0]):
        for method, runs in panel.groupby("method", sort=False):
            curve = runs.groupby("step")["return"].agg(["mean", "std"]).fillna({"std": 0.0})
            low, high = curve["mean"] - curve["std"], curve["mean"] + curve["std"]
            x, middle = curve.index.to_numpy(), curve["mean"].to_numpy()
            _band(axis, x, middle, low.to_numpy(), high.to_numpy(), color=colours[method], label=method)
        if panel.demonstrations.notna().any():
            axis.axhline(panel.demonstrations.mean(), color="black", linestyle="--", linewidth=1, label="demonstrations")
        axis.set(title=title, xlabel="steps")
        axis.xaxis.set_major_formatter(matplotlib.ticker.EngFormatter())
    grid[0][0].set_ylabel("return")
    return _finish(figure, list(grid[0]), path)


def final_returns(frame: pd.DataFrame, path: Path) -> Path:
    """
    Last return against the number of expert trajectories, for the suite that varies it.

    :param frame: evaluations whose methods are named ``"<method>, <n> trajectories"``.
    :param path: PNG to write.
    """
    final = analysis.last(frame)
    parts = final.method.str.extract(r"^(?P<base>.*), (?P<count>\d+) trajectories$")
    final = final.assign(base=parts.base, count=parts["count"].astype(float)).dropna(subset=["count"])
    tasks, colours = sorted(final.task.unique()), _colours(list(final.base.unique()))
    figure, grid = plt.subplots(1, len(tasks), figsize=(max(3.0 * len(tasks), 5), 3.2), layout="constrained", squeeze=False)
    for task, axis in zip(tasks, grid[0]):
        panel = final[final.task == task]
        for base, rows in panel.groupby("base", sort=False):
            curve = rows.groupby("count")["return"].agg(["mean", "std"]).fillna({"std": 0.0})
            x, middle, std = curve.index.to_numpy(), curve["mean"].to_numpy(), curve["std"].to_numpy()
            _band(axis, x, middle, middle - std, middle + std, color=colours[base], label=base)
        axis.set(title=task, xlabel="expert trajectories", xticks=sorted(final["count"].unique()))
    grid[0][0].set_ylabel("return")
    return _finish(figure, list(grid[0]), path)


def aggregates(frame: pd.DataFrame, path: Path) -> Path:
    """
    Over all tasks with an expert: interquartile mean, performance profile, interquartile mean along training.

    :param frame: see :func:`sb3_dualqdm.benchmark.analysis.evaluations`.
    :param path: PNG to write.
    """
    final, colours = analysis.last(frame), _colours(list(frame.method.unique()))
    figure, (bars, profile, curves) = plt.subplots(1, 3, figsize=(13, 3.6), layout="constrained")
    means = analysis.interquartile_means(final).iloc[::-1]
    for position, (method, row) in enumerate(means.iterrows()):
        bars.barh(position, row.high - row.low, left=row.low, height=0.6, color=colours[str(method)], alpha=0.5)
        bars.plot([row.iqm, row.iqm], [position - 0.3, position + 0.3], color="black")
    bars.set(
        title="interquartile mean, 95 %", xlabel="normalised score", yticks=range(len(means)), yticklabels=list(means.index)
    )
    thresholds = np.linspace(min(0.0, final.score.min()), max(1.2, final.score.max()), 60)
    for method, (fractions, interval) in analysis.performance_profiles(final, thresholds).items():
        _band(profile, thresholds, fractions, interval[0], interval[1], color=colours[method], label=method)
    profile.set(title="performance profile", xlabel="normalised score t", ylabel="fraction of runs above t")
    for method, curve in analysis.efficiency_curves(frame).items():
        x = curve.step.to_numpy()
        _band(
            curves, x, curve.iqm.to_numpy(), curve.low.to_numpy(), curve.high.to_numpy(), color=colours[method], label=method
        )
    curves.set(title="sample efficiency", xlabel="steps", ylabel="interquartile mean")
    curves.xaxis.set_major_formatter(matplotlib.ticker.EngFormatter())
    return _finish(figure, [bars, profile, curves], path)


def plot(suite: str, frame: pd.DataFrame, folder: Path) -> list[Path]:
    """
    The figures of a suite.

    :param suite: its name.
    :param frame: see :func:`sb3_dualqdm.benchmark.analysis.evaluations`.
    :param folder: where the PNGs go.
    :return: the files written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    varies_trajectories = frame.method.str.contains(" trajectories$").any()
    paths = [(final_returns if varies_trajectories else learning_curves)(frame, folder / f"{suite}.png")]
    if frame.score.notna().any():
        paths.append(aggregates(frame, folder / f"{suite}-aggregate.png"))
    return paths
