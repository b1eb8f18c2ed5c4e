"""Files of strangers: nothing in them is executed, and a small one cannot take much memory."""

import base64
import io
import json
import os
import pickle
import pickletools
import struct
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
from small_episodes import ends, flat, trajectory

from sb3_dualqdm import load_demonstrations
from sb3_dualqdm.demonstrations.readers.pickles import read_pickle

pytestmark = pytest.mark.both
EXECUTED = []


def boom(*_):
    EXECUTED.append(True)
    return "executed"


class Payload:
    """Calls boom when unpickled."""

    def __reduce__(self):
        return boom, ()


@pytest.fixture(autouse=True)
def nothing_is_executed():
    EXECUTED.clear()
    yield
    assert not EXECUTED


def refusal(path: Path, megabytes: float = 10) -> str:
    """The one sentence with which a file is refused, without taking memory."""
    tracemalloc.start()
    try:
        with pytest.raises(ValueError) as caught:
            load_demonstrations(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    text = str(caught.value)
    assert "\n" not in text and text.endswith(".") and len(text) < 600
    assert peak < megabytes * 2**20
    return text


def np_bytes(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


# --- code in files ---------------------------------------------------------------------------------------------------------


def items_with(payload) -> dict:
    """Everywhere something may hide in demonstrations."""
    item, arrays = vars(trajectory(0, 2)), flat([2]) | {"dones": ends([2], [True])}
    objects = np.array([payload, payload], dtype=object)
    return {
        "alone": payload,
        "infos": [item | {"infos": objects}],
        "info": [item | {"infos": [{}, {"x": payload}]}],
        "array": arrays | {"obs": objects},
        "key": {payload: 1} | arrays,
        "state": [{**item, "obs": [payload]}],
    }


@pytest.mark.parametrize("where", ["alone", "infos", "info", "array", "key", "state"])
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickles(tmp_path, where, protocol):
    content = pickle.dumps(items_with(Payload())[where], protocol)
    pickle.loads(content)
    assert EXECUTED  # it is a real one
    EXECUTED.clear()
    text = refusal(write(tmp_path / "evil.pkl", content))
    assert "asks for test_demonstrations_safety.boom, but only numbers, containers and arrays are read" in text


def test_npy(tmp_path):
    np.save(tmp_path / "evil.npy", items_with(Payload())["infos"][0], allow_pickle=True)
    assert "asks for test_demonstrations_safety.boom" in refusal(tmp_path / "evil.npy")


def test_npz(tmp_path):
    for where in ("array", "infos"):
        content = items_with(Payload())[where]
        arrays = content if where == "array" else {"trajectories": np.array(content, dtype=object)}
        np.savez(tmp_path / f"{where}.npz", **arrays)
    assert "the array 'obs' of" in (text := refusal(tmp_path / "array.npz")) and "holds pickled objects" in text
    assert "has ['trajectories'], but obs or" in refusal(tmp_path / "infos.npz")


def test_stable_baselines3s_zip(tmp_path):
    data = {"policy_class": {":type:": "<class>", ":serialized:": base64.b64encode(pickle.dumps(Payload())).decode()}}
    with zipfile.ZipFile(tmp_path / "model.zip", "w") as archive:
        archive.writestr("data", json.dumps(data))
        archive.writestr("policy.pth", pickle.dumps(Payload()))
    assert "holds a model or its weights, not demonstrations" in refusal(tmp_path / "model.zip")
    with zipfile.ZipFile(tmp_path / "hidden.zip", "w") as archive:  # the names of arrays, too
        for name in ("obs.npy", "actions.npy", "dones.npy"):
            archive.writestr(name, pickle.dumps(Payload()))
    assert "the array 'obs' of" in refusal(tmp_path / "hidden.zip")


GLOBALS = [
    "os\nsystem",
    "posix\nsystem",
    "builtins\neval",
    "builtins\ngetattr",
    "__builtin__\nexec",
    "numpy\nload",
    "numpy\nfromfile",
    "numpy.core.multiarray\nfromstring",
    "functools\npartial",
    "operator\nattrgetter",
    "copyreg\n__newobj__",
    "stable_baselines3.common.save_util\nload_from_pkl",
    "gymnasium.spaces.box\nnp",
    "torch\nload",
    "builtins\nlist.__class__",
    "numpy\ndtype.__class__",
]


@pytest.mark.parametrize("name", GLOBALS)
@pytest.mark.parametrize("how", ["REDUCE", "INST", "OBJ", "NEWOBJ", "STACK_GLOBAL"])
def test_every_instruction_that_could_call(tmp_path, name, how):
    module, attribute = (part.encode() for part in name.split("\n"))
    named = b"c" + module + b"\n" + attribute + b"\n"
    argument = b"X\x01\x00\x00\x00x"
    content = {
        "REDUCE": named + b"(" + argument + b"tR.",
        "INST": b"(" + argument + b"i" + module + b"\n" + attribute + b"\n.",
        "OBJ": b"(" + named + argument + b"o.",
        "NEWOBJ": named + b"(" + argument + b"t\x81.",
        "STACK_GLOBAL": b"\x8c" + bytes([len(module)]) + module + b"\x8c" + bytes([len(attribute)]) + attribute + b"\x93)R.",
    }[how]
    module = module.replace(b"__builtin__", b"builtins")
    text = refusal(write(tmp_path / "evil.pkl", b"\x80\x04" + content))
    assert f"asks for {module.decode()}.{attribute.decode()}, but only" in text


def test_changing_what_a_name_stands_for(tmp_path):
    """BUILD on a name, an array filled twice, a call of something that is not a name."""
    box = b"cgymnasium.spaces.box\nBox\n"
    state = b"}X\x08\x00\x00\x00__call__K\x01s"
    assert "it changes a _Name" in refusal(write(tmp_path / "a.pkl", b"\x80\x04" + box + state + b"b."))
    array = b"cnumpy.core.multiarray\n_reconstruct\n)R"
    dtype = b"cnumpy\ndtype\nX\x02\x00\x00\x00u1\x85R"
    one = b"(K\x01K\x01\x85" + dtype + b"\x89C\x01at"
    assert "fills an array twice" in refusal(write(tmp_path / "b.pkl", b"\x80\x04" + array + one + b"b" + one + b"b."))
    assert "it calls int" in refusal(write(tmp_path / "c.pkl", b"\x80\x04K\x01)R."))
    assert "it calls builtins.int" in refusal(write(tmp_path / "d.pkl", b"\x80\x04cbuiltins\nint\n)R."))


def test_plain_contents_are_read_as_they_are(tmp_path):
    value = {
        "numbers": [1, -(2**70), 0.5, True, None, "text", b"bytes", bytearray(b"more")],
        "sets": ({1, 2}, frozenset([3])),
        "arrays": [np.arange(6.0).reshape(2, 3), np.asfortranarray(np.eye(3))[:, ::2], np.array(3, ">i2"), np.zeros((0, 4))],
        "scalars": (np.float32(1.5), np.int64(-3), np.bool_(True)),
    }
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        content = pickle.dumps(value, protocol)
        again, expected = read_pickle(write(tmp_path / "plain.pkl", content)), pickle.loads(content)
        assert again["numbers"] == value["numbers"] and again["sets"] == value["sets"] and again["scalars"] == value["scalars"]
        for a, b in zip(again["arrays"], expected["arrays"]):
            assert a.dtype == b.dtype and a.shape == b.shape and np.array_equal(a, b)
    shared = np.arange(3.0)
    again = read_pickle(write(tmp_path / "shared.pkl", pickle.dumps([shared, [shared, ({"x": shared},)]])))
    assert again[0] is again[1][0] is again[1][1][0]["x"]


# --- memory ----------------------------------------------------------------------------------------------------------------


def test_zip_bomb(tmp_path):
    with zipfile.ZipFile(tmp_path / "bomb.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("obs", "actions"):
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                header = {"descr": "|u1", "fortran_order": False, "shape": (200 * 2**20,)}
                np.lib.format.write_array_header_1_0(member, header)
                for _ in range(200):
                    member.write(bytes(2**20))
    assert os.path.getsize(tmp_path / "bomb.npz") < 2**20
    assert "declares 209715200 bytes, but at most" in refusal(tmp_path / "bomb.npz")


def test_repetitive_recordings_are_still_read(tmp_path):
    images = np.zeros((2001, 64, 64), dtype=np.uint8)
    images[:, 0, 0] = np.arange(2001) % 251
    np.savez_compressed(tmp_path / "d.npz", obs=images, actions=np.zeros((2000, 1)), dones=np.arange(2000) == 1999)
    assert os.path.getsize(tmp_path / "d.npz") * 100 < images.nbytes
    assert load_demonstrations(tmp_path / "d.npz").obs.shape == (2000, 64, 64)


HUGE = 2**40
PICKLE_BOMBS = {
    "BYTEARRAY8": b"\x80\x05\x96" + struct.pack("<Q", HUGE) + b"x.",
    "BINBYTES8": b"\x80\x04\x8e" + struct.pack("<Q", HUGE) + b"x.",
    "BINUNICODE8": b"\x80\x04\x8d" + struct.pack("<Q", HUGE) + b"x.",
    "FRAME": b"\x80\x04\x95" + struct.pack("<Q", HUGE) + b"N.",
    "LONG4": b"\x80\x02\x8b" + struct.pack("<i", 2**31 - 1) + b"x.",
    "LONG_BINPUT": b"\x80\x02Nr" + struct.pack("<I", 2**32 - 1) + b".",
    "shape": b"\x80\x04cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n(J\xff\xff\xff\x7ftC\x01b\x87R.",
    "bytearray": b"\x80\x04cbuiltins\nbytearray\nJ\xff\xff\xff\x7f\x85R.",
}


@pytest.mark.parametrize("name", PICKLE_BOMBS)
def test_pickles_that_ask_for_memory(tmp_path, name):
    refusal(write(tmp_path / "bomb.pkl", PICKLE_BOMBS[name]))


def test_lists_in_themselves_many_times_over(tmp_path):
    nested: list = [0.0] * 10
    for _ in range(12):
        nested = [nested] * 10
    text = refusal(write(tmp_path / "bomb.pkl", pickle.dumps({"obs": nested, "acts": [0.0], "dones": [1]})))
    assert "bomb.pkl declares 80000000000016 bytes" in text
    circle: list = []
    circle.append(circle)
    refusal(write(tmp_path / "circle.pkl", pickle.dumps({"obs": circle, "acts": circle, "dones": circle})))


def test_the_same_list_made_again_and_again(tmp_path):
    big = pickle.dumps(bytes(10**6), 4)[:-1]  # without its STOP
    again = b"q\x050cbuiltins\nlist\nq\x060" + b"h\x06h\x05\x85R0" * 200
    text = refusal(write(tmp_path / "bomb.pkl", big + again + b"N."), megabytes=200)
    assert "repeats its contents out of proportion" in text


def test_truncated_and_declared_sizes_in_hdf5(tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "huge.hdf5", "w") as file:
        file.create_dataset("observations", shape=(10**11, 4), dtype="f8", chunks=(1000, 4))
        file["actions"], file["terminals"] = np.zeros((3, 1)), np.zeros(3)
    assert "'/observations' of" in (text := refusal(tmp_path / "huge.hdf5")) and "declares 3200000000000 bytes" in text
    with h5py.File(tmp_path / "chunk.hdf5", "w") as file:
        file.create_dataset("observations", shape=(4,), maxshape=(None,), dtype="u1", chunks=(2**30,), compression="gzip")
        file["actions"], file["terminals"] = np.zeros((3, 1)), np.zeros(3)
    assert "declares 1073741824 bytes" in refusal(tmp_path / "chunk.hdf5")


def test_hdf5_that_leads_out_of_the_file(tmp_path):
    h5py = pytest.importorskip("h5py")
    secret = tmp_path / "secret.hdf5"
    with h5py.File(secret, "w") as file:
        file["observations"] = np.zeros((3, 2))
    (tmp_path / "raw").write_bytes(bytes(48))
    layout = h5py.VirtualLayout((3, 2), dtype="f8")
    layout[:] = h5py.VirtualSource(str(secret), "observations", (3, 2))
    for name in ("link", "storage", "virtual", "group", "text", "object"):
        with h5py.File(tmp_path / f"{name}.hdf5", "w") as file:
            file["actions"], file["terminals"] = np.zeros((3, 1)), np.zeros(3)
            if name == "link":
                file["observations"] = h5py.ExternalLink(str(secret), "observations")
            elif name == "group":
                file["observations/x"] = h5py.ExternalLink(str(secret), "observations")
            elif name == "storage":
                file.create_dataset("observations", (3, 2), "f8", external=[(str(tmp_path / "raw"), 0, 48)])
            elif name == "virtual":
                file.create_virtual_dataset("observations", layout)
            elif name == "text":
                file["observations"] = np.array([b"a", b"b", b"c"])
            else:
                file.create_dataset("observations", data=[b"a"] * 3, dtype=h5py.special_dtype(vlen=bytes))
        expected = "only numbers are read" if name in ("text", "object") else "lies outside the file"
        assert expected in refusal(tmp_path / f"{name}.hdf5")


def test_hdf5_groups_that_lead_out_of_the_file(tmp_path):
    h5py = pytest.importorskip("h5py")
    secret = str(tmp_path / "secret.hdf5")
    with h5py.File(secret, "w") as file:
        for group, obs in (("data/demo_0", "obs"), ("episode_0", "observations")):
            file[f"{group}/{obs}"], file[f"{group}/actions"] = np.zeros((4, 2)), np.zeros((3, 1))
            for name in ("rewards", "dones", "terminations", "truncations"):
                file[f"{group}/{name}"] = np.zeros(3)
        file["flat"] = np.zeros((4, 2))
    links = {
        "all": {"data": h5py.ExternalLink(secret, "/data")},
        "demo": {"data/demo_0": h5py.ExternalLink(secret, "/data/demo_0")},
        "episode": {"episode_0": h5py.ExternalLink(secret, "/episode_0")},
        "soft": {"way": h5py.ExternalLink(secret, "/"), "observations": h5py.SoftLink("/way/flat")},
        "softer": {"way": h5py.ExternalLink(secret, "/"), "data": h5py.SoftLink("/way/data")},
    }
    for name, content in links.items():
        with h5py.File(tmp_path / f"{name}.hdf5", "w") as file:
            file["actions"], file["terminals"] = np.zeros((3, 1)), np.zeros(3)
            for key, link in content.items():
                file[key] = link
        assert "lies outside the file" in refusal(tmp_path / f"{name}.hdf5")
    with h5py.File(tmp_path / "inside.hdf5", "w") as file:  # links inside the file are no harm
        file["actions"], file["terminals"], file["x"] = np.zeros((3, 1)), np.zeros(3), np.ones((4, 2))
        file["observations"] = h5py.SoftLink("/x")
    assert np.array_equal(load_demonstrations(tmp_path / "inside.hdf5").obs, np.ones((3, 2)))


def test_parquet_bomb(tmp_path):
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    zeros = pa.array(np.zeros(20_000_000, dtype=np.int8))
    parquet.write_table(pa.table({"obs_0": zeros, "action_0": zeros}), tmp_path / "bomb.parquet")
    assert os.path.getsize(tmp_path / "bomb.parquet") < 2**19
    assert "declares 320000000 bytes, but at most" in refusal(tmp_path / "bomb.parquet")


@pytest.fixture
def small_allowance(monkeypatch):
    monkeypatch.setattr("sb3_dualqdm.demonstrations.files.FREE_BYTES", 2**20)


@pytest.mark.usefixtures("small_allowance")
def test_many_small_bombs_in_one_file(tmp_path):
    """Each array may be right, all of them together cannot."""
    images, numbers = np_bytes(np.zeros((4, 150_000), dtype=np.uint8)), np_bytes(np.arange(4))
    for n in (1, 8):
        with zipfile.ZipFile(tmp_path / f"{n}.npz", "w", zipfile.ZIP_BZIP2) as archive:
            for i in range(n):
                archive.writestr(f"obs/{i}.npy", images)
                archive.writestr(f"next_obs/{i}.npy", numbers)
            for name in ("acts", "truncated"):
                archive.writestr(f"{name}.npy", np_bytes(np.arange(4) == 3))
    assert "declares 600000 bytes, but at most" in refusal(tmp_path / "8.npz")
    with pytest.raises(ValueError, match="next_obs"):  # the sizes are right, not the shapes
        load_demonstrations(tmp_path / "1.npz")


@pytest.mark.usefixtures("small_allowance")
def test_the_same_group_of_hdf5_under_many_names(tmp_path):
    h5py = pytest.importorskip("h5py")
    for n in (1, 20):
        with h5py.File(tmp_path / f"{n}.hdf5", "w") as file:
            group = file.create_group("data/demo_0")
            group.create_dataset("obs/x", (5, 10_000 * 12), np.uint8, chunks=(1, 10_000))  # never written: no bytes at all
            group["actions"], group["dones"] = np.zeros((4, 1)), np.array([0, 0, 0, 1])
            for i in range(1, n):
                file[f"data/demo_{i}"] = group
    assert load_demonstrations(tmp_path / "1.hdf5").obs["x"].shape == (4, 120_000)
    assert "/obs/x' of" in (text := refusal(tmp_path / "20.hdf5")) and "declares 600000 bytes, but at most" in text


def write_imitation(folder: Path, n: int, kind: str) -> None:
    """One trajectory of zeros in imitation's columns, compressed."""
    pa = pytest.importorskip("pyarrow")
    folder.mkdir()
    lists = [pa.ListArray.from_arrays([0, rows], pa.array(np.zeros(rows, np.float32))) for rows in (n, n - 1)]
    table = pa.table({"obs": lists[0], "acts": lists[1], "terminal": [True], "infos": ["[]"]})
    if kind == "parquet":
        pytest.importorskip("pyarrow.parquet").write_table(table, folder / "d.parquet", compression="zstd")
        return
    options = pa.ipc.IpcWriteOptions(compression=kind)
    with pa.ipc.new_stream(str(folder / "d.arrow"), table.schema, options=options) as writer:
        writer.write_table(table)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": "d.arrow"}]}))


@pytest.mark.usefixtures("small_allowance")
@pytest.mark.parametrize("kind", ["parquet", "zstd", "lz4"])
def test_bombs_in_imitations_columns(tmp_path, kind):
    write_imitation(tmp_path / "right", 1000, kind)
    demos = load_demonstrations(tmp_path / "right")
    assert len(demos) == 999 and not demos.obs.any() and demos.terminated[-1]
    write_imitation(tmp_path / "bomb", 5_000_000, kind)
    assert "declares" in (text := refusal(tmp_path / "bomb")) and "bytes, but at most" in text


@pytest.mark.usefixtures("small_allowance")
def test_what_many_files_of_a_folder_declare_together(tmp_path):
    pytest.importorskip("pyarrow")
    write_imitation(tmp_path / "d", 50_000, "parquet")
    assert len(load_demonstrations(tmp_path / "d")) == 49_999
    content = (tmp_path / "d" / "d.parquet").read_bytes()
    for i in range(9):
        write(tmp_path / "d" / f"{i}.parquet", content)
    assert "bytes, but at most" in refusal(tmp_path / "d")


@pytest.mark.usefixtures("small_allowance")
def test_texts_in_parquet_are_not_unpacked(tmp_path):
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    text = pa.array(["a" * 2**20] * 100)  # stored once
    columns = {"obs_0": np.arange(100.0), "action_0": np.zeros(100), "next_obs_0": np.arange(1.0, 101)}
    columns |= {"done": np.arange(100) == 99}
    for name in ("comment", "episode", "obs_1"):
        parquet.write_table(pa.table(columns | {name: text}), tmp_path / f"{name}.parquet")
    options = {"use_dictionary": ["obs_0"], "column_encoding": {"episode": "DELTA_BYTE_ARRAY"}}
    parquet.write_table(pa.table(columns | {"episode": text}), tmp_path / "delta.parquet", **options)
    parquet.write_table(pa.table({"obs": text, "acts": text, "terminal": text}), tmp_path / "bomb.parquet")
    parquet.write_table(pa.table({"obs": np.zeros(100), "obs.x": text, "act": np.zeros(100)}), tmp_path / "prefix.parquet")
    usual = pa.default_memory_pool()  # asked later, it would be the other one
    pool = pa.proxy_memory_pool(usual)
    pa.set_memory_pool(pool)
    try:
        assert load_demonstrations(tmp_path / "comment.parquet").obs.shape == (100, 1)
        assert 0 < pool.max_memory() < 2**20
        # texts that count are unpacked once, not in every row
        assert load_demonstrations(tmp_path / "episode.parquet").n_episodes == 1
        assert "obs_1 of" in (message := refusal(tmp_path / "obs_1.parquet")) and f"holds '{'a' * 40}' but" in message
        assert "episode of" in (message := refusal(tmp_path / "delta.parquet")) and "holds texts" in message
    finally:
        pa.set_memory_pool(usual)
    assert pool.max_memory() < 10 * 2**20
    for name in ("bomb", "prefix"):
        (tmp_path / name).mkdir()
        os.rename(tmp_path / f"{name}.parquet", tmp_path / name / "d.parquet")
    assert "obs of" in (message := refusal(tmp_path / "bomb")) and "holds texts but numbers are expected" in message
    assert "obs.x of" in (message := refusal(tmp_path / "prefix" / "d.parquet")) and f"holds '{'a' * 40}' but" in message


def test_rows_of_nothing(tmp_path):
    """A billion rows without a number take no byte in a file, but would take gigabytes of indices."""
    obs, acts = np.zeros((10**9 + 1, 0)), np.zeros((10**9, 0))
    arrays = {"obs": obs, "acts": acts, "terminal": np.array(True)}
    np.savez(tmp_path / "d.npz", **arrays)
    write(tmp_path / "d.pkl", pickle.dumps(arrays))
    write(tmp_path / "objects.pkl", pickle.dumps(arrays | {"obs": np.zeros((10**9, 0), dtype=object)}))
    for name in ("d.npz", "d.pkl"):
        assert "has 1000000001 rows without a number" in refusal(tmp_path / name)
    assert "shape (1000000000, 0) that does not fit its data" in refusal(tmp_path / "objects.pkl")
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "d.hdf5", "w") as file:
        for name, rows in (("obs", 10**9 + 1), ("actions", 10**9)):
            file.create_dataset(f"data/demo_0/{name}", shape=(rows, 0), dtype="f4")
    assert "'/data/demo_0/actions' of" in (text := refusal(tmp_path / "d.hdf5")) and "rows without a number" in text


# --- damage ----------------------------------------------------------------------------------------------------------------


def one_of_each(folder: Path) -> list[Path]:
    arrays = flat([3, 2]) | {"dones": ends([3, 2], [True, True])}
    np.savez(folder / "plain.npz", **arrays)
    load_demonstrations(arrays).save(folder / "own.npz")
    write(folder / "d.pkl", pickle.dumps(arrays))
    np.save(folder / "d.npy", arrays, allow_pickle=True)
    files = ["plain.npz", "own.npz", "d.pkl", "d.npy"]
    if (h5py := pytest.importorskip("h5py")) is not None:
        with h5py.File(folder / "d.hdf5", "w") as file:
            for key, name in (("obs", "observations"), ("acts", "actions"), ("dones", "terminals")):
                file[name] = arrays[key]
            file["next_observations"] = arrays["next_obs"]
    table = {"obs_0": arrays["obs"][:, 0], "next_obs_0": arrays["next_obs"][:, 0], "action": arrays["acts"][:, 0]}
    pa = pytest.importorskip("pyarrow")
    pytest.importorskip("pyarrow.parquet").write_table(pa.table(table | {"done": arrays["dones"]}), folder / "d.parquet")
    return [folder / name for name in [*files, "d.hdf5", "d.parquet"]]


def test_files_cut_short_are_refused_or_complete(tmp_path):
    for path in one_of_each(tmp_path):
        content = path.read_bytes()
        whole = load_demonstrations(path)
        for stop in np.unique(np.linspace(1, len(content) - 1, 25).astype(int)):
            cut = write(tmp_path / f"cut{path.suffix}", content[:stop])
            try:
                demos = load_demonstrations(cut)
            except ValueError as error:
                assert "\n" not in str(error) and str(error).endswith(".")
            else:  # what is missing was not part of the data
                assert np.array_equal(demos.obs, whole.obs) and np.array_equal(demos.actions, whole.actions)


@pytest.mark.parametrize("seed", range(3))
def test_files_with_wrong_bytes_are_read_or_refused(tmp_path, seed):
    rng = np.random.default_rng(seed)
    for path in one_of_each(tmp_path):
        content = path.read_bytes()
        for _ in range(25):
            changed = bytearray(content)
            for at in rng.integers(len(content), size=4):
                changed[at] = rng.integers(256)
            try:
                load_demonstrations(write(tmp_path / f"changed{path.suffix}", bytes(changed)))
            except ValueError as error:
                assert "\n" not in str(error) and str(error).endswith("."), path


def test_the_pickles_above_are_pickles():
    """A bomb that the interpreter would not even start with shows nothing."""
    for content in PICKLE_BOMBS.values():
        first = next(pickletools.genops(io.BytesIO(content)))
        assert first[0].name == "PROTO"
