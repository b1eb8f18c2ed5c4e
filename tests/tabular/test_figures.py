"""The figure commands: what they write, and that their numbers are those of the solvers."""

import csv

import numpy as np
import pytest

from sb3_dualqdm.tabular import gridworld, reset_cliff, sample_demos, solve_bc, solve_dual_qdm
from sb3_dualqdm.tabular.dual_qdm import penalised_iterates

figures = pytest.importorskip("sb3_dualqdm.tabular.figures", reason="needs matplotlib and tqdm", exc_type=ImportError)

pytestmark = pytest.mark.both


def read(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def test_grid_command(tmp_path):
    figures.main(["grid", "--out", str(tmp_path)])
    assert (tmp_path / "tabular_grid.png").stat().st_size > 10_000
    rows = read(tmp_path / "tabular_grid.csv")
    unseen = [row for row in rows if row["visited"] == "0"]
    assert {row["greedy"] for row in unseen if row["method"] == "IQ-Learn (TV)"} == {"URDL"}
    assert max(len(row["greedy"]) for row in unseen if row["method"] == "Dual Q-DM") <= 2


def test_flow_command(tmp_path):
    figures.main(["flow", "--out", str(tmp_path)])
    assert (tmp_path / "tabular_flow.png").stat().st_size > 10_000
    rows = read(tmp_path / "tabular_flow.csv")
    shares = {beta: [float(r["share_towards"]) for r in rows if float(r["beta"]) == beta] for beta in (0, 1)}
    assert max(shares[0]) == 0.0
    assert shares[1][0] == 0.0 and shares[1][-1] > 0.9


def test_gap_command(tmp_path, monkeypatch):
    monkeypatch.setattr(figures, "HORIZONS", (4, 8))
    monkeypatch.setattr(figures, "REGIMES", (40, 30))
    rows = [row for n in (40, 30) for h in (4, 8) for seed in (0, 1) for row in figures.gap_job((n, h, seed))]
    mdp = reset_cliff(20, 5, 8, 30, seed=1)
    demos = sample_demos(mdp, 30, seed=1)
    curve = figures.gap_curve(rows, 30, "BC", "softmax", 0.1)
    assert curve.shape == (2, 2)
    assert curve[1, 1] == pytest.approx(mdp.imitation_gap(solve_bc(mdp, demos).policy))
    assert figures.gap_curve(rows, 30, "Dual Q-DM", "greedy", 0.1)[1, 1] == pytest.approx(
        mdp.imitation_gap(solve_dual_qdm(mdp, demos, 0.1).greedy)
    )
    monkeypatch.setattr(figures, "fitted_exponent", lambda gaps, n_demos: 1.0)
    figures.draw_gap(rows, tmp_path / "gap.png")
    assert (tmp_path / "gap.png").stat().st_size > 10_000


def test_exponents_are_fitted_on_the_unsaturated_horizons():
    horizons = np.array(figures.HORIZONS, dtype=float)
    assert figures.fitted_exponent(3.0 * horizons[:, None] ** 1.7, 5000) == pytest.approx(1.7)
    bent = np.where(horizons > 16, 1.0, horizons**2)[:, None]  # epsilon H < 0.2 holds up to H = 16 at N = 500
    assert figures.fitted_exponent(bent, 500) == pytest.approx(2.0)


def test_arrow_share_counts_every_tied_action():
    grid = gridworld(("S.G", "..."))
    demos = grid.demonstration()
    assert demos.states.tolist() == [0, 1, 2]
    q = np.zeros((6, 4))
    q[3:, 0] = 1.0  # the lower row points up, at the trajectory
    assert figures.arrow_share(grid, demos, q) == 1.0
    q[3, 1] = 1.0  # one cell also points right
    assert figures.arrow_share(grid, demos, q) == pytest.approx(2 / 3)
    assert figures.arrow_share(grid, demos, np.zeros((6, 4))) == 0.0


def test_first_iterates_by_hand():
    # One state, two actions: from Q = 0 and target 0 the residual is -gamma alpha log 2, below the bound by that much.
    from sb3_dualqdm.tabular import TabularDemos, TabularMDP

    mdp = TabularMDP(np.ones((1, 2, 1)), np.ones(1), discount=0.5)
    demos = TabularDemos.from_trajectories([([0], [1])])
    first = penalised_iterates(mdp, demos, (0, 1), alpha=1.0, beta=2.0, learning_rate=0.1)
    pulled = 2.0 * 2.0 * 0.5 * np.log(2.0) - (0.5 + 0.5) * 0.5
    assert first[0].tolist() == [[0.0, 0.0]]
    assert first[1] == pytest.approx(0.1 * np.array([[pulled, pulled + 1.0]]))
