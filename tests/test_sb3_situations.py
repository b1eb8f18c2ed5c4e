"""The situations that Stable-Baselines3 puts its own off-policy algorithms in."""

import io
import os
import warnings
from copy import deepcopy
from unittest import mock

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from algorithm_helpers import SMALL, CountingEnv, EchoEnv, demonstrations_for
from gymnasium import spaces
from stable_baselines3 import HerReplayBuffer
from stable_baselines3.common.callbacks import (
    CallbackList,
    CheckpointCallback,
    EvalCallback,
    EveryNTimesteps,
    StopTrainingOnMaxEpisodes,
    StopTrainingOnNoModelImprovement,
)
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import FakeImageEnv, SimpleMultiObsEnv
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.logger import KVWriter, Logger
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.noise import NormalActionNoise, OrnsteinUhlenbeckActionNoise, VectorizedActionNoise
from stable_baselines3.common.sb2_compat.rmsprop_tf_like import RMSpropTFLike
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.type_aliases import TrainFreq, TrainFrequencyUnit
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    SubprocVecEnv,
    VecFrameStack,
    VecNormalize,
    VecTransposeImage,
    is_vecenv_wrapped,
)

from sb3_dualqdm import BC, LSIQ, DualQDM, IQLearn, RegIQLearn, collect_demonstrations
from sb3_dualqdm.buffers import ImitationReplayBuffer
from sb3_dualqdm.callbacks import ResumableCheckpoint

pytestmark = pytest.mark.both

ENVS = ["CartPole-v1", "Pendulum-v1"]
CLASSES = [DualQDM, IQLearn, RegIQLearn, BC]


@pytest.fixture(scope="module")
def demos():
    return {env_id: demonstrations_for(env_id) for env_id in ENVS}


def recorded(env, n_episodes=1):
    """Random behaviour of an environment."""
    env.action_space.seed(0)
    return collect_demonstrations(lambda obs: env.action_space.sample(), env, n_episodes, seed=0)


def small(**policy_kwargs):
    return {**SMALL, "policy_kwargs": {**SMALL["policy_kwargs"], **policy_kwargs}}


# --------------------------------------------------------------------------------------------------------------------------
# Spaces
# --------------------------------------------------------------------------------------------------------------------------


