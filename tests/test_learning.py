"""Short seeded learning runs with wide margins."""

import numpy as np
import pytest
from algorithm_helpers import EchoEnv, echo_expert

from sb3_dualqdm import DAC, LSIQ, RIZE, SQIL, DualQDM, HyPE, IQLearn, ReCOIL, RegIQLearn, ValueDICE, collect_demonstrations

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


DISCRIMINATOR = {"discriminator_learning_rate": 1e-3, "discriminator_weight_decay": 0.0, "discriminator_arch": [32]}
COST = {"cost_interval": 20, "cost_window": 300, "cost_batch_size": 256, "cost_arch": [32], "cost_learning_rate": 2e-2}
# Class, number of steps and what a task as small as this needs
OTHERS = {
    "sqil": (SQIL, 1200, {}),
    "ls_iq": (LSIQ, 700, {}),
    "ls_iq_h": (LSIQ, 700, {"variant": "H"}),
    "dac": (DAC, 1500, {"ent_coef": 0.01, **DISCRIMINATOR}),
    "hype": (HyPE, 2400, {"ent_coef": 0.01, "tau": 0.05, **COST}),
    "rize": (RIZE, 700, {"actor_learning_rate": 1e-3, "ent_coef": 0.01, "target_init": "copy"}),
    "recoil": (ReCOIL, 2000, {}),
    "recoil_offline": (ReCOIL, 600, {"offline": True}),
    "value_dice_offline": (ValueDICE, 2400, {"offline": True, "actor_learning_rate": 1e-4, "gradient_penalty": 1.0}),
    "ls_iq_offline": (LSIQ, 600, {"offline": True}),
    "dual_qdm_offline": (DualQDM, 600, {"offline": True}),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_methods_imitate(name):
    cls, steps, options = OTHERS[name]
    demos = collect_demonstrations(echo_expert(False), EchoEnv(False), 10, seed=0)
    options = {"learning_rate": 1e-3, "learning_starts": 300, **options}
    network = {"net_arch": [64] if cls is ValueDICE else [32]} | ({"n_quantiles": 8} if cls is RIZE else {})
    model = cls(
        "MlpPolicy",
        EchoEnv(False),
        demonstrations=demos,
        seed=0,
        batch_size=64,
        gamma=0.5,
        policy_kwargs=network,
        device="cpu",
        **options,
    )
    model.learn(steps)
    obs = np.random.default_rng(1).uniform(-1, 1, (300, 2)).astype(np.float32)
    # a constant action is off by 0.25
    assert np.abs(model.predict(obs, deterministic=True)[0] - obs[:, :1] / 2).mean() < 0.15
