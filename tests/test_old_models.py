"""Models saved under Stable-Baselines3 2.2.1 and gymnasium 0.29 work under newer ones (and these)."""

from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import stable_baselines3

from sb3_dualqdm import DualQDM

pytestmark = [
    pytest.mark.both,
    # a schedule is a pickled function, which SB3 makes anew where it cannot be read
    pytest.mark.filterwarnings("ignore:Could not deserialize"),
]

FOLDER = Path(__file__).parent / "data" / "sb3_2.2.1"
ENVS = ["Pendulum-v1", "CartPole-v1"]


@pytest.mark.parametrize("env_id", ENVS)
def test_predictions_and_continuing(env_id):
    expected = np.load(FOLDER / f"{env_id}.npz")
    model = DualQDM.load(FOLDER / env_id, device="cpu")
    actions = model.predict(expected["obs"], deterministic=True)[0]
    np.testing.assert_allclose(actions, expected["actions"], rtol=1e-5, atol=1e-6)
    assert float(model._current_ent_coef()) == pytest.approx(expected["temperature"])

    env = gym.make(env_id)
    # CartPole's largest numbers became infinite in gymnasium 1.0
    custom_objects = {"observation_space": env.observation_space} if env_id == "CartPole-v1" else {}
    model = DualQDM.load(FOLDER / env_id, env=env, device="cpu", custom_objects=custom_objects)
    n_updates, state = model._n_updates, model.critic.optimizer.state_dict()["state"]
    assert n_updates == 32 and state[0]["step"] == 32
    model.learn(20, reset_num_timesteps=False)
    assert model.num_timesteps == 60 and model._n_updates == 52


@pytest.mark.skipif(stable_baselines3.__version__.startswith("2.2."), reason="gymnasium 0.29 has the same bounds")
def test_changed_bounds_need_the_override():
    with pytest.raises(ValueError, match="Observation spaces do not match"):
        DualQDM.load(FOLDER / "CartPole-v1", env=gym.make("CartPole-v1"), device="cpu")
