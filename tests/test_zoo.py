"""rl_zoo3's own commands, run as a user types them, each in a new interpreter."""

import ast
import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch
import yaml

pytest.importorskip("rl_zoo3")
import rl_zoo3
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.save_util import load_from_zip_file
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from sb3_dualqdm import DualQDM, load_demonstrations
from sb3_dualqdm.callbacks import ResumableCheckpoint
from sb3_dualqdm.demonstrations import builtin_ids
from sb3_dualqdm.zoo import ALGOS, convert_hyperparams, hyperparams_path, sample_hyperparams

ENV_ID = "CartPole-v1"
BOX_ONLY = ("value_dice", "recoil", "rize")
IS_OLD_ZOO = tuple(map(int, rl_zoo3.__version__.split(".")[:2])) < (2, 6)
MISSING = "has no demonstrations to learn from"

# Small enough for a test, large enough for some updates
PARAMS = ["learning_starts:100", "batch_size:32"]


def run(folder, *command, fails=False, **environment):
    """Run ``python COMMAND`` in a folder; return everything it printed."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg", "SDL_VIDEODRIVER": "dummy", **environment}
    # scripts of the environment first, as in an activated one: some commands of rl_zoo3 call `python`
    env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{env['PATH']}"
    command = [sys.executable, *map(str, command)]
    process = subprocess.run(command, cwd=folder, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    output = process.stdout + process.stderr
    assert (process.returncode != 0) == fails, output
    assert "sb3_dualqdm could not" not in output, output
    return output


def train(folder, *arguments, algo="dual_qdm", env=ENV_ID, steps=200, params=(), module="rl_zoo3.train", **kwargs):
    arguments = ["--eval-freq", -1, *arguments] if "--eval-freq" not in arguments else list(arguments)
    command = ["-m", module, "--algo", algo, "--env", env, "-n", steps, "--seed", 1, *arguments, "-params", *PARAMS, *params]
    return run(folder, *command, **kwargs)


def enjoy(folder, *arguments, algo="dual_qdm", env=ENV_ID):
    return run(folder, "-m", "rl_zoo3.enjoy", "--algo", algo, "--env", env, "-n", 60, "--no-render", "-f", "logs", *arguments)


def saved(folder, algo="dual_qdm", run_id=1, env=ENV_ID):
    """Data of the model that a run saved, and the hyperparameters that rl_zoo3 noted for it."""
    path = folder / "logs" / algo / f"{env}_{run_id}"
    data, _, _ = load_from_zip_file(path / f"{env}.zip")
    return data, yaml.load((path / env / "config.yml").read_text(), yaml.UnsafeLoader)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with one run of Dual Q-DM: evaluated, with checkpoints and its replay buffer, on demonstrations of its own."""
    folder = tmp_path_factory.mktemp("trained")
    load_demonstrations(f"builtin:{ENV_ID}").select([1]).save(folder / "mine.npz")
    train(
        folder,
        *("--eval-freq", 100, "--eval-episodes", 2, "--save-freq", 100, "--save-replay-buffer"),
        params=["demonstrations:'mine.npz'"],
    )
    return folder


# --- every algorithm --------------------------------------------------------------------------------------------------------


@pytest.mark.both
@pytest.mark.parametrize("algo", ALGOS)
def test_train_and_enjoy(algo, tmp_path):
    env = ENV_ID if rl_zoo3.ALGOS[algo].supports_discrete else "Pendulum-v1"
    train(tmp_path, "--eval-freq", 100, "--eval-episodes", 1, "--save-freq", 100, algo=algo, env=env)
    data, config = saved(tmp_path, algo, env=env)
    assert data["demonstrations"] == config["demonstrations"] == f"builtin:{env}"
    assert data["num_timesteps"] == 200 and data["_n_updates"] >= 99
    files = {path.name for path in (tmp_path / "logs" / algo / f"{env}_1").iterdir()}
    assert {"best_model.zip", "rl_model_100_steps.zip", "rl_model_200_steps.zip", "evaluations.npz", f"{env}.zip"} <= files
    assert f"Loading logs/{algo}/{env}_1/{env}.zip" in enjoy(tmp_path, algo=algo, env=env)


