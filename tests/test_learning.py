"""Short seeded learning runs with wide margins."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from sb3_dualqdm import DualQDM, IQLearn, RegIQLearn, collect_demonstrations

pytestmark = pytest.mark.both


class EchoEnv(gym.Env):
    """Observations are drawn anew at every step; the expert answers with their sign (Discrete) or half of them (Box)."""

    def __init__(self, discrete: bool):
        self.observation_space = spaces.Box(-1, 1, (2,), dtype=np.float32)
        self.action_space = spaces.Discrete(2) if discrete else spaces.Box(-1, 1, (1,), dtype=np.float32)

    def _draw(self):
        return self.np_random.uniform(-1, 1, 2).astype(np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self._draw(), {}

    def step(self, action):
        self.t += 1
        return self._draw(), 0.0, False, self.t == 50, {}


def expert(discrete):
    return (lambda obs: int(obs[0] > 0)) if discrete else (lambda obs: obs[:1] / 2)


@pytest.mark.parametrize("discrete", [True, False])
@pytest.mark.parametrize("cls", [DualQDM, IQLearn, RegIQLearn])
def test_imitates(cls, discrete):
    demos = collect_demonstrations(expert(discrete), EchoEnv(discrete), 4, seed=0)
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
