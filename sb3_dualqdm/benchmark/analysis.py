"""Tables of a suite: last evaluations, interquartile means with bootstrap intervals, what is missing."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from sb3_dualqdm.benchmark.runs import read_record
from sb3_dualqdm.benchmark.suites import REFERENCES, Run, label
from sb3_dualqdm.demonstrations.builtin import builtin_ids, normalized_score
from sb3_dualqdm.resume import unchanged_global_generators
from sb3_dualqdm.zoo import ALGOS

RESAMPLES = 2000
MISSING = "missing"


def read(folder: Path) -> list[dict[str, Any]]:
    """
    The records of finished runs.

    :param folder: folder of a suite.
    :return: their contents, in the order of the methods, this package's first.
    :raises ValueError: if the folder has a JSON file that is no record.
    """
    records = [read_record(path) for path in sorted(folder.glob("[!.]*.json"))]
    order = [*ALGOS, *REFERENCES]
    return sorted(records, key=lambda record: order.index(record["run"]["method"]))


def evaluations(records: list[dict[str, Any]]) -> pd.DataFrame:
    """
    All evaluations.

    :param records: finished runs.
    :return: a row each: task, method (its label and variant), variant, seed, steps of the run, step, mean return, score
        (NaN where the task has no built-in expert), and the mean return of the run's demonstrations.
    """
    rows = []
    for record in records:
        run, demonstrations = record["run"], record["demonstrations"] or {}
        facts = {"task": run["task"], "method": name_of(run), "variant": run["variant"], "seed": run["seed"]}
        facts["steps"] = run["steps"]
        facts["demonstrations"] = np.mean(demonstrations["returns"]) if demonstrations.get("returns") else np.nan
        for evaluation in record["evaluations"]:
            mean = float(np.mean(evaluation["returns"]))
            score = normalized_score(run["task"], mean) if run["task"] in builtin_ids() else np.nan
            rows.append({**facts, "step": evaluation["step"], "return": mean, "score": score})
    columns = ["task", "method", "variant", "seed", "steps", "step", "return", "score", "demonstrations"]
    return pd.DataFrame(rows, columns=columns)


def name_of(run: dict[str, Any]) -> str:
    """
    Method and variant for people.

    :param run: a run, as JSON has it.
    """
    return f"{label(run['method'])}, {run['variant']}" if run["variant"] else label(run["method"])


def last(frame: pd.DataFrame) -> pd.DataFrame:
    """
    The last evaluation of every run: what counts.

    :param frame: see :func:`evaluations`.
    """
    return frame.sort_values("step").groupby(["task", "method", "seed"], as_index=False).tail(1).sort_index()


def returns_table(frame: pd.DataFrame, runs: list[Run]) -> pd.DataFrame:
    """
    Last evaluations, as the mean over seeds with the lowest and the highest.

    :param frame: see :func:`evaluations`.
    :param runs: what the suite asks for; runs of it that are not in the frame are shown as missing, and shorter ones with
        their steps.
    :return: a row for each method and a column for each task, of text.
    """
    final = last(frame)
    table: dict[str, dict[str, str]] = {}
    for run in runs:
        method = name_of({"method": run.method, "variant": run.variant})
        cell = table.setdefault(method, {})
        if run.task in cell:
            continue
        found = final[(final.task == run.task) & (final.method == method)]
        wanted = len({other.seed for other in runs if (other.task, other.method, other.variant) == _cell(run)})
        cell[run.task] = _describe(found["return"].to_numpy(), wanted)
        if (found.steps < run.steps).any():
            cell[run.task] += f", after {found.steps.min():,} of {run.steps:,} steps"
    rows = pd.DataFrame.from_dict(table, orient="index")
    rows = rows[sorted(rows.columns)].fillna("")
    rows.index.name = "method"
    return rows


def _cell(run: Run) -> tuple[str, str, str]:
    return run.task, run.method, run.variant


def _describe(returns: np.ndarray, wanted: int) -> str:
    if len(returns) == 0:
        return MISSING
    text = f"{returns.mean():,.1f}"
    if len(returns) > 1:
        text += f" ({returns.min():,.1f} to {returns.max():,.1f})"
    return text if len(returns) >= wanted else f"{text}, {wanted - len(returns)} of {wanted} seeds {MISSING}"


def steps_of(steps: Collection[int]) -> str:
    """
    How long runs are: a number, or the shortest and the longest.

    :param steps: a value for each run.
    """
    return " to ".join(f"{value:,}" for value in sorted({min(steps), max(steps)}))


def score_matrices(final: pd.DataFrame) -> dict[str, tuple[list[str], np.ndarray]]:
    """
    Normalised scores as rliable takes them.

    :param final: last evaluations.
    :return: for each method its tasks, and scores of shape (seeds, tasks); with as many seeds as every one of its tasks has.
    """
    matrices = {}
    for method, group in final.dropna(subset=["score"]).groupby("method", sort=False):
        scores = {task: rows.sort_values("seed").score.to_numpy() for task, rows in group.groupby("task")}
        seeds = min(map(len, scores.values()))
        matrices[str(method)] = (list(scores), np.stack([values[:seeds] for values in scores.values()], axis=1))
    return matrices


def _rliable() -> tuple[Any, Any]:
    try:
        from rliable import library, metrics
    except ImportError:
        raise ImportError('aggregation needs rliable, which is not installed: pip install "sb3-dualqdm[benchmark]".') from None
    return library, metrics


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """rliable's bootstrap draws from NumPy's global generator, whatever random state it is given."""
    with unchanged_global_generators():
        np.random.seed(seed)
        yield


def _interval(scores: Any, statistic: Any, seed: int) -> tuple[float, float, float]:
    """
    A statistic of scores (or of a pair) with its stratified-bootstrap 95 % interval: value, low, high. From one seed no
    spread can be told: NaN.
    """
    library, _ = _rliable()
    matrices = scores if isinstance(scores, tuple) else (scores,)
    if min(map(len, matrices)) == 1:
        return float(statistic(*matrices)[0]), np.nan, np.nan
    with _seeded(seed):
        point, interval = library.get_interval_estimates({"": scores}, statistic, reps=RESAMPLES)
    return float(point[""][0]), *map(float, interval[""][:, 0])  # type: ignore[return-value]


def interquartile_means(final: pd.DataFrame, seed: int = 0) -> pd.DataFrame:
    """
    Interquartile mean of the normalised scores of each method, with stratified bootstrap 95 % intervals.

    :param final: last evaluations.
    :param seed: seed of the bootstrap.
    :return: a row for each method: iqm, low, high (NaN from one seed), seeds, tasks, steps of the runs.
    """
    _, metrics = _rliable()
    scored = final.dropna(subset=["score"])
    rows = {}
    for method, (tasks, scores) in score_matrices(scored).items():
        iqm, low, high = _interval(scores, lambda matrix: np.array([metrics.aggregate_iqm(matrix)]), seed)
        facts = {"seeds": len(scores), "tasks": ", ".join(tasks), "steps": steps_of(scored.step[scored.method == method])}
        rows[method] = {"iqm": iqm, "low": low, "high": high, **facts}
    return pd.DataFrame.from_dict(rows, orient="index", columns=["iqm", "low", "high", "seeds", "tasks", "steps"])


def improvement_probabilities(final: pd.DataFrame, seed: int = 0) -> pd.DataFrame:
    """
    Probability that a run of the first method scores above a run of another one, over the tasks that both have.

    :param final: last evaluations; the first method is the one whose row comes first.
    :param seed: seed of the bootstrap.
    :return: a row for each other method: probability, low, high (NaN if a method has one seed), tasks, steps of the runs.
    """
    _, metrics = _rliable()
    scored = final.dropna(subset=["score"])
    names = scored.method.unique()
    rows = {}
    for other in names[1:]:
        first = names[0]
        common = sorted(set(scored.task[scored.method == first]) & set(scored.task[scored.method == other]))
        if not common:
            continue
        compared = scored[scored.task.isin(common) & scored.method.isin([first, other])]
        matrices = score_matrices(compared)  # seeds are counted over the common tasks only
        pair = tuple(matrices[name][1] for name in (first, other))
        value, low, high = _interval(pair, lambda x, y: np.array([metrics.probability_of_improvement(x, y)]), seed)
        facts = {"tasks": ", ".join(common), "steps": steps_of(compared.step)}
        rows[f"{first} > {other}"] = {"probability": value, "low": low, "high": high, **facts}
    return pd.DataFrame.from_dict(rows, orient="index", columns=["probability", "low", "high", "tasks", "steps"])


def performance_profiles(
    final: pd.DataFrame, thresholds: np.ndarray, seed: int = 0
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """
    Fraction of runs that score above each threshold.

    :param final: last evaluations.
    :param thresholds: normalised scores, shape (n,)
    :param seed: seed of the bootstrap.
    :return: for each method the fractions, shape (n,), and their 95 % interval, shape (2, n), NaN from one seed
    """
    library, _ = _rliable()
    result = {}
    for method, (_, scores) in score_matrices(final).items():
        with _seeded(seed):
            profile, interval = library.create_performance_profile({method: scores}, thresholds, reps=RESAMPLES)
        result[method] = (profile[method], interval[method] if len(scores) > 1 else np.full((2, len(thresholds)), np.nan))
    return result


def efficiency_curves(frame: pd.DataFrame, points: int = 25) -> dict[str, pd.DataFrame]:
    """
    Interquartile mean of the normalised scores along training: scores between two evaluations are interpolated.

    :param frame: see :func:`evaluations`.
    :param points: steps at which the scores are compared.
    :return: for each method a frame with step, iqm, low, high, over the steps that all of its runs have; methods whose runs
        have no steps in common are left out.
    """
    curves = {}
    for method, group in frame.dropna(subset=["score"]).groupby("method", sort=False):
        runs = [run.sort_values("step") for _, run in group.groupby(["task", "seed"])]
        start, end = max(run.step.min() for run in runs), min(run.step.max() for run in runs)
        if start > end:
            continue
        rows = []
        for step in np.unique(np.linspace(start, end, points)):
            facts = [{"task": run.task.iloc[0], "seed": run.seed.iloc[0], "step": step} for run in runs]
            scores = [np.interp(step, run.step, run.score) for run in runs]
            final = pd.DataFrame(facts).assign(method=method, score=scores)
            rows.append({"step": step, **interquartile_means(final).loc[method, ["iqm", "low", "high"]]})
        curves[str(method)] = pd.DataFrame(rows)
    return curves


def markdown(table: pd.DataFrame) -> str:
    """
    A table in Markdown, its index as the first column; an end of an interval that is NaN comes from one seed.

    :param table: the table.
    """

    def text(value: Any) -> str:
        if not isinstance(value, float):
            return str(value)
        return "one seed" if np.isnan(value) else f"{value:.2f}"

    lines = [[table.index.name or "", *map(str, table.columns)], ["---"] * (len(table.columns) + 1)]
    lines += [[str(name), *map(text, row)] for name, row in zip(table.index, table.itertuples(index=False, name=None))]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def report(records: list[dict[str, Any]], runs: list[Run], obstacles: dict[str, list[str]]) -> str:
    """
    Everything that is known of a suite, in Markdown.

    :param records: finished runs.
    :param runs: what the suite asks for.
    :param obstacles: runs that cannot be made here, by reason.
    """
    frame = evaluations(records)
    done = {Run(**record["run"]).name: record["run"]["steps"] for record in records}
    n_short = sum(done.get(run.name, run.steps) < run.steps for run in runs)
    short = f", {n_short} more stopped after fewer steps" if n_short else ""
    n_done = sum(run.name in done for run in runs) - n_short
    parts = [
        f"{n_done} of {len(runs)} runs are finished{short}. Returns of the last evaluation, mean (lowest to highest seed):\n",
        markdown(returns_table(frame, runs)),
    ]
    final = last(frame)
    if final.score.notna().any():
        parts.append(
            f"Normalised scores (0 random actions, 1 expert), 95 % intervals of {RESAMPLES} stratified bootstrap samples:\n"
        )
        parts += [markdown(table) for table in (interquartile_means(final), improvement_probabilities(final)) if len(table)]
    parts += [
        f"- not possible here ({reason}): {len(names)} runs, the first is {names[0]}\n" for reason, names in obstacles.items()
    ]
    return "\n".join(parts)
