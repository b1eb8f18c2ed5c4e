"""
The figures of the tabular part, one command each, a PNG and a CSV per figure:

    python -m sb3_dualqdm.tabular.figures gap    # imitation gap against horizon on the Reset Cliff
    python -m sb3_dualqdm.tabular.figures grid   # value flow in a gridworld
    python -m sb3_dualqdm.tabular.figures flow   # value flow over the iterations of the practical algorithm
"""

from __future__ import annotations

import argparse
import csv
import os
from collections.abc import Iterable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from tqdm import tqdm

from sb3_dualqdm.tabular.ail import solve_ail
from sb3_dualqdm.tabular.demos import TabularDemos, sample_demos
from sb3_dualqdm.tabular.dual_qdm import penalised_iterates, solve_dual_qdm
from sb3_dualqdm.tabular.instances import MOVES, Gridworld, gridworld, reset_cliff, reset_cliff_bc_gap, reset_cliff_epsilon
from sb3_dualqdm.tabular.likelihood import solve_bc, solve_iq_learn, solve_value_dice
from sb3_dualqdm.tabular.mdp import greedy_actions, logsumexp

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import Patch, Polygon, Rectangle

N_STATES, N_ACTIONS, ALPHA = 20, 5, 0.1
REGIMES = (5000, 200)
HORIZONS = (4, 8, 16, 32, 64, 128)
# label, colour, marker, dashes, line width; the four that coincide are drawn from thick to thin so that all remain visible
STYLES: dict[str, tuple[str, str, str, float]] = {
    "BC": ("#bdbdbd", "o", "-", 8.0),
    "IQ-Learn (TV)": ("#e69f00", "s", "-", 5.0),
    "IQ-Learn (chi2)": ("#d55e00", "^", "-", 2.5),
    "ValueDICE": ("#5b2a86", "v", ":", 1.8),
    "AIL": ("#56b4e9", "D", "-", 6.0),
    "Dual Q-DM": ("#0b3d91", "o", "-", 2.2),
}
STYLE: Any = {
    "font.size": 12,
    "axes.titlesize": 13,
    "axes.titleweight": "bold",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "figure.dpi": 100,
    "savefig.dpi": 160,
    "savefig.bbox": "tight",
}


def write_csv(path: Path, rows: list[dict[str, Any]]) -> None:
    """
    Write rows as a CSV file.

    :param path: the file
    :param rows: dictionaries with the same keys
    """
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


# --- figure 1: imitation gap against horizon -------------------------------------------------------------------------


def gap_job(job: tuple[int, int, int]) -> list[dict[str, Any]]:
    """
    All methods on one Reset Cliff instance.

    :param job: (N, H, seed)
    :return: one row per method, policy and temperature
    """
    n_demos, horizon, seed = job
    mdp = reset_cliff(N_STATES, N_ACTIONS, horizon, n_demos, seed)
    demos = sample_demos(mdp, n_demos, seed)
    hot = solve_dual_qdm(mdp, demos, 1.0)
    cold = solve_dual_qdm(mdp, demos, ALPHA)
    chi2 = solve_iq_learn(mdp, demos, ALPHA, "chi2", n_starts=1, tolerance=1e-2, max_iterations=1500)
    policies = {
        ("BC", "softmax", ALPHA): solve_bc(mdp, demos).policy,
        ("IQ-Learn (TV)", "softmax", ALPHA): solve_iq_learn(mdp, demos, ALPHA).policy,
        ("IQ-Learn (chi2)", "softmax", ALPHA): chi2.policy,
        ("ValueDICE", "greedy", ALPHA): solve_value_dice(mdp, demos, tolerance=1e-4).policy,
        ("AIL", "softmax", ALPHA): solve_ail(mdp, demos, ALPHA, tolerance=1e-4).policy,
        ("Dual Q-DM", "softmax", ALPHA): cold.policy,
        ("Dual Q-DM", "greedy", ALPHA): cold.greedy,
        ("Dual Q-DM", "softmax", 1.0): hot.policy,
        ("Dual Q-DM", "greedy", 1.0): hot.greedy,
    }
    return [
        {
            "N": n_demos,
            "H": horizon,
            "seed": seed,
            "method": method,
            "policy": kind,
            "alpha": alpha,
            "gap": mdp.imitation_gap(policy),
        }
        for (method, kind, alpha), policy in policies.items()
    ]


