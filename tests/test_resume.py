"""Killed and resumed equals uninterrupted under the same checkpoint schedule."""

import os
import pickle
import random
import signal
import subprocess
import sys
import time
import warnings

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from algorithm_helpers import SMALL, CountingEnv, demonstrations_for
from stable_baselines3 import SAC
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.noise import OrnsteinUhlenbeckActionNoise
from stable_baselines3.common.vec_env import SubprocVecEnv, VecNormalize

from sb3_dualqdm import BC, DualQDM, IQLearn
from sb3_dualqdm.buffers import ImitationReplayBuffer
from sb3_dualqdm.callbacks import ResumableCheckpoint

pytestmark = pytest.mark.both

ENVS = ["CartPole-v1", "Pendulum-v1"]


@pytest.fixture(scope="module")
def demos():
    return {env_id: demonstrations_for(env_id) for env_id in ENVS}


def make_env(env_id, n_envs=1, normalize=False, **kwargs):
    venv = make_vec_env(env_id, n_envs=n_envs, **kwargs)
    return VecNormalize(venv) if normalize else venv


class Killed(Exception):
    pass


class KillAt(BaseCallback):
    def __init__(self, step):
        super().__init__()
        self.step = step

    def _on_step(self):
        if self.num_timesteps >= self.step:
            raise Killed
        return True


def assert_same(first, second):
    leaves = [th.utils._pytree.tree_leaves([model.get_parameters(), model.log_ent_coef]) for model in (first, second)]
    assert len(leaves[0]) == len(leaves[1]) > 10
    for a, b in zip(*leaves):
        assert th.equal(a, b) if isinstance(a, th.Tensor) else a == b
    assert first.num_timesteps == second.num_timesteps and first._n_updates == second._n_updates
    venvs = [model.get_vec_normalize_env() for model in (first, second)]
    if venvs[0] is not None:
        np.testing.assert_array_equal(venvs[0].obs_rms.mean, venvs[1].obs_rms.mean)
        assert venvs[0].obs_rms.count == venvs[1].obs_rms.count


# What a run may depend on: (environment, copies, VecNormalize, arguments)
RUNS = {
    "discrete": ("CartPole-v1", 1, False, {"actor_learning_rate": None}),
    "box": ("Pendulum-v1", 1, False, {"ent_coef": "auto_0.1", "actor_learning_rate": "lin_1e-3"}),
    "normalised": ("CartPole-v1", 2, True, {"gradient_steps": -1, "value_mode": "initial", "objective": "paper"}),
    "normalised box": ("Pendulum-v1", 2, True, {"warmup": "uniform", "bc_warmup_steps": 3}),
    "episodes": ("CartPole-v1", 1, False, {"train_freq": (1, "episode"), "gradient_steps": 3}),
    "full buffer": ("Pendulum-v1", 1, False, {"buffer_size": 30}),
    "dropout": ("Pendulum-v1", 1, False, {}),
}


class Dropout(th.nn.Module):
    """An activation that draws from torch's global generator while learning."""

    def forward(self, x):
        return th.nn.functional.dropout(th.relu(x), 0.2, self.training)