class SpacesEnv(gym.Env):
    """Random observations of a space, episodes of 10 steps, any action."""

    def __init__(self, observation_space, action_space=None):
        self.observation_space, self.action_space = observation_space, action_space or spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.t = 0
        return self.observation_space.sample(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.t += 1
        return self.observation_space.sample(), 0.0, False, self.t == 10, {}


class SubclassedBox(spaces.Box):
    pass


BOX = spaces.Box(-1, 1, (2,), dtype=np.float32)
OBSERVATIONS = {
    "float64": spaces.Box(-1, 1, (3,), dtype=np.float64),
    "two-dimensional": spaces.Box(-1, 1, (2, 3), dtype=np.float32),
    "discrete": spaces.Discrete(5),
    "multi-discrete": spaces.MultiDiscrete([4, 3]),
    "multi-binary": spaces.MultiBinary(4),
    "integers": spaces.Box(0, 10, (3,), dtype=np.int32),
    "subclassed": SubclassedBox(-1, 1, (2,), dtype=np.float32),
    "dict": spaces.Dict({"a": BOX, "b": spaces.Discrete(3), "c": spaces.MultiBinary(2), "d": spaces.MultiDiscrete([2, 3])}),
}
ACTIONS = {
    "float64": spaces.Box(-1, 1, (2,), dtype=np.float64),
    "two-dimensional": spaces.Box(-1, 1, (2, 2), dtype=np.float32),
    "asymmetric": spaces.Box(np.array([-1, 2], dtype=np.float32), np.array([5, 3], dtype=np.float32)),
    "subclassed": SubclassedBox(-1, 1, (2,), dtype=np.float32),
}


def policy_name(space):
    return "MultiInputPolicy" if isinstance(space, spaces.Dict) else "MlpPolicy"


@pytest.mark.parametrize("name", OBSERVATIONS)
@pytest.mark.parametrize("discrete", [True, False])
def test_observation_spaces(name, discrete, tmp_path):
    env = SpacesEnv(deepcopy(OBSERVATIONS[name]), spaces.Discrete(3) if discrete else BOX)
    model = DualQDM(
        policy_name(env.observation_space), env, demonstrations=recorded(env, 2), value_mode="initial", seed=0, **SMALL
    )
    model.learn(24)
    model.save(tmp_path / "model")
    loaded = DualQDM.load(tmp_path / "model", env=env)
    obs = env.reset(seed=0)[0]
    np.testing.assert_array_equal(model.predict(obs, deterministic=True)[0], loaded.predict(obs, deterministic=True)[0])
    evaluate_policy(loaded, loaded.get_env(), 2, warn=False)


@pytest.mark.parametrize("name", ACTIONS)
@pytest.mark.parametrize("cls", [DualQDM, BC])
def test_action_spaces(name, cls):
    env = SpacesEnv(BOX, deepcopy(ACTIONS[name]))
    model = cls("MlpPolicy", env, demonstrations=recorded(env, 2), seed=0, **SMALL)
    model.learn(24)
    for deterministic in (True, False):
        action = model.predict(env.reset()[0], deterministic=deterministic)[0]
        assert action.dtype == env.action_space.dtype and action in env.action_space


@pytest.mark.parametrize(
    "space",
    [
        *(spaces.MultiDiscrete([2, 2]), spaces.MultiBinary(2), spaces.Box(-np.inf, np.inf, (1,))),
        *(spaces.Box(-3, 3, (2,), np.int64), spaces.Discrete(3, start=1)),
    ],
    ids=str,
)
def test_refused_actions_raise_what_sb3_raises(space):
    for error in (AssertionError, ValueError):
        with pytest.raises(error, match="action space"):
            DualQDM("MlpPolicy", SpacesEnv(BOX, space))


@pytest.mark.parametrize(
    "space",
    [
        spaces.Tuple([spaces.Discrete(2), BOX]),
        spaces.Discrete(4, start=2),
        spaces.Dict({"a": BOX, "b": spaces.Discrete(4, start=-1)}),
        spaces.Text(5),
    ],
    ids=str,
)
@pytest.mark.parametrize("cls", [DualQDM, BC])
def test_refused_observations(cls, space):
    with pytest.raises(ValueError, match="observation space"):
        cls(policy_name(space), SpacesEnv(space))
    with pytest.raises(ValueError, match="observation space"):
        cls(policy_name(space), None, offline=True, observation_space=space, action_space=BOX)


def test_stacks_of_normalised_frames_are_refused():
    def stack(venv):
        return VecFrameStack(venv, 3)

    venv = stack(make_vec_env("Pendulum-v1"))
    demonstrations = collect_demonstrations(lambda obs: np.zeros((1, 1), dtype=np.float32), venv, 1, seed=0)
    with pytest.raises(ValueError, match=r"VecNormalize\(VecFrameStack\(env\)"):
        DualQDM("MlpPolicy", stack(VecNormalize(make_vec_env("Pendulum-v1"))), demonstrations=demonstrations, **SMALL)
    model = DualQDM("MlpPolicy", VecNormalize(venv), demonstrations=demonstrations, **SMALL).learn(20)
    with pytest.raises(ValueError, match=r"VecNormalize\(VecFrameStack\(env\)"):
        model.set_env(stack(VecNormalize(make_vec_env("Pendulum-v1"))))


def test_nested_dictionaries_are_refused_as_in_sb3():
    env = SpacesEnv(spaces.Dict({"a": spaces.Dict({"b": BOX})}))
    with pytest.raises(NotImplementedError, match=r"[Nn]ested"):
        DualQDM("MultiInputPolicy", env)


class Keyed(gym.ObservationWrapper):
    """Observations behind one key."""

    def __init__(self, env):
        super().__init__(env)
        self.observation_space = spaces.Dict({"only": env.observation_space})

    def observation(self, obs):
        return {"only": obs}


@pytest.mark.parametrize("discrete", [True, False])
def test_flat_and_dictionary_observations_agree(discrete):
    """The same numbers behind one key are the same problem."""
    weights = []
    for env in (EchoEnv(discrete), Keyed(EchoEnv(discrete))):
        model = DualQDM(policy_name(env.observation_space), env, demonstrations=recorded(env), seed=1, **SMALL)
        model.learn(30)
        weights.append(th.cat([weight.flatten() for weight in model.policy.parameters()]))
    assert th.equal(*weights)


# --------------------------------------------------------------------------------------------------------------------------
# Environments: workers, stacks, images
# --------------------------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(os.name != "posix", reason="fork")
def test_sixteen_workers(demos):
    # forked workers need not import anything
    venv = make_vec_env("CartPole-v1", 16, vec_env_cls=SubprocVecEnv, vec_env_kwargs={"start_method": "fork"})
    model = DualQDM("MlpPolicy", venv, demonstrations=demos["CartPole-v1"], seed=0, gradient_steps=-1, **SMALL)
    model.learn(320)
    # updates after every step once more than 8 transitions are there
    assert model.num_timesteps == 320 and model._n_updates == 320
    assert model.replay_buffer.size() == 320 // 16 or model.replay_buffer.full
    assert len(model.replay_buffer.initial_states) > 16
    venv.close()


def image_policy(**kwargs):
    return {"features_extractor_kwargs": {"features_dim": 8}, **kwargs}


@pytest.mark.parametrize("share_features_extractor", [True, False])
def test_images(share_features_extractor, tmp_path):
    env = FakeImageEnv(screen_height=36, screen_width=36, n_channels=1, discrete=False)
    kwargs = {**SMALL, "policy_kwargs": image_policy(share_features_extractor=share_features_extractor)}
    model = DualQDM("CnnPolicy", env, demonstrations=recorded(env), seed=0, **kwargs)
    assert is_vecenv_wrapped(model.get_env(), VecTransposeImage)
    same = model.actor.features_extractor is model.critic.features_extractor
    assert same == share_features_extractor
    assert model.critic_target.features_extractor is not model.critic.features_extractor
    before = deepcopy(model.critic_target.state_dict())
    extractor = deepcopy(model.critic.features_extractor.state_dict())
    model.learn(12)
    assert any(not th.equal(before[name], value) for name, value in model.critic_target.state_dict().items())
    assert any(not th.equal(extractor[name], value) for name, value in model.critic.features_extractor.state_dict().items())
    model.save(tmp_path / "model")
    loaded = DualQDM.load(tmp_path / "model")
    obs = env.reset()[0]
    np.testing.assert_array_equal(model.predict(obs, deterministic=True)[0], loaded.predict(obs, deterministic=True)[0])
    assert (loaded.actor.features_extractor is loaded.critic.features_extractor) == share_features_extractor


@pytest.mark.parametrize("channel_first", [True, False])
def test_stacked_images(channel_first):
    def env():
        return FakeImageEnv(screen_height=36, screen_width=36, n_channels=1, channel_first=channel_first)

    venv = VecFrameStack(DummyVecEnv([env]), 2)
    demonstrations = collect_demonstrations(lambda obs: np.array([0]), venv, 1, seed=0)
    model = DualQDM("CnnPolicy", venv, demonstrations=demonstrations, **{**SMALL, "policy_kwargs": image_policy()})
    model.learn(12)
    assert model._sample_batch(4).obs.shape == (12, 2, 36, 36)


def test_float_images_without_scaling():
    env = FakeImageEnv(screen_height=36, screen_width=36, channel_first=True)
    env.observation_space = spaces.Box(-1, 1, env.observation_space.shape, dtype=np.float32)
    kwargs = {**SMALL, "policy_kwargs": image_policy(normalize_images=False)}
    model = DualQDM("CnnPolicy", env, demonstrations=recorded(env), **kwargs)
    model.learn(12)


@pytest.mark.parametrize("discrete", [True, False])
def test_normalised_dictionaries_of_images_and_vectors(discrete):
    def env():
        return SimpleMultiObsEnv(discrete_actions=discrete, random_start=False)

    with pytest.raises(ValueError, match=r"VecNormalize\(VecTransposeImage\(env\)"):
        DualQDM("MultiInputPolicy", VecNormalize(DummyVecEnv([env]), norm_obs_keys=["vec"]))
    venv = VecNormalize(VecTransposeImage(DummyVecEnv([env])), norm_obs_keys=["vec"])
    model = DualQDM("MultiInputPolicy", venv, demonstrations=recorded(env()), **SMALL)
    model.learn(24)
    assert model._sample_batch(4).obs["img"].dtype == th.uint8


# --------------------------------------------------------------------------------------------------------------------------
# Networks
# --------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("env_id", ENVS)
@pytest.mark.parametrize("net_arch", [[], [4], [4, 4], {"qf": [8], "pi": [4]}])
def test_network_shapes(net_arch, env_id, demos):
    model = DualQDM("MlpPolicy", env_id, demonstrations=demos[env_id], **small(net_arch=net_arch, n_critics=2))
    model.learn(12)


@pytest.mark.parametrize("env_id", ENVS)
@pytest.mark.parametrize(
    "options",
    [
        {"optimizer_class": th.optim.AdamW, "optimizer_kwargs": {"weight_decay": 0.1}},
        {"optimizer_class": th.optim.SGD},
        {"optimizer_class": RMSpropTFLike, "optimizer_kwargs": {"alpha": 0.9}},
        {"optimizer_kwargs": {"foreach": True}},
        {"activation_fn": th.nn.Tanh},
    ],
    ids=["AdamW", "SGD", "RMSpropTFLike", "foreach", "Tanh"],
)
def test_optimisers_and_activations(options, env_id, demos, tmp_path):
    model = DualQDM("MlpPolicy", env_id, demonstrations=demos[env_id], **small(**options)).learn(12)
    model.save(tmp_path / "model")
    optimizer = DualQDM.load(tmp_path / "model").critic.optimizer
    if "optimizer_class" in options:
        assert type(optimizer) is options["optimizer_class"]
    if options.get("optimizer_kwargs", {}).get("weight_decay"):
        assert optimizer.param_groups[0]["weight_decay"] == 0.1
    if options.get("optimizer_kwargs", {}).get("foreach"):
        assert optimizer.param_groups[0]["foreach"] and not optimizer.param_groups[0]["fused"]


class NormDropout(BaseFeaturesExtractor):
    def __init__(self, observation_space):
        super().__init__(observation_space, features_dim=observation_space.shape[0])
        self.batch_norm = th.nn.BatchNorm1d(self._features_dim)
        self.dropout = th.nn.Dropout(0.5)

    def forward(self, obs):
        return self.dropout(self.batch_norm(obs))


def running_means(model):
    return {
        name: getattr(model.policy, name).features_extractor.batch_norm.running_mean.clone()
        for name in ("actor", "critic", "critic_target")
        if getattr(model.policy, name, None) is not None
    }


@pytest.mark.parametrize("env_id", ENVS)
def test_training_and_evaluation_mode(env_id, demos):
    options = {**small(features_extractor_class=NormDropout), "learning_starts": 0, "tau": 0.0}
    model = DualQDM("MlpPolicy", env_id, demonstrations=demos[env_id], seed=1, **options)
    before = running_means(model)
    target = deepcopy(list(model.critic_target.parameters()))
    model.learn(10)
    after = running_means(model)
    assert all(not th.equal(before[name], after[name]) for name in before)
    # running statistics are copied even with tau=0, parameters are not
    th.testing.assert_close(after["critic"], after["critic_target"], rtol=0, atol=0)
    assert all(th.equal(a, b) for a, b in zip(target, model.critic_target.parameters()))

    # collecting and predicting use, and leave, the statistics as they are
    _, callback = model._setup_learn(10, None)
    model.collect_rollouts(
        model.get_env(),
        replay_buffer=model.replay_buffer,
        train_freq=TrainFreq(10, TrainFrequencyUnit.STEP),
        callback=callback,
    )
    obs = np.zeros((4, *model.observation_space.shape), dtype=np.float32)
    first, second = (model.predict(obs, deterministic=True)[0] for _ in range(2))
    np.testing.assert_array_equal(first, second)
    assert all(th.equal(after[name], value) for name, value in running_means(model).items())


@pytest.mark.parametrize("env_id", ENVS)
def test_target_follows_by_tau(env_id, demos):
    model = DualQDM("MlpPolicy", env_id, demonstrations=demos[env_id], seed=0, **{**SMALL, "learning_starts": 100})
    model.learn(10)
    online, target = (deepcopy(net.state_dict()) for net in (model.critic, model.critic_target))

    def is_as(net, state):
        return all(th.equal(state[name], value) for name, value in net.state_dict().items())

    model.tau = 0.0
    model.train(gradient_steps=1)
    assert is_as(model.critic_target, target) and not is_as(model.critic, online)
    model.tau = 1.0
    model.train(gradient_steps=1)
    assert is_as(model.critic_target, model.critic.state_dict())


# --------------------------------------------------------------------------------------------------------------------------
# Saving and loading
# --------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("env_id", ENVS)
@pytest.mark.parametrize("cls", CLASSES)
def test_policy_alone(cls, env_id, demos, tmp_path):
    model = cls("MlpPolicy", env_id, demonstrations=demos[env_id], seed=0, **SMALL).learn(12)
    obs = np.stack([model.observation_space.sample() for _ in range(10)])
    expected = model.predict(obs, deterministic=True)[0]
    model.policy.save(tmp_path / "policy.pkl")
    policy = type(model.policy).load(tmp_path / "policy.pkl")
    np.testing.assert_array_equal(policy.predict(obs, deterministic=True)[0], expected)
    assert all(th.equal(a, b) for a, b in zip(policy.state_dict().values(), model.policy.state_dict().values()))
    if model.actor is not None:
        model.actor.save(tmp_path / "actor.pkl")
        actor = type(model.actor).load(tmp_path / "actor.pkl", device="cpu")
        np.testing.assert_array_equal(actor.predict(obs, deterministic=True)[0], expected)


@pytest.mark.parametrize(
    "kwargs", [{"network_style": "sb3"}, {"n_critics": 3, "q_range": (-1.0, 1.0)}, {"activation_fn": th.nn.Tanh}]
)
@pytest.mark.parametrize("env_id", ENVS)
def test_policy_alone_keeps_its_arguments(kwargs, env_id, tmp_path):
    model = DualQDM("MlpPolicy", env_id, seed=0, **small(**kwargs))
    model.policy.save(tmp_path / "policy.pkl")
    policy = type(model.policy).load(tmp_path / "policy.pkl")
    obs = th.randn(5, *model.observation_space.shape)
    actions = th.zeros(5, 1) if model.actor is not None else None
    model.critic.save(tmp_path / "critic.pkl")
    alone = type(model.critic).load(tmp_path / "critic.pkl", device="cpu")
    for critic, other in ((policy.critic, model.critic), (policy.critic_target, model.critic_target), (alone, model.critic)):
        values = [net.q_values(obs, actions) if actions is not None else net(obs) for net in (critic, other)]
        assert th.equal(*values)


def test_parameters_by_name():
    model = DualQDM("MlpPolicy", "Pendulum-v1", ent_coef="auto", seed=0, **SMALL)
    parameters = model.get_parameters()
    assert set(parameters) == {"policy", "actor.optimizer", "critic.optimizer", "ent_coef_optimizer"}
    changed = deepcopy(parameters)
    changed["policy"] = {name: th.rand_like(value) for name, value in changed["policy"].items()}
    model.set_parameters(changed)
    assert all(th.equal(model.policy.state_dict()[name], value) for name, value in changed["policy"].items())
    with pytest.raises(ValueError):
        model.set_parameters({"nonsense": {}})
    with pytest.raises(ValueError):
        model.set_parameters({"policy": changed["policy"]})
    model.set_parameters({"policy": parameters["policy"]}, exact_match=False)
    assert all(th.equal(model.policy.state_dict()[name], value) for name, value in parameters["policy"].items())
    del changed["policy"]["actor.mu.weight"]
    with pytest.raises(RuntimeError):
        model.set_parameters(changed)
    model.set_parameters(changed, exact_match=False)


@pytest.mark.parametrize(
    "cls, saved, changed, match",
    [
        (DualQDM, {}, {"ent_coef": "auto"}, "has .*'ent_coef_optimizer'.* learned in both or in neither"),
        (DualQDM, {"ent_coef": "auto"}, {"ent_coef": 0.1}, "those of .*'ent_coef_optimizer'.* but this model has"),
        (LSIQ, {}, {"variant": "H"}, "this model has .*'networks'.* use the same class with the same networks"),
    ],
)
def test_parameters_of_other_networks_are_refused(cls, saved, changed, match, tmp_path):
    cls("MlpPolicy", "Pendulum-v1", **saved, **SMALL).save(tmp_path / "model")
    with pytest.raises(ValueError, match=match):
        cls.load(tmp_path / "model", **changed)
    other = cls("MlpPolicy", "Pendulum-v1", **{**saved, **changed}, **SMALL)
    with pytest.raises(ValueError, match=match):
        other.set_parameters(tmp_path / "model")


def test_parameters_leave_the_temperature_alone():
    """The softmax policy has that of the model's own ent_coef, which is what its values have."""
    models = [DualQDM("MlpPolicy", "CartPole-v1", ent_coef=ent_coef, seed=0, **SMALL) for ent_coef in (0.5, 0.01)]
    models[0].set_parameters(models[1].get_parameters())
    obs = th.zeros(1, 4)
    q, _ = models[0].policy.q_and_value(obs, th.zeros(1, dtype=th.long), None, 0.5)
    other, _ = models[0].policy.q_and_value(obs, th.ones(1, dtype=th.long), None, 0.5)
    log_odds = models[0].policy.log_prob(obs, th.tensor([1])) - models[0].policy.log_prob(obs, th.tensor([0]))
    assert log_odds.item() == pytest.approx((other - q).item() / 0.5, rel=1e-4)


def test_attributes_left_out_and_put_in(tmp_path):
    model = DualQDM("MlpPolicy", "CartPole-v1", verbose=2, **SMALL)
    model.save(tmp_path / "without", exclude=["verbose"])
    assert DualQDM.load(tmp_path / "without").verbose == 0
    model.save(tmp_path / "with", exclude=["verbose"], include=["verbose"])
    assert DualQDM.load(tmp_path / "with").verbose == 2


@pytest.mark.parametrize("env_id", ENVS)
def test_files_and_overrides(env_id, demos, tmp_path):
    model = DualQDM("MlpPolicy", env_id, demonstrations=demos[env_id], **SMALL)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ResourceWarning)
        model.save(str(tmp_path / "folder" / "model"))
        stream = io.BytesIO()
        model.save(stream)
        stream.seek(0)
        for source in (tmp_path / "folder" / "model.zip", str(tmp_path / "folder" / "model"), stream):
            loaded = DualQDM.load(source, env=gym.make(env_id), custom_objects={"learning_rate": 0.5}, seed=7)
            assert loaded.learning_rate == 0.5 and loaded.lr_schedule(1) == 0.5 and loaded.seed == 7
        with pytest.raises(ValueError, match="policy kwargs"):
            DualQDM.load(tmp_path / "folder" / "model", policy_kwargs={"net_arch": [3]})