@pytest.mark.parametrize("algo", ["iq_learn", "ls_iq", "recoil"])
def test_offline_training_and_enjoy(algo, tmp_path):
    """Time steps are updates, and the reloaded model acts in the environment."""
    env = "Pendulum-v1"
    train(tmp_path, "--eval-freq", 30, "--eval-episodes", 1, algo=algo, env=env, steps=60, params=["offline:True"])
    data, config = saved(tmp_path, algo, env=env)
    assert data["offline"] and config["offline"]
    assert data["num_timesteps"] == data["_n_updates"] == 60
    evaluations = np.load(tmp_path / "logs" / algo / f"{env}_1" / "evaluations.npz")
    assert evaluations["timesteps"].tolist() == [30, 60]
    assert f"Loading logs/{algo}/{env}_1/{env}.zip" in enjoy(tmp_path, algo=algo, env=env)


def test_registered_classes():
    import sb3_dualqdm

    assert {algo: rl_zoo3.ALGOS[algo] for algo in ALGOS} == {a: getattr(sb3_dualqdm, name) for a, name in ALGOS.items()}


def test_own_environments_are_registered(tmp_path):
    code = "import rl_zoo3.exp_manager, gymnasium; print([i for i in gymnasium.registry if i.startswith('sb3_dualqdm/')])"
    assert "sb3_dualqdm/ResetCliff-v0" in run(tmp_path, "-c", code)


# --- training ---------------------------------------------------------------------------------------------------------------


def test_several_environments_in_subprocesses(tmp_path):
    output = train(tmp_path, "--vec-env", "subproc", "--progress", params=["n_envs:2", "gradient_steps:-1"])
    assert "Using 2 environments" in output
    assert saved(tmp_path)[0]["n_envs"] == 2 and saved(tmp_path)[0]["_n_updates"] == 100


@pytest.mark.both
def test_resumable_checkpoints_by_yaml(tmp_path):
    """The YAML entry of the documentation: the command started again ends as one that ran through, in Python as well."""
    entry = {
        "n_timesteps": 180,
        "policy": "MlpPolicy",
        "policy_kwargs": "dict(net_arch=[16])",
        "normalize": "dict(norm_reward=False)",
        "demonstrations": f"builtin:{ENV_ID}",
        "callback": [{"sb3_dualqdm.callbacks.ResumableCheckpoint": {"path": "run.zip", "save_freq": 50, "resume": True}}],
    }
    (tmp_path / "mine.yml").write_text(yaml.dump({ENV_ID: entry}))
    train(tmp_path, "-conf", "mine.yml", steps=130)  # leaves a checkpoint of step 100, like a run killed at step 130
    copy = shutil.copy(tmp_path / "run.zip", tmp_path / "copy.zip")
    train(tmp_path, "-conf", "mine.yml", steps=-1)
    (tmp_path / "run.zip").unlink()
    train(tmp_path, "-conf", "mine.yml", steps=-1)
    resumed, whole = (DualQDM.load(tmp_path / f"logs/dual_qdm/{ENV_ID}_{run_id}/{ENV_ID}.zip") for run_id in (2, 3))

    venv = VecNormalize(make_vec_env(ENV_ID), norm_reward=False)
    in_python = DualQDM.resume(copy, env=venv)
    assert in_python.num_timesteps == 100
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    in_python.learn(80, ResumableCheckpoint(copy, 50), reset_num_timesteps=False)
    torch.set_num_threads(threads)

    expected = whole.policy.state_dict()
    for model in (resumed, in_python):
        assert model._n_updates == whole._n_updates == 80
        assert all(torch.equal(expected[name], value) for name, value in model.policy.state_dict().items())


@pytest.mark.both
def test_continue_keeps_the_demonstrations_of_the_model(trained):
    run_id = 1 + len(list((trained / "logs/dual_qdm").glob(f"{ENV_ID}_*")))
    output = train(trained, "-i", f"logs/dual_qdm/{ENV_ID}_1/{ENV_ID}.zip")
    assert "Loading replay buffer" in output
    data, config = saved(trained, run_id=run_id)
    assert data["demonstrations"] == "mine.npz" and "demonstrations" not in config
    assert data["_n_updates"] > saved(trained)[0]["_n_updates"]


def test_continue_with_other_demonstrations(trained):
    run_id = 1 + len(list((trained / "logs/dual_qdm").glob(f"{ENV_ID}_*")))
    train(trained, "-i", f"logs/dual_qdm/{ENV_ID}_1/{ENV_ID}.zip", params=[f"demonstrations:'builtin:{ENV_ID}'"])
    data, config = saved(trained, run_id=run_id)
    assert data["demonstrations"] == config["demonstrations"] == f"builtin:{ENV_ID}"