@pytest.mark.parametrize("name", RUNS)
def test_resumed_equals_uninterrupted(name, demos, tmp_path):
    env_id, n_envs, normalize, options = RUNS[name]
    options = {**SMALL, "seed": 3, "learning_rate": lambda progress: 3e-4 * progress, **options}
    if name == "normalised box":
        options["action_noise"] = OrnsteinUhlenbeckActionNoise(np.zeros(1), np.full(1, 0.5))
    if name == "dropout":
        options["policy_kwargs"] = {"net_arch": [16], "activation_fn": Dropout}
    total = 120

    def run(folder, *callbacks):
        model = DualQDM("MlpPolicy", make_env(env_id, n_envs, normalize), demonstrations=demos[env_id], **options)
        model.learn(total, [*callbacks, ResumableCheckpoint(tmp_path / folder, 25)])
        return model

    whole = run("whole")
    with pytest.raises(Killed):
        run("killed", KillAt(90))
    # killed twice, and whatever the process did in between
    random.seed(0)
    np.random.seed(0)
    th.manual_seed(0)
    for kill_at in (110, None):
        venv = make_env(env_id, n_envs, normalize)
        resumed = DualQDM.resume(tmp_path / "killed", env=venv, demonstrations=demos[env_id])
        assert 75 <= resumed.num_timesteps < 110
        th.rand(1), np.random.rand(), resumed.predict(venv.observation_space.sample()[None])
        callbacks = [ResumableCheckpoint(tmp_path / "killed", 25)] + ([] if kill_at is None else [KillAt(kill_at)])
        try:
            resumed.learn(total, callbacks, reset_num_timesteps=False)
        except Killed:
            continue
    assert_same(whole, resumed)
    assert resumed.num_timesteps >= total and resumed.critic.optimizer.param_groups[0]["lr"] < 3e-4 * 0.1


@pytest.mark.parametrize("env_id", ENVS)
def test_the_same_call_again_goes_on_by_itself(env_id, demos, tmp_path):
    def run(name, *callbacks, save_freq=25):
        options = {**SMALL, "ent_coef": "auto_0.1", "learning_rate": lambda progress: 3e-4 * progress, "gradient_steps": -1}
        model = DualQDM("MlpPolicy", make_env(env_id, 2, True), demonstrations=demos[env_id], seed=3, **options)
        return model.learn(120, [*callbacks, ResumableCheckpoint(tmp_path / name, save_freq, resume=True)])

    whole = run("whole")
    for kill_at in (60, 110):
        with pytest.raises(Killed):
            run("killed", KillAt(kill_at))
    resumed = run("killed")
    assert_same(whole, resumed)
    assert resumed.critic.optimizer.param_groups[0]["lr"] < 3e-4 * 0.1
    finished = run("killed")  # the last checkpoint is of step 100
    assert_same(whole, finished)
    # once a run is complete, nothing is left to do
    done = run("done", save_freq=120)
    again = run("done", save_freq=120)
    assert again._n_updates == done._n_updates and again.num_timesteps == 120


def test_offline_call_again_goes_on_by_itself(demos, tmp_path):
    """Its checkpoint has no replay buffer: extra transitions are those of the call."""
    given = {"demonstrations": demos["Pendulum-v1"], "seed": 0, **SMALL}
    extra = {"offline": True, "extra_transitions": demos["Pendulum-v1"]}
    for cls, options in ((BC, {"validation_interval": 5}), (IQLearn, extra)):

        def run(name, *callbacks, cls=cls, options=options):
            path = tmp_path / f"{cls.__name__}_{name}"
            model = cls("MlpPolicy", "Pendulum-v1", **given, **options)
            return model.learn(60, [*callbacks, ResumableCheckpoint(path, 20, resume=True)])

        whole = run("whole")
        with pytest.raises(Killed):
            run("killed", KillAt(50))
        assert_same(whole, run("killed"))


def test_a_compiled_run_resumes(demos, tmp_path):
    def run(name, *callbacks):
        options = {**SMALL, "seed": 0, "acceleration": "compile"}
        model = DualQDM("MlpPolicy", "CartPole-v1", demonstrations=demos["CartPole-v1"], **options)
        return model.learn(60, [*callbacks, ResumableCheckpoint(tmp_path / name, 20, resume=True)])

    whole = run("whole")
    with pytest.raises(Killed):
        run("killed", KillAt(50))
    assert_same(whole, run("killed"))


