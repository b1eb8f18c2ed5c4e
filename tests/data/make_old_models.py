"""
Models of an older Stable-Baselines3, and what they predict, for test_old_models.py.

Run with the older world's interpreter: python tests/data/make_old_models.py
"""

from pathlib import Path

import numpy as np
import stable_baselines3
from stable_baselines3.common import save_util

from sb3_dualqdm import DualQDM

# Nothing of the machine: neither its description nor the paths of pickled functions
save_util.get_system_info = lambda print_info: ({}, "")
folder = Path(__file__).parent / f"sb3_{stable_baselines3.__version__}"
folder.mkdir(exist_ok=True)
for env_id in ("Pendulum-v1", "CartPole-v1"):
    model = DualQDM(
        "MlpPolicy",
        env_id,
        demonstrations=f"builtin:{env_id}",
        seed=0,
        policy_kwargs={"net_arch": [8]},
        batch_size=8,
        learning_starts=8,
        buffer_size=100,
        ent_coef="auto_0.1",
        device="cpu",
    )
    model.learn(40)
    model.save(folder / env_id, exclude=["lr_schedule"])
    obs = np.random.default_rng(0).normal(size=(20, *model.observation_space.shape)).astype(np.float32)
    actions = model.predict(obs, deterministic=True)[0]
    np.savez(folder / env_id, obs=obs, actions=actions, temperature=np.float32(model._current_ent_coef()))