def test_vec_normalize_statistics_are_saved_and_used(tmp_path):
    train(tmp_path, params=["normalize:dict(norm_reward=False)"])
    assert (tmp_path / "logs/dual_qdm" / f"{ENV_ID}_1" / ENV_ID / "vecnormalize.pkl").is_file()
    assert "Loading running average" in enjoy(tmp_path)


@pytest.mark.both
def test_environment_without_an_entry_gets_the_default_one(tmp_path):
    load_demonstrations(f"builtin:{ENV_ID}").select([0]).save(tmp_path / "demos.npz")
    (tmp_path / "my_envs.py").write_text(
        "import gymnasium as gym\n"
        "gym.register('MyCartPole-v0', entry_point='gymnasium.envs.classic_control:CartPoleEnv', max_episode_steps=30)\n"
    )
    arguments = ["--gym-packages", "my_envs", "--vec-env", "subproc"]
    output = train(tmp_path, *arguments, env="MyCartPole-v0", params=["demonstrations:'demos.npz'"])
    assert re.search(r"Using (the )?'default' hyperparameters", output)
    data, config = saved(tmp_path, env="MyCartPole-v0")
    assert config["policy"] == "MlpPolicy" and config["n_timesteps"] == 1e5 and data["num_timesteps"] == 200


def test_tracking_with_weights_and_biases(tmp_path):
    # a stand-in: the real one needs an account
    (tmp_path / "wandb.py").write_text(
        textwrap.dedent(
            """
            class Config(dict):
                def setdefaults(self, values):
                    print("tracked", values["saved_hyperparams"]["demonstrations"], values["algo"])

            def init(**kwargs):
                run = lambda: None
                run.config = Config()
                return run
            """
        )
    )
    output = train(tmp_path, "--track", algo="bc", steps=50)
    assert f"tracked builtin:{ENV_ID} bc" in output
    assert list((tmp_path / "runs").rglob("events.out.tfevents*"))


@pytest.mark.both
def test_missing_demonstrations_are_answered_by_a_sentence(tmp_path):
    output = train(tmp_path, env="MountainCar-v0", fails=True)
    assert MISSING in output and "-params demonstrations:" in output


def test_wrong_configuration_file_stays_an_error(tmp_path):
    output = train(tmp_path, "-conf", "nowhere.yml", fails=True)
    assert "No such file or directory: 'nowhere.yml'" in output


def test_own_configuration_file_is_used(tmp_path):
    entry = {"n_timesteps": 150, "policy": "MlpPolicy", "demonstrations": f"builtin:{ENV_ID}"}
    (tmp_path / "mine.yml").write_text(yaml.safe_dump({ENV_ID: entry}))
    train(tmp_path, "-conf", "mine.yml", steps=-1)
    assert saved(tmp_path)[0]["num_timesteps"] == 150


def test_parallel_training_is_refused(tmp_path):
    callback = "callback:['rl_zoo3.callbacks.ParallelTrainCallback']"
    output = train(tmp_path, params=[callback], fails=True)
    last = output.strip().splitlines()[-1]
    assert last.startswith("TypeError: ParallelTrainCallback") and "the demonstrations of this DualQDM" in last


def test_parallel_training_of_sac_is_left_alone(tmp_path):
    callback = "callback:['rl_zoo3.callbacks.ParallelTrainCallback']"
    train(tmp_path, algo="sac", env="Pendulum-v1", params=[callback, "train_freq:50"])


# --- using a trained model --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments, file",
    [
        (["--load-best"], "best_model.zip"),
        (["--load-checkpoint", 100], "rl_model_100_steps.zip"),
        (["--load-last-checkpoint"], "rl_model_200_steps.zip"),
        (["--exp-id", 1, "--n-envs", 2], f"{ENV_ID}.zip"),
    ],
)
def test_enjoy_of_any_saved_model(arguments, file, trained):
    arguments = arguments if "--exp-id" in arguments else ["--exp-id", 1, *arguments]
    assert f"Loading logs/dual_qdm/{ENV_ID}_1/{file}" in enjoy(trained, *arguments)


