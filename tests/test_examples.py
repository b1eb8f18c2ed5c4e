"""Every example runs from beginning to end (a tiny budget shows no learning, only that nothing is broken)."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"

# Enough steps for some updates, and what the script must print at its end
RUNS = {
    "quickstart.py": (1500, "expert "),
    "custom_env.py": (1500, "expert "),
    "vec_normalize.py": (1500, "learner "),
    "dict_observations.py": (1500, "learner "),
    "images.py": (250, "learner "),
    "recovered_reward.py": (1500, "random: mean implicit reward "),
    "continue_with_rl.py": (1500, "after reinforcement learning "),
}


def test_every_example_is_listed():
    # those of imitation need the older world
    names = {path.name for path in EXAMPLES.glob("*.py") if not path.name.startswith("imitation_")}
    assert names == {*RUNS, "report_returns.py"}


def test_quickstart_is_short():
    assert len((EXAMPLES / "quickstart.py").read_text().splitlines()) <= 40


@pytest.mark.parametrize("name", RUNS)
def test_example_runs(name, tmp_path):
    (tmp_path / "logs").mkdir()
    env = {**os.environ, "OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg"}
    timesteps, ending = RUNS[name]
    command = [sys.executable, str(EXAMPLES / name), str(timesteps)]
    result = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=240)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip().splitlines()[-1].startswith(ending)
