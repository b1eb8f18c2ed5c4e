"""Where runs are executed: in processes of this machine, or on a Ray cluster."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sb3_dualqdm.benchmark.suites import Run

if TYPE_CHECKING:
    from sb3_dualqdm.benchmark.runs import Execution

POLL_SECONDS = 2.0
# How often Ray starts a run again whose worker or node was lost.
MAX_RETRIES = 5

Outcome = tuple[Run, "dict[str, Any] | Exception"]
Task = Callable[..., "dict[str, Any]"]


def locally(
    runs: list[Run], folder: Path, at_once: int, execution: Execution, task: Task, progress: Callable[[float], Any]
) -> Iterator[Outcome]:
    """
    Execute runs on this machine; a thread waits for each process.

    :param runs: the runs.
    :param folder: the records of unfinished runs are kept here while they run.
    :param at_once: runs at a time.
    :param execution: device and acceleration.
    :param task: what executes a run.
    :param progress: told of the steps done since it was last told.
    :return: run and record, or what went wrong, as they finish.
    """
    records = {run.name: folder / f".{run.name}.json" for run in runs}
    reported = dict.fromkeys(records, 0)

    def report(run: Run, done: int) -> None:
        progress(done - reported[run.name])
        reported[run.name] = done

    pool = ThreadPoolExecutor(at_once)
    try:
        pending: dict[Future[dict[str, Any]], Run] = {}
        for run in runs:
            pending[pool.submit(task, run, execution, records[run.name])] = run
        while pending:
            done, _ = wait(pending, POLL_SECONDS, FIRST_COMPLETED)
            for future in done:
                run = pending.pop(future)
                error = future.exception()
                report(run, run.steps)
                if error is not None and not isinstance(error, Exception):
                    raise error
                yield run, error or future.result()
            for run in pending.values():
                if records[run.name].exists():
                    report(run, json.loads(records[run.name].read_text())["evaluations"][-1]["step"])
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def on_ray(runs: list[Run], execution: Execution, address: str | None, task: Task) -> Iterator[Outcome]:
    """
    Execute runs on a Ray cluster, one processor each (and one GPU where the device is one).

    :param runs: the runs.
    :param execution: device and acceleration.
    :param address: address of the cluster, None: the one this process is connected to, else a new local one.
    :param task: what executes a run.
    :return: run and record, or what went wrong, as they finish. Records come back through Ray, so that nodes need no common
        disk; a run whose worker or node is lost is started again.
    :raises ImportError: if Ray is not installed.
    """
    try:
        import ray
    except ImportError:
        raise ImportError('the backend is "ray", which is not installed: pip install "sb3-dualqdm[ray]".') from None
    if not ray.is_initialized():
        ray.init(address=address, log_to_driver=False)
    n_gpus = int(execution.device.startswith("cuda"))
    remote: Any = ray.remote(num_cpus=1, num_gpus=n_gpus, max_retries=MAX_RETRIES)(task)
    pending = {remote.remote(run, execution): run for run in runs}
    while pending:
        (reference,), _ = ray.wait(list(pending), num_returns=1)
        run = pending.pop(reference)
        try:
            yield run, ray.get(reference)
        except ray.exceptions.RayError as error:
            yield run, error
