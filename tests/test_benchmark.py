"""The benchmark: what a suite consists of, its runs, their records, tables and figures."""

import ast
import dataclasses
import importlib.util
import itertools
import json
import os
import signal
import threading
import time
from pathlib import Path

import gymnasium as gym
import numpy as np
import pandas as pd
import pytest
from gymnasium import spaces
from stable_baselines3.common.vec_env import DummyVecEnv

pytest.importorskip("rl_zoo3")
from rl_zoo3.utils import StoreDict

from sb3_dualqdm.benchmark import __main__ as cli
from sb3_dualqdm.benchmark import analysis, figures, recording, runs
from sb3_dualqdm.benchmark.suites import MUJOCO, Run, expand, label, suites
from sb3_dualqdm.demonstrations import builtin
from sb3_dualqdm.zoo import ALGOS

needs_rliable = pytest.mark.skipif(importlib.util.find_spec("rliable") is None, reason="rliable is not installed")
RUN = Run("smoke", "CartPole-v1", "dual_qdm", "", 0, 100, 50, 2, {})


def record(run, returns=(1.0,), cpu_seconds=10.0, step=None):
    """What a finished run leaves, with a single evaluation."""
    evaluation = {"step": step or run.steps, "seconds": 1.0, "returns": list(returns)}
    result = {"run": runs.as_dict(run), "status": "finished", "versions": {}, "demonstrations": None}
    return result | {"evaluations": [evaluation], "cpu_seconds": cpu_seconds}


# --- suites ------------------------------------------------------------------------------------------------------------------


def test_the_online_suite_has_every_method_of_the_registry():
    made = expand("paper-online")
    assert {run.task for run in made} == set(MUJOCO) and {run.seed for run in made} == {0, 1, 2}
    assert {run.method for run in made} == {*ALGOS, "gail", "sac"}
    assert len(made) == 5 * 3 * (len(ALGOS) + 2) == len({run.name for run in made})
    assert all(run.steps == (50_000 if run.method == "bc" else 500_000) for run in made)
    assert [run.seed for run in made] == sorted(run.seed for run in made)  # one seed of everything first


def test_the_suites_of_the_paper():
    demos = expand("paper-demos")
    assert {run.params["n_demonstrations"] for run in demos} == {1, 5, 10, 25}
    assert len(expand("paper-offline")) == 5 * 5 * 3
    assert {run.method for run in expand("paper-offline")} == {"bc", "iq_learn", "reg_iq_learn"}
    sensitivity = expand("paper-sensitivity", seeds=[0])
    grid = {(run.task, key, json.dumps(value)) for run in sensitivity for key, value in run.params.items()}
    bounds = {("HalfCheetah-v4", "bellman_bounds", f"[{-b}, {b}]") for b in (0.5, 1, 2, 5)}
    bounds |= {("Humanoid-v4", "bellman_bounds", f"[{-b}, {b}]") for b in (0.1, 0.5, 1, 2, 5)}
    penalties = {("HalfCheetah-v4", "bellman_penalty", str(b)) for b in (0.1, 0.5, 1, 5)}
    penalties |= {("Humanoid-v4", "bellman_penalty", str(b)) for b in (0.1, 3, 5, 7, 15)}
    assert grid == bounds | penalties and len(sensitivity) == 18


def test_cutting_a_suite():
    part = expand("paper-online", tasks=["HalfCheetah-v5"], methods=["dual_qdm", "bc"], seeds=[7], steps=60_000)
    assert [(run.task, run.method, run.seed, run.steps, run.eval_every) for run in part] == [
        # evaluated when the whole run would be
        ("HalfCheetah-v5", "dual_qdm", 7, 60_000, 10_000),
        ("HalfCheetah-v5", "bc", 7, 50_000, 1_000),  # steps is the most that a run may take
    ]
    assert len(expand("smoke", methods=["bc", "bc"], seeds=[0, 0])) == 1
    for arguments, message in [
        ({"suite": "paper"}, "the suites are paper-online"),
        ({"suite": "smoke", "tasks": ["Pong-v9"]}, "no task 'Pong-v9' but CartPole-v1"),
        ({"suite": "smoke", "methods": ["ppo"]}, "no method 'ppo' but bc, dual_qdm"),
        ({"suite": "smoke", "steps": 0}, "at least 1"),
    ]:
        with pytest.raises(ValueError, match=message):
            expand(**arguments)


