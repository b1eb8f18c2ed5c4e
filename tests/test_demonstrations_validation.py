"""Checks against the spaces and the one cast: each sentence, each dtype."""

import inspect

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from small_episodes import trajectory

from sb3_dualqdm import load_demonstrations
from sb3_dualqdm.demonstrations.validation import _warn_outside

pytestmark = pytest.mark.both
OBS2 = Box(-np.inf, np.inf, (2,), np.float32)
ACT1 = Box(-1.0, 1.0, (1,), np.float32)


def load(obs=None, acts=None, observation_space=None, action_space=None, **options):
    """Load one episode of 3 steps with the given arrays."""
    obs, acts = (np.zeros(shape) if array is None else array for array, shape in ((obs, (4, 2)), (acts, (3, 1))))
    item = {"obs": obs, "acts": acts, "terminal": True}
    return load_demonstrations(item, observation_space=observation_space, action_space=action_space, **options)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, np.int64])
@pytest.mark.parametrize("space_dtype", [np.float32, np.float64])
def test_floats_become_float32(dtype, space_dtype):
    demos = load(
        np.arange(8).reshape(4, 2).astype(dtype),
        np.array([[0], [1], [-1]], dtype=dtype),
        Box(-np.inf, np.inf, (2,), space_dtype),
        Box(-1, 1, (1,), space_dtype),
    )
    assert demos.obs.dtype == demos.next_obs.dtype == demos.actions.dtype == np.float32
    assert demos.next_obs.tolist() == [[2, 3], [4, 5], [6, 7]] and demos.actions[:, 0].tolist() == [0, 1, -1]


def test_without_spaces_dtypes_stay():
    demos = load(np.zeros((4, 2), dtype=np.float64), np.zeros(3, dtype=np.int16))
    assert demos.obs.dtype == np.float64 and demos.actions.dtype == np.int16


@pytest.mark.parametrize("stored", [np.uint8, np.int64, np.float32])
def test_integers_keep_the_dtype_of_the_space(stored):
    obs = np.array([[0, 255], [1, 2], [3, 4], [5, 6]], dtype=stored)
    demos = load(obs, observation_space=Box(0, 255, (2,), np.uint8))
    assert demos.obs.dtype == np.uint8 and demos.obs[0].tolist() == [0, 255]


@pytest.mark.parametrize("bad", [0.5, -1.0, 256.0, np.nan])
def test_scaled_images_are_refused(bad):
    with pytest.raises(ValueError, match=r"obs has values .* that are not uint8 numbers.*store the values unscaled"):
        load(np.array([[0.0, bad]] * 4), observation_space=Box(0, 255, (2,), np.uint8))


@pytest.mark.parametrize("acts", [np.array([0, 2, 1]), np.array([[0], [2], [1]], dtype=np.int8), np.array([0.0, 2.0, 1.0])])
def test_discrete_actions_are_int64(acts):
    demos = load(acts=acts, action_space=Discrete(3))
    assert demos.actions.dtype == np.int64 and demos.actions.tolist() == [0, 2, 1]


@pytest.mark.parametrize(
    ("acts", "message"),
    [
        (np.array([0, 1, 3]), r"actions has 1 values out of range \(such as 3\) but the space is Discrete\(3\), 0 to 2"),
        (np.array([-1, 0, 1]), "out of range"),
        (np.array([0.0, 0.5, 1.0]), r"1 values that are not integers \(such as 0.5\)"),
        (np.array([0.0, np.nan, 1.0]), "not integers"),
        (np.eye(3) / 2, r"shape \(3,\) per step but the space is Discrete\(3\): pass integers, or one-hot rows"),
        (np.ones((3, 3)), "pass integers, or one-hot rows"),
    ],
)
def test_wrong_discrete_actions(acts, message):
    with pytest.raises(ValueError, match=message):
        load(acts=acts, action_space=Discrete(3))


def test_discrete_with_a_start():
    assert load(acts=np.array([5, 6, 7]), action_space=Discrete(3, start=5)).actions.tolist() == [5, 6, 7]
    with pytest.raises(ValueError, match="5 to 7"):
        load(acts=np.array([0, 1, 2]), action_space=Discrete(3, start=5))


def test_discrete_and_multi_observations():
    demos = load(np.array([[0.0], [4.0], [2.0], [1.0]]), observation_space=Discrete(5))
    assert demos.obs.tolist() == [0, 4, 2] and demos.next_obs.tolist() == [4, 2, 1]
    with pytest.raises(ValueError, match=r"next_obs has 1 values out of range"):
        load(np.array([0, 1, 2, 9]), observation_space=Discrete(5))
    multi = load(np.array([[0, 1]] * 4, dtype=np.uint8), observation_space=MultiDiscrete([2, 3]))
    assert multi.obs.dtype == MultiDiscrete([2, 3]).dtype and multi.obs.shape == (3, 2)
    assert load(np.array([[0, 1]] * 4), observation_space=MultiBinary(2)).obs.dtype == np.int8


