"""Recording demonstrations from models, policies and plain functions."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack, VecMonitor, VecNormalize

from sb3_dualqdm import collect_demonstrations, load_demonstrations

pytestmark = pytest.mark.both


class Counter(gym.Env):
    """Observation [10 * (episode number), step], reward the step's number; ends after ``length`` steps by the flags given."""

    def __init__(self, length=3, flags=(True, False), space=None, as_dict=False, reuse=False):
        box = Box(-np.inf, np.inf, (2,), np.float64)
        self.observation_space = Dict({"x": box}) if as_dict else box
        self.action_space = space or Box(-1.0, 1.0, (1,), np.float32)
        self.length, self.flags, self.as_dict, self.reuse = length, flags, as_dict, reuse
        self.episode, self.t, self.seeds, self.actions = 0, 0, [], []
        self.buffer = np.zeros(2)

    def _obs(self):
        obs = np.array([10.0 * self.episode, self.t])
        if self.reuse:
            self.buffer[:] = obs
            obs = self.buffer
        return {"x": obs} if self.as_dict else obs

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seeds.append(seed)
        self.episode, self.t = self.episode + 1, 0
        return self._obs(), {}

    def step(self, action):
        self.actions.append(action)
        self.t += 1
        terminated, truncated = (flag and self.t == self.length for flag in self.flags)
        return self._obs(), float(self.t), terminated, truncated, {}


def test_function_in_an_env():
    env = Counter()
    seen = []

    def expert(obs):
        seen.append(obs.copy())
        return np.array([obs[1] / 10])

    demos = collect_demonstrations(expert, env, 2, seed=7)
    assert env.seeds == [7, 8]  # so that each episode can be started again on its own
    assert [obs.tolist() for obs in seen] == [[10, 0], [10, 1], [10, 2], [20, 0], [20, 1], [20, 2]]
    assert demos.obs.tolist() == [obs.tolist() for obs in seen] and demos.obs.dtype == np.float32
    assert demos.next_obs.tolist() == [[10, 1], [10, 2], [10, 3], [20, 1], [20, 2], [20, 3]]
    assert np.allclose(demos.actions, [[0.0], [0.1], [0.2]] * 2) and demos.episode_returns.tolist() == [6.0, 6.0]
    assert demos.terminated.tolist() == [False, False, True] * 2 and not demos.truncated.any()
    assert "2 episodes of expert" in demos.source and demos.spec is None


@pytest.mark.parametrize("flags", [(True, False), (False, True), (True, True)])
def test_end_flags(flags):
    demos = collect_demonstrations(lambda obs: [0.0], Counter(flags=flags), 1)
    assert (demos.terminated[-1], demos.truncated[-1]) == flags
    # Stable-Baselines3 does not tell when both happen at once; then the episode terminated
    vec = collect_demonstrations(lambda obs: np.zeros((2, 1)), DummyVecEnv([lambda: Counter(flags=flags)] * 2), 2)
    assert (vec.terminated[2], vec.truncated[2]) == (flags[0], flags[1] and not flags[0])


@pytest.mark.parametrize("as_dict", [False, True])
def test_environments_that_reuse_their_observation(as_dict):
    demos = collect_demonstrations(lambda obs: [0.0], Counter(reuse=True, as_dict=as_dict), 1)
    obs, next_obs = (demos.obs["x"], demos.next_obs["x"]) if as_dict else (demos.obs, demos.next_obs)
    assert obs[:, 1].tolist() == [0, 1, 2] and next_obs[:, 1].tolist() == [1, 2, 3]


def test_vec_env_shares_episodes_evenly_and_keeps_terminal_observations():
    lengths = [2, 5]
    venv = DummyVecEnv([lambda n=n: Counter(length=n) for n in lengths])
    demos = collect_demonstrations(lambda obs: obs[:, 1:] / 10, venv, 4, seed=3)
    assert sorted(demos.episode_lengths.tolist()) == [2, 2, 5, 5]  # first come would be four short ones
    assert [env.seeds[0] for env in venv.envs] == [3, 4]
    first = demos.select([0])
    assert first.obs.tolist() == [[10, 0], [10, 1]] and first.next_obs.tolist() == [[10, 1], [10, 2]]
    assert np.allclose(first.actions[:, 0], [0.0, 0.1]) and first.episode_returns.tolist() == [3.0]


def test_actions_are_stored_as_the_environment_got_them():
    env = Counter()
    demos = collect_demonstrations(lambda obs: np.array([[7.0]]), env, 1)
    assert demos.actions.tolist() == [[1.0]] * 3 and [action.tolist() for action in env.actions] == [[1.0]] * 3
    discrete = Counter(space=Discrete(4))
    demos = collect_demonstrations(lambda obs: np.int32(3), discrete, 1)
    assert discrete.actions == [3, 3, 3] and demos.actions.tolist() == [3, 3, 3] and demos.actions.dtype == np.int64


@pytest.mark.parametrize("vectorised", [False, True])
def test_policies_that_change_the_observation_in_place(vectorised):
    def expert(obs):
        obs *= 0.0
        return np.zeros((1, 1))

    demos = collect_demonstrations(expert, DummyVecEnv([Counter]) if vectorised else Counter(), 1)
    assert demos.obs.tolist() == [[10, 0], [10, 1], [10, 2]]