def test_rl_zoo3_reads_the_parameters_of_a_command(tmp_path):
    run = dataclasses.replace(RUN, params={"bellman_bounds": [-0.5, 0.5], "demonstrations": "a b:c.npz"})
    command = runs.command(run, tmp_path / "request.json", tmp_path / "logs", tmp_path / "record.zip")
    assert command[:9] == ["-m", "sb3_dualqdm.zoo", "train", "--algo", "dual_qdm", "--env", "CartPole-v1", "--seed", "0"]
    assert command[9:11] == ["-n", "100"]
    params = command[command.index("-params") + 1 :]
    namespace = type("Namespace", (), {})()
    StoreDict(["-params"], "params", nargs="+")(None, namespace, params)
    recorded = {"sb3_dualqdm.benchmark.recording.RecordEvaluations": {"request": str(tmp_path / "request.json")}}
    options = {"path": str(tmp_path / "record.zip"), "save_freq": 50, "resume": True}
    saved = {"sb3_dualqdm.callbacks.ResumableCheckpoint": options}
    assert namespace.params == {**run.params, "callback": [saved, recorded]}


def test_how_a_run_is_executed_is_not_part_of_it(tmp_path):
    def command(method, execution):
        return runs.command(dataclasses.replace(RUN, method=method), *[tmp_path / "file"] * 3, execution)

    execution = runs.Execution("cuda:1", "cudagraph")
    ours, sac, gail = (command(method, execution) for method in ("dual_qdm", "sac", "gail"))
    assert all(arguments[arguments.index("--device") + 1] == "cuda:1" for arguments in (ours, sac, gail))
    assert "acceleration:'cudagraph'" in ours and not any("acceleration" in argument for argument in (*sac, *gail))
    assert not any("acceleration" in argument for argument in command("dual_qdm", runs.Execution()))


def test_labels_come_from_the_registry_where_none_is_given(monkeypatch):
    monkeypatch.setitem(ALGOS, "new_method", "NewMethod")
    assert label("dual_qdm") == "Dual Q-DM" and label("new_method") == "NewMethod"
    assert "new_method" in {method for block in suites()["paper-online"] for method in block.methods}


def test_obstacles():
    def reason(**changes):
        return runs.obstacle(dataclasses.replace(RUN, **changes))

    assert reason() is None
    assert reason(params={"nonsense": 1}) == "DualQDM has no argument 'nonsense'"
    assert reason(params={"bellman_penalty": 1, "n_action_samples": 2}) is None  # its own argument and an inherited one
    assert "5 episodes but 10 are needed" in reason(params={"n_demonstrations": 10})
    assert reason(params={"n_demonstrations": 10, "demonstrations": "elsewhere"}) is None
    assert "no built-in demonstrations of Humanoid-v5" in reason(task="Humanoid-v5")
    assert reason(method="sac", task="Humanoid-v5") is None


def test_other_demonstrations(tmp_path):
    (tmp_path / "CartPole-v1.npz").touch()
    ours, sac, other = runs.with_demonstrations(
        [RUN, dataclasses.replace(RUN, method="sac"), dataclasses.replace(RUN, task="Ant-v4")], tmp_path
    )
    assert ours.params == {"demonstrations": str(tmp_path / "CartPole-v1.npz")}
    assert sac.params == other.params == {}