def test_enjoy_needs_no_demonstrations(tmp_path, trained):
    run_folder = tmp_path / "logs" / "dual_qdm" / f"{ENV_ID}_1"
    run_folder.parent.mkdir(parents=True)
    source = trained / "logs" / "dual_qdm" / f"{ENV_ID}_1"
    run_folder.mkdir()
    (run_folder / f"{ENV_ID}.zip").write_bytes((source / f"{ENV_ID}.zip").read_bytes())
    assert not (tmp_path / "mine.npz").exists()
    enjoy(tmp_path)


def test_record_video(trained):
    arguments = ["--algo", "dual_qdm", "--env", ENV_ID, "-f", "logs", "--exp-id", 1, "-n", 20]
    run(trained, "-m", "rl_zoo3.record_video", *arguments)
    assert list((trained / "logs").rglob("*.mp4"))


def test_record_training(trained, tmp_path):
    """One video of both checkpoints, the last and the best model; moviepy brings the `ffmpeg` that rl_zoo3 calls by name."""
    ffmpeg = pytest.importorskip("imageio_ffmpeg").get_ffmpeg_exe()
    (tmp_path / "ffmpeg").symlink_to(ffmpeg)
    arguments = ["--algo", "dual_qdm", "--env", ENV_ID, "-f", "logs", "-o", tmp_path / "videos", "--exp-id", 1, "-n", 20]
    path = os.pathsep.join((str(tmp_path), os.environ["PATH"]))
    run(trained, "-m", "rl_zoo3.record_training", *arguments, "--deterministic", PATH=path)
    (training,) = (tmp_path / "videos").rglob("training.mp4")
    parts = [video.stat().st_size for video in training.parent.glob("*-dual_qdm-*.mp4")]
    assert len(parts) == 4 and training.stat().st_size > max(parts)


def test_plots(trained):
    arguments = ["-a", "dual_qdm", "-e", ENV_ID, "-f", "logs", "-o", "plot"]
    assert ENV_ID in run(trained, "-m", "rl_zoo3.plots.all_plots", *arguments, "--no-million", "--no-display")


def test_benchmark(trained):
    # rl_zoo3 calls the script `enjoy.py`, which only its source repository has
    (trained / "enjoy.py").write_text("from rl_zoo3.enjoy import enjoy\n\nenjoy()\n")
    output = run(trained, "-m", "rl_zoo3.benchmark", "--no-hub", "--log-dir", "logs", "-n", 600, "--test-mode")
    assert "Evaluating dual_qdm on CartPole-v1" in output
    assert "dual_qdm" in (trained / "logs/benchmark/benchmark.md").read_text()


def test_report_of_returns(trained):
    script = Path(__file__).parent.parent / "examples" / "report_returns.py"
    output = run(trained, script, "--algo", "dual_qdm", "--env", ENV_ID, "-f", "logs", "--episodes", 3)
    returns = dict(re.findall(r"^(random|expert|learner) +return +([\d.]+)", output, flags=re.MULTILINE))
    assert returns["expert"] == "500.0" and 8 <= float(returns["random"]) < 100 and 8 <= float(returns["learner"]) <= 500


def test_console_script(tmp_path):
    script = Path(sys.executable).parent / "rl_zoo3"
    command = ["--algo", "bc", "--env", ENV_ID, "--eval-freq", -1, "-n", 50]
    run(tmp_path, script, "train", *command)
    assert saved(tmp_path, "bc")[0]["num_timesteps"] == 50


@pytest.mark.both
def test_forwarding_command_works_with_the_hook_switched_off(tmp_path):
    off = {"SB3_DUALQDM_NO_HOOK": "1"}
    output = train(tmp_path, algo="bc", steps=50, fails=True, **off)
    assert re.search(r"invalid choice: '?bc'?", output)
    forward = ["-m", "sb3_dualqdm.zoo", "train", "--algo", "bc", "--env", ENV_ID, "-n", 50, "--eval-freq", -1]
    run(tmp_path, *forward, **off)
    assert saved(tmp_path, "bc")[0]["num_timesteps"] == 50


# --- searching hyperparameters ----------------------------------------------------------------------------------------------

STORAGE = "sqlite:///study.db" if IS_OLD_ZOO else "study.log"
SEARCH = ["-optimize", "--n-trials", 2, "--no-optim-plots", "--pruner", "none", "--eval-episodes", 1]