@pytest.mark.parametrize("env_id", ENVS)
def test_replay_buffer_files(env_id, demos, tmp_path):
    model = DualQDM("MlpPolicy", env_id, demonstrations=demos[env_id], seed=0, **SMALL).learn(60)
    old = deepcopy(model.replay_buffer)
    stream = io.BytesIO()
    for target in (tmp_path / "replay.pkl", stream):
        model.save_replay_buffer(target)
    stream.seek(0)
    for source in (tmp_path / "replay.pkl", stream):
        model.replay_buffer = None
        model.load_replay_buffer(source)
        for name in ("observations", "actions", "rewards", "dones", "timeouts", "steps"):
            np.testing.assert_array_equal(getattr(model.replay_buffer, name), getattr(old, name))
    size = model.replay_buffer.size()
    rows = (old.observations, old.next_observations, old.actions, old.rewards, old.dones)
    model.replay_buffer.extend(*(array[:20] for array in rows), [[{}]] * 20)
    assert model.replay_buffer.size() == size + 20
    model.learn(10, reset_num_timesteps=False)
    # SB3's own way of sampling, with its own normalisation
    assert model.replay_buffer.sample(4).observations.shape == (4, *model.observation_space.shape)


@pytest.mark.parametrize("env_id", ENVS)
def test_rates_of_numpy(env_id, demos, tmp_path):
    model = DualQDM("MlpPolicy", env_id, learning_rate=lambda p: np.float64(1e-3) * p, demonstrations=demos[env_id], **SMALL)
    model.learn(20)
    model.save(tmp_path / "model")
    DualQDM.load(tmp_path / "model", env=gym.make(env_id), demonstrations=demos[env_id]).learn(20)


