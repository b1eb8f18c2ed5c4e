"""Datasets of the Hugging Face hub, read as the folders they are."""

from __future__ import annotations

from pathlib import Path

from sb3_dualqdm.demonstrations.files import optional


def local_path(repo_id: str) -> Path:
    """
    Download a dataset, unless it was already; nothing in it is executed.

    :param repo_id: such as ``"HumanCompatibleAI/ppo-seals-CartPole-v0"``, ``"<id>@<revision>"`` for a revision of it.
    :return: the folder of its files.
    :raises ImportError: without huggingface_hub.
    :raises ValueError: if there is no such dataset, or the hub is out of reach.
    """
    hub = optional("huggingface_hub", "hub", f"'hub:{repo_id}' is a dataset of the Hugging Face hub, and reading it")
    name, _, revision = repo_id.partition("@")
    patterns = ["*.arrow", "*.parquet", "*.json"]
    try:
        folder = hub.snapshot_download(name, repo_type="dataset", revision=revision or None, allow_patterns=patterns)
    except Exception as error:  # its own errors, those of the network and of the disk
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ValueError(
            f"the dataset {repo_id!r} cannot be downloaded ({reason}): check its id, or download it and pass the folder."
        ) from error
    return Path(folder)