@pytest.mark.parametrize("algo", ALGOS)
def test_sampled_hyperparameters_are_arguments_of_the_class(algo):
    optuna = pytest.importorskip("optuna")
    algorithm = rl_zoo3.ALGOS[algo]
    for env_id, n_actions in ((ENV_ID, 0), ("Pendulum-v1", 1)):
        if n_actions == 0 and not algorithm.supports_discrete:
            continue
        trial = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0)).ask()
        hyperparams = sample_hyperparams(algo, trial, n_actions, 1, {})
        assert hyperparams == convert_hyperparams(trial.params)
        model = algorithm("MlpPolicy", gym.make(env_id), demonstrations=f"builtin:{env_id}", **hyperparams)
        assert model.batch_size == 2 ** trial.params["batch_size_pow"]
        assert ("actor_learning_rate" in hyperparams) == (n_actions > 0 and algo != "bc")
        if algo == "dual_qdm":
            bound = trial.params["bellman_bounds"]
            assert model._bounds == (-bound, bound)


@pytest.mark.both
def test_search_and_training_with_its_result(tmp_path):
    where = ["--storage", STORAGE, "--study-name", "cartpole"]
    output = train(tmp_path, *SEARCH, *where, steps=150)
    assert "Number of finished trials:  2" in output and output.count("finished with value") == 2
    if IS_OLD_ZOO:
        return  # --trial-id does not exist there
    train(tmp_path, *where, "--trial-id", 1)
    data, config = saved(tmp_path, run_id=2)  # the search has a folder as well
    assert data["bellman_bounds"] == config["bellman_bounds"] and data["bellman_bounds"] != (-1, 1)
    assert 0.95 <= data["gamma"] < 0.9991 and data["gamma"] != 0.99


