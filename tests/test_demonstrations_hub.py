"""Datasets of a hub: ids, revisions and the Parquet form of imitation's folders, without network."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
from small_episodes import trajectory

from sb3_dualqdm import load_demonstrations

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

pytestmark = pytest.mark.both


def write(folder, lengths):
    """Trajectories as ``push_to_hub`` stores them: one row each, in two files, with infos that nobody should decode."""
    (folder / "data").mkdir(parents=True)
    (folder / "README.md").write_text("a dataset")
    for part, (episode, length) in enumerate(lengths.items()):
        item = trajectory(episode, length, terminal=episode == 0)
        row = {"obs": item.obs.tolist(), "acts": item.acts.tolist(), "rews": item.rews.tolist(), "terminal": item.terminal}
        table = pa.Table.from_pylist([{**row, "infos": ['{"py/object": "os.system"}'] * length}])
        parquet.write_table(table, folder / "data" / f"train-{part:05}.parquet")
    return folder


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A stand-in for the hub's client that serves one dataset and notes what it was asked for."""
    folder = write(tmp_path / "snapshot", {0: 3, 1: 2})
    asked = []

    def snapshot_download(repo_id, *, repo_type, revision, allow_patterns):
        asked.append((repo_id, repo_type, revision))
        if repo_id != "someone/cartpole":
            raise OSError("404 Client Error.\nmore lines")
        assert "*.parquet" in allow_patterns and not any("py" in pattern for pattern in allow_patterns)
        return str(folder)

    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(snapshot_download=snapshot_download))
    return SimpleNamespace(asked=asked, folder=folder)


def test_dataset_by_id(hub):
    demos = load_demonstrations("hub:someone/cartpole")
    assert demos.obs[:, 0].tolist() == [0, 1, 2, 100, 101] and demos.next_obs[:, 0].tolist() == [1, 2, 3, 101, 102]
    np.testing.assert_allclose(demos.actions[:, 0], [0, 0.1, 0.2, 0, 0.1], atol=1e-6)
    assert demos.terminated.tolist() == [False, False, True, False, False]
    assert demos.episode_returns.tolist() == [6.0, 3.0]
    assert demos.sha256 == load_demonstrations(hub.folder).sha256
    load_demonstrations("hub:someone/cartpole@v2")
    assert hub.asked == [("someone/cartpole", "dataset", None), ("someone/cartpole", "dataset", "v2")]


def test_unknown_id_is_one_sentence(hub):
    with pytest.raises(ValueError, match=r"'someone/else' cannot be downloaded \(404 Client Error\.\): check its id"):
        load_demonstrations("hub:someone/else")


def test_without_the_client(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ImportError, match=r"sb3-dualqdm\[hub\]"):
        load_demonstrations("hub:someone/cartpole")


def test_folder_without_the_columns(tmp_path):
    (tmp_path / "data").mkdir()
    parquet.write_table(pa.Table.from_pylist([{"text": "a"}]), tmp_path / "data" / "train.parquet")
    with pytest.raises(ValueError, match="no acts or obs or terminal"):
        load_demonstrations(tmp_path)
    (tmp_path / "data" / "train.parquet").write_bytes(b"PAR1 damaged")
    with pytest.raises(ValueError, match=r"train\.parquet cannot be read"):
        load_demonstrations(tmp_path)