def test_remaining_steps_may_be_counted_as_in_sb3(demos, tmp_path):
    checkpoint = ResumableCheckpoint(tmp_path / "run", 40)
    model = DualQDM("MlpPolicy", "CartPole-v1", demonstrations=demos["CartPole-v1"], seed=0, **SMALL).learn(100, checkpoint)
    same, remaining, other = (
        DualQDM.resume(tmp_path / "run", make_env("CartPole-v1"), demonstrations=demos["CartPole-v1"]) for _ in range(3)
    )
    assert same.num_timesteps == 80
    same.learn(100, reset_num_timesteps=False)
    remaining.learn(20, reset_num_timesteps=False)
    assert_same(model, same)
    assert_same(model, remaining)
    other.learn(30, reset_num_timesteps=False)
    assert other.num_timesteps == 110
    # only the first call completes the interrupted one
    same.learn(100, reset_num_timesteps=False)
    assert same.num_timesteps == 200


def test_offline_method_resumes_with_its_patience(demos, tmp_path):
    options = {**SMALL, "seed": 0, "validation_interval": 5, "early_stopping_patience": 40}

    def run(name, *callbacks):
        model = BC("MlpPolicy", "Pendulum-v1", demonstrations=demos["Pendulum-v1"], **options)
        return model.learn(60, [*callbacks, ResumableCheckpoint(tmp_path / name, 20)])

    whole = run("whole")
    with pytest.raises(Killed):
        run("killed", KillAt(50))
    resumed = BC.resume(tmp_path / "killed", make_env("Pendulum-v1"), demonstrations=demos["Pendulum-v1"])
    assert resumed.num_timesteps == 40
    resumed.learn(60, reset_num_timesteps=False)
    assert_same(whole, resumed)
    assert resumed._evaluations_since_best == whole._evaluations_since_best
    assert resumed._best_validation_loss == whole._best_validation_loss < np.inf


def test_unseeded_run_resumes_too(demos, tmp_path):
    options = {"demonstrations": demos["CartPole-v1"], **SMALL}
    whole = DualQDM("MlpPolicy", "CartPole-v1", **options).learn(50, ResumableCheckpoint(tmp_path / "run", 30))
    resumed = DualQDM.resume(tmp_path / "run", make_env("CartPole-v1"), demonstrations=demos["CartPole-v1"])
    assert_same(whole, resumed.learn(50, reset_num_timesteps=False))


@pytest.mark.skipif(os.name != "posix", reason="fork")
def test_workers_resume(demos, tmp_path):
    def env():
        # forked workers need not import anything
        return make_vec_env("CartPole-v1", 2, vec_env_cls=SubprocVecEnv, vec_env_kwargs={"start_method": "fork"})

    model = DualQDM("MlpPolicy", env(), demonstrations=demos["CartPole-v1"], seed=0, gradient_steps=-1, **SMALL)
    model.learn(60, ResumableCheckpoint(tmp_path / "run", 40))
    resumed = DualQDM.resume(tmp_path / "run", env(), demonstrations=demos["CartPole-v1"])
    assert_same(model, resumed.learn(60, reset_num_timesteps=False))
    model.env.close()
    resumed.env.close()


SCRIPT = """
import sys
from algorithm_helpers import SMALL
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize
from sb3_dualqdm import DualQDM
from sb3_dualqdm.callbacks import ResumableCheckpoint

env_id, demonstrations, path = sys.argv[1:]
model = DualQDM(
    "MlpPolicy", VecNormalize(make_vec_env(env_id)), demonstrations=demonstrations, seed=1, **{**SMALL, "buffer_size": 5000}
)
print("start", flush=True)
model.learn(100_000, ResumableCheckpoint(path, 20))
"""


