"""Saving and loading: zips hold no demonstrations, prediction needs none, continuing finds them again."""

import io
import json
import pickle
import warnings
import zipfile

import numpy as np
import pytest
import torch as th
from algorithm_helpers import SMALL, demonstrations_for
from stable_baselines3.common import utils
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

from sb3_dualqdm import BC, DualQDM, IQLearn, RegIQLearn

pytestmark = pytest.mark.both

ENVS = ["CartPole-v1", "Pendulum-v1"]
CLASSES = [DualQDM, IQLearn, RegIQLearn, BC]


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    """A demonstration file for each environment."""
    folder = tmp_path_factory.mktemp("demonstrations")
    result = {}
    for env_id in ENVS:
        result[env_id] = str(folder / f"{env_id}.npz")
        demonstrations_for(env_id).save(result[env_id])
    return result


def assert_same_state(first, second):
    for name, value in first.get_parameters().items():
        flat_first, flat_second = (
            th.utils._pytree.tree_leaves(value),
            th.utils._pytree.tree_leaves(second.get_parameters()[name]),
        )
        assert len(flat_first) == len(flat_second) > 0
        for a, b in zip(flat_first, flat_second):
            assert th.equal(a, b) if isinstance(a, th.Tensor) else a == b, name


@pytest.mark.parametrize("env_id", ENVS)
@pytest.mark.parametrize("cls", CLASSES)
def test_round_trip(cls, env_id, paths, tmp_path):
    options = {"ent_coef": "auto_0.1"} if cls is DualQDM else {}
    model = cls("MlpPolicy", env_id, demonstrations=paths[env_id], seed=0, **SMALL, **options)
    model.learn(30)
    model.save(tmp_path / "model")
    loaded = cls.load(tmp_path / "model")
    assert type(loaded.policy) is type(model.policy)
    assert_same_state(model, loaded)
    obs = np.stack([model.observation_space.sample() for _ in range(20)])
    np.testing.assert_array_equal(model.predict(obs, deterministic=True)[0], loaded.predict(obs, deterministic=True)[0])
    if options:
        assert loaded.log_ent_coef.item() == model.log_ent_coef.item() != np.log(0.1)
    if env_id == "CartPole-v1":
        assert loaded.policy.temperature == model.policy.temperature


@pytest.mark.parametrize("env_id", ENVS)
def test_seed_set_after_loading_decides_every_draw(env_id, paths, tmp_path):
    DualQDM("MlpPolicy", env_id, demonstrations=paths[env_id], **SMALL).save(tmp_path / "model")

    def learned(seed):
        model = DualQDM.load(tmp_path / "model", make_vec_env(env_id, 1))
        model.set_random_seed(seed)
        return th.cat([parameter.detach().flatten() for parameter in model.learn(40).policy.parameters()])

    assert th.equal(learned(0), learned(0))
    assert not th.equal(learned(0), learned(1))


def test_zip_holds_a_name_and_a_hash_but_no_data(paths, tmp_path):
    model = DualQDM("MlpPolicy", "CartPole-v1", demonstrations=paths["CartPole-v1"], **SMALL).learn(20)
    model.save(tmp_path / "by_path")
    model.set_demonstrations(demonstrations_for("CartPole-v1"))
    model.save(tmp_path / "by_object")
    stored = {}
    for name in ("by_path", "by_object"):
        with zipfile.ZipFile(tmp_path / f"{name}.zip") as archive:
            stored[name] = json.loads(archive.read("data"))
    assert stored["by_path"]["demonstrations"] == paths["CartPole-v1"]
    assert len(stored["by_path"]["demonstrations_sha256"]) == 64
    for data in stored.values():
        assert not {"demo_buffer", "_replay_buffer", "replay_buffer", "_rng", "_last_batch"} & set(data)
    assert "demonstrations" not in stored["by_object"]
    # 500 transitions of 4 float32 would be 8 kB at least: no attribute is that large
    assert all(len(json.dumps(value)) < 8000 for value in stored["by_object"].values())


