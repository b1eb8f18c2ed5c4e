"""Successors that are stored once behave as the array they stand for."""

import copy
import pickle
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_episodes import ends, flat, trajectory

from sb3_dualqdm import load_demonstrations
from sb3_dualqdm.demonstrations import successors
from sb3_dualqdm.demonstrations.successors import Successors

pytestmark = pytest.mark.both


def pair(lengths: list[int], shape: tuple[int, ...] = (2,)) -> tuple[Successors, np.ndarray]:
    """Successors of episodes that count up, and the same as an array, made one by one."""
    rows, following, final = [], [], []
    for episode, n in enumerate(lengths):
        rows += [np.full(shape, 100 * episode + t, dtype=np.int16) for t in range(n)]
        following += [np.full(shape, 100 * episode + t + 1, dtype=np.int16) for t in range(n)]
        final.append(following[-1])
    return Successors(np.array(rows), np.array(final), np.cumsum(lengths) - 1), np.array(following)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=5),
    st.sampled_from([(), (2,), (2, 3)]),
    st.data(),
)
def test_every_index_gives_what_the_array_gives(lengths, shape, data):
    made, array = pair(lengths, shape)
    n = len(array)
    rows = data.draw(
        st.one_of(
            st.integers(-n, n - 1),
            st.lists(st.integers(-n, n - 1), max_size=6),
            st.lists(st.integers(-n, n - 1), min_size=4, max_size=4).map(lambda at: np.array(at).reshape(2, 2)),
            st.lists(st.booleans(), min_size=n, max_size=n).map(np.array),
            st.slices(n),
            st.just(Ellipsis),
            st.just(None),
        )
    )
    if isinstance(rows, list):
        rows = np.array(rows, dtype=int)
    key = rows if not shape or data.draw(st.booleans()) or rows is Ellipsis or rows is None else (rows, Ellipsis, 0)
    expected, found = array[key], made[key]
    assert found.dtype == expected.dtype and found.shape == expected.shape and np.array_equal(found, expected)


def test_it_is_used_like_the_array():
    made, array = pair([3, 1, 4])
    assert np.array_equal(np.asarray(made), array) and np.asarray(made, dtype=float).dtype == float
    assert (made == array).all() and np.array_equal(made - 1, array - 1) and np.array_equal(np.square(made), array**2)
    assert made.mean() == array.mean() and made.tolist() == array.tolist() and made.max() == array.max()
    assert (made.shape, made.ndim, made.size, made.dtype, len(made)) == (array.shape, 2, 16, array.dtype, 8)
    assert isinstance(made.reshape(8, 2, 1), Successors) and np.array_equal(made.reshape((8, 1, 2)), array.reshape(8, 1, 2))
    assert np.array_equal(made.reshape(-1), array.reshape(-1)) and np.array_equal(made.reshape(4, 4), array.reshape(4, 4))
    assert np.array_equal(np.concatenate([made, array]), np.concatenate([array, array]))
    for again in (copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        assert np.array_equal(again, array)
    th = pytest.importorskip("torch")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # torch warns where it reads row by row
        assert th.as_tensor(made).dtype == th.int16 and np.array_equal(th.as_tensor(made).numpy(), array)
    with pytest.raises(ValueError, match="read-only"):
        made[0] = 5
    for wrong in (8, -9, [0, 8]):
        with pytest.raises(IndexError):
            made[wrong]


@pytest.mark.parametrize("block", [1, 1 << 20])
def test_only_true_repetitions_are_dropped(monkeypatch, block):
    monkeypatch.setattr(successors, "BLOCK_BYTES", block)
    arrays = flat([3, 2]) | {"terminated": ends([3, 2], [True, False]), "truncated": ends([3, 2], [False, True])}
    demos = load_demonstrations(arrays)
    assert isinstance(demos.next_obs, Successors) and demos.next_obs.final.tolist() == [[3, -3], [102, -102]]
    for row in (0, 1, 3):
        changed = arrays | {"next_obs": arrays["next_obs"].copy()}
        changed["next_obs"][row, 1] = np.nextafter(changed["next_obs"][row, 1], np.float32(0))
        kept = load_demonstrations(changed).next_obs
        assert isinstance(kept, np.ndarray) and np.array_equal(kept, changed["next_obs"])
    signed = {key: value * 0 for key, value in arrays.items() if "obs" in key}
    signed["next_obs"] = -np.abs(signed["next_obs"])  # -0.0 is not 0.0, bit for bit
    signed["obs"] = np.abs(signed["obs"])
    kept = load_demonstrations(arrays | signed).next_obs
    assert isinstance(kept, np.ndarray) and np.signbit(kept).all()


def test_selections_keep_them_and_subsampling_makes_arrays():
    demos = load_demonstrations([trajectory(i, 4) for i in range(4)])
    for some in (demos.select(2), demos.select([1, 2]), demos.select([3, 0])):
        assert isinstance(some.next_obs, Successors) and np.array_equal(some.next_obs, np.asarray(some.obs) + [1, -1])
    first = demos.select(1)
    assert not np.shares_memory(first.obs, demos.obs)  # else the whole set would stay in memory
    every = demos.subsample(3)
    assert isinstance(every.next_obs, np.ndarray) and every.next_obs[:, 0].tolist() == [1, 4, 101, 104, 201, 204, 301, 304]


def test_a_file_is_put_in_order_in_place_and_the_callers_arrays_are_not(tmp_path):
    chained = np.concatenate([trajectory(i, n).obs for i, n in enumerate([3, 1, 4])])
    arrays = {"obs": chained, "acts": flat([3, 1, 4])["acts"], "terminated": ends([3, 1, 4], [True] * 3)}
    np.savez(tmp_path / "d.npz", **arrays)
    before = chained.copy()
    for source in (arrays, tmp_path / "d.npz"):
        demos = load_demonstrations(source)
        assert demos.obs[:, 0].tolist() == [0, 1, 2, 100, 200, 201, 202, 203]
        assert demos.next_obs[:, 0].tolist() == [1, 2, 3, 101, 201, 202, 203, 204]
    assert np.array_equal(chained, before)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=5), st.sampled_from([(2,), (1, 2, 3)]), st.integers(0, 2**32 - 1))
def test_the_buffers_rows_are_those_of_the_array(lengths, shape, seed):
    th = pytest.importorskip("torch")
    from sb3_dualqdm.buffers import RawRows, _following

    made, array = pair(lengths, shape)
    obs = th.as_tensor(made.obs)
    rest = th.zeros(len(array))
    stored = RawRows(obs, rest, _following(made, obs, "cpu"), rest, rest)
    at = np.random.default_rng(seed).integers(len(array), size=(3, 7))
    assert np.array_equal(stored.take(at).next_obs.numpy(), array[at])
    assert np.array_equal(stored.take(np.arange(len(array))).next_obs.numpy(), array)