def test_two_processes_share_one_study(tmp_path):
    if IS_OLD_ZOO:  # two processes cannot create the tables of one database at the same moment
        optuna = pytest.importorskip("optuna")
        optuna.create_study(study_name="shared", storage=f"sqlite:///{tmp_path}/study.db", direction="maximize")
    command = [sys.executable, "-m", "rl_zoo3.train", "--algo", "bc", "--env", ENV_ID, "-n", "100", *map(str, SEARCH)]
    command += ["--max-total-trials", "4", "--storage", STORAGE, "--study-name", "shared"]
    options = {"cwd": tmp_path, "env": {**os.environ, "OMP_NUM_THREADS": "1"}, "text": True}
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options) for _ in range(2)]
    outputs = [process.communicate(timeout=280)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    numbers = sorted(int(n) for output in outputs for n in re.findall(r"Trial (\d+) finished with value", output))
    assert len(numbers) >= 4 and numbers == sorted(set(numbers))


@pytest.mark.parametrize(
    "demonstrations, sentence",
    [
        ("None", MISSING),
        ("'nowhere.npz'", "there is no demonstration file"),
        ("'builtin:Pendulum-v1'", "the shape (3,) per step but the observation space has (4,)"),
    ],
)
def test_bad_demonstrations_stop_the_search(demonstrations, sentence, tmp_path):
    output = train(tmp_path, *SEARCH, steps=150, params=[f"demonstrations:{demonstrations}"], fails=True)
    assert sentence in output.strip().splitlines()[-1]
    assert "pruned" not in output


def test_trials_do_not_go_on_from_each_other(tmp_path):
    checkpoint = {"sb3_dualqdm.callbacks.ResumableCheckpoint": {"path": "run.zip", "save_freq": 10, "resume": True}}
    output = train(tmp_path, *SEARCH, algo="bc", steps=50, params=[f"callback:[{checkpoint}]"], fails=True)
    assert "every trial of -optimize would go on from the checkpoint of the first: leave it out." in output
    assert "pruned" not in output


def test_bad_hyperparameters_are_still_pruned(tmp_path):
    (tmp_path / "failing.py").write_text(
        textwrap.dedent(
            """
            from stable_baselines3.common.callbacks import BaseCallback

            class Failing(BaseCallback):
                def _on_step(self):
                    raise ValueError("bad luck")
            """
        )
    )
    output = train(tmp_path, *SEARCH, algo="bc", steps=50, params=["callback:['failing.Failing']"], fails=True)
    assert output.count("pruned") == 2  # and rl_zoo3 finds no best trial


# --- hyperparameter files ---------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*out of date.*:DeprecationWarning")
@pytest.mark.parametrize("algo", ALGOS)
def test_every_entry_constructs_its_model(algo):
    entries = yaml.safe_load(hyperparams_path(algo).read_text())
    mujoco = [f"{name}-v{v}" for name in ("Ant", "HalfCheetah", "Hopper", "Humanoid", "Walker2d") for v in (4, 5)]
    discrete = {"CartPole-v1", "Acrobot-v1", "LunarLander-v3"} if algo in BOX_ONLY else set()
    builtin = set(builtin_ids()) - discrete
    for_the_zoo = ("n_timesteps", "n_envs", "env_wrapper", "frame_stack")
    assert {"default", *mujoco, *builtin} <= set(entries)
    assert ("atari" in entries) == (algo not in BOX_ONLY) and not discrete & set(entries)
    assert all(entries[env_id]["demonstrations"] == f"builtin:{env_id}" for env_id in builtin)
    for env_id, entry in entries.items():
        entry = {key: value for key, value in entry.items() if key not in for_the_zoo}
        if env_id in ("default", "atari"):
            env_id, entry = "Pendulum-v1" if algo in BOX_ONLY else ENV_ID, entry | {"policy": "MlpPolicy"}
        try:
            env = gym.make(env_id)
        except (gym.error.Error, ImportError, AttributeError, ValueError):
            continue  # another version of gymnasium or mujoco, or no Box2D
        if "normalize" in entry:
            env = VecNormalize(DummyVecEnv([lambda env=env: env]), **ast.literal_eval(entry.pop("normalize")))
        model = rl_zoo3.ALGOS[algo](env=env, **entry)
        assert model.demonstrations == (f"builtin:{env_id}" if env_id in builtin and "demonstrations" in entry else None)
        env.close()


def test_mujoco_entries_have_the_authors_settings():
    """But for HalfCheetah's penalty and observations, and Hopper's entry, which is that of the class."""
    entries = yaml.safe_load(hyperparams_path("dual_qdm").read_text())
    columns = ("n_demonstrations", "subsample", "value_mode", "ent_coef", "actor_learning_rate")
    columns += ("bellman_bounds", "bellman_penalty")
    table = {
        "Ant": (1, 1, "value", 0.001, 3e-4, [-10, 10], 0.1),
        "HalfCheetah": (1, 1, "value", 0.001, 3e-4, [-1, 1], 5),
        "Humanoid": (5, 1, "v0", 1.0, 3e-5, [-0.5, 0.5], 5),
        "Walker2d": (1, 1, "value", 0.005, 3e-5, [-1, 1], 0.1),
    }
    for name, row in table.items():
        for version in (4, 5):
            entry = {"subsample": 1} | entries[f"{name}-v{version}"]
            assert tuple(entry[column] for column in columns) == row
            own = f"builtin:{name}-v{version}" if f"{name}-v{version}" in builtin_ids() else None
            assert entry["terminal_value"] == "zero" and entry.get("demonstrations") == own
            assert ("normalize" in entry) == ("normalize_by_demonstrations" in entry) == (name == "HalfCheetah")
    hopper = {"n_timesteps", "policy", "demonstrations", "n_demonstrations", "subsample", "buffer_size"}
    assert set(entries["Hopper-v4"]) == set(entries["Hopper-v5"]) == hopper and entries["Hopper-v5"]["subsample"] == 5


def test_halfcheetah_needs_nothing_but_its_name(tmp_path):
    pytest.importorskip("mujoco")
    output = train(tmp_path, "--log-interval", 1, env="HalfCheetah-v4", steps=1010, params=["learning_starts:1000"])
    assert "builtin:HalfCheetah-v4: 1 episode, 1000 transitions" in output
    score = float(re.search(r"normalized_score\s*\|\s*(\S+)", output).group(1))
    assert -0.1 < score < 0.1  # an untrained policy is about as good as a random one


def test_random_seed_reaches_the_model(tmp_path):
    train(tmp_path, algo="bc", steps=50)
    train(tmp_path, algo="bc", steps=50)
    weights = [load_from_zip_file(tmp_path / f"logs/bc/{ENV_ID}_{i}/{ENV_ID}.zip")[1]["policy"] for i in (1, 2)]
    assert all(np.array_equal(weights[0][name], weights[1][name]) for name in weights[0])
