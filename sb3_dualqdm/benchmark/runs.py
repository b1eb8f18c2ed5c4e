"""One run: its command, its files, how it is executed in a process of its own."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from sb3_dualqdm.benchmark.suites import Run, entry
from sb3_dualqdm.resume import constructor_arguments
from sb3_dualqdm.zoo import ALGOS

# Steps per second of one core, evaluations included, where nothing has been measured yet; a slow guess.
STEPS_PER_SECOND = {"bc": 300.0, "gail": 500.0}
DEFAULT_STEPS_PER_SECOND = 100.0
LOG_TAIL = 3_000


@dataclasses.dataclass(frozen=True)
class Execution:
    """
    How runs are executed, which their results do not depend on beyond rounding.

    :param device: torch device, default ``"auto"``
    :param acceleration: how updates of this package's methods run, default None: as their hyperparameters say
    :param keep_checkpoints: keep the last checkpoint of a finished run, so that it can go on to more steps, default False
    """

    device: str = "auto"
    acceleration: str | None = None
    keep_checkpoints: bool = False


class RunFailed(RuntimeError):
    """A run ended without a complete record; the message has the end of what it printed."""


def as_dict(run: Run) -> dict[str, Any]:
    """
    A run as JSON has it.

    :param run: the run.
    """
    return json.loads(json.dumps(dataclasses.asdict(run)))


def command(run: Run, request: Path, logs: Path, checkpoint: Path, execution: Execution = Execution()) -> list[str]:
    """
    The command of a run.

    :param run: the run.
    :param request: file that its callback reads.
    :param logs: folder of rl_zoo3's own files.
    :param checkpoint: file that a run of this package's methods goes on from, if it is there.
    :param execution: device and acceleration.
    :return: arguments after the interpreter.
    """
    if run.method == "gail":
        return ["-m", "sb3_dualqdm.benchmark.gail", str(request), "--device", execution.device]
    callbacks: list[dict[str, dict[str, Any]]] = []
    params = {**run.params, "callback": callbacks}
    if path := _demonstrations_path(run):
        params["demonstrations"] = str(path.resolve())
    if run.method in ALGOS:
        # independent of the number of steps, which a finished run can be asked to go beyond
        options = {"path": str(checkpoint), "save_freq": run.eval_every, "resume": True}
        callbacks.append({"sb3_dualqdm.callbacks.ResumableCheckpoint": options})
        if execution.acceleration is not None:
            params["acceleration"] = execution.acceleration
    # after the checkpoint, which sets the step that a resumed run begins at
    callbacks.append({"sb3_dualqdm.benchmark.recording.RecordEvaluations": {"request": str(request)}})
    arguments = ["--algo", run.method, "--env", run.task, "--seed", str(run.seed), "-n", str(run.steps), "-f", str(logs)]
    arguments += ["--eval-freq", "-1", "--log-interval", "1000", "--verbose", "0", "--num-threads", "1"]
    arguments += ["--device", execution.device]
    return ["-m", "sb3_dualqdm.zoo", "train", *arguments, "-params", *(f"{key}:{value!r}" for key, value in params.items())]


def _demonstrations_path(run: Run) -> Path | None:
    """Where the demonstrations of a run are that are not named by its hyperparameter file."""
    path = Path(run.params.get("demonstrations", ""))
    return path if path.name and path.exists() else None


def execute(run: Run, execution: Execution = Execution(), record: Path | None = None) -> dict[str, Any]:
    """
    Train in a process of its own, with one thread.

    :param run: the run.
    :param execution: device and acceleration.
    :param record: file that is rewritten after each evaluation, with a checkpoint beside it, from which an interrupted run
        goes on, and one of fewer steps whose checkpoint was kept; default: a temporary one.
    :return: what is kept of the run.
    :raises RunFailed: if the process fails, or ends before the run does, or a run with other settings was interrupted.
    """
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        record = record or folder / "record.json"
        checkpoint = record.with_suffix(".zip")
        started = json.loads(record.read_text()) if record.exists() else {}
        if not started:
            checkpoint.unlink(missing_ok=True)
        elif key := _difference(run, {**started["run"], "steps": _steps_begun(started)}):
            raise RunFailed(
                f"{record} is a run that was interrupted, with {key} = {started['run'].get(key)!r} where "
                f"{as_dict(run)[key]!r} is asked for: finish it with its settings, name another --folder, or delete it."
            )
        request = folder / "request.json"
        request.write_text(json.dumps({"run": as_dict(run), "record": str(record)}))
        arguments = command(run, request, folder / "logs", checkpoint, execution)
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg"}
        process = subprocess.run(
            [sys.executable, *arguments],
            # rl_zoo3 reads no file of the same name as one of ours, and leaves nothing behind
            cwd=None if run.method == "gail" else folder,
            env=environment | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        result = json.loads(record.read_text()) if record.exists() else {}
        if process.returncode or result.get("status") != "finished" or result["run"] != as_dict(run):
            raise RunFailed(f"{run.name} ended with status {process.returncode}:\n{process.stdout[-LOG_TAIL:]}")
        if not execution.keep_checkpoints:
            record.unlink()
            checkpoint.unlink(missing_ok=True)
        shown = {str(record.parent): "FOLDER", str(folder): "FOLDER"}
        if path := _demonstrations_path(run):
            shown[str(path.resolve())] = str(path)
        for found, replacement in shown.items():
            arguments = [argument.replace(found, replacement) for argument in arguments]
        return {"command": ["python", *arguments], **result}


def _steps_begun(record: dict[str, Any]) -> int:
    """Steps that a run has made at most, which is then a run of so many steps that is not finished."""
    run, evaluations = record["run"], record["evaluations"]
    if record["status"] == "finished":
        return run["steps"]
    return min(run["steps"], (evaluations[-1]["step"] if evaluations else 0) + run["eval_every"])


def _difference(run: Run, stored: dict[str, Any]) -> str | None:
    """First setting that keeps a stored run from being this one, or the beginning of it: fewer steps are no difference."""
    shorter = "steps" in stored and stored["steps"] <= run.steps
    settings = as_dict(run).items()
    return next((key for key, value in settings if stored.get(key) != value and not (key == "steps" and shorter)), None)


def read_record(path: Path) -> dict[str, Any]:
    """
    The record of a finished run.

    :param path: JSON file.
    :raises ValueError: if it is something else.
    """
    try:
        record = json.loads(path.read_text())
        Run(**record["run"])
    except (ValueError, KeyError, TypeError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise ValueError(f"{path} is no record of a finished run ({reason}): move it elsewhere, make the run again.") from None
    return record


def steps_done(run: Run, folder: Path) -> int:
    """
    Steps of the record that there is of a run.

    :param run: the run.
    :param folder: folder of the suite's records.
    :return: ``run.steps`` if the run needs no more doing, fewer if it was made with fewer steps, 0 without a record.
    :raises ValueError: if the folder has a run of this name with other settings, or more steps.
    """
    path = folder / f"{run.name}.json"
    if not path.exists():
        return 0
    stored = read_record(path)["run"]
    if key := _difference(run, stored):
        raise ValueError(
            f"{path} has {key} = {stored.get(key)!r} but {as_dict(run)[key]!r} is asked for: name another --folder, or the "
            "same settings (--steps, --demonstrations)."
        )
    return int(stored["steps"])


def obstacle(run: Run) -> str | None:
    """
    Why a run cannot be made here.

    :param run: the run.
    :return: the reason, or None.
    """
    if run.method == "gail":
        return _demonstrations_obstacle(run) if _importable("imitation") else "imitation is not installed here"
    if run.method not in ALGOS:
        return None
    import sb3_dualqdm.algorithms

    cls = getattr(sb3_dualqdm.algorithms, ALGOS[run.method])
    unknown = sorted(set(run.params) - constructor_arguments(cls))
    return f"{cls.__name__} has no argument {unknown[0]!r}" if unknown else _demonstrations_obstacle(run)


def _demonstrations_obstacle(run: Run) -> str | None:
    from sb3_dualqdm.demonstrations import builtin

    settings = {**entry("dual_qdm" if run.method == "gail" else run.method, run.task), **run.params}
    source, wanted = settings.get("demonstrations"), settings.get("n_demonstrations")
    if source is None:
        return f"there are no built-in demonstrations of {run.task}; --demonstrations names others"
    if str(source).startswith("builtin:"):
        there = len(builtin.manifest()[str(source).removeprefix("builtin:")]["lengths"])
        if isinstance(wanted, int) and wanted > there:
            return f"the built-in set has {there} episodes but {wanted} are needed; --demonstrations names others"
    return None


def _importable(name: str) -> bool:
    import importlib.util

    return importlib.util.find_spec(name) is not None


def with_demonstrations(runs: Iterable[Run], folder: Path | None) -> list[Run]:
    """
    Let runs learn from other demonstrations than the built-in ones.

    :param runs: the runs.
    :param folder: folder that has a file or folder for each task, named after it; None: leave the runs as they are.
    :return: the runs.
    """
    if folder is None:
        return list(runs)
    result = []
    for run in runs:
        found = [path for path in (folder / run.task, folder / f"{run.task}.npz") if path.exists()]
        if found and run.method != "sac":
            run = dataclasses.replace(run, params={"demonstrations": str(found[0]), **run.params})
        result.append(run)
    return result


def estimate(runs: Iterable[Run], records: Iterable[dict[str, Any]]) -> float:
    """
    Processor time that runs will take.

    :param runs: the runs.
    :param records: finished runs, whose speed is believed: that of the same method and task, else that of the same method.
    :return: hours.
    """
    measured: dict[tuple[str, ...], list[float]] = {}
    for record in records:
        run = record["run"]
        for key in ((run["method"], run["task"]), (run["method"],)):
            measured.setdefault(key, []).append(record["cpu_seconds"] / run["steps"])
    seconds = 0.0
    for run in runs:
        guess = 1 / STEPS_PER_SECOND.get(run.method, DEFAULT_STEPS_PER_SECOND)
        known = measured.get((run.method, run.task)) or measured.get((run.method,)) or [guess]
        seconds += run.steps * sorted(known)[len(known) // 2]
    return seconds / 3600


def execute_all(
    runs: list[Run],
    folder: Path,
    at_once: int = 1,
    execution: Execution = Execution(),
    backend: str = "local",
    address: str | None = None,
    task: Callable[..., dict[str, Any]] = execute,
    progress: Callable[[float], Any] = lambda steps: None,
) -> dict[str, str]:
    """
    Execute runs and write a JSON file for each that finishes.

    :param runs: the runs.
    :param folder: where the files go.
    :param at_once: runs at a time, on this machine.
    :param execution: device and acceleration.
    :param backend: ``"local"`` or ``"ray"``, where each run takes a processor of the cluster.
    :param address: address of a Ray cluster, None: the one this process is connected to, else a new local one.
    :param task: what executes a run.
    :param progress: told of the steps done since it was last told.
    :return: message by name of the run, for those that failed; they are started again by the next call.
    """
    from sb3_dualqdm.benchmark import backends
    from sb3_dualqdm.benchmark.recording import write_json

    folder.mkdir(parents=True, exist_ok=True)
    outcomes = (
        backends.on_ray(runs, execution, address, task)
        if backend == "ray"
        else backends.locally(runs, folder, at_once, execution, task, progress)
    )
    failed = {}
    for run, result in outcomes:
        if isinstance(result, Exception):
            failed[run.name] = str(result)
            (folder / f"{run.name}.log").write_text(f"{result}\n")
        else:
            write_json(folder / f"{run.name}.json", result)
            (folder / f"{run.name}.log").unlink(missing_ok=True)
        if backend == "ray":
            progress(run.steps)
    return failed