def test_assigned_demonstrations_are_learned_from_and_saved(tmp_path):
    both = demonstrations_for("CartPole-v1", n_episodes=2)
    path = tmp_path / "second.npz"
    both.select([1]).save(path)
    model = DualQDM("MlpPolicy", "CartPole-v1", demonstrations=both, n_demonstrations=1, **SMALL)
    model.demonstrations = path
    np.testing.assert_array_equal(model.learn(10).demo_buffer.demonstrations.obs, both.select([1]).obs)
    model.save(tmp_path / "model")
    copied = pickle.loads(pickle.dumps(model)) if hasattr(utils, "FloatSchedule") else model
    loaded = DualQDM.load(tmp_path / "model", make_vec_env("CartPole-v1"))
    assert model.demonstrations == copied.demonstrations == loaded.demonstrations == str(path)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*have changed")
        loaded.learn(10)
    np.testing.assert_array_equal(loaded.demo_buffer.demonstrations.obs, both.select([1]).obs)
    with pytest.raises(ValueError, match=r"(?i)action|observation"):
        model.demonstrations = demonstrations_for("Pendulum-v1")
    assert model.demonstrations == str(path)


@pytest.mark.parametrize("env_id", ENVS)
def test_continue_after_loading(env_id, paths, tmp_path):
    model = DualQDM("MlpPolicy", env_id, demonstrations=paths[env_id], seed=0, **SMALL).learn(20)
    model.save(tmp_path / "model")
    model.save_replay_buffer(tmp_path / "replay")
    loaded = DualQDM.load(tmp_path / "model", env=make_vec_env(env_id))
    loaded.load_replay_buffer(tmp_path / "replay")
    assert loaded.replay_buffer.size() == 20 and len(loaded.replay_buffer.initial_states) >= 1
    loaded.learn(10, reset_num_timesteps=False)
    assert loaded.num_timesteps == 30 and loaded._n_updates == 12 + 10
    assert len(loaded.replay_buffer.initial_states) > len(model.replay_buffer.initial_states)


def test_demonstrations_gone_changed_or_replaced(paths, tmp_path):
    path = tmp_path / "demos.npz"
    demonstrations_for("CartPole-v1").save(path)
    DualQDM("MlpPolicy", "CartPole-v1", demonstrations=path, **SMALL).save(tmp_path / "model")

    demonstrations_for("CartPole-v1", n_episodes=2).save(path)
    changed = DualQDM.load(tmp_path / "model", env=make_vec_env("CartPole-v1"))
    with pytest.warns(UserWarning, match="have changed since the model was saved"):
        changed.learn(10)

    path.unlink()
    gone = DualQDM.load(tmp_path / "model", env=make_vec_env("CartPole-v1"))
    assert gone.predict(np.zeros(4, dtype=np.float32))[0] in (0, 1)
    with pytest.raises(Exception, match=r"demos\.npz"):
        gone.learn(10)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        replaced = DualQDM.load(
            tmp_path / "model", env=make_vec_env("CartPole-v1"), demonstrations=paths["CartPole-v1"], n_demonstrations=1
        )
    assert replaced.demo_buffer.demonstrations.n_episodes == 1
    replaced.learn(10)


def test_overriding_demonstrations_are_checked_when_loading(paths, tmp_path):
    DualQDM("MlpPolicy", "CartPole-v1", demonstrations=paths["CartPole-v1"], **SMALL).save(tmp_path / "model")
    with pytest.raises(ValueError, match=r"(?i)action|observation"):
        DualQDM.load(tmp_path / "model", env=make_vec_env("CartPole-v1"), demonstrations=paths["Pendulum-v1"])