def gap_curve(rows: Iterable[dict[str, Any]], n_demos: int, method: str, kind: str, alpha: float) -> np.ndarray:
    """
    Gaps of one curve.

    :param rows: rows of :func:`gap_job`
    :param n_demos: N
    :param method: method label
    :param kind: "softmax" or "greedy"
    :param alpha: temperature
    :return: shape (horizons, seeds), the horizons as in ``HORIZONS``
    """
    chosen = [r for r in rows if (r["N"], r["method"], r["policy"], r["alpha"]) == (n_demos, method, kind, alpha)]
    return np.array([[r["gap"] for r in chosen if r["H"] == horizon] for horizon in HORIZONS])


def fitted_exponent(gaps: np.ndarray, n_demos: int) -> float:
    """
    Slope of log(mean gap) against log(H) over the horizons with epsilon * H < 0.2, where the gap of BC is not yet saturated.

    :param gaps: shape (horizons, seeds)
    :param n_demos: N
    """
    horizons = np.array(HORIZONS)
    fitted = reset_cliff_epsilon(N_STATES, n_demos) * horizons < 0.2
    return float(np.polyfit(np.log(horizons[fitted]), np.log(gaps.mean(axis=1)[fitted]), 1)[0])


def exponent_above_offset(gaps: np.ndarray) -> float:
    """
    The p of a least-squares fit of offset + c H^p to the mean gaps, relative errors, offset >= 0: for a curve that starts at
    a constant.

    :param gaps: shape (horizons, seeds)
    """
    mean, horizons = gaps.mean(axis=1), np.array(HORIZONS, dtype=float)
    best = (np.inf, 0.0)
    for p in np.arange(0.5, 3.0, 0.01):
        design = np.stack([np.ones_like(horizons), horizons**p], axis=1) / mean[:, None]
        (offset, scale), *_ = np.linalg.lstsq(design, np.ones_like(mean), rcond=None)
        offset = max(offset, 0.0)
        best = min(best, (float((((offset + scale * horizons**p) / mean - 1.0) ** 2).sum()), float(p)))
    return best[1]


def _band(
    axes: Axes, x: np.ndarray, gaps: np.ndarray, label: str, colour: str, marker: str, dashes: str, width: float
) -> None:
    low, high = np.quantile(gaps, [0.1, 0.9], axis=1)
    axes.fill_between(x, np.maximum(low, 1e-6), high, color=colour, alpha=0.18, linewidth=0)
    axes.plot(
        x, gaps.mean(axis=1), dashes, color=colour, marker=marker, markersize=4 + width / 2, linewidth=width, label=label
    )