def test_other_numbers_of_environments(demos, tmp_path):
    model = DualQDM("MlpPolicy", "CartPole-v1", demonstrations=demos["CartPole-v1"], **SMALL).learn(12)
    with pytest.raises(AssertionError, match="number of environments"):
        model.set_env(make_vec_env("CartPole-v1", n_envs=2))
    with pytest.raises(ValueError, match="spaces do not match"):
        model.set_env(gym.make("Pendulum-v1").unwrapped)
    model.save(tmp_path / "model")
    model.save_replay_buffer(tmp_path / "replay")
    loaded = DualQDM.load(tmp_path / "model", env=make_vec_env("CartPole-v1", n_envs=3), demonstrations=demos["CartPole-v1"])
    loaded.learn(12)
    assert loaded.replay_buffer.n_envs == 3
    with pytest.raises(ValueError, match="use the same number of environments"):
        loaded.load_replay_buffer(tmp_path / "replay")


def test_ids_stand_for_environments_wherever_one_is_given(demos, tmp_path):
    given = {"demonstrations": demos["CartPole-v1"]}
    model = DualQDM("MlpPolicy", "CartPole-v1", seed=0, **given, **SMALL)
    model.learn(12, ResumableCheckpoint(tmp_path / "run", 10))
    model.set_env("CartPole-v1")
    model.save(tmp_path / "model")
    for each in (model, DualQDM.load(tmp_path / "model", env="CartPole-v1", **given)):
        assert each.learn(12).num_timesteps == 12
    assert DualQDM.resume(tmp_path / "run", "CartPole-v1", **given).get_env().num_envs == 1