class Recurrent:
    """A predict object that notes what it is given and counts steps in its state."""

    def __init__(self):
        self.calls = []

    def predict(self, observation, state=None, episode_start=None, deterministic=False):
        state = 0 if state is None or episode_start[0] else state + 1
        self.calls.append((state, bool(episode_start[0]), deterministic))
        return np.array([state / 10]), state


def test_predict_objects_get_state_and_flags():
    model = Recurrent()
    demos = collect_demonstrations(model, Counter(), 2, deterministic=False)
    assert model.calls == [(0, True, False), (1, False, False), (2, False, False)] * 2
    assert np.allclose(demos.actions[:, 0], [0.0, 0.1, 0.2] * 2)
    assert collect_demonstrations(model, Counter(), 1).source == "1 episode of Recurrent" and model.calls[-1][2] is True


def test_predict_with_the_observation_only():
    class Plain:
        def predict(self, X):
            return [X[1] / 10]

    assert np.allclose(collect_demonstrations(Plain(), Counter(), 1).actions[:, 0], [0.0, 0.1, 0.2])


def test_vec_normalize_stores_raw_and_shows_normalised():
    venv = VecNormalize(DummyVecEnv([Counter]))
    venv.obs_rms.mean, venv.obs_rms.var = np.array([10.0, 1.0]), np.array([4.0, 4.0])
    seen = []

    def expert(obs):
        seen.append(obs[0].tolist())
        return np.zeros((1, 1))

    demos = collect_demonstrations(expert, venv, 1)
    assert demos.obs.tolist() == [[10, 0], [10, 1], [10, 2]] and demos.next_obs[-1].tolist() == [10, 3]
    assert np.allclose(seen, [[0, -0.5], [0, 0], [0, 0.5]], atol=1e-6)
    assert demos.rewards.tolist() == [1, 2, 3]
    assert venv.obs_rms.mean.tolist() == [10.0, 1.0] and venv.obs_rms.count == pytest.approx(1e-4)  # not updated


def test_vec_normalize_must_be_outermost():
    venv = VecFrameStack(VecNormalize(DummyVecEnv([Counter])), 2)
    with pytest.raises(ValueError, match="VecNormalize lies inside a VecFrameStack"):
        collect_demonstrations(lambda obs: np.zeros((1, 1)), venv, 1)


@pytest.mark.parametrize(
    "wrap", [lambda: Counter(), lambda: DummyVecEnv([Counter]), lambda: VecMonitor(DummyVecEnv([Counter]))]
)
def test_a_model_trained_under_vec_normalize_gets_its_own_statistics(wrap):
    venv = VecNormalize(DummyVecEnv([Counter]))
    venv.obs_rms.mean, venv.obs_rms.var = np.array([10.0, 0.0]), np.array([1.0, 4.0])
    model = PPO("MlpPolicy", venv, n_steps=8, batch_size=8, device="cpu", seed=0)
    env = wrap()
    demos = collect_demonstrations(model, env, 1)
    assert demos.obs.tolist() == [[10, 0], [10, 1], [10, 2]]
    scaled = np.array([[0.0, 0.0], [0.0, 0.5], [0.0, 1.0]], dtype=np.float32)
    assert np.allclose(demos.actions, model.predict(scaled, deterministic=True)[0], atol=1e-5)


def test_env_ids_and_sb3_policies():
    model = PPO("MlpPolicy", "CartPole-v1", n_steps=8, batch_size=8, device="cpu", seed=0)
    demos = collect_demonstrations(model, "CartPole-v1", 2, seed=5)
    assert demos.source == "2 episodes of PPO in CartPole-v1"
    assert np.array_equal(model.predict(demos.obs, deterministic=True)[0], demos.actions)
    env = gym.make("CartPole-v1")
    assert np.array_equal(demos.initial_obs[1], env.reset(seed=6)[0])
    assert np.array_equal(collect_demonstrations(model.policy, env, 2, seed=5).obs, demos.obs)
    assert load_demonstrations(demos.to_dicts()).episode_returns.tolist() == demos.episode_returns.tolist()


def test_time_limits_are_truncations():
    demos = collect_demonstrations(lambda obs: 1, gym.make("Acrobot-v1", max_episode_steps=20), 1)
    assert len(demos) == 20 and demos.truncated[-1] and not demos.terminated.any()


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True])
def test_wrong_episode_counts(wrong):
    with pytest.raises(ValueError, match="at least 1 episode is needed"):
        collect_demonstrations(lambda obs: [0.0], Counter(), wrong)


def test_wrong_policies_and_envs():
    with pytest.raises(ValueError, match="the policy is a int: pass an object with predict, or a function"):
        collect_demonstrations(3, Counter(), 1)
    with pytest.raises(ValueError, match=r"action of the shape \(2,\) but the action space is"):
        collect_demonstrations(lambda obs: [0.0, 1.0], Counter(), 1)
    with pytest.raises(ValueError, match="env is a object, but a gymnasium env"):
        collect_demonstrations(lambda obs: [0.0], object(), 1)
    with pytest.raises(ValueError, match="actions has NaN"):
        collect_demonstrations(lambda obs: [np.nan], Counter(), 1)
    with pytest.raises(ValueError, match=r"returned the action 0.5 but the action space is Discrete\(4\): return integers"):
        collect_demonstrations(lambda obs: 0.5, Counter(space=Discrete(4)), 1)
    with pytest.raises(ValueError, match="out of range"):
        collect_demonstrations(lambda obs: 9, Counter(space=Discrete(4)), 1)