@pytest.mark.skipif(os.name != "posix", reason="SIGKILL")
@pytest.mark.parametrize("env_id", ENVS)
def test_after_sigkill_at_a_random_moment(env_id, demos, tmp_path):
    demonstrations, path = str(tmp_path / "demos.npz"), tmp_path / "run.zip"
    demos[env_id].save(demonstrations)
    here = os.path.dirname(__file__)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([here, *sys.path]), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([sys.executable, "-c", SCRIPT, env_id, demonstrations, str(path)], env=environment)
    while not path.exists() and process.poll() is None:
        time.sleep(0.01)
    time.sleep(random.SystemRandom().uniform(0, 1))
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL

    threads = th.get_num_threads()
    th.set_num_threads(1)
    try:
        resumed = DualQDM.resume(path, env=make_env(env_id, normalize=True))
        done = resumed.num_timesteps
        assert done >= 20 and done % 20 == 0
        resumed.learn(45, ResumableCheckpoint(tmp_path / "resumed", 20), reset_num_timesteps=False)
        whole = DualQDM(
            "MlpPolicy",
            make_env(env_id, normalize=True),
            demonstrations=demonstrations,
            seed=1,
            **{**SMALL, "buffer_size": 5000},
        ).learn(done + 45, ResumableCheckpoint(tmp_path / "whole", 20))
    finally:
        th.set_num_threads(threads)
    assert_same(whole, resumed)


def test_a_run_that_dies_while_writing_leaves_the_previous_checkpoint(demos, tmp_path, monkeypatch):
    model = DualQDM("MlpPolicy", "CartPole-v1", demonstrations=demos["CartPole-v1"], seed=0, **SMALL)

    def die(*args):
        raise Killed

    class DieAtSecond(ResumableCheckpoint):
        def _plan(self):
            super()._plan()
            if self.num_timesteps >= 20:
                monkeypatch.setattr(os, "fsync", die)

    with pytest.raises(Killed):
        model.learn(100, DieAtSecond(tmp_path / "run", 20))
    assert model.num_timesteps == 40
    monkeypatch.undo()
    resumed = DualQDM.resume(tmp_path / "run", make_env("CartPole-v1"), demonstrations=demos["CartPole-v1"])
    assert resumed.num_timesteps == 20


def test_resumed_runs_keep_their_acceleration_on_the_same_kind_of_device(demos, tmp_path, monkeypatch):
    env_id = "Pendulum-v1"
    options = {**SMALL, "demonstrations": demos[env_id], "seed": 0}
    machine = {"acceleration": "none", "replay_device": "cpu:0"}

    def how(model):
        return {"acceleration": model.acceleration, "replay_device": model.replay_device}

    DualQDM("MlpPolicy", make_env(env_id), **options, **machine).learn(20, ResumableCheckpoint(tmp_path / "run", 10))

    def resumed(**given):
        return DualQDM.resume(tmp_path / "run", make_env(env_id), demonstrations=demos[env_id], device="cpu", **given)

    same = resumed()
    assert how(same) == machine and str(same.replay_buffer.storage_device) == "cpu:0"
    assert how(resumed(acceleration="compile")) == {**machine, "acceleration": "compile"}
    own = DualQDM("MlpPolicy", make_env(env_id), **options, acceleration="auto")
    own.learn(30, ResumableCheckpoint(tmp_path / "run", 10, resume=True))
    assert how(own) == {"acceleration": "auto", "replay_device": "cpu"} and own.num_timesteps == 30
    assert str(own.replay_buffer.storage_device) == "cpu"
    monkeypatch.setattr("sb3_dualqdm.resume.get_device", lambda device: th.device("cuda"))
    assert how(resumed()) == {"acceleration": "auto", "replay_device": "cpu"}


def test_checkpoint_is_a_model_and_costs_what_it_holds(demos, tmp_path):
    options = {**SMALL, "buffer_size": 1_000_000}
    model = DualQDM("MlpPolicy", "Pendulum-v1", demonstrations=demos["Pendulum-v1"], seed=0, **options)
    model.learn(20, ResumableCheckpoint(tmp_path / "run", 20))
    # a capacity of 1e6 rows is about 40 MB
    assert (tmp_path / "run.zip").stat().st_size < 200_000
    assert [file.name for file in tmp_path.iterdir()] == ["run.zip"]
    loaded = DualQDM.load(tmp_path / "run")
    obs = np.ones((5, 3), dtype=np.float32)
    np.testing.assert_array_equal(loaded.predict(obs, deterministic=True)[0], model.predict(obs, deterministic=True)[0])