def test_estimate():
    runs_to_make = [dataclasses.replace(RUN, steps=720_000), dataclasses.replace(RUN, method="bc", steps=1_080_000)]
    # 100 and 300 steps a second where nothing is known
    assert runs.estimate(runs_to_make, []) == pytest.approx(2.0 + 1.0)
    known = [record(dataclasses.replace(RUN, task="Ant-v4"), cpu_seconds=1.0), record(RUN, cpu_seconds=0.5)]
    assert runs.estimate(runs_to_make[:1], known) == pytest.approx(1.0)  # 0.005 s for a step of the same task
    assert runs.estimate(runs_to_make[:1], known[:1]) == pytest.approx(2.0)  # 0.01 s in another task


# --- records -----------------------------------------------------------------------------------------------------------------


class Constant(gym.Env):
    """Each reward is the seed of the episode, which has two steps if that is even and three if it is odd."""

    observation_space, action_space = spaces.Box(-1, 1, (1,)), spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        self.seed, self.left = seed or 0, 2 + (seed or 0) % 2
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.left -= 1
        return np.zeros(1, np.float32), float(self.seed), False, self.left == 0, {}


class Still:
    def predict(self, obs, deterministic):
        assert deterministic
        return np.zeros(len(obs), dtype=int), None


def test_evaluation_episodes_start_from_seeds_of_their_own():
    venv = DummyVecEnv([Constant] * 3)
    for _ in range(2):  # the next evaluation is of the same episodes
        assert recording.evaluate(Still(), venv).tolist() == [20_000.0, 30_003.0, 20_004.0]


@pytest.fixture
def recorder(tmp_path):
    request = {"run": runs.as_dict(RUN), "record": str(tmp_path / "record.json")}
    (tmp_path / "request.json").write_text(json.dumps(request))
    recorder = recording.Recorder(tmp_path / "request.json")
    recorder.venv = DummyVecEnv([Constant] * 2)
    return recorder


def test_evaluations_are_written_when_due(recorder):
    assert [step for step in (0, 1, 49, 50, 70) if recorder.due(step)] == [50, 70]
    recorder.evaluate(Still(), 70)  # several environments jump over the exact step
    assert not recorder.due(99) and recorder.due(100)
    written = json.loads(recorder.path.read_text())
    assert written["status"] == "running" and written["evaluations"][0]["returns"] == [20_000.0, 30_003.0]
    recorder.finish(Still(), 100)
    recorder.finish(Still(), 100)  # rl_zoo3 ends the training of its first callback twice
    written = json.loads(recorder.path.read_text())
    assert written["status"] == "finished" and [entry["step"] for entry in written["evaluations"]] == [70, 100]
    assert written["versions"]["sb3-dualqdm"] and written["cpu_seconds"] > 0


def test_runs_that_fail_are_told_and_made_again(tmp_path):
    made = []

    def task(run, execution, path=None):
        made.append(run.seed)
        if run.seed == 1 and made.count(1) == 1:
            raise runs.RunFailed("bad luck")
        return record(run)

    wanted = [dataclasses.replace(RUN, seed=seed) for seed in range(3)]
    done = []
    assert runs.execute_all(wanted, tmp_path, 2, task=task, progress=done.append) == {wanted[1].name: "bad luck"}
    assert sum(done) == 300 and (tmp_path / f"{wanted[1].name}.log").read_text() == "bad luck\n"
    left = [run for run in wanted if not runs.steps_done(run, tmp_path)]
    assert left == [wanted[1]]
    assert runs.execute_all(left, tmp_path, task=task) == {}
    assert all(runs.steps_done(run, tmp_path) == run.steps for run in wanted) and sorted(made) == [0, 1, 1, 2]
    assert not list(tmp_path.glob("*.log"))
    assert runs.steps_done(dataclasses.replace(RUN, steps=200), tmp_path) == 100
    other = ({"steps": 50}, "steps = 100 but 50"), ({"steps": 200, "eval_every": 9}, "eval_every = 50 but 9")
    for changed, message in other:
        with pytest.raises(ValueError, match=f"has {message} is asked for: name another --folder"):
            runs.steps_done(dataclasses.replace(RUN, **changed), tmp_path)