@pytest.mark.parametrize("in_dict", [False, True])
@pytest.mark.parametrize(("row", "name"), [(1, "obs"), (3, "next_obs")])
@pytest.mark.parametrize(
    ("space", "value"),
    [(MultiDiscrete([2, 3]), 2), (MultiDiscrete([2, 3]), -1), (MultiBinary(2), 5), (MultiDiscrete([[2, 3], [2, 3]]), 4)],
)
def test_multi_observations_out_of_range(space, value, row, name, in_dict):
    obs = np.zeros((4, *space.shape), dtype=np.int64)
    obs[row].flat[0] = value
    with pytest.raises(ValueError, match=rf"{name}.* has 1 values out of range \(such as {value}\) but the space is Multi"):
        load({"n": obs} if in_dict else obs, observation_space=Dict({"n": space}) if in_dict else space)


@pytest.mark.skipif("start" not in inspect.signature(MultiDiscrete).parameters, reason="this gymnasium has no start")
def test_multi_discrete_with_a_start():
    space = MultiDiscrete([2, 3], start=[5, -1])
    assert load(np.array([[5, -1], [6, 1]] * 2), observation_space=space).obs.tolist() == [[5, -1], [6, 1], [5, -1]]
    with pytest.raises(ValueError, match=r"next_obs has 1 values out of range \(such as 2\)"):
        load(np.array([[5, -1], [6, 1], [5, 0], [6, 2]]), observation_space=space)


