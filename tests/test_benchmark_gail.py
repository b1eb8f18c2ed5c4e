"""imitation's GAIL as a reference of the benchmark."""

import pytest

pytest.importorskip("imitation.algorithms.adversarial.gail")

from sb3_dualqdm.benchmark import runs
from sb3_dualqdm.benchmark.suites import Run
from sb3_dualqdm.demonstrations import builtin

pytestmark = pytest.mark.both


def test_a_round_of_gail():
    run = Run("smoke", "CartPole-v1", "gail", "2 trajectories", 3, 2048, 1000, 2, {"n_demonstrations": 2})
    assert runs.obstacle(run) is None
    result = runs.execute(run)
    assert [evaluation["step"] for evaluation in result["evaluations"]] == [2048]  # a round is 8 environments times 256 steps
    assert all(9 <= value <= 500 for value in result["evaluations"][0]["returns"])
    assert result["demonstrations"]["episodes"] == [0, 1] and result["versions"]["imitation"] == "1.0.1"
    assert result["demonstrations"]["sha256"] == builtin.manifest()["CartPole-v1"]["sha256"]
