"""
Random demonstration sets, right ones and broken ones: the result is right, or one sentence says what is wrong.

``make fuzz`` runs it with 10,000 examples each; FUZZ_EXAMPLES sets the number.
"""

import io
import os
import pickle
import warnings
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sb3_dualqdm import Demonstrations, load_demonstrations
from sb3_dualqdm.demonstrations.readers.pickles import read_pickle
from sb3_dualqdm.demonstrations.validation import ROUNDING

pytestmark = [pytest.mark.both, pytest.mark.filterwarnings("ignore::UserWarning")]
EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "50"))
fuzz = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
if EXAMPLES > 1000:
    pytestmark.append(pytest.mark.timeout(0))

OBS_SPACES = {
    "vector": spaces.Box(-10, 10, (3,), np.float32),
    "float64": spaces.Box(-np.inf, np.inf, (2,), np.float64),
    "number": spaces.Box(-10, 10, (1,), np.float32),
    "image": spaces.Box(0, 255, (2, 3, 1), np.uint8),
    "discrete": spaces.Discrete(5),
    "shifted": spaces.Discrete(3, start=-1),
    "bits": spaces.MultiBinary(4),
    "several": spaces.MultiDiscrete([2, 3]),
    "dict": spaces.Dict({"x": spaces.Box(-10, 10, (2,), np.float32), "n": spaces.Discrete(4)}),
}
ACTION_SPACES = {
    "box": spaces.Box(-1, 1, (2,), np.float32),
    "asymmetric": spaces.Box(np.array([-3, 0], dtype=np.float32), np.array([1, 10], dtype=np.float32)),
    "one": spaces.Box(-2, 2, (1,), np.float32),
    "float64": spaces.Box(-1, 1, (2,), np.float64),
    "discrete": spaces.Discrete(4),
    "shifted": spaces.Discrete(3, start=2),
}
LAYOUTS = ("dicts", "flat", "flat without next_obs", "nested", "npz", "pickle", "npy", "own", "h5", "table")


def values(rng: np.random.Generator, space: spaces.Space, n: int) -> Any:
    """Values as an environment with this space returns them."""
    if isinstance(space, spaces.Dict):
        return {key: values(rng, part, n) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Discrete):
        return rng.integers(space.n, size=n) + space.start
    if isinstance(space, spaces.MultiBinary):
        return rng.integers(2, size=(n, *space.shape)).astype(np.int8)
    if isinstance(space, spaces.MultiDiscrete):
        return rng.integers(space.nvec, size=(n, *space.shape))
    if space.dtype == np.uint8:
        return rng.integers(256, size=(n, *space.shape), dtype=np.uint8)
    low, high = np.maximum(space.low, -10), np.minimum(space.high, 10)
    return rng.uniform(low, high, size=(n, *space.shape)).astype(space.dtype)


def each(function: Any, obs: Any) -> Any:
    return {key: function(value) for key, value in obs.items()} if isinstance(obs, dict) else function(obs)


