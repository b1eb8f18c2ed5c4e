"""Trainers, reward network, registries and command line for imitation."""

# ruff: noqa: E402  (without imitation the file is skipped before it imports what needs it)

import inspect
import itertools
import os
import pickle
import subprocess
import sys
import warnings
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from algorithm_helpers import SMALL, CountingEnv, EchoEnv, demonstrations_for, echo_expert
from gymnasium import spaces
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import CallbackList, StopTrainingOnMaxEpisodes
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

pytestmark = pytest.mark.both
pytest.importorskip("imitation")

from imitation.algorithms.adversarial.common import AdversarialTrainer
from imitation.algorithms.base import DemonstrationAlgorithm, make_data_loader
from imitation.data import rollout, serialize, types
from imitation.rewards.reward_nets import BasicRewardNet, RewardNet
from imitation.rewards.reward_wrapper import RewardVecEnvWrapper
from imitation.util import logger as imitation_logger

from sb3_dualqdm import BC, DualQDM, IQLearn, ReCOIL, RegIQLearn, ValueDICE, collect_demonstrations
from sb3_dualqdm.callbacks import ResumableCheckpoint
from sb3_dualqdm.demonstrations.readers import arrays
from sb3_dualqdm.imitation import DualQDMTrainer, ImplicitRewardNet, IQLearnTrainer, RegIQLearnTrainer

TRAINERS = {DualQDMTrainer: DualQDM, IQLearnTrainer: IQLearn, RegIQLearnTrainer: RegIQLearn}
EXAMPLES = Path(__file__).parent.parent / "examples"


def counting_venv(n_envs=2, **kwargs):
    return DummyVecEnv([lambda: CountingEnv(**kwargs)] * n_envs)


def trajectories(n=3, **kwargs):
    """Episodes of a CountingEnv as imitation has them."""
    return collect_demonstrations(lambda obs: int(obs[1]) % 2, CountingEnv(**kwargs), n, seed=0).to_imitation()


def trainer_of(venv=None, demonstrations=None, trainer=DualQDMTrainer, model=(), **kwargs):
    venv = counting_venv() if venv is None else venv
    demonstrations = trajectories() if demonstrations is None else demonstrations
    return trainer(demonstrations=demonstrations, venv=venv, rl_kwargs={**SMALL, "seed": 0, **dict(model)}, **kwargs)


def weights_of(model):
    return [value.clone() for value in model.policy.state_dict().values()]


# ----------------------------------------------------------------------------------------------------------------------
# The trainer's interface
# ----------------------------------------------------------------------------------------------------------------------


def test_import_without_imitation_is_one_clear_sentence():
    code = "import sys; sys.modules['imitation'] = None; import sb3_dualqdm.imitation"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: sb3_dualqdm.imitation needs the package imitation")
    assert "pip install 'sb3-dualqdm[imitation]'" in last


@pytest.mark.parametrize("trainer", TRAINERS)
def test_trainer_trains_its_class(trainer):
    assert issubclass(trainer, DemonstrationAlgorithm)
    this = trainer_of(trainer=trainer)
    assert type(this.gen_algo) is TRAINERS[trainer] and this.rl_algo is this.gen_algo
    before = weights_of(this.gen_algo)
    this.train(24)
    assert any(not th.equal(a, b) for a, b in zip(before, weights_of(this.gen_algo)))


@pytest.mark.parametrize("other", ["gail", "sqil"])
def test_arguments_of_the_other_trainers_are_accepted(other):
    if other == "gail":
        theirs = set(inspect.signature(AdversarialTrainer.__init__).parameters)
    else:  # imitation 1.0.1 has SQIL
        theirs = set(inspect.signature(pytest.importorskip("imitation.algorithms.sqil").SQIL.__init__).parameters)
    ours = inspect.signature(DualQDMTrainer.__init__).parameters
    assert theirs <= set(ours)
    assert all(p.kind is inspect.Parameter.KEYWORD_ONLY for name, p in ours.items() if name != "self")
    with pytest.raises(TypeError):
        trainer_of(no_such_argument=1)