@pytest.mark.parametrize("env_id", ENVS)
def test_without_demonstrations(env_id, tmp_path):
    DualQDM("MlpPolicy", env_id, **SMALL).save(tmp_path / "model")
    loaded = DualQDM.load(tmp_path / "model", env=make_vec_env(env_id))
    loaded.predict(loaded.observation_space.sample())
    with pytest.raises(ValueError, match="no demonstrations"):
        loaded.learn(10)


def test_replay_is_allocated_at_first_use():
    model = DualQDM("MlpPolicy", "CartPole-v1", buffer_size=10_000)
    assert model._replay_buffer is None
    assert model.replay_buffer.buffer_size == 10_000 and model._replay_buffer is model.replay_buffer


def test_parameters_and_buffers(paths):
    model = DualQDM("MlpPolicy", "Pendulum-v1", demonstrations=paths["Pendulum-v1"], **SMALL).learn(20)
    other = DualQDM("MlpPolicy", "Pendulum-v1", **SMALL)
    buffer = io.BytesIO()
    model.save(buffer)
    buffer.seek(0)
    other.set_parameters(model.get_parameters())
    assert_same_state(model, other)
    assert_same_state(model, DualQDM.load(buffer))


def test_classes_passed_directly_and_counterparts(paths, tmp_path):
    from sb3_dualqdm import policies

    model = DualQDM(policies.MlpPolicy, "CartPole-v1", **SMALL)
    assert type(model.policy) is policies.DiscreteMlpPolicy
    model = DualQDM(policies.DiscreteMlpPolicy, "Pendulum-v1", **SMALL)
    assert type(model.policy) is policies.MlpPolicy

    class Own(policies.SoftQPolicy):
        pass

    assert type(DualQDM(Own, "CartPole-v1", **SMALL).policy) is Own
    with pytest.raises(TypeError, match="Own cannot serve Box"):
        DualQDM(Own, "Pendulum-v1", **SMALL)


def test_vec_normalize_statistics_are_used_after_loading(paths, tmp_path):
    venv = VecNormalize(make_vec_env("Pendulum-v1"))
    model = DualQDM("MlpPolicy", venv, demonstrations=paths["Pendulum-v1"], **SMALL).learn(40)
    model.save(tmp_path / "model")
    venv.save(tmp_path / "vecnormalize.pkl")
    venv = VecNormalize.load(tmp_path / "vecnormalize.pkl", make_vec_env("Pendulum-v1"))
    loaded = DualQDM.load(tmp_path / "model", env=venv)
    loaded.learn(10, reset_num_timesteps=False)
    batch = loaded._sample_batch(8)
    raw = loaded.demo_buffer.stored.obs[:200].numpy()
    low, high = venv.normalize_obs(raw).min(0), venv.normalize_obs(raw).max(0)
    assert (batch.obs[8:].numpy() >= low - 1e-5).all() and (batch.obs[8:].numpy() <= high + 1e-5).all()
    assert abs(venv.obs_rms.mean).max() > 1e-3


@pytest.mark.parametrize(
    "rates",
    [{}, {"learning_rate": "lin_1e-3"}, {"actor_learning_rate": "lin_1e-3"}, {"actor_learning_rate": 1e-3}],
    ids=str,
)
def test_models_can_be_pickled(rates, paths):
    """As Stable-Baselines3's can, whatever their learning rates are."""
    if not hasattr(utils, "FloatSchedule"):
        pytest.skip("schedules of this Stable-Baselines3 cannot be pickled")
    model = DualQDM("MlpPolicy", "Pendulum-v1", demonstrations=paths["Pendulum-v1"], seed=0, **SMALL | rates)
    copied = pickle.loads(pickle.dumps(model))
    assert_same_state(model, copied)
    assert [copied.lr_schedule(x) for x in (1, 0.5)] == [model.lr_schedule(x) for x in (1, 0.5)]
    expected = 1e-3 * (0.5 if "lin_1e-3" in rates.values() else 1)
    given = copied.actor_lr_schedule if "actor_learning_rate" in rates else copied.lr_schedule
    assert not rates or given(0.5) == expected
    copied.learn(30)