def test_an_interrupted_run_goes_on_from_its_checkpoint(tmp_path):
    """Killed after its second evaluation, and gone on, it is the run that was never killed."""
    if not Path("/proc").is_dir():
        pytest.skip("processes are found in /proc")
    params = {"learning_starts": 50, "batch_size": 32, "normalize": "dict(norm_reward=False)"}
    run = dataclasses.replace(RUN, steps=400, eval_every=100, params=params)
    whole = runs.execute(run)
    path = tmp_path / ".record.json"
    failing = dataclasses.replace(run, params=dict(run.params))
    killer = threading.Thread(target=kill_when_evaluated, args=(path, 2))
    killer.start()
    with pytest.raises(runs.RunFailed):
        runs.execute(failing, record=path)
    killer.join()
    assert path.with_suffix(".zip").exists()
    for changed, message in (({"steps": 100}, "steps = 400 where 100"), ({"seed": 9}, f"seed = {RUN.seed} where 9")):
        with pytest.raises(runs.RunFailed, match=f"interrupted, with {message} is asked for"):  # and nothing is lost
            runs.execute(dataclasses.replace(failing, **changed), record=path)
    rest = runs.execute(failing, record=path)
    assert 0 < rest["resumed_at"][0] < 400
    for one, other in zip(whole["evaluations"], rest["evaluations"], strict=True):
        assert one["step"] == other["step"] and one["returns"] == other["returns"]
    assert not list(tmp_path.iterdir())


def test_a_finished_run_goes_on_to_more_steps(tmp_path):
    """And is then the run that was asked for all of them at once."""
    params = {"learning_starts": 50, "batch_size": 32}
    run = dataclasses.replace(RUN, steps=300, eval_every=100, params=params)
    whole = runs.execute(run)
    keep = runs.Execution(keep_checkpoints=True)
    # the second part ends between two checkpoints
    for steps in (100, 250, 300):
        part = dataclasses.replace(run, steps=steps)
        assert runs.execute_all([part], tmp_path, execution=keep) == {}
        assert runs.steps_done(part, tmp_path) == steps
    result = json.loads((tmp_path / f"{run.name}.json").read_text())
    assert result["resumed_at"] == [100, 200]
    assert [(entry["step"], entry["returns"]) for entry in result["evaluations"]] == [
        (entry["step"], entry["returns"]) for entry in whole["evaluations"]
    ]


def kill_when_evaluated(path, n):
    """Kill the process whose request names this record as soon as it has n evaluations."""
    while not path.exists() or len(json.loads(path.read_text())["evaluations"]) < n:
        time.sleep(0.01)
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if str(path.with_suffix(".zip")) in (folder / "cmdline").read_text():
                os.kill(int(folder.name), signal.SIGKILL)
        except OSError:
            pass  # gone


def test_a_process_that_fails_is_a_failed_run():
    with pytest.raises(runs.RunFailed, match="nonsense"):
        runs.execute(dataclasses.replace(RUN, method="bc", params={"nonsense": 1}))


# --- Ray ---------------------------------------------------------------------------------------------------------------------