def test_unused_options_are_reported_in_one_line(capsys):
    venv = counting_venv()
    net = BasicRewardNet(venv.observation_space, venv.action_space)
    trainer = trainer_of(venv, reward_net=net, n_disc_updates_per_round=4, disc_opt_kwargs={"lr": 1e-3})
    trainer.train(8)
    lines = [line for line in capsys.readouterr().out.splitlines() if "does not use" in line]
    assert lines == [
        "DualQDMTrainer has no discriminator and does not use reward_net, n_disc_updates_per_round, disc_opt_kwargs."
    ]
    trainer_of()
    assert "does not use" not in capsys.readouterr().out


def test_train_is_one_learn():
    """Same seed, same weights as the model's own learn, bit for bit."""
    model = DualQDM("MlpPolicy", counting_venv(), demonstrations=trajectories(), seed=3, **SMALL).learn(50)
    learner = DualQDM("MlpPolicy", counting_venv(), seed=3, **SMALL)
    trainer = DualQDMTrainer(demonstrations=trajectories(), demo_batch_size=8, venv=learner.get_env(), gen_algo=learner)
    trainer.train(50, lambda _: None)
    assert learner.num_timesteps == model.num_timesteps == 50
    assert all(th.equal(a, b) for a, b in zip(weights_of(model), weights_of(learner)))


def test_second_train_goes_on():
    trainer = trainer_of(counting_venv(length=1000))
    trainer.train(20)
    evaluate_policy(trainer.policy, DummyVecEnv([CountingEnv]), 1)
    trainer.venv.env_method("reset")  # as an evaluation in the same environment does
    trainer.train(10)
    model = trainer.gen_algo
    assert model.num_timesteps == 30
    # no stored transition leads from one episode into another: obs is [episode, step]
    rows = model.replay_buffer.rows(200, np.random.default_rng(0))
    assert (rows.obs[:, 0] == rows.next_obs[:, 0]).all() and (rows.next_obs[:, 1] == rows.obs[:, 1] + 1).all()


def test_callback_is_called_every_round_after_its_updates():
    trainer = trainer_of(gen_train_timesteps=20, model={"gradient_steps": -1})
    calls = []
    trainer.train(70, lambda number: calls.append((number, trainer.gen_algo.num_timesteps, trainer.gen_algo._n_updates)))
    # 2 updates per vector step; the first vector steps fill the replay until more than learning_starts = 8 steps are there
    assert calls == [(0, 20, 12), (1, 40, 32), (2, 60, 52)]
    trainer.train(20, calls.append)
    assert calls[3:] == [0]
    assert trainer_of().gen_train_timesteps == 2048


def test_rounds_of_an_offline_model_are_counted_in_updates():
    venv = counting_venv()
    learner = DualQDM("MlpPolicy", venv, offline=True, **SMALL)
    trainer = DualQDMTrainer(demonstrations=trajectories(), venv=venv, gen_algo=learner, gen_train_timesteps=20)
    calls = []
    trainer.train(50, lambda number: calls.append((number, learner.num_timesteps, learner._n_updates)))
    assert calls == [(0, 20, 20), (1, 40, 40)]
    assert learner._n_updates == 50 and venv.get_attr("n_steps") == [0, 0]


@pytest.mark.parametrize("pack", [lambda c: c, lambda c: [c], lambda c: CallbackList([c])])
def test_callbacks_of_stable_baselines_are_passed_on(pack):
    trainer = trainer_of(counting_venv(1))
    trainer.train(1000, pack(StopTrainingOnMaxEpisodes(3)))
    assert trainer.gen_algo.num_timesteps == 15


def test_learner_is_trained_in_place():
    venv, other = counting_venv(), counting_venv()
    learner = DualQDM("MlpPolicy", other, **SMALL)
    policy = learner.policy
    trainer = DualQDMTrainer(demonstrations=trajectories(), demo_batch_size=16, venv=venv, gen_algo=learner)
    assert trainer.gen_algo is learner and trainer.policy is policy and learner.get_env() is venv
    assert trainer.venv is trainer.venv_train is venv
    assert learner.batch_size == learner.demo_batch_size == trainer.demo_batch_size == 16
    trainer.train(20)
    assert learner.num_timesteps == 20 and len(learner._require_demonstrations().demonstrations) == 15


