"""Short seeded learning runs with wide margins."""

import numpy as np
import pytest
from algorithm_helpers import EchoEnv, echo_expert

from sb3_dualqdm import DualQDM, IQLearn, RegIQLearn, collect_demonstrations

pytestmark = pytest.mark.both


@pytest.mark.parametrize("discrete", [True, False])
@pytest.mark.parametrize("cls", [DualQDM, IQLearn, RegIQLearn])
def test_imitates(cls, discrete):
    demos = collect_demonstrations(echo_expert(discrete), EchoEnv(discrete), 4, seed=0)
    model = cls(
        "MlpPolicy",
        EchoEnv(discrete),
        demonstrations=demos,
        seed=0,
        learning_rate=3e-3,
        batch_size=64,
        learning_starts=100,
        gamma=0.5,
        policy_kwargs={"net_arch": [32]},
        device="cpu",
    )
    model.learn(900)
    obs = np.random.default_rng(1).uniform(-1, 1, (300, 2)).astype(np.float32)
    actions = model.predict(obs, deterministic=True)[0]
    if discrete:
        assert np.mean(actions == (obs[:, 0] > 0)) > 0.9
    else:
        assert np.abs(actions - obs[:, :1] / 2).mean() < 0.12  # a constant action is off by 0.25