def test_environment_kept_reset_and_replaced(demos):
    model = DualQDM("MlpPolicy", "CartPole-v1", demonstrations=demos["CartPole-v1"], **SMALL).learn(12)
    model.set_env(model.get_env(), force_reset=False)
    assert model._last_obs is not None
    model.learn(12, reset_num_timesteps=False)
    assert model.num_timesteps == 24
    model.set_env(model.get_env())
    assert model._last_obs is None
    model.learn(12)
    env = gym.make("CartPole-v1")
    model.set_env(env)
    assert model.get_env().envs[0].env is env and model.get_vec_normalize_env() is None
    model.learn(12)


def test_demonstrations_that_can_be_read_once_are_read_again_under_another_time_limit(demos):
    episodes = (episode for episode in demos["CartPole-v1"].to_dicts())
    model = DualQDM("MlpPolicy", "CartPole-v1", demonstrations=episodes, **SMALL)
    model.set_env(gym.make("CartPole-v1", max_episode_steps=7))
    model.learn(12)
    assert len(model.demo_buffer) == len(demos["CartPole-v1"])


# --------------------------------------------------------------------------------------------------------------------------
# Running
# --------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("env_id", ENVS)
def test_construction_wraps_environments(env_id):
    for env in (env_id, gym.make(env_id), DummyVecEnv([lambda: gym.make(env_id)])):
        model = DualQDM("MlpPolicy", env, **SMALL)
        assert isinstance(model.get_env(), DummyVecEnv)
        assert isinstance(model.get_env().envs[0], Monitor) == (not isinstance(env, DummyVecEnv))
    obs = model.observation_space.sample()
    assert model.predict(obs)[0].shape == model.action_space.shape
    assert model.predict(np.stack([obs] * 3))[0].shape == (3, *model.action_space.shape)
    with pytest.raises(ValueError):
        model.predict((obs, {}))