def test_model_keeps_its_own_batch_sizes_and_demonstrations():
    learner = DualQDM("MlpPolicy", counting_venv(), demonstrations=trajectories(2), demo_batch_size=4, **SMALL)
    trainer = DualQDMTrainer(demonstrations=None, venv=learner.get_env(), gen_algo=learner)
    trainer.train(12)
    assert (learner.batch_size, learner.demo_batch_size) == (8, 4)
    assert learner._require_demonstrations().demonstrations.n_episodes == 2


@pytest.mark.parametrize("other", [PPO, BC, IQLearn])
def test_another_algorithm_is_answered_by_the_two_lines(other):
    venv = counting_venv()
    with pytest.raises(TypeError) as error:
        DualQDMTrainer(demonstrations=trajectories(), venv=venv, gen_algo=other("MlpPolicy", venv))
    message = str(error.value)
    assert f"gen_algo is {other.__name__}" in message and message.count("\n") == 0
    assert 'learner = DualQDM("MlpPolicy", venv)' in message
    assert "trainer = DualQDMTrainer(demonstrations=..., venv=venv, gen_algo=learner)" in message


@pytest.mark.parametrize("argument", [{"policy": "MlpPolicy"}, {"rl_kwargs": {}}])
def test_a_model_and_what_to_make_contradict_each_other(argument):
    venv = counting_venv()
    learner = DualQDM("MlpPolicy", venv, **SMALL)
    with pytest.raises(ValueError, match="beside gen_algo"):
        DualQDMTrainer(demonstrations=None, venv=venv, gen_algo=learner, **argument)


@pytest.mark.parametrize("argument", ["demo_batch_size", "gen_train_timesteps"])
@pytest.mark.parametrize("size", [0, 64.5, "64"])
def test_unusable_sizes_are_refused(argument, size):
    with pytest.raises(ValueError, match=f"{argument} is {size!r} but a whole number of at least 1"):
        trainer_of(**{argument: size})


def test_training_without_demonstrations_is_refused():
    venv = counting_venv()
    with pytest.raises(ValueError, match="no demonstrations"):
        DualQDMTrainer(demonstrations=None, venv=venv).train(10)


def test_default_model_and_plain_environment():
    trainer = DualQDMTrainer(demonstrations=trajectories(), venv=CountingEnv())
    assert trainer.gen_algo.batch_size == 256 and trainer.gen_algo.learning_starts == 1280
    assert trainer.venv.num_envs == 1


class DictCounting(gym.ObservationWrapper):
    def __init__(self, env):
        super().__init__(env)
        part = spaces.Box(-1e6, 1e6, (1,), np.float32)
        self.observation_space = spaces.Dict({"episode": part, "step": part})

    def observation(self, obs):
        return {"episode": obs[:1], "step": obs[1:]}


def dict_trajectories():
    return [
        types.Trajectory(
            obs=types.DictObs({"episode": t.obs[:, :1], "step": t.obs[:, 1:]}), acts=t.acts, infos=None, terminal=t.terminal
        )
        for t in trajectories()
    ]


def test_log_goes_through_imitations_logger(tmp_path):
    custom = imitation_logger.configure(tmp_path / "custom", ["csv"])
    trainer = trainer_of(custom_logger=custom)
    assert trainer.logger is custom and trainer.gen_algo.logger is custom
    trainer.train(24)
    header = (tmp_path / "custom" / "progress.csv").read_text().splitlines()[0]
    assert "train/critic_loss" in header and "demonstrations/episodes" in header
    other = imitation_logger.configure(tmp_path / "other", ["csv"])
    trainer.logger = other
    assert trainer.gen_algo.logger is other


def test_log_dir_and_tensorboard(tmp_path):
    pytest.importorskip("tensorboard")
    trainer = trainer_of(log_dir=tmp_path / "logs", init_tensorboard=True)
    assert isinstance(trainer.logger, imitation_logger.HierarchicalLogger)
    trainer.train(24)
    assert (tmp_path / "logs" / "progress.csv").exists()
    assert list((tmp_path / "logs").glob("events.out.tfevents*"))


# ----------------------------------------------------------------------------------------------------------------------
# Horizons
# ----------------------------------------------------------------------------------------------------------------------


def leaks(record):
    return [str(w.message) for w in record if "leaks" in str(w.message)]