def test_ray_starts_a_killed_run_again(tmp_path):
    ray = pytest.importorskip("ray")
    cluster_utils = pytest.importorskip("ray.cluster_utils")
    folder = str(tmp_path)

    def task(run, execution):
        """Seed 0 is killed the first time; every run waits for one on the other node, so that both nodes work."""
        with open(os.path.join(folder, f"started-{run.seed}-{os.getpid()}"), "w") as file:
            file.write(ray.get_runtime_context().get_node_id())
        if run.seed == 0 and len([name for name in os.listdir(folder) if name.startswith("started-0-")]) == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        deadline = time.time() + 60
        while len({open(os.path.join(folder, name)).read() for name in os.listdir(folder) if "started" in name}) < 2:
            assert time.time() < deadline
            time.sleep(0.1)
        if run.seed == 3:
            raise ValueError("bad luck")
        return {"run": {"seed": run.seed}}

    cluster = cluster_utils.Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        cluster.add_node(num_cpus=1)
        ray.init(address=cluster.address, log_to_driver=False)
        wanted = [dataclasses.replace(RUN, seed=seed) for seed in range(4)]
        failed = runs.execute_all(wanted, tmp_path / "records", backend="ray", task=task)
        nodes = {path.read_text() for path in tmp_path.glob("started-*")}
    finally:
        ray.shutdown()
        cluster.shutdown()
    assert list(failed) == [wanted[3].name] and "bad luck" in failed[wanted[3].name]
    assert len(list(tmp_path.glob("started-0-*"))) == 2 and len(nodes) == 2
    stored = [json.loads((tmp_path / "records" / f"{run.name}.json").read_text()) for run in wanted[:3]]
    assert stored == [{"run": {"seed": seed}} for seed in range(3)]


# --- tables ------------------------------------------------------------------------------------------------------------------


def returns_for(task, scores):
    """Returns that have these scores."""
    entry = builtin.manifest()[task]
    low, high = entry["random"]["mean_return"], entry["expert"]["mean_return"]
    return [low + score * (high - low) for score in scores]


def records_of(method, task, scores, steps=100):
    return [
        record(dataclasses.replace(RUN, task=task, method=method, seed=seed, steps=steps), [value])
        for seed, value in enumerate(returns_for(task, scores))
    ]


def test_the_last_evaluation_counts():
    later = record(RUN, [3.0, 5.0])
    later["evaluations"].insert(0, {"step": 50, "seconds": 0.5, "returns": [400.0, 500.0]})
    final = analysis.last(analysis.evaluations([later]))
    assert final["return"].tolist() == [4.0] and final.step.tolist() == [100]


@needs_rliable
def test_interquartile_mean_and_improvement():
    records = records_of("dual_qdm", "CartPole-v1", [0.0, 0.2, 0.4, 0.9]) + records_of(
        "dual_qdm", "Pendulum-v1", [0.6, 1, 1, 1]
    )
    records += records_of("bc", "CartPole-v1", [0.1, 0.3]) + records_of("bc", "Pendulum-v1", [0.6, 0.6])
    final = analysis.last(analysis.evaluations(records))
    means = analysis.interquartile_means(final)
    # the middle half of 0 .2 .4 .6 .9 1 1 1, and of .1 .3 .6 .6
    assert means.iqm.to_dict() == pytest.approx({"Dual Q-DM": (0.4 + 0.6 + 0.9 + 1) / 4, "BC": 0.45})
    assert (means.low <= means.iqm).all() and (means.iqm <= means.high).all() and (means.high > means.low).all()
    assert means.seeds.to_dict() == {"Dual Q-DM": 4, "BC": 2}
    row = analysis.improvement_probabilities(final).loc["Dual Q-DM > BC"]
    # pairs won: CartPole 0 + 1 + 2 + 2 of 8; Pendulum a tie of two (half each), then all six
    assert row.probability == pytest.approx((5 / 8 + 7 / 8) / 2)
    profile, interval = analysis.performance_profiles(final, np.array([0.25, 0.95]))["Dual Q-DM"]
    assert profile == pytest.approx([6 / 8, 3 / 8]) and interval.shape == (2, 2)


@needs_rliable
def test_intervals_depend_on_their_seed_alone(monkeypatch):
    monkeypatch.setattr(analysis, "RESAMPLES", 50)
    rng, records = np.random.default_rng(0), []
    for method, task in itertools.product(("dual_qdm", "bc"), ("CartPole-v1", "Pendulum-v1")):
        records += records_of(method, task, rng.random(8))
    final = analysis.last(analysis.evaluations(records))

    def everything(seed):
        profiles = analysis.performance_profiles(final, np.linspace(0, 1, 9), seed)
        tables = analysis.interquartile_means(final, seed), analysis.improvement_probabilities(final, seed)
        return [table.to_json() for table in tables] + [interval.tolist() for _, interval in profiles.values()]

    np.random.seed(1)
    expected = np.random.random()
    np.random.seed(1)
    first = everything(0)
    assert np.random.random() == expected  # the caller's generator is left alone
    assert everything(0) == first != everything(1)