def test_resume_refusals(demos, tmp_path):
    options = {"demonstrations": demos["CartPole-v1"]}
    model = DualQDM("MlpPolicy", make_env("CartPole-v1", normalize=True), seed=0, **options, **SMALL)
    model.learn(20, ResumableCheckpoint(tmp_path / "run", 10))
    model.save(tmp_path / "plain")
    with pytest.raises(ValueError, match="a saved model alone"):
        DualQDM.resume(tmp_path / "plain", make_env("CartPole-v1"))
    with pytest.raises(ValueError, match="env has no VecNormalize"):
        DualQDM.resume(tmp_path / "run", make_env("CartPole-v1"), **options)
    with pytest.raises(ValueError, match=r"2 copies but the run saved in .* has 1"):
        DualQDM.resume(tmp_path / "run", make_env("CartPole-v1", 2, normalize=True), **options)
    with pytest.raises(ValueError, match="save_freq is 0"):
        ResumableCheckpoint(tmp_path / "run", 0)
    with pytest.raises(TypeError, match="cannot save SAC"):
        SAC("MlpPolicy", "Pendulum-v1").learn(1, ResumableCheckpoint(tmp_path / "sac", 10))


def test_other_runs_do_not_go_on_from_a_checkpoint(demos, tmp_path):
    path, given = tmp_path / "run.zip", {"demonstrations": demos["CartPole-v1"], "seed": 0, **SMALL}
    options = {"bellman_bounds": (-1, 1), "learning_rate": "lin_1e-3", "train_freq": (1, "step"), "n_demonstrations": [0]}
    options["policy_kwargs"] = {"net_arch": [16], "activation_fn": th.nn.Tanh}

    def run(cls=DualQDM, steps=30, **changes):
        model = cls("MlpPolicy", "CartPole-v1", **{**given, **(options if cls is DualQDM else {}), **changes})
        return model.learn(steps, ResumableCheckpoint(path, 10, resume=True))

    run(steps=20)
    with pytest.raises(ValueError, match="is a checkpoint of DualQDM but IQLearn is to go on from it"):
        run(IQLearn)
    with pytest.raises(ValueError, match="is a checkpoint of DualQDM but IQLearn"):
        IQLearn.resume(path, make_env("CartPole-v1"), demonstrations=demos["CartPole-v1"])
    for changes, message in (
        ({"gamma": 0.5}, "has gamma=0.99 but the model that would go on from it has gamma=0.5"),
        ({"bellman_bounds": (0, 1)}, r"bellman_bounds=\[-1, 1\] but .* bellman_bounds=\[0, 1\]"),
        ({"policy_kwargs": {"net_arch": [8], "activation_fn": th.nn.Tanh}}, r'policy_kwargs=.*"net_arch": \[16\]'),
        ({"policy_kwargs": {"net_arch": [16], "activation_fn": th.nn.ReLU}}, '"activation_fn": "Tanh"'),
        ({"learning_rate": "lin_2e-3"}, r"has learning_rate=\[0.001, .* has learning_rate=\[0.002, "),
        ({"learning_rate": 1e-3}, r"has learning_rate=\[0.001, .* has learning_rate=0.001:"),
        ({"train_freq": (4, "step")}, r'has train_freq=\[1, "step"\] but .* train_freq=\[4, "step"\]'),
    ):
        with pytest.raises(ValueError, match=message):
            run(**changes)
    assert run(verbose=0).num_timesteps == 30  # what does not matter
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ValueError, match=r"run.zip is no zip file, or is cut off"):
        run()


