"""The registered environments: gymnasium's checker, seeds, rendering, and agreement with the exact MDP."""

import subprocess
import sys

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from sb3_dualqdm.envs import RESET_CLIFF, VALUE_FLOW_GRID, register

pytestmark = pytest.mark.both
register()


@pytest.mark.parametrize("env_id", [RESET_CLIFF, VALUE_FLOW_GRID])
@pytest.mark.filterwarnings("error")
def test_gymnasiums_checker(env_id):
    register()  # idempotent
    check_env(gym.make(env_id, render_mode="rgb_array").unwrapped)


@pytest.mark.parametrize("env_id", [RESET_CLIFF, VALUE_FLOW_GRID])
def test_a_seed_fixes_the_episode(env_id):
    def episode(seed):
        env = gym.make(env_id, **({"slip": 0.3} if env_id == VALUE_FLOW_GRID else {}))
        observations = [env.reset(seed=seed)[0]]
        for _ in range(15):
            observations.append(env.step(int(env.unwrapped.expert(observations[-1])))[0])
        return observations

    assert episode(3) == episode(3)
    assert len({tuple(episode(seed)) for seed in range(5)}) > 1


def test_reset_cliff_pays_the_exact_return():
    env = gym.make(RESET_CLIFF, n_states=4, n_actions=3, horizon=6, n_demos=4)
    mdp = env.unwrapped.mdp
    policy = 0.7 * mdp.expert + 0.3 / 3
    rng = np.random.default_rng(0)
    returns = []
    for seed in range(4000):
        observation, _ = env.reset(seed=seed)
        total, done, steps = 0.0, False, 0
        while not done:
            action = rng.choice(3, p=policy.reshape(-1, 3)[observation])
            observation, reward, done, truncated, _ = env.step(action)
            total, steps = total + reward, steps + 1
            assert not truncated and env.observation_space.contains(observation)
        assert steps == 6 and observation == 24
        returns.append(total)
    assert np.mean(returns) == pytest.approx(mdp.policy_return(policy), abs=4 * np.std(returns) / np.sqrt(4000))


def test_the_expert_walks_the_gridworld_to_its_goal():
    env = gym.make(VALUE_FLOW_GRID, uniform_start=1.0)
    starts = set()
    for seed in range(40):
        observation, _ = env.reset(seed=seed)
        starts.add(observation)
        done = False
        while not done:
            observation, reward, done, truncated, _ = env.step(int(env.unwrapped.expert(observation)))
            assert not truncated
        assert reward == 1.0 and observation == env.unwrapped.grid.goal
    assert len(starts) > 10


def test_a_wandering_agent_is_truncated():
    env = gym.make(VALUE_FLOW_GRID)
    env.reset(seed=0)
    outcomes = [env.step(3)[2:4] for _ in range(100)]
    assert outcomes[-1] == (False, True) and outcomes[-2] == (False, False)


def test_rendering_shows_the_agent():
    env = gym.make(VALUE_FLOW_GRID, render_mode="rgb_array")
    env.reset(seed=0)
    before = env.render()
    env.step(1)
    after = env.render()
    assert before.shape == (240, 240, 3) and before.dtype == np.uint8
    assert (before != after).any(axis=-1).sum() == 2 * 23 * 23  # the agent left one cell and entered another
    with pytest.raises(ValueError, match="rgb_array"):
        env.unwrapped.__class__(render_mode="human")


def test_registration_imports_neither_torch_nor_the_solvers():
    code = (
        "import sys, sb3_dualqdm.envs as envs; envs.register(); "
        "print([m for m in ('torch', 'stable_baselines3', 'cvxpy', 'sb3_dualqdm.tabular') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