@pytest.mark.parametrize("train_freq", [4, (4, "step"), (1, "episode")])
def test_train_frequencies(train_freq, demos, tmp_path):
    options = {**SMALL, "train_freq": train_freq, "learning_starts": 0, "gradient_steps": -1}
    model = DualQDM("MlpPolicy", "CartPole-v1", demonstrations=demos["CartPole-v1"], **options).learn(40)
    assert model._n_updates == model.num_timesteps
    model.save(tmp_path / "model")
    assert DualQDM.load(tmp_path / "model").train_freq == model.train_freq


@pytest.mark.parametrize("train_freq", ["4", ("1", "episode"), "nonsense", (3, "nonsense")])
def test_bad_train_frequencies(train_freq):
    with pytest.raises(ValueError):
        DualQDM("MlpPolicy", "CartPole-v1", **{**SMALL, "train_freq": train_freq})


def test_episodes_of_several_environments_cannot_be_counted(tmp_path):
    options = {**SMALL, "train_freq": (1, "episode"), "gradient_steps": -1}
    with pytest.raises(ValueError, match="the episodes of 2 environments end at different times: give a number of steps"):
        DualQDM("MlpPolicy", make_vec_env("CartPole-v1", 2), **options)
    DualQDM("MlpPolicy", make_vec_env("CartPole-v1", 1), **options).save(tmp_path / "model")
    with pytest.raises(ValueError, match="the episodes of 2 environments"):
        DualQDM.load(tmp_path / "model", env=make_vec_env("CartPole-v1", 2))