class Set:
    """Episodes, and what must be read from them."""

    def __init__(self, draw: Any):
        self.rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
        self.obs_space = OBS_SPACES[draw(st.sampled_from(sorted(OBS_SPACES)))]
        self.action_space = ACTION_SPACES[draw(st.sampled_from(sorted(ACTION_SPACES)))]
        self.lengths = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
        self.ends = [draw(st.sampled_from([(True, False), (False, True), (True, True)])) for _ in self.lengths]
        self.obs = [values(self.rng, self.obs_space, n + 1) for n in self.lengths]
        self.acts = [values(self.rng, self.action_space, n) for n in self.lengths]
        self.rews = [self.rng.normal(size=n).astype(np.float32) for n in self.lengths] if draw(st.booleans()) else None

    def flat(self, next_obs: bool = True) -> dict[str, Any]:
        """One array under each name."""

        def joined(parts: list) -> Any:
            if isinstance(parts[0], dict):
                return {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
            return np.concatenate(parts)

        last = np.cumsum(self.lengths) - 1
        flags = np.zeros((sum(self.lengths), 2), dtype=bool)
        flags[last] = self.ends
        arrays = {"acts": joined(self.acts), "terminated": flags[:, 0], "truncated": flags[:, 1]}
        if self.rews is not None:
            arrays["rews"] = joined(self.rews)
        if not next_obs:
            return arrays | {"obs": joined(self.obs)}
        first, following = ([each(lambda a, s=s: a[s], o) for o in self.obs] for s in (slice(-1), slice(1, None)))
        return arrays | {"obs": joined(first), "next_obs": joined(following)}

    def dicts(self) -> list[dict[str, Any]]:
        return [
            {
                "obs": self.obs[i],
                "acts": self.acts[i],
                "rews": None if self.rews is None else self.rews[i],
                "terminal": self.ends[i][0],
                "truncated": self.ends[i][1],
            }
            for i in range(len(self.lengths))
        ]

    def nested(self) -> dict[str, Any]:
        """IQ-Learn's lists."""
        last = [np.arange(n) == n - 1 for n in self.lengths]
        lists = {
            "states": [each(lambda a: a[:-1], o) for o in self.obs],
            "next_states": [each(lambda a: a[1:], o) for o in self.obs],
            "actions": self.acts,
            "terminated": [flag & end[0] for flag, end in zip(last, self.ends)],
            "truncated": [flag & end[1] for flag, end in zip(last, self.ends)],
            "lengths": self.lengths,
        }
        return lists if self.rews is None else lists | {"rewards": self.rews}

    def write(self, layout: str, folder: Any) -> Any:
        """The set in a layout, or None where it cannot hold it."""
        if layout == "dicts":
            return self.dicts()
        if layout == "nested":
            return self.nested()
        if layout.startswith("flat"):
            return self.flat(next_obs=layout == "flat")
        path = folder / f"d.{layout}"
        arrays = self.flat(next_obs=bool(self.rng.integers(2)))
        if layout == "npz":
            named = {}
            for key, value in arrays.items():
                named |= {f"{key}/{part}": array for part, array in value.items()} if isinstance(value, dict) else {key: value}
            (np.savez_compressed if self.rng.integers(2) else np.savez)(path, **named)
        elif layout == "pickle":
            path = folder / "d.pkl"
            content = (arrays, self.dicts(), self.nested())[self.rng.integers(3)]
            path.write_bytes(pickle.dumps(content, int(self.rng.integers(pickle.HIGHEST_PROTOCOL + 1))))
        elif layout == "npy":
            np.save(path, (arrays, self.nested())[self.rng.integers(2)], allow_pickle=True)
        elif layout == "own":
            path = load_demonstrations(self.dicts()).save(folder / "own.npz")
        elif layout == "h5":
            h5py = pytest.importorskip("h5py")
            names = {"obs": "observations", "next_obs": "next_observations", "acts": "actions", "rews": "rewards"}
            with h5py.File(path, "w") as file:
                for key, value in arrays.items():
                    parts = value.items() if isinstance(value, dict) else [("", value)]
                    for part, array in parts:
                        file[f"{names.get(key, key)}/{part}".rstrip("/")] = array
        else:
            return self.table()
        return path

    def table(self) -> Any:
        arrays = self.flat()
        if isinstance(arrays["obs"], dict) or arrays["obs"].ndim > 2:
            return None
        pandas = pytest.importorskip("pandas")
        columns = {"episode": np.repeat(np.arange(len(self.lengths)), self.lengths)}
        for key, value in arrays.items():
            columns |= {key: value} if value.ndim == 1 else {f"{key}_{i}": value[:, i] for i in range(value.shape[1])}
            if key == "acts" and value.ndim == 1:
                columns["step"] = np.concatenate([np.arange(n) for n in self.lengths])
        order = self.rng.permutation(sum(self.lengths)) if "step" in columns else np.arange(sum(self.lengths))
        return pandas.DataFrame(columns).iloc[order]

    def agrees(self, demos: Demonstrations) -> None:
        """Every number is where it belongs."""
        assert demos.episode_lengths.tolist() == self.lengths
        starts = np.cumsum(self.lengths) - self.lengths
        for i, (start, n) in enumerate(zip(starts, self.lengths)):
            rows = slice(start, start + n)
            assert (demos.episode[rows] == i).all() and demos.step[rows].tolist() == list(range(n))
            for got, stored in ((demos.obs, slice(-1)), (demos.next_obs, slice(1, None))):
                expected = each(lambda array, stored=stored: array[stored], self.obs[i])
                for key in expected if isinstance(expected, dict) else [None]:
                    a, b = (got, expected) if key is None else (got[key], expected[key])
                    assert np.array_equal(np.asarray(a[rows]), b.astype(np.float32) if b.dtype == np.float64 else b)
            assert np.allclose(demos.actions[rows], self.acts[i], atol=ROUNDING * 20, rtol=0)
            if self.rews is not None:
                assert np.array_equal(demos.rewards[rows], self.rews[i])
            assert (demos.terminated[start + n - 1], demos.truncated[start + n - 1]) == self.ends[i]
            assert not (demos.terminated | demos.truncated)[start : start + n - 1].any()


def sentence(error: ValueError) -> None:
    text = str(error)
    assert "\n" not in text and text.endswith(".") and 20 < len(text) < 900, text
    assert ": " in text, text  # what was found: what to do


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("fuzz")  # one for all examples, whose files replace each other


sets = st.composite(Set)()


@fuzz
@given(sets, st.sampled_from(LAYOUTS))
def test_right_sets_are_read_right(folder, made, layout):
    source = made.write(layout, folder)
    if source is None:
        return
    demos = load_demonstrations(source, observation_space=made.obs_space, action_space=made.action_space)
    made.agrees(demos)
    for space, array in ((made.obs_space, demos.obs), (made.action_space, demos.actions)):
        for part in array.values() if isinstance(array, dict) else [array]:
            assert part.dtype == np.float32 if part.dtype.kind == "f" else part.dtype.kind in "iu"
        assert space.dtype != np.uint8 or array.dtype == np.uint8
    assert load_demonstrations(demos.to_dicts()).n_episodes == len(made.lengths)


DAMAGES = (
    "nan",
    "infinite",
    "one row fewer",
    "one row more",
    "another shape",
    "an extra axis",
    "text",
    "objects",
    "complex",
    "out of bounds",
    "a flag of 2",
    "flags too short",
    "empty",
    "missing",
    "ragged",
    "none",
    "a number",
)


def damaged(array: np.ndarray, damage: str, rng: np.random.Generator) -> Any:
    array = np.array(array)
    row = int(rng.integers(max(1, len(array))))
    if damage in ("nan", "infinite", "out of bounds"):
        array = array.astype(float)
        array[row] = {"nan": np.nan, "infinite": -np.inf, "out of bounds": 1e6}[damage]
        return array
    return {
        "one row fewer": lambda: array[:-1],
        "one row more": lambda: np.concatenate([array, array[:1]]),
        "another shape": lambda: np.repeat(array.reshape(len(array), -1), 2, axis=1),
        "an extra axis": lambda: np.stack([array, array], axis=-1),
        "text": lambda: array.astype(str),
        "objects": lambda: np.array([object()] * max(1, len(array)), dtype=object),
        "complex": lambda: array * 1j,
        "a flag of 2": lambda: np.full(len(array), 2),
        "flags too short": lambda: array[: len(array) // 2],
        "empty": lambda: array[:0],
        "ragged": lambda: [array.reshape(len(array), -1)[0], array.reshape(len(array), -1)[0][:0]],
        "none": lambda: None,
        "a number": lambda: 3.5,
    }[damage]()


@fuzz
@given(
    sets,
    st.sampled_from(("flat", "flat without next_obs", "dicts", "nested", "pickle")),
    st.sampled_from(DAMAGES),
    st.data(),
)
def test_broken_sets_are_refused_or_right(folder, made, layout, damage, data):
    pickled = layout == "pickle"
    layout = "flat" if pickled else layout
    source = made.write(layout, None)
    part = source[int(made.rng.integers(len(source)))] if layout == "dicts" else source
    key = data.draw(st.sampled_from(sorted(key for key, value in part.items() if value is not None)))
    target, where = part, key
    if isinstance(target[where], dict):
        target, where = target[where], "x"
    if damage == "missing":
        del target[where]
    elif isinstance(target[where], list) and layout == "nested":
        i = int(made.rng.integers(len(target[where])))
        entry = target[where][i]
        changed = damaged(entry["x"], damage, made.rng) if isinstance(entry, dict) else None
        target[where] = list(target[where])
        if isinstance(entry, dict):
            target[where][i] = entry | {"x": changed}
        else:
            target[where][i] = damaged(np.atleast_1d(entry), damage, made.rng)
    else:
        target[where] = damaged(np.atleast_1d(target[where]), damage, made.rng)
    if pickled:
        path = folder / "d.pkl"
        path.write_bytes(pickle.dumps(source))
        source = path
    try:
        demos = load_demonstrations(source, observation_space=made.obs_space, action_space=made.action_space)
    except ValueError as error:
        sentence(error)
        return
    # what was read although something is changed must be what is stored, and keep every promise
    for array in (demos.obs, demos.next_obs, demos.actions):
        for part in array.values() if isinstance(array, dict) else [array]:
            assert np.isfinite(np.asarray(part, dtype=float)).all()
    assert len(demos) <= sum(made.lengths) + 1
    last = np.append(np.flatnonzero(np.diff(demos.episode)), len(demos) - 1)
    assert (demos.terminated | demos.truncated)[last].all()
    if key in ("acts", "actions") and isinstance(made.action_space, spaces.Box):
        assert (demos.actions >= made.action_space.low).all() and (demos.actions <= made.action_space.high).all()


@fuzz
@given(sets, st.sampled_from(("npz", "own", "pickle", "npy", "h5")), st.data())
def test_changed_bytes_are_refused_or_read_as_arrays(folder, made, layout, data):
    path = made.write(layout, folder)
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 6))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        content = content[: data.draw(st.integers(0, len(content)))]
    path.write_bytes(bytes(content))
    try:
        demos = load_demonstrations(path)
    except ValueError as error:
        sentence(error)
    else:
        assert isinstance(demos, Demonstrations) and len(demos) >= 1


