"""The results page is what the committed raw data say."""

import runpy
from pathlib import Path

import pytest

from sb3_dualqdm.demonstrations import builtin

ROOT = Path(__file__).parents[1]
report = runpy.run_path(str(ROOT / "benchmarks" / "report.py"))


def test_the_committed_pages_are_current():
    if list((ROOT / "benchmarks" / "results").glob("*/*_s[0-9]*.json")):
        pytest.importorskip("rliable")
    assert (ROOT / "docs" / "results.md").read_text() == report["page"]()
    assert (ROOT / "docs" / "builtin_sets.md").read_text() == report["builtin_sets"]()


def test_a_table_has_the_last_evaluations(tmp_path):
    header = "algo,env,seed,step,mean,std,min,max,episodes,expert_return,demo_indices,seconds\n"
    for seed, (early, late) in enumerate([(500, 10), (500, 20)]):
        rows = [f"bc,Task-v0,{seed},{step},{mean},0,0,0,10,99,0,1\n" for step, mean in ((100, early), (2000, late))]
        (tmp_path / f"Task-v0_bc_s{seed}.csv").write_text("# command\n" + header + "".join(rows))
    summary = report["summarise"](report["read_runs"](tmp_path))
    line = report["to_markdown"](summary).splitlines()[2]
    assert line == "| Task-v0 | bc | 2,000 | 2 | 15.0 | 10.0 to 20.0 | 99.0 | 0 |"
    (tmp_path / "Task-v0_bc_s1.csv").write_text("# command\n" + header + "bc,Task-v0,1,100,500,0,0,0,10,99,0,1\n")
    summary = report["summarise"](report["read_runs"](tmp_path))
    assert "| 100 to 2,000 | 2 | 255.0 |" in report["to_markdown"](summary)  # a seed that stopped early is seen


def test_what_was_not_run_is_called_missing():
    assert "Missing" in report["table_of"]("nowhere")
    monkey = report["suite"].__globals__
    monkey["RESULTS"], before = ROOT / "nowhere", monkey["RESULTS"]
    try:
        assert "Missing: none of its 54 runs is finished" in report["suite"]("paper-sensitivity")
    finally:
        monkey["RESULTS"] = before


def test_sets_below_their_target_are_marked():
    marked = [line.split("`")[1] for line in report["builtin_sets"]().splitlines() if "**below target**" in line]
    below = [
        f"builtin:{env}"
        for env, entry in builtin.manifest().items()
        if entry["expert"]["mean_return"] < entry["expert"]["target"]
    ]
    assert marked == sorted(below) and "builtin:Walker2d-v5" in marked