@pytest.mark.parametrize("n_envs", [1, 3])
def test_action_noise(n_envs, demos, tmp_path):
    for noise in (
        NormalActionNoise(np.zeros(1), np.ones(1)),
        VectorizedActionNoise(OrnsteinUhlenbeckActionNoise(np.zeros(1), np.ones(1)), n_envs),
    ):
        venv = make_vec_env("Pendulum-v1", n_envs)
        model = DualQDM("MlpPolicy", venv, demonstrations=demos["Pendulum-v1"], action_noise=noise, seed=0, **SMALL)
        model.learn(30)
        assert np.abs(model.replay_buffer.actions).max() <= 1
        model.save(tmp_path / "model")
        assert type(DualQDM.load(tmp_path / "model").action_noise) is type(model.action_noise)


@pytest.mark.parametrize("n_envs", [1, 3])
def test_one_noise_for_all_copies_goes_along_to_other_numbers_of_them(n_envs, demos, tmp_path):
    """SB3 makes one for each of them of it, and saves those."""
    options = {**SMALL, "action_noise": NormalActionNoise(np.zeros(1), np.ones(1))}
    model = DualQDM("MlpPolicy", make_vec_env("Pendulum-v1", 2), demonstrations=demos["Pendulum-v1"], **options)
    model.learn(20).save(tmp_path / "model")
    assert isinstance(model.action_noise, VectorizedActionNoise)
    loaded = DualQDM.load(tmp_path / "model", env=make_vec_env("Pendulum-v1", n_envs), demonstrations=demos["Pendulum-v1"])
    loaded.learn(20)
    assert np.shape(loaded.action_noise()) == ((1,) if n_envs == 1 else (n_envs, 1))


def test_a_look_at_the_action_noise_draws_nothing(demos):
    noise, state = NormalActionNoise(np.zeros(1), np.ones(1)), np.random.get_state()
    DualQDM("MlpPolicy", "Pendulum-v1", demonstrations=demos["Pendulum-v1"], action_noise=noise, **SMALL)
    assert np.random.get_state()[2:] == state[2:] and np.array_equal(np.random.get_state()[1], state[1])


class Recorded(KVWriter):
    def __init__(self):
        self.rows = []

    def write(self, key_values, key_excluded, step=0):
        self.rows.append(dict(key_values))

    def close(self):
        pass


def test_log_rates(demos):
    env = CountingEnv(length=5)
    model = DualQDM("MlpPolicy", env, demonstrations=recorded(env), stats_window_size=2, **SMALL)
    writer = Recorded()
    model.set_logger(Logger(None, [writer]))
    with mock.patch("time.time", lambda: 42.0), mock.patch("time.time_ns", lambda: 42_000_000_000):
        model.learn(30, log_interval=1)  # no time passes: no division by zero
    assert model.ep_info_buffer.maxlen == 2
    assert [row["rollout/ep_len_mean"] for row in writer.rows] == [5.0] * 6
    assert [row["time/total_timesteps"] for row in writer.rows] == [5, 10, 15, 20, 25, 30]
    assert all(np.isfinite(row["time/fps"]) for row in writer.rows)