@fuzz
@given(st.binary(max_size=60), st.integers(0, 5))
def test_any_instructions_in_a_pickle_are_refused_or_data(folder, content, protocol):
    path = folder / "d.pkl"
    path.write_bytes(b"\x80" + bytes([protocol]) + content + b".")
    try:
        value = read_pickle(path)
    except ValueError as error:
        sentence(error)
    else:  # nothing but what a pickle may hold
        pickle.dump(value, io.BytesIO())


@fuzz
@given(sets, st.integers(1, 4), st.booleans(), st.data())
def test_selection_and_subsampling(made, k, keep_terminal, data):
    chosen = data.draw(st.lists(st.integers(0, len(made.lengths) - 1), min_size=1, unique=True))
    demos = load_demonstrations(made.dicts(), n_demonstrations=chosen, subsample=k, keep_terminal=keep_terminal)
    position = 0
    for new, old in enumerate(chosen):
        n = made.lengths[old]
        steps = [t for t in range(n) if t % k == 0 or (keep_terminal and t == n - 1 and made.ends[old][0])]
        rows = slice(position, position + len(steps))
        assert demos.step[rows].tolist() == steps and (demos.episode[rows] == new).all()
        for got, shift in ((demos.obs, 0), (demos.next_obs, 1)):
            for key in got if isinstance(got, dict) else [None]:
                a, b = (got, made.obs[old]) if key is None else (got[key], made.obs[old][key])
                assert np.array_equal(np.asarray(a[rows]), b[[t + shift for t in steps]])
        position += len(steps)
    assert position == len(demos)


@fuzz
@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=4),
    st.sampled_from(["float", "one-hot", "column", "bool"]),
    st.sampled_from([spaces.Discrete(2), spaces.Discrete(5, start=3)]),
    st.randoms(use_true_random=False),
)
def test_discrete_actions_in_other_forms(lengths, form, space, random):
    indices = np.array([random.randrange(int(space.n)) for _ in range(sum(lengths))])
    numbers = indices + int(space.start)
    acts = {
        "float": numbers.astype(np.float32),
        "one-hot": np.eye(int(space.n))[indices],
        "column": numbers[:, None],
        "bool": numbers.astype(bool) if space.start == 0 else numbers,
    }[form]
    flags = np.zeros(len(acts))
    flags[np.cumsum(lengths) - 1] = 1
    obs = np.arange(len(acts) + len(lengths), dtype=float)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        demos = load_demonstrations({"obs": obs, "acts": acts, "terminated": flags}, action_space=space)
    assert demos.actions.dtype == np.int64 and demos.actions.tolist() == numbers.tolist()
    assert any("one-hot" in note for note in demos.notes) == (form == "one-hot")