@pytest.mark.parametrize("allow", [False, True])
def test_variable_horizons_are_accepted(allow, capsys):
    """Episodes of 3 and of 5 steps side by side; the default does not leak, so nothing is said."""
    venv = DummyVecEnv([lambda: CountingEnv(length=3), lambda: CountingEnv(length=5)])
    with warnings.catch_warnings(record=True) as record:
        warnings.simplefilter("always")
        trainer = trainer_of(venv, trajectories(1, length=4) + trajectories(1, length=7), allow_variable_horizon=allow)
        trainer.train(40)
    assert not leaks(record) and trainer.allow_variable_horizon is allow
    assert "variable_horizon" not in capsys.readouterr().out


@pytest.mark.parametrize("terminates", ["demonstrations", "learner", None])
def test_leak_is_said_once_where_it_can_happen(terminates):
    ends = {name: "terminated" if name == terminates else "truncated" for name in ("demonstrations", "learner")}
    with warnings.catch_warnings(record=True) as record:
        warnings.simplefilter("always")
        trainer = trainer_of(
            counting_venv(ends_by=ends["learner"]),
            trajectories(ends_by=ends["demonstrations"]),
            model={"terminal_value": "zero", "demonstrations_kwargs": {"max_episode_steps": None}},
        )
        assert len(leaks(record)) == (terminates == "demonstrations")
        trainer.train(40)
    assert len(leaks(record)) == (terminates is not None)
    assert all('terminal_value="zero"' in message and '"absorbing"' in message for message in leaks(record))


def test_training_resumes_from_a_checkpoint(tmp_path):
    """The trainer's own call of set_env resets nothing that a resumed run would not."""

    def train(model, venv, total=80):
        trainer = DualQDMTrainer(demonstrations=demonstrations, venv=venv, gen_algo=model)
        trainer.train(total, [ResumableCheckpoint(tmp_path / "run", 30)])
        return th.cat([weight.flatten() for weight in trainer.policy.parameters()])

    demonstrations = demonstrations_for("CartPole-v1").to_imitation()
    venv = VecNormalize(make_vec_env("CartPole-v1", 2))
    model = DualQDM("MlpPolicy", venv, seed=0, **SMALL)
    whole = train(model, venv)
    venv = VecNormalize(make_vec_env("CartPole-v1", 2))
    resumed = DualQDM.resume(tmp_path / "run", venv)
    assert 60 <= resumed.num_timesteps < 80
    assert th.equal(train(resumed, venv), whole)


# ----------------------------------------------------------------------------------------------------------------------
# Demonstrations
# ----------------------------------------------------------------------------------------------------------------------


def batches(rows, size, as_tensors=True):
    for start in range(0, len(rows), size):
        part = {name: getattr(rows, name)[start : start + size] for name in ("obs", "acts", "next_obs", "dones")}
        yield {name: th.as_tensor(np.array(value)) if as_tensors else value for name, value in part.items()}


def legacy(folder, suffix):
    """Files of imitation's releases before 1.0, a compressed archive with pickled infos or a pickled list."""
    episodes = trajectories()
    path = folder.with_suffix(suffix)
    if suffix == ".pkl":
        path.write_bytes(pickle.dumps(episodes))
    else:
        fields = {name: np.concatenate([getattr(episode, name) for episode in episodes]) for name in ("obs", "acts")}
        infos = np.array([{"lives": 3}] * len(fields["acts"]), dtype=object)
        terminal = np.array([episode.terminal for episode in episodes])
        np.savez_compressed(path, **fields, infos=infos, terminal=terminal, indices=[5, 10])
    return str(path)


def parquet(folder):
    """The folder as a hub stores it."""
    (hub := folder.with_name("hub")).mkdir()
    serialize.load(folder).dataset.to_parquet(hub / "train-00000-of-00001.parquet")
    return str(hub)