@pytest.mark.parametrize("where", ["obs", "acts"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("spaces", [{}, {"observation_space": OBS2, "action_space": ACT1, "clip_actions": True}])
def test_nan_and_inf(where, bad, spaces):
    items = [trajectory(0, 3), trajectory(1, 4)]
    getattr(items[1], where)[2, 0] = bad
    name = "obs" if where == "obs" else "actions"
    with pytest.raises(ValueError, match=rf"{name} has NaN or infinite values in 1 of 7 rows, first in episode 1 at step 2"):
        load_demonstrations(items, **spaces)


def test_nan_in_the_terminal_observation_only():
    item = trajectory(0, 3)
    item.obs[3, 0] = np.nan
    with pytest.raises(ValueError, match=r"next_obs has NaN or infinite values in 1 of 3 rows, first in episode 0 at step 2"):
        load_demonstrations([item])


def test_values_beyond_float32():
    with pytest.raises(ValueError, match="obs has NaN or infinite values"):
        load(np.full((4, 2), 1e300), observation_space=OBS2)


def test_shapes():
    with pytest.raises(ValueError, match=r"obs has the shape \(2,\) per step but the observation space has \(3,\): record"):
        load(observation_space=Box(-1, 1, (3,)))
    with pytest.raises(ValueError, match=r"actions has the shape \(1,\) per step but the action space has \(2,\)"):
        load(action_space=Box(-1, 1, (2,)))
    demos = load(np.zeros(4), np.zeros(3), Box(-1, 1, (1,)), ACT1)
    assert demos.obs.shape == demos.actions.shape == (3, 1)


@pytest.mark.parametrize(("found", "expected"), [(111, 27), (111, 105), (27, 105), (105, 27), (27, 111)])
def test_ant_versions_are_named(found, expected):
    message = (
        rf"obs has the shape \({found},\) per step but the observation space has \({expected},\): 111 values are Ant-v2 "
        r"and v3, 27 values are Ant-v4 .*, 105 values are Ant-v5, so use demonstrations of the environment's own version"
    )
    with pytest.raises(ValueError, match=message):
        load(np.zeros((4, found)), observation_space=Box(-1, 1, (expected,)))


def test_actions_outside_the_box():
    space = Box(np.array([-2.0, 0.0], dtype=np.float32), np.array([2.0, 10.0], dtype=np.float32))
    rounding = np.array([[2.0 + 3e-5, 10.0 + 9e-5], [-2.0 - 3e-5, -9e-5], [1.5, 5.0]])
    assert load(acts=rounding, action_space=space).actions.tolist() == [[2, 10], [-2, 0], [1.5, 5]]
    outside = np.array([[2.1, 5.0], [0.0, 5.0], [0.0, 10.5]])
    with pytest.raises(ValueError, match=r"outside the action space .* in 2 of 3 rows, by up to 0.5: .*clip_actions=True"):
        load(acts=outside, action_space=space)
    clipped = load(acts=outside, action_space=space, clip_actions=True)
    assert clipped.actions.tolist() == [[2, 5], [0, 5], [0, 10]]
    # the second dimension's range is 10, so that 2e-4 there is more than rounding
    with pytest.raises(ValueError, match="in 1 of 3 rows"):
        load(acts=np.array([[0, 10 + 2e-4], [0, 0], [0, 0]]), action_space=space)


@pytest.mark.parametrize("dtype", [np.int64, np.uint8, np.float16, np.float32])
def test_actions_of_every_type_are_clipped_to_the_bounds(dtype):
    acts = np.array([[1], [0], [2]], dtype=dtype)
    demos = load(acts=acts, action_space=Box(-0.4, 0.4, (1,)), clip_actions=True)
    assert np.array_equal(demos.actions, np.float32([[0.4], [0], [0.4]]))
    demos = load(acts=acts, action_space=Box(0, 1, (1,), np.int64), clip_actions=True)
    assert demos.actions.dtype == np.int64 and demos.actions.tolist() == [[1], [0], [1]]


def test_unbounded_box_suggests_bounds():
    space = Box(-np.inf, np.inf, (1,), np.float32)
    with pytest.raises(ValueError, match=r"is unbounded but a finite box is needed.*percentiles .*\[0.02\] and \[1.98\]"):
        load(acts=np.array([[0.0], [1.0], [2.0]]), action_space=space)


@pytest.mark.parametrize("space", [MultiDiscrete([2, 2]), MultiBinary(2), Tuple((Discrete(2),))])
def test_other_action_spaces(space):
    with pytest.raises(ValueError, match="only Box and Discrete do"):
        load(acts=np.zeros((3, 2)), action_space=space)


def test_other_observation_spaces():
    with pytest.raises(ValueError, match="cannot be read for the observation space Tuple"):
        load(observation_space=Tuple((OBS2,)))


def test_dict_spaces():
    space = Dict({"x": OBS2, "n": Discrete(3)})
    obs = {"n": np.array([0, 1, 2, 0]), "x": np.arange(8.0).reshape(4, 2)}
    demos = load(obs, observation_space=space)
    assert list(demos.obs) == list(space.spaces)
    assert demos.obs["x"].dtype == np.float32 and demos.obs["n"].tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match=r"obs has the keys \['n', 'y'\] but the observation space \['n', 'x'\]"):
        load({"n": obs["n"], "y": obs["x"]}, observation_space=space)
    with pytest.raises(ValueError, match=r"is one array but the observation space is a Dict with the keys \['n', 'x'\]"):
        load(observation_space=space)
    with pytest.raises(ValueError, match=r"is a dict with the keys \['n', 'x'\] but the observation space is Box"):
        load(obs, observation_space=OBS2)
    with pytest.raises(ValueError, match=r"obs 'x' has the shape \(3,\)"):
        load(obs | {"x": np.zeros((4, 3))}, observation_space=space)


@pytest.mark.parametrize("in_dict", [False, True])
@pytest.mark.parametrize("stored", [np.uint8, np.int64])
def test_images_are_transposed_as_sb3_does(in_dict, stored):
    from stable_baselines3.common.vec_env import VecTransposeImage

    image = np.random.default_rng(0).integers(0, 256, (4, 5, 6, 3)).astype(stored)
    first, last = Box(0, 255, (3, 5, 6), np.uint8), Box(0, 255, (5, 6, 3), np.uint8)

    def fit(obs, space):
        if in_dict:
            return load({"image": obs}, observation_space=Dict({"image": space})).obs["image"]
        return load(obs, observation_space=space).obs

    as_first, as_last = fit(image, first), fit(image, last)
    assert np.array_equal(as_last, image[:3]) and as_first.dtype == as_last.dtype == np.uint8
    assert np.array_equal(as_first, VecTransposeImage.transpose_image(image[:3]))
    assert np.array_equal(fit(np.transpose(image, (0, 3, 1, 2)), last), image[:3])
    with pytest.raises(ValueError, match=r"shape \(5, 6, 3\) per step but the observation space has \(3, 6, 5\)"):
        fit(image, Box(0, 255, (3, 6, 5), np.uint8))


def test_three_dimensional_floats_are_not_images():
    with pytest.raises(ValueError, match=r"shape \(5, 6, 3\) per step"):
        load(np.zeros((4, 5, 6, 3)), observation_space=Box(-1, 1, (3, 5, 6)))


def test_casts_are_noted_once():
    item = trajectory(0, 3)
    item.obs, item.acts = item.obs.astype(np.float64), item.acts.astype(np.float64)
    demos = load_demonstrations(item, observation_space=OBS2, action_space=ACT1)
    assert demos.notes == ("obs cast from float64 to float32", "actions cast from float64 to float32")
    assert demos.summary().endswith("obs cast from float64 to float32, actions cast from float64 to float32")
    assert demos.validate(OBS2, ACT1).notes == demos.notes
    assert load_demonstrations(trajectory(0, 3), observation_space=OBS2, action_space=ACT1).notes == ()


def test_notes_and_seeds_are_saved(tmp_path):
    item = trajectory(0, 3)
    item.obs = item.obs.astype(np.float64)
    demos = load_demonstrations(item, observation_space=OBS2)._replace(seeds=np.array([7]))
    again = load_demonstrations(demos.save(tmp_path / "d.npz"))
    assert again.notes == ("obs cast from float64 to float32",) and again.seeds.tolist() == [7]


@pytest.mark.parametrize("dtype", [np.float32, np.int8, bool])
def test_one_hot_actions(dtype):
    demos = load(acts=np.eye(3, dtype=dtype)[[0, 2, 1]], action_space=Discrete(3, start=5))
    assert demos.actions.tolist() == [5, 7, 6] and demos.actions.dtype == np.int64
    assert "actions one-hot, read as the index of the 1" in demos.notes


def test_observations_in_other_units_are_reported():
    pixels = np.arange(4 * 12, dtype=np.uint8).reshape(4, 2, 2, 3)
    unit = Box(0, 1, (2, 2, 3), np.float32)
    with pytest.warns(UserWarning, match=r"obs has 34 values outside the observation space Box\(0.0, 1.0"):
        demos = load_demonstrations({"obs": pixels, "acts": np.zeros(3), "terminal": True}, observation_space=unit)
    assert demos.obs.dtype == np.float32


@pytest.mark.parametrize("in_dict", [False, True])
@pytest.mark.parametrize("dtype", [np.int64, np.uint8, np.float32])
@pytest.mark.parametrize(("row", "name"), [(1, "obs"), (3, "next_obs")])
def test_observations_out_of_bounds_are_reported(row, name, dtype, in_dict):
    obs = np.array([[0, 10], [1, 9], [2, 8], [3, 7]])
    obs[row, 0] = 11
    space = Box(0, 10, (2,), dtype)
    with pytest.warns(UserWarning) as caught:
        load({"x": obs} if in_dict else obs, observation_space=Dict({"x": space}) if in_dict else space)
    (text,) = (str(warning.message) for warning in caught)
    assert text.startswith(f"dict: {name}") and "has 1 values outside the observation space Box(0" in text


def test_shuffled_successors_out_of_bounds_are_reported():
    arrays = {"obs": np.array([[1], [5]]), "next_obs": np.array([[11], [6]]), "acts": np.zeros(2), "dones": np.ones(2)}
    with pytest.warns(UserWarning, match="next_obs has 1 values outside"):
        load_demonstrations(arrays, observation_space=Box(0, 10, (1,), np.int32))


@pytest.mark.parametrize(("low", "high", "dtype"), [(0, 255, np.uint8), (-128, 127, np.int8), (-np.inf, np.inf, np.float32)])
def test_values_that_cannot_be_out_of_bounds_are_not_looked_at(monkeypatch, low, high, dtype):
    monkeypatch.setattr("sb3_dualqdm.demonstrations.validation.blocks", None)
    _warn_outside(np.zeros((4, 2), dtype), Box(low, high, (2,), dtype), "obs")


def test_matching_data_is_not_copied():
    demos = load_demonstrations(trajectory(0, 3))
    again = demos.validate(OBS2, ACT1)
    assert np.shares_memory(again.obs, demos.obs) and np.shares_memory(again.next_obs.final, demos.next_obs.final)
    assert np.shares_memory(again.next_obs.obs, demos.obs) and np.shares_memory(again.actions, demos.actions)


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_built_in_sets_fit_their_environment(env_id):
    env = gym.make(env_id)
    demos = load_demonstrations(f"builtin:{env_id}", observation_space=env.observation_space, action_space=env.action_space)
    assert demos.obs.dtype == np.float32 and env.observation_space.contains(demos.obs[0])
    wrong = gym.make("Pendulum-v1" if env_id == "CartPole-v1" else "CartPole-v1")
    with pytest.raises(ValueError, match=rf"builtin:{env_id}: obs has the shape"):
        load_demonstrations(f"builtin:{env_id}", observation_space=wrong.observation_space)