@pytest.mark.parametrize("cls", [DualQDM, BC])  # the seed of BC decides which rows are held out
def test_a_run_goes_on_with_its_own_seed(cls, demos, tmp_path):
    """The same command may come with another seed, as rl-zoo3 draws one; then two seeds have one path, which is said."""
    path, given = tmp_path / "run.zip", {"demonstrations": demos["CartPole-v1"], **SMALL}

    def run(seed, steps):
        model = cls("MlpPolicy", "CartPole-v1", seed=seed, **given)
        return model.learn(steps, ResumableCheckpoint(path, 10, resume=True))

    whole = run(0, 40)
    path.unlink()
    run(0, 20)
    with pytest.warns(
        UserWarning, match="has the seed 0 and goes on with it, although the model was given 1: .* path"
    ) as found:
        other = run(1, 30)
    assert len([warning for warning in found if "the seed" in str(warning.message)]) == 1
    assert other.seed == 0 and other.num_timesteps == 30
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*the seed")
        same = run(None, 40)
    assert same.seed == 0 and same.num_timesteps == 40
    assert_same(same, whole)


def test_episodes_end_at_checkpoints_by_the_same_resets(demos, tmp_path):
    class Env(CountingEnv):
        seeds = []

        def reset(self, *, seed=None, options=None):
            self.seeds.append(seed)
            return super().reset(seed=seed)

    def run():
        Env.seeds.clear()
        model = IQLearn("MlpPolicy", Env(length=100), seed=5, **{**SMALL, "learning_starts": 10})
        model.set_demonstrations(counting_demos())
        model.learn(70, ResumableCheckpoint(tmp_path / "run", 30))
        return model, list(Env.seeds)

    model, seeds = run()
    # seeded once at construction and at each checkpoint; no episode of 100 steps ended
    assert len(seeds) == 3 and None not in seeds and len(set(seeds)) == 3
    assert run()[1] == seeds
    buffer = model.replay_buffer
    assert list(buffer.steps[:70, 0]) == [*range(30), *range(30), *range(10)]
    assert not buffer.dones[:70].any()
    np.testing.assert_array_equal(buffer.initial_states.states[:3, 1], [0, 0, 0])


def counting_demos():
    from sb3_dualqdm import collect_demonstrations

    return collect_demonstrations(lambda obs: 1, CountingEnv(length=5), 1, seed=0)


@pytest.mark.parametrize("n_rows", [0, 7, 45])
def test_pickled_buffer_is_compact_and_equal(n_rows):
    space = gym.spaces.Box(-1, 1, (2,), dtype=np.float32)
    buffer = ImitationReplayBuffer(40, space, gym.spaces.Discrete(2), n_envs=1)
    for index in range(n_rows):
        obs = np.full((1, 2), index, dtype=np.float32)
        buffer.start_episodes(obs)
        buffer.add(obs, obs, np.array([index % 2]), np.zeros(1), np.array([False]), [{}])
    copy = pickle.loads(pickle.dumps(buffer))
    assert copy.pos == buffer.pos and copy.full == buffer.full
    for name in ("observations", "next_observations", "actions", "rewards", "dones", "timeouts", "steps"):
        np.testing.assert_array_equal(getattr(copy, name), getattr(buffer, name))
    np.testing.assert_array_equal(copy.initial_states.states, buffer.initial_states.states)
    obs = np.full((1, 2), -1, dtype=np.float32)
    copy.add(obs, obs, np.array([0]), np.zeros(1), np.array([False]), [{}])


def test_loading_to_predict_leaves_global_generators_alone(demos, tmp_path):
    DualQDM("MlpPolicy", "Pendulum-v1", seed=0, **SMALL).save(tmp_path / "model")

    def draws(load):
        random.seed(1)
        np.random.seed(1)
        th.manual_seed(1)
        if load:
            DualQDM.load(tmp_path / "model")
        return random.random(), np.random.rand(), th.rand(1).item()

    assert draws(load=True) == draws(load=False)