def test_callbacks(demos, tmp_path):
    venv = VecNormalize(make_vec_env("CartPole-v1"))
    model = DualQDM("MlpPolicy", venv, demonstrations=demos["CartPole-v1"], seed=0, **SMALL)
    eval_env = VecNormalize(make_vec_env("CartPole-v1"), training=False)
    evaluation = EvalCallback(
        eval_env,
        eval_freq=20,
        n_eval_episodes=1,
        best_model_save_path=str(tmp_path / "best"),
        log_path=str(tmp_path),
        callback_after_eval=StopTrainingOnNoModelImprovement(5),
        verbose=0,
        warn=False,
    )
    checkpoint = CheckpointCallback(20, str(tmp_path), save_replay_buffer=True, save_vecnormalize=True)
    seen = []
    every = EveryNTimesteps(10, CheckpointCallback(1, str(tmp_path / "every")))
    model.learn(40, CallbackList([evaluation, checkpoint, every]))
    model.learn(4, lambda local, _: seen.append(local["new_obs"].shape) or True)
    assert seen == [(1, 4)] * 4
    assert len(list((tmp_path / "every").iterdir())) == 4 and (tmp_path / "best" / "best_model.zip").exists()
    loaded = DualQDM.load(tmp_path / "rl_model_20_steps.zip")
    loaded.load_replay_buffer(tmp_path / "rl_model_replay_buffer_20_steps.pkl")
    assert loaded.replay_buffer.size() == 19  # the transition of the step is stored after its callbacks
    stored = VecNormalize.load(tmp_path / "rl_model_vecnormalize_20_steps.pkl", make_vec_env("CartPole-v1"))
    loaded.set_env(stored)
    assert loaded.get_vec_normalize_env() is stored
    with np.load(tmp_path / "evaluations.npz") as evaluations:
        assert list(evaluations["timesteps"]) == [20, 40]


def test_stopped_by_a_callback_and_continued(demos):
    env = CountingEnv(length=5)
    model = DualQDM("MlpPolicy", env, demonstrations=recorded(env), **SMALL)
    model.learn(1000, [StopTrainingOnMaxEpisodes(3)])
    assert model.num_timesteps == 15 and model.replay_buffer.size() == 14
    model.learn(10, reset_num_timesteps=False)
    rows = model.replay_buffer.rows(200, np.random.default_rng(0))
    # observations are [episode, step]: no transition leads from one episode to another
    assert (rows.obs[:, 0] == rows.next_obs[:, 0]).all() and (rows.obs[:, 1] + 1 == rows.next_obs[:, 1]).all()


@pytest.mark.parametrize("env_id", ENVS)
def test_same_seed_same_behaviour(env_id, demos):
    results = []
    for _ in range(2):
        model = DualQDM("MlpPolicy", env_id, demonstrations=demos[env_id], seed=0, **SMALL).learn(50)
        env = model.get_env()
        obs, actions = env.reset(), []
        for _ in range(20):
            actions.append(model.predict(obs)[0])
            obs = env.step(actions[-1])[0]
        results.append(np.array(actions))
    np.testing.assert_array_equal(*results)


def test_vec_normalize_of_the_environment_in_use(demos):
    env, other = (VecNormalize(make_vec_env("Pendulum-v1")) for _ in range(2))
    model = DualQDM("MlpPolicy", env, demonstrations=demos["Pendulum-v1"], **SMALL)
    assert model.get_vec_normalize_env() is env
    model.set_env(other)
    assert model.get_vec_normalize_env() is other
    model.learn(10)
    model.set_env(env)
    model.learn(20)
    assert env.obs_rms.count > 20 > other.obs_rms.count - 1


# --------------------------------------------------------------------------------------------------------------------------
# Refused, with the reason
# --------------------------------------------------------------------------------------------------------------------------


class NStepReplayBuffer(ImitationReplayBuffer.__mro__[2]):
    """What SB3 2.7 and newer have under this name."""


@pytest.mark.parametrize(
    "options, match",
    [
        ({"use_sde": True}, "gSDE is not supported here: use action_noise"),
        ({"policy_kwargs": {"use_sde": True}}, "gSDE is not supported here: use action_noise"),
        ({"replay_buffer_class": HerReplayBuffer}, "hindsight relabels goals to change rewards"),
        ({"replay_buffer_class": NStepReplayBuffer}, "defined over one step"),
        ({"n_steps": 3}, "defined over one step: leave n_steps at 1"),
        ({"optimize_memory_usage": True}, "cannot tell time limits from terminations"),
        ({"replay_buffer_kwargs": {"handle_timeout_termination": False}}, "stored as terminations"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_refusals(options, match):
    with pytest.raises(ValueError, match=match):
        DualQDM("MlpPolicy", "Pendulum-v1", **{**SMALL, **options})