@needs_rliable
def test_shorter_runs_do_not_count_as_finished(tmp_path, capsys):
    wanted = expand("smoke", methods=["dual_qdm"])
    made = expand("smoke", methods=["dual_qdm"], steps=300)
    records = [record(run, [10.0]) for run in made]
    for run, content in zip(made, records):
        (tmp_path / f"{run.name}.json").write_text(json.dumps(content))
    words = ["smoke", "--folder", str(tmp_path), "--methods", "dual_qdm"]
    for command in ("run", "aggregate", "plot"):
        with pytest.raises(SystemExit, match=r"has steps = 300 but 200 is asked for: .*--steps"):
            cli.main([command, *words, "--steps", "200"])
    assert cli.main(["run", *words, "--dry-run"]) == 0
    assert "2 runs, 0 finished, 2 to make" in capsys.readouterr().out
    assert cli.main(["plot", *words]) == 0
    assert cli.main(["aggregate", *words]) == 0
    assert "0 of 2 runs are finished, 2 more stopped after fewer steps." in capsys.readouterr().out
    table = analysis.returns_table(analysis.evaluations(records), wanted)
    assert table.loc["Dual Q-DM", "CartPole-v1"] == "10.0 (10.0 to 10.0), after 300 of 2,000 steps"
    assert analysis.report(records, wanted, {}).startswith("0 of 2 runs are finished, 2 more stopped after fewer steps.")
    assert analysis.report(records, made, {}).startswith("2 of 2 runs are finished.")


@needs_rliable
def test_statistics_of_an_unfinished_suite(tmp_path):
    """The third task has one seed yet, of the first method only."""
    records = records_of("dual_qdm", "CartPole-v1", [0.2, 0.4, 0.9]) + records_of("dual_qdm", "Pendulum-v1", [0.5, 0.6, 0.7])
    records += records_of("dual_qdm", "Acrobot-v1", [0.8])
    records += records_of("bc", "CartPole-v1", [0.3, 0.3, 1.0]) + records_of("bc", "Pendulum-v1", [0.5, 0.5, 0.5])
    final = analysis.last(analysis.evaluations(records))
    means = analysis.interquartile_means(final)
    assert means.seeds.to_dict() == {"Dual Q-DM": 1, "BC": 3}
    # one seed of each task: .2 .5 .8, whose spread over seeds is not known
    assert means.iqm["Dual Q-DM"] == pytest.approx(0.5) and means.loc["Dual Q-DM", ["low", "high"]].isna().all()
    assert means.low["BC"] < means.high["BC"]
    # but all three seeds of both tasks that BC has: pairs won 4 of 9, and 6 and three ties of 9
    row = analysis.improvement_probabilities(final).loc["Dual Q-DM > BC"]
    assert row.tasks == "CartPole-v1, Pendulum-v1" and row.probability == pytest.approx((4 / 9 + 7.5 / 9) / 2)
    assert row.low < row.probability < row.high
    profile, interval = analysis.performance_profiles(final, np.array([0.4]))["Dual Q-DM"]
    assert profile == pytest.approx([2 / 3]) and np.isnan(interval).all()
    assert "| Dual Q-DM | 0.50 | one seed | one seed | 1 |" in analysis.report(records, [RUN], {})
    assert figures.aggregates(analysis.evaluations(records), tmp_path / "figure.png").stat().st_size > 10_000