def draw_gap(rows: list[dict[str, Any]], path: Path) -> None:
    """
    Draw figure 1.

    :param rows: rows of :func:`gap_job`
    :param path: the PNG file
    """
    x = np.array(HORIZONS, dtype=float)
    unsaturated, saturated = REGIMES
    figure, ((growth, squares), (ceiling, heat)) = plt.subplots(2, 2, figsize=(14, 11), constrained_layout=True)
    curves = {
        n: {m: gap_curve(rows, n, m, "greedy" if m == "ValueDICE" else "softmax", ALPHA) for m in STYLES} for n in REGIMES
    }
    for method, style in STYLES.items():
        name = method.replace("chi2", r"$\chi^2$")
        if method == "IQ-Learn (chi2)":
            fit = f"const + $H^{{{exponent_above_offset(curves[unsaturated][method]):.2f}}}$"
        else:
            fit = f"$H^{{{fitted_exponent(curves[unsaturated][method], unsaturated):.2f}}}$"
        _band(growth, x, curves[unsaturated][method], f"{name}: {fit}", *style)
        _band(squares, x**2, curves[unsaturated][method], name, *style)
        _band(ceiling, x, curves[saturated][method], "", *style)
    epsilon = reset_cliff_epsilon(N_STATES, unsaturated)
    growth.set_title(
        f"a   N = {unsaturated}: quadratic against flat ($\\varepsilon H \\leq {epsilon * x[-1]:.2f}$)", loc="left"
    )
    start = reset_cliff_bc_gap(N_STATES, N_ACTIONS, HORIZONS[0], unsaturated)
    growth.plot(x, 2.2 * start * (x / x[0]) ** 2, "--", color="0.35", linewidth=1)
    growth.annotate(r"$\propto H^2$", (x[-2], 2.6 * start * (x[-2] / x[0]) ** 2), ha="right", color="0.3")
    growth.legend(loc="lower right", bbox_to_anchor=(1.0, 0.22), ncol=2, fontsize=10, columnspacing=1.2)
    squares.set_title("b   the same against $H^2$", loc="left")
    squares.set_xlabel("$H^2$")
    squares.set_xlim(-0.02 * x[-1] ** 2, 1.02 * x[-1] ** 2)
    squares.set_ylim(bottom=-0.2)
    figure.legend(*squares.get_legend_handles_labels(), loc="outside lower center", ncol=6)
    epsilon = reset_cliff_epsilon(N_STATES, saturated)
    ceiling.set_title(f"c   N = {saturated}: saturated ($\\varepsilon H$ up to {epsilon * x[-1]:.1f})", loc="left")
    ceiling.plot(x, x, "--", color="0.35", linewidth=1)
    ceiling.annotate("gap = H", (x[len(x) // 2], 1.15 * x[len(x) // 2]), ha="right", color="0.3")
    bc = [reset_cliff_bc_gap(N_STATES, N_ACTIONS, h, saturated) for h in HORIZONS]
    ceiling.plot(x, bc, "x", color="black", markersize=8, label="expected gap of BC, closed form", zorder=5)
    ceiling.legend(loc="upper left")
    heat.set_title(f"d   Dual Q-DM, N = {saturated}: temperature and policy", loc="left")
    for label, kind, alpha, colour, marker, width in (
        ("softmax, alpha = 1 (the paper's default)", "softmax", 1.0, "#cc3311", "s", 2.2),
        ("softmax, alpha = 0.1", "softmax", ALPHA, "#0b3d91", "o", 2.2),
        ("greedy, alpha = 1", "greedy", 1.0, "#ee7733", "^", 6.0),  # coincides with the next
        ("greedy, alpha = 0.1", "greedy", ALPHA, "#009988", "v", 2.2),
    ):
        _band(heat, x, gap_curve(rows, saturated, "Dual Q-DM", kind, alpha), label, colour, marker, "-", width)
    heat.plot(x, x, "--", color="0.35", linewidth=1)
    heat.annotate("gap = H", (x[-2], 1.6 * x[-2]), ha="right", color="0.3")
    heat.legend(loc="center left", bbox_to_anchor=(0.0, 0.42))
    for axes in (growth, ceiling, heat):
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks(x, [f"{h:.0f}" for h in x])
        axes.set_xlabel("horizon $H$")
    growth.set_ylim(5e-4, 40)
    ceiling.set_ylim(1e-2, 400)
    heat.set_ylim(8e-3, 400)
    for axes in (growth, squares, ceiling, heat):
        axes.set_ylabel(r"imitation gap $V^{\pi_E} - V^{\pi}$")
    seeds = len({row["seed"] for row in rows})
    figure.suptitle(
        f"Reset Cliff (S = {N_STATES}, A = {N_ACTIONS}), {seeds} seeds: mean and 10-90 % band, exact policy values",
        fontsize=15,
    )
    figure.savefig(path)
    plt.close(figure)


def figure_gap(out: Path, n_seeds: int, n_jobs: int) -> None:
    """
    Compute and draw figure 1.

    :param out: folder
    :param n_seeds: seeds per point
    :param n_jobs: processes
    """
    jobs = [(n, h, seed) for h in reversed(HORIZONS) for n in REGIMES for seed in range(n_seeds)]
    rows: list[dict[str, Any]] = []
    with get_context("spawn").Pool(n_jobs) as pool:
        for result in tqdm(pool.imap_unordered(gap_job, jobs), total=len(jobs), desc="gap", unit="instance"):
            rows += result
    rows.sort(key=lambda row: (-row["N"], row["H"], row["method"], row["policy"], row["alpha"], row["seed"]))
    write_csv(out / "tabular_gap.csv", rows)
    draw_gap(rows, out / "tabular_gap.png")
    for n in REGIMES:
        for method in STYLES:
            gaps = gap_curve(rows, n, method, "greedy" if method == "ValueDICE" else "softmax", ALPHA)
            exponent = f"  exponent {fitted_exponent(gaps, n):.2f}" if n == REGIMES[0] else ""
            print(f"N={n:5d} {method:16s}" + " ".join(f"{value:9.4f}" for value in gaps.mean(axis=1)) + exponent)


# --- figures 2 and 3: the gridworld ----------------------------------------------------------------------------------


def distance_to(grid: Gridworld, targets: np.ndarray) -> np.ndarray:
    """
    Number of moves from every cell to the nearest of some cells.

    :param grid: the gridworld
    :param targets: bool, shape (S,)
    """
    following = grid.mdp.transitions.argmax(axis=-1)
    distance = np.where(targets, 0.0, np.inf)
    for _ in range(grid.mdp.n_states):
        distance = np.minimum(distance, 1.0 + distance[following].min(axis=1))
    return distance


def arrow_share(grid: Gridworld, demos: TabularDemos, q: np.ndarray) -> float:
    """
    Share of the unvisited cells whose greedy action (all of them, if tied) moves towards the demonstrated trajectory.

    :param grid: the gridworld
    :param demos: the demonstration
    :param q: Q-function, shape (S, 4)
    """
    visited = demos.occupancy(grid.mdp).sum(axis=-1) > 0
    distance = distance_to(grid, visited)
    closer = distance[grid.mdp.transitions.argmax(axis=-1)] < distance[:, None]
    return float((closer | ~greedy_actions(q))[~visited].all(axis=1).mean())


def _base_grid(axes: Axes, grid: Gridworld) -> None:
    rows, columns = len(grid.layout), len(grid.layout[0])
    for r in range(rows):
        for c in range(columns):
            wall = grid.layout[r][c] == "#"
            axes.add_patch(Rectangle((c, r), 1, 1, facecolor="#6b6b6b" if wall else "none", edgecolor="0.75", linewidth=0.6))
    axes.set(xlim=(0, columns), ylim=(rows, 0), xticks=[], yticks=[], aspect="equal")
    axes.grid(False)
    for side in ("top", "right", "left", "bottom"):
        axes.spines[side].set_visible(True)


def value_range(q: np.ndarray, alpha: float) -> np.ndarray:
    """
    V(s) - min V: without the entropy that every cell collects alike.

    :param q: Q-function, shape (S, 4)
    :param alpha: temperature
    """
    v = logsumexp(q, alpha)
    return v - v.min()


def _draw_values(
    axes: Axes, grid: Gridworld, demos: TabularDemos, q: np.ndarray, alpha: float, top: float, arrows: bool
) -> Any:
    image = np.full((len(grid.layout), len(grid.layout[0])), np.nan)
    image[tuple(grid.cells.T)] = value_range(q, alpha)
    extent = (0.0, float(image.shape[1]), float(image.shape[0]), 0.0)
    shown = axes.imshow(np.sqrt(image), extent=extent, cmap="Blues", vmin=0.0, vmax=1.12 * np.sqrt(top), zorder=0)
    _base_grid(axes, grid)
    visited = demos.occupancy(grid.mdp).sum(axis=-1) > 0
    greedy = greedy_actions(q)
    for s, (r, c) in enumerate(grid.cells):
        if s == grid.goal:
            axes.add_patch(Rectangle((c + 0.06, r + 0.06), 0.88, 0.88, facecolor="none", edgecolor="#00a3a3", linewidth=2.5))
        elif greedy[s].all():
            axes.text(c + 0.5, r + 0.52, "=", color="#cc3311", ha="center", va="center", fontsize=13, fontweight="bold")
        elif arrows:
            tied = greedy[s].sum() > 1
            for a in np.flatnonzero(greedy[s]):
                _arrow(axes, r, c, int(a), "#f6c400" if visited[s] else "#cc3311" if tied else "#111111", tied)
    return shown


def _arrow(axes: Axes, r: int, c: int, action: int, colour: str, tied: bool = False) -> None:
    dr, dc = MOVES[action]
    ahead, side, size = np.array([dc, dr]), np.array([dr, -dc]), 0.55 if tied else 1.0
    centre = np.array([c + 0.5, r + 0.5]) + (0.22 * ahead if tied else 0.0)
    corners = [centre + 0.3 * size * ahead, *(centre - 0.14 * size * ahead + 0.2 * size * sign * side for sign in (1, -1))]
    axes.add_patch(Polygon(corners, closed=True, facecolor=colour, edgecolor="white", linewidth=0.6, zorder=3))


def _draw_demonstration(axes: Axes, grid: Gridworld, demos: TabularDemos) -> None:
    _base_grid(axes, grid)
    for s in demos.states:
        r, c = grid.cells[s]
        axes.add_patch(Rectangle((c, r), 1, 1, facecolor="#ffe680", edgecolor="0.75", linewidth=0.6))
    for s, a in zip(demos.states[:-1], demos.actions[:-1]):
        _arrow(axes, int(grid.cells[s][0]), int(grid.cells[s][1]), int(a), "#b38600")
    r, c = grid.cells[demos.states[0]]
    axes.text(c + 0.12, r + 0.3, "S", ha="center", va="center", fontsize=9, fontweight="bold")
    r, c = grid.cells[grid.goal]
    axes.add_patch(Rectangle((c, r), 1, 1, facecolor="#00c2c2"))
    axes.text(c + 0.5, r + 0.52, "G", ha="center", va="center", fontsize=14, fontweight="bold", color="white")


def figure_grid(out: Path, discount: float = 0.9, alpha: float = ALPHA) -> None:
    """
    Compute and draw figure 2.

    :param out: folder
    :param discount: gamma, default 0.9
    :param alpha: temperature, default 0.1
    """
    grid = gridworld(discount=discount)
    demos = grid.demonstration()
    solutions = {}
    for name, solver in tqdm((("IQ-Learn (TV)", solve_iq_learn), ("Dual Q-DM", solve_dual_qdm)), desc="grid", unit="method"):
        solutions[name] = (
            solver(grid.mdp, demos, alpha, tolerance=1e-12) if name == "Dual Q-DM" else solver(grid.mdp, demos, alpha)
        )
    rows = []
    for name, solution in solutions.items():
        assert solution.q is not None and solution.v is not None
        visited = demos.occupancy(grid.mdp).sum(axis=-1) > 0
        for s, (r, c) in enumerate(grid.cells):
            values = dict(zip(("up", "right", "down", "left"), solution.q[s]))
            greedy = "".join("URDL"[a] for a in np.flatnonzero(greedy_actions(solution.q[s])))
            rows.append(
                {
                    "method": name,
                    "row": r,
                    "column": c,
                    "visited": int(visited[s]),
                    "v": solution.v[s],
                    **values,
                    "greedy": greedy,
                }
            )
    write_csv(out / "tabular_grid.csv", rows)
    figure, panels = plt.subplots(1, 3, figsize=(16.5, 6.2), constrained_layout=True)
    _draw_demonstration(panels[0], grid, demos)
    panels[0].set_title("a   environment and the one demonstration", loc="left")
    for axes, letter, (name, solution) in zip(panels[1:], "bc", solutions.items()):
        assert solution.q is not None
        top = float(value_range(solution.q, alpha).max())
        shown = _draw_values(axes, grid, demos, solution.q, alpha, top, arrows=True)
        share = arrow_share(grid, demos, solution.q)
        ties = int((greedy_actions(solution.q).sum(axis=1) == 4).sum())
        axes.set_title(f"{letter}   {name}", loc="left")
        axes.set_xlabel(
            f"{share:.0%} of the unvisited cells point towards the trajectory;\n"
            f"{ties or 'no'} cells have all four actions tied"
        )
        bar = figure.colorbar(shown, ax=axes, shrink=0.75, pad=0.02)
        ticks = np.linspace(0.0, top, 5)
        bar.set_ticks(np.sqrt(ticks).tolist(), labels=[f"{tick:.2g}" for tick in ticks])
        bar.set_label(r"$V(s) - \min V$  (square-root scale)")
        print(f"{name}: {share:.3f} of the unvisited cells point towards the trajectory, {ties} cells fully tied")
    panels[0].legend(
        handles=[
            Patch(color="#ffe680", label="demonstrated"),
            Patch(color="#6b6b6b", label="wall"),
            Patch(color="#00c2c2", label="goal"),
            Patch(color="#111111", label="greedy action, unvisited cell"),
            Patch(color="#f6c400", label="greedy action, demonstrated cell"),
            Patch(color="#cc3311", label="tied actions (= : all four)"),
        ],
        loc="upper center",
        bbox_to_anchor=(0.5, -0.02),
        ncol=2,
        fontsize=10,
    )
    figure.suptitle(f"Value flow in a gridworld ($\\gamma$ = {discount}, $\\alpha$ = {alpha}): exact optima", fontsize=15)
    figure.savefig(out / "tabular_grid.png")
    plt.close(figure)


def figure_flow(out: Path, discount: float = 0.9, alpha: float = ALPHA) -> None:
    """
    Compute and draw figure 3.

    :param out: folder
    :param discount: gamma, default 0.9
    :param alpha: temperature, default 0.1
    """
    grid = gridworld(discount=discount)
    demos = grid.demonstration()
    shown_at = (1, 10, 30, 100, 300)
    measured = sorted({*shown_at, *np.unique(np.geomspace(1, 300, 40).astype(int)).tolist()})
    forms = {"with the Bellman penalty (beta = 1)": 1.0, "without it (beta = 0: IQ-Learn)": 0.0}
    iterates, rows = {}, []
    for name, beta in tqdm(forms.items(), desc="flow", unit="run"):
        iterates[beta] = penalised_iterates(grid.mdp, demos, measured, alpha, beta)
        for k in measured:
            q = iterates[beta][k]
            tied = float((greedy_actions(q).sum(axis=1) == 4).mean())
            rows.append({"beta": beta, "iteration": k, "share_towards": arrow_share(grid, demos, q), "share_tied": tied})
        print(f"{name}: share of unvisited cells pointing to the trajectory at the end {rows[-1]['share_towards']:.3f}")
    write_csv(out / "tabular_flow.csv", rows)
    figure = plt.figure(figsize=(17, 7.6), constrained_layout=True)
    layout = figure.add_gridspec(2, len(shown_at), height_ratios=[1.25, 1.0])
    top = float(value_range(iterates[1.0][shown_at[-1]], alpha).max())
    for column, k in enumerate(shown_at):
        axes = figure.add_subplot(layout[0, column])
        _draw_values(axes, grid, demos, iterates[1.0][k], alpha, top, arrows=True)
        axes.set_title(f"iteration {k}", loc="left")
    curve = figure.add_subplot(layout[1, :])
    for (name, beta), colour in zip(forms.items(), ("#0b3d91", "#e69f00")):
        chosen = [row for row in rows if row["beta"] == beta]
        curve.plot(
            [row["iteration"] for row in chosen],
            [row["share_towards"] for row in chosen],
            "-o",
            color=colour,
            label=name,
            linewidth=2.2,
        )
    curve.set_xscale("log")
    curve.set(xlabel="iteration", ylabel="share of unvisited cells\npointing to the trajectory", ylim=(-0.04, 1.04))
    curve.set_xticks(shown_at, [str(k) for k in shown_at])
    curve.legend(loc="center left")
    figure.suptitle(
        "Practical algorithm with exact expectations: value flows from the demonstration through the grid", fontsize=15
    )
    figure.savefig(out / "tabular_flow.png")
    plt.close(figure)


def main(arguments: list[str] | None = None) -> None:
    """
    Command line.

    :param arguments: default sys.argv
    """
    parser = argparse.ArgumentParser(prog="python -m sb3_dualqdm.tabular.figures", description="Draw a figure: PNG and CSV.")
    parser.add_argument("figure", choices=("gap", "grid", "flow"))
    parser.add_argument("--out", type=Path, default=Path("docs/figures"), help="folder (default: %(default)s)")
    parser.add_argument("--seeds", type=int, default=20, help="seeds of the gap figure (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1), help="processes (default: %(default)s)")
    chosen = parser.parse_args(arguments)
    chosen.out.mkdir(parents=True, exist_ok=True)
    # One thread per process: the matrices are small, and two processes already use two cores.
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(variable, "1")
    with plt.rc_context(STYLE):
        if chosen.figure == "gap":
            figure_gap(chosen.out, chosen.seeds, chosen.jobs)
        elif chosen.figure == "grid":
            figure_grid(chosen.out)
        else:
            figure_flow(chosen.out)


if __name__ == "__main__":
    main()