FORMS = {
    "legacy npz": lambda folder: legacy(folder, ".npz"),
    "legacy pickle": lambda folder: legacy(folder, ".pkl"),
    "folder of a hub": parquet,
    "trajectories": lambda folder: trajectories(),
    "generator of trajectories": lambda folder: (episode for episode in trajectories()),
    "Transitions": lambda folder: rollout.flatten_trajectories(trajectories()),
    "batches of tensors": lambda folder: batches(rollout.flatten_trajectories(trajectories()), 5),
    "list of batches of arrays": lambda folder: list(batches(rollout.flatten_trajectories(trajectories()), 4, False)),
    "folder": lambda folder: str(folder),
    "loaded folder": lambda folder: serialize.load(folder),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_demonstrations_gives_the_same_rows(form, tmp_path):
    """CountingEnv's observation is [episode, step], so the rows are known: three episodes of five steps."""
    serialize.save(tmp_path / "demos", trajectories())
    trainer = trainer_of(demonstrations=FORMS[form](tmp_path / "demos"))
    demos = trainer.gen_algo._require_demonstrations().demonstrations
    assert demos.obs.tolist() == [[episode, step] for episode in range(3) for step in range(5)]
    assert demos.next_obs.tolist() == [[episode, step + 1] for episode in range(3) for step in range(5)]
    assert demos.actions.tolist() == [0, 1, 0, 1, 0] * 3
    assert demos.terminated.tolist() == ([False] * 4 + [True]) * 3
    trainer.train(12)


@pytest.mark.filterwarnings("ignore:.*not followed by their successor")
def test_data_loader_gives_every_transition_once():
    """Its order is shuffled, so rows are compared as a set; the 15 transitions make 5 batches of 3."""
    demos = trainer_of(demonstrations=make_data_loader(trajectories(), 3)).gen_algo._require_demonstrations().demonstrations
    assert sorted(demos.obs.tolist()) == [[episode, step] for episode in range(3) for step in range(5)]
    assert (demos.next_obs == demos.obs + [0, 1]).all()
    assert (demos.terminated == (demos.obs[:, 1] == 4)).all()


def test_dict_observations():
    venv = DummyVecEnv([lambda: DictCounting(CountingEnv())])
    for source in (dict_trajectories(), rollout.flatten_trajectories(dict_trajectories()), None):
        source = list(batches(rollout.flatten_trajectories(dict_trajectories()), 5, False)) if source is None else source
        trainer = trainer_of(venv, source)
        demos = trainer.gen_algo._require_demonstrations().demonstrations
        assert demos.obs["step"].tolist() == [[step] for step in range(5)] * 3
        trainer.train(12)


def test_time_limit_of_the_environment_is_no_termination():
    """imitation marks an episode that the time limit ends as terminal."""
    source = demonstrations_for("CartPole-v1").to_imitation()
    source = [types.Trajectory(obs=t.obs, acts=t.acts, infos=None, terminal=True) for t in source]
    trainer = trainer_of(make_vec_env("CartPole-v1", 1), source)
    demos = trainer.gen_algo._require_demonstrations().demonstrations
    assert len(demos) == 500 and not demos.terminated.any()


def test_one_transition_is_enough():
    trainer = trainer_of(demonstrations=trajectories(1, length=1), demo_batch_size=32)
    trainer.train(12)
    assert trainer.gen_algo._n_updates > 0


def test_endless_batches_are_refused(monkeypatch):
    monkeypatch.setattr(arrays, "MAX_BATCH_ROWS", 100)
    finite = list(batches(rollout.flatten_trajectories(trajectories()), 5))
    with pytest.raises(ValueError, match="do not end"):
        DualQDM("MlpPolicy", counting_venv(), demonstrations=itertools.cycle(finite), **SMALL)
    with pytest.raises(ValueError, match="do not end"):
        trainer_of(demonstrations=itertools.cycle(finite))


def test_set_demonstrations_replaces():
    trainer = trainer_of()
    trainer.set_demonstrations(trajectories(1, length=7))
    assert len(trainer.gen_algo._require_demonstrations().demonstrations) == 7


# ----------------------------------------------------------------------------------------------------------------------
# Pickling
# ----------------------------------------------------------------------------------------------------------------------


def test_pickled_trainer_predicts_the_same_and_goes_on(capsys):
    trainer = trainer_of(demonstrations=iter(trajectories()), gen_train_timesteps=7)
    trainer.train(20)
    copy = pickle.loads(pickle.dumps(trainer))
    assert all(th.equal(a, b) for a, b in zip(weights_of(trainer.gen_algo), weights_of(copy.gen_algo)))
    assert copy.gen_algo.logger is copy.logger and copy.reward_train.model is copy.gen_algo
    rounds = []
    copy.train(14, rounds.append)
    assert rounds == [0, 1] and copy.gen_algo.num_timesteps == 34 and trainer.gen_algo.num_timesteps == 20


def test_pickled_trainer_of_an_offline_model_keeps_its_extra_transitions():
    trainer = trainer_of(model={"offline": True, "extra_transitions": trajectories(2)})
    trainer.train(3)
    copy = pickle.loads(pickle.dumps(trainer))
    copy.train(3)
    assert copy.gen_algo.num_timesteps == 6 and len(copy.gen_algo._sample_batch(8).actions) == 16


def test_environment_that_cannot_be_pickled_is_asked_for():
    venv = VecNormalize(counting_venv(), norm_reward=False)
    trainer = trainer_of(venv)
    trainer.train(20)
    copy = pickle.loads(pickle.dumps(trainer))
    with pytest.raises(ValueError, match=r"set trainer\.venv"):
        copy.train(10)
    copy.venv = venv
    copy.train(10)
    assert copy.gen_algo.num_timesteps == 30


# ----------------------------------------------------------------------------------------------------------------------
# The learned reward
# ----------------------------------------------------------------------------------------------------------------------


def rows(n=6, seed=0, discrete=True):
    rng = np.random.default_rng(seed)
    obs, next_obs = rng.normal(size=(2, n, 2)).astype(np.float32)
    acts = rng.integers(2, size=n) if discrete else rng.uniform(-2, 4, size=(n, 1)).astype(np.float32)
    return obs, acts, next_obs, np.arange(n) % 3 == 2


@pytest.mark.filterwarnings("ignore:.*leaks into the learned policy")
@pytest.mark.parametrize("discrete", [True, False])
@pytest.mark.parametrize("terminal_value", ["absorbing", "zero"])
def test_reward_net_is_the_implicit_reward(discrete, terminal_value):
    """An episode's last reward also holds what follows it: gamma V(absorbing), known here because it is set."""
    model = {"terminal_value": terminal_value}
    action = 0 if discrete else np.zeros(1, np.float32)
    demonstrations = collect_demonstrations(lambda obs: action, CountingEnv(discrete=discrete), 2, seed=0)
    trainer = trainer_of(counting_venv(discrete=discrete), demonstrations, model=model)
    trainer.train(20)
    with th.no_grad():
        trainer.gen_algo.critic.absorbing.fill_(-0.05)  # V = -0.05 / (1 - 0.99) = -5
    obs, acts, next_obs, dones = rows(discrete=discrete)
    reference = trainer.gen_algo.implicit_reward(obs, acts, next_obs, dones)
    net = trainer.reward_train
    assert isinstance(net, RewardNet) and net is trainer.reward_test and net.device == trainer.gen_algo.device
    tail = -0.99 * 5 * dones if terminal_value == "absorbing" else 0 * dones
    assert net.predict_processed(obs, acts, next_obs, dones, update_stats=False) == pytest.approx(reference + tail, abs=1e-4)
    assert net(*net.preprocess(obs, acts, next_obs, dones)).numpy() == pytest.approx(reference + tail, abs=1e-4)
    plain = ImplicitRewardNet(trainer.gen_algo, absorbing_tail=False)
    assert plain.predict(obs, acts, next_obs, dones) == pytest.approx(reference, abs=1e-5)


def test_done_reward_is_q():
    """In a task that ends with value 0, Q is optimal only for a last reward of Q itself."""
    trainer = trainer_of()
    trainer.train(40)
    obs, acts, next_obs, _ = rows()
    with th.no_grad():
        q = trainer.policy.critic(th.as_tensor(obs))[0].gather(1, th.as_tensor(acts).unsqueeze(1)).squeeze(1).numpy()
    assert trainer.reward_test.predict(obs, acts, next_obs, np.ones(6, bool)) == pytest.approx(q, abs=1e-4)


def box_model_and_rows(cls):
    """A trained model, and rows with their actions as they are and on the scale of [-1, 1]."""
    env = CountingEnv(discrete=False)
    demonstrations = collect_demonstrations(lambda obs: np.zeros(1, np.float32), env, 2)
    model = cls("MlpPolicy", env, demonstrations=demonstrations, **SMALL).learn(20)
    obs, acts, next_obs, _ = rows(discrete=False)
    return model, obs, acts, next_obs, th.as_tensor((acts - 1) / 3)  # [-2, 4] is 1 +- 3


def test_done_reward_of_recoil_is_q():
    model, obs, acts, next_obs, scaled = box_model_and_rows(ReCOIL)
    with th.no_grad():
        q = model.critic.q_values(th.as_tensor(obs), scaled).mean(dim=0).numpy()
    done = np.ones(6, bool)
    assert ImplicitRewardNet(model).predict(obs, acts, next_obs, done) == pytest.approx(q, abs=1e-4)
    # -200 is what ReCOIL expects after a termination
    plain = ImplicitRewardNet(model, absorbing_tail=False)
    assert plain.predict(obs, acts, next_obs, done) == pytest.approx(q + 198, abs=1e-3)


def test_done_reward_of_value_dice_is_minus_nu():
    model, obs, acts, next_obs, scaled = box_model_and_rows(ValueDICE)
    with th.no_grad():
        model.critic.absorbing.fill_(0.05)  # nu is 5 after a termination
        nu = model.critic.q_values(th.as_tensor(obs), scaled)[0].numpy()
    done = np.ones(6, bool)
    assert ImplicitRewardNet(model).predict(obs, acts, next_obs, done) == pytest.approx(-nu, abs=1e-4)
    plain = ImplicitRewardNet(model, absorbing_tail=False)
    assert plain.predict(obs, acts, next_obs, done) == pytest.approx(-nu + 0.99 * 5, abs=1e-4)


@pytest.mark.parametrize("tail", [True, False])
def test_saved_reward_net_is_the_same_and_no_longer_follows_the_model(tail, tmp_path):
    venv = VecNormalize(counting_venv(), norm_reward=False)
    trainer = trainer_of(venv)
    trainer.train(20)
    net = ImplicitRewardNet(trainer.gen_algo, absorbing_tail=tail)
    expected = net.predict(*rows())
    th.save(net, tmp_path / "reward.pt")
    loaded = th.load(tmp_path / "reward.pt", weights_only=False)
    assert loaded.absorbing_tail is tail
    assert np.array_equal(loaded.predict(*rows()), expected)  # with the statistics of VecNormalize
    trainer.train(40)
    assert np.array_equal(loaded.predict(*rows()), expected) and not np.array_equal(net.predict(*rows()), expected)


def test_reward_net_reads_dict_observations():
    trainer = trainer_of(DummyVecEnv([lambda: DictCounting(CountingEnv())]), dict_trajectories())
    obs, acts, next_obs, dones = rows()
    plain, next_plain = ({"episode": o[:, :1], "step": o[:, 1:]} for o in (obs, next_obs))
    reference = trainer.gen_algo.implicit_reward(plain, acts, next_plain, dones)
    net = ImplicitRewardNet(trainer.gen_algo, absorbing_tail=False)
    for first, second in ((plain, next_plain), (types.DictObs(plain), types.DictObs(next_plain))):
        assert net.predict(first, acts, second, dones) == pytest.approx(reference, abs=1e-6)


class Images(gym.Env):
    """Random images with channels last, in episodes of 4 steps."""

    observation_space = spaces.Box(0, 255, (36, 36, 3), np.uint8)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.observation_space.sample(), {}

    def step(self, action):
        self.t += 1
        return self.observation_space.sample(), 0.0, False, self.t == 4, {}


def test_reward_net_reads_images_with_channels_first_or_last():
    demonstrations = collect_demonstrations(lambda obs: 0, Images(), 1, seed=0)
    trainer = trainer_of(DummyVecEnv([Images]), demonstrations, model={"policy_kwargs": {}})
    obs, next_obs = np.random.default_rng(0).integers(256, size=(2, 3, 36, 36, 3), dtype=np.uint8)
    acts, dones = np.zeros(3, int), np.zeros(3, bool)
    first = [np.transpose(array, (0, 3, 1, 2)) for array in (obs, next_obs)]
    reference = trainer.gen_algo.implicit_reward(first[0], acts, first[1], dones)
    assert trainer.reward_train.predict(obs, acts, next_obs, dones) == pytest.approx(reference, abs=1e-6)
    assert trainer.reward_train.predict(first[0], acts, first[1], dones) == pytest.approx(reference, abs=1e-6)


def test_agent_that_learns_from_the_saved_reward_beats_random(tmp_path):
    """PPO never sees a true reward, and answers as the expert does far more often than random actions (half the time)."""
    source = collect_demonstrations(echo_expert(True), EchoEnv(True), 4, seed=0)
    settings = {"policy_kwargs": {"net_arch": [32]}, "batch_size": 64, "learning_starts": 100, "gamma": 0.5}
    learner = {**settings, "learning_rate": 3e-3, "seed": 0, "device": "cpu"}
    trainer = DualQDMTrainer(demonstrations=source, venv=DummyVecEnv([lambda: EchoEnv(True)]), rl_kwargs=learner)
    trainer.train(900)
    th.save(trainer.reward_test, tmp_path / "reward.pt")
    reward = th.load(tmp_path / "reward.pt", weights_only=False)

    venv = RewardVecEnvWrapper(DummyVecEnv([lambda: EchoEnv(True)] * 4), reward.predict_processed)
    agent = PPO("MlpPolicy", venv, n_steps=64, batch_size=64, learning_rate=3e-3, gamma=0.5, seed=0, device="cpu")
    obs = np.random.default_rng(1).uniform(-1, 1, (300, 2)).astype(np.float32)
    agent.learn(6000)
    assert np.mean(agent.predict(obs, deterministic=True)[0] == (obs[:, 0] > 0)) > 0.85


# ----------------------------------------------------------------------------------------------------------------------
# Registries, command line, examples
# ----------------------------------------------------------------------------------------------------------------------


def test_policies_load_from_imitations_registry(tmp_path):
    from imitation.policies.serialize import load_policy, save_stable_model

    trainer = trainer_of()
    trainer.train(20)
    save_stable_model(tmp_path / "model", trainer.gen_algo)
    policy = load_policy("dual_qdm", trainer.venv, path=str(tmp_path / "model"))
    assert all(th.equal(a, b) for a, b in zip(trainer.policy.state_dict().values(), policy.state_dict().values()))
    from imitation.policies.serialize import policy_registry

    assert {"dual_qdm", "iq_learn", "reg_iq_learn", "bc", "ppo"} <= set(policy_registry.keys())


SCRIPT = "imitation.scripts.train_adversarial"
FAST = ["cartpole", "environment.fast", "policy_evaluation.fast", "fast", "total_timesteps=40", "seed=0"]
MODEL = """rl.rl_kwargs={"buffer_size": 1000, "learning_starts": 4, "device": "cpu"}"""
MODELS = {"dual_qdm": DualQDM, "iq_learn": IQLearn}
COMMANDS = {
    "dual_qdm": ([f"from {SCRIPT} import main_console; main_console()"], []),
    "iq_learn": (["-m", SCRIPT], ["rl.iq_learn", 'policy.policy_cls="MlpPolicy"', "rl.batch_size=16"]),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("command", COMMANDS)
def test_command_line(command, tmp_path):
    """``imitation-train-adversarial dual_qdm with ...`` needs nothing but the task and the demonstrations."""
    pytest.importorskip("sacred")
    start, options = COMMANDS[command]
    start = start if start[0] == "-m" else ["-c", *start]
    serialize.save(tmp_path / "demos", demonstrations_for("CartPole-v1").to_imitation())
    where = ["demonstrations.source=local", f"demonstrations.path={tmp_path / 'demos'}", f"logging.log_dir={tmp_path / 'log'}"]
    line = [sys.executable, *start, command, "with", *FAST, *options, MODEL, *where]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    result = subprocess.run(line, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=250)
    assert result.returncode == 0, result.stderr[-3000:]
    final = tmp_path / "log" / "checkpoints" / "final"
    model = MODELS[command].load(final / "gen_policy" / "model.zip")
    assert model.num_timesteps == 40 and model._n_updates > 0
    assert th.load(final / "reward_test.pt", weights_only=False).predict(*cartpole_rows()).shape == (3,)


def cartpole_rows():
    return np.zeros((3, 4), np.float32), np.zeros(3, int), np.zeros((3, 4), np.float32), np.zeros(3, bool)


@pytest.mark.parametrize("name", ["imitation_gail.py", "imitation_sqil.py", "imitation_bc.py"])
def test_example_runs(name, tmp_path):
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(EXAMPLES / name), "100"]
    result = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=240)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip().splitlines()[-1].startswith("expert 500, untrained ")