@needs_rliable
def test_efficiency_curve_interpolates():
    first, second = (record(dataclasses.replace(RUN, seed=seed)) for seed in (0, 1))
    for entry, steps in ((first, (0, 100)), (second, (0, 200))):
        values = returns_for("CartPole-v1", [0.0, 1.0])
        entry["evaluations"] = [{"step": s, "seconds": 0, "returns": [v]} for s, v in zip(steps, values)]
    curve = analysis.efficiency_curves(analysis.evaluations([first, second]), points=3)["Dual Q-DM"]
    assert curve.step.tolist() == [0, 50, 100]  # as far as both runs go
    assert curve.iqm.tolist() == pytest.approx([0.0, (0.5 + 0.25) / 2, (1 + 0.5) / 2])
    for evaluation in second["evaluations"]:
        evaluation["step"] += 150
    assert not analysis.efficiency_curves(analysis.evaluations([first, second]))  # nothing is known of both at any step


@needs_rliable
def test_statistics_say_after_how_many_steps():
    records = [record(dataclasses.replace(RUN, seed=seed)) for seed in (0, 1)] + [
        record(dataclasses.replace(RUN, method="bc"))
    ]
    for entry, step in zip(records, (1000, 3000, 2000)):
        entry["evaluations"] = [{"step": step, "seconds": 0, "returns": [100.0]}]
    final = analysis.last(analysis.evaluations(records))
    assert analysis.interquartile_means(final).steps.to_dict() == {"Dual Q-DM": "1,000 to 3,000", "BC": "2,000"}
    assert analysis.improvement_probabilities(final).steps.tolist() == ["1,000 to 3,000"]
    unscored = final.iloc[:1].assign(task="Task-v0", score=np.nan, step=9000)  # does not enter the means
    assert analysis.interquartile_means(pd.concat([final, unscored])).steps["Dual Q-DM"] == "1,000 to 3,000"


@needs_rliable
def test_what_is_not_finished_is_missing():
    wanted = [
        dataclasses.replace(RUN, method=method, seed=seed) for method in ("dual_qdm", "bc", "iq_learn") for seed in (0, 1)
    ]
    records = [record(wanted[0], [10.0]), record(wanted[1], [20.0]), record(wanted[2], [7.0])]
    table = analysis.returns_table(analysis.evaluations(records), wanted)
    assert table["CartPole-v1"].to_dict() == {
        "Dual Q-DM": "15.0 (10.0 to 20.0)",
        "BC": "7.0, 1 of 2 seeds missing",
        "IQ-Learn": "missing",
    }
    text = analysis.report(records, wanted, {"no reason": [wanted[5].name]})
    assert text.startswith("3 of 6 runs are finished") and "| IQ-Learn | missing |" in text
    assert f"not possible here (no reason): 1 runs, the first is {wanted[5].name}" in text


def test_a_sensitivity_figure_has_a_panel_for_each_parameter(tmp_path, monkeypatch):
    titles = []
    finish = figures._finish
    monkeypatch.setattr(figures, "_finish", lambda *args: titles.extend(axis.get_title() for axis in args[1]) or finish(*args))
    records = [record(run) for run in expand("paper-sensitivity", tasks=["HalfCheetah-v4"])]
    path = figures.learning_curves(analysis.evaluations(records), tmp_path / "figure.png")
    assert titles == ["HalfCheetah-v4, beta", "HalfCheetah-v4, bound"] and path.read_bytes().startswith(b"\x89PNG")


def test_last_returns_by_number_of_trajectories(tmp_path, monkeypatch):
    lines = []

    def noted(axis, x, middle, low, high, **style):
        lines.append((style["label"], list(x), list(middle), list(low)))

    monkeypatch.setattr(figures, "_band", noted)
    made = [
        record(
            dataclasses.replace(RUN, variant=f"{n} trajectories", seed=seed, params={"n_demonstrations": n}), [10.0 * n + seed]
        )
        for n in (5, 1, 10)
        for seed in (0, 2)
    ]
    figures.final_returns(analysis.evaluations(made), tmp_path / "figure.png")
    spread = np.std([0, 2], ddof=1)
    assert lines == [
        ("Dual Q-DM", [1, 5, 10], [11.0, 51.0, 101.0], pytest.approx([value - spread for value in (11, 51, 101)]))
    ]


def test_markdown():
    table = pd.DataFrame({"a": [1.234, 2.0], "b": ["x", "y"]}, index=pd.Index(["p", "q"], name="n"))
    assert analysis.markdown(table) == "| n | a | b |\n| --- | --- | --- |\n| p | 1.23 | x |\n| q | 2.00 | y |\n"


# --- from the command line ---------------------------------------------------------------------------------------------------


@needs_rliable
@pytest.mark.timeout(1200)
def test_smoke_suite(tmp_path, capsys):
    """Runs, goes on where it stopped, aggregates, plots."""
    folder = ["--folder", str(tmp_path / "smoke")]
    assert cli.main(["run", "smoke", *folder, "--dry-run"]) == 0
    assert "4 runs, 0 finished, 4 to make" in capsys.readouterr().out and not (tmp_path / "smoke").exists()
    assert cli.main(["run", "smoke", *folder, "-n", "2", "--seeds", "0"]) == 0
    first = {path.name: path.read_bytes() for path in (tmp_path / "smoke").iterdir()}
    assert sorted(first) == ["CartPole-v1_bc_s0.json", "CartPole-v1_dual_qdm_s0.json"]
    assert cli.main(["run", "smoke", *folder, "-n", "2"]) == 0
    assert "4 runs, 2 finished, 2 to make" in capsys.readouterr().out
    assert first.items() <= {path.name: path.read_bytes() for path in (tmp_path / "smoke").iterdir()}.items()

    content = json.loads(first["CartPole-v1_dual_qdm_s0.json"])
    assert [entry["step"] for entry in content["evaluations"]] == [1000, 2000]
    assert all(len(entry["returns"]) == 2 for entry in content["evaluations"])
    demonstrations = content["demonstrations"]
    assert demonstrations["episodes"] == [0] and demonstrations["returns"] == [500.0]
    assert demonstrations["sha256"] == builtin.manifest()["CartPole-v1"]["sha256"]
    assert content["command"][:3] == ["python", "-m", "sb3_dualqdm.zoo"] and content["versions"]["rl-zoo3"]
    assert ast.literal_eval(content["command"][-1].removeprefix("callback:"))

    assert cli.main(["aggregate", "smoke", *folder]) == 0
    text = capsys.readouterr().out
    assert "4 of 4 runs are finished" in text and "Dual Q-DM > BC" in text
    assert len(pd.read_csv(tmp_path / "smoke" / "summary.csv")) == 4
    assert cli.main(["plot", "smoke", *folder]) == 0
    for name in ("smoke.png", "smoke-aggregate.png"):
        assert (tmp_path / "smoke" / name).read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("name", ["other", "CartPole-v1_bc_s0"])
@pytest.mark.parametrize(("content", "reason"), [("{", "JSONDecodeError"), ("{}", "KeyError"), ('{"run": {}}', "TypeError")])
def test_files_that_are_no_records_are_named(name, content, reason, tmp_path):
    (tmp_path / f"{name}.json").write_text(content)
    for command in ("aggregate", "plot", "run"):
        with pytest.raises(SystemExit, match=f"error: .*{name}.json is no record of a finished run .{reason}"):
            cli.main([command, "smoke", "--folder", str(tmp_path)])


def test_at_least_one_run_at_a_time(tmp_path):
    with pytest.raises(SystemExit, match="-n is 0 but at least 1"):
        cli.main(["run", "smoke", "--folder", str(tmp_path), "-n", "0"])


def test_nothing_to_aggregate(tmp_path):
    with pytest.raises(SystemExit, match="no finished run"):
        cli.main(["aggregate", "smoke", "--folder", str(tmp_path)])
