"""The start-up hook, against a small stand-in for rl_zoo3: these interpreters import neither torch nor gymnasium."""

import os
import subprocess
import sys
import sysconfig
import textwrap
import zipfile
from pathlib import Path

import _sb3_dualqdm_startup
import pytest

from sb3_dualqdm.zoo import ALGOS

pytestmark = pytest.mark.both

ROOT = Path(__file__).parent.parent
HEAVY = {"torch", "numpy", "gymnasium", "stable_baselines3", "rl_zoo3", "yaml"}

FAKE_ZOO = {
    "__init__.py": "",
    "utils.py": "ALGOS = {'ppo': 'PPO'}\n",
    "hyperparams_opt.py": "HYPERPARAMS_SAMPLER = {}\n",
    "train.py": "import sys\nfrom rl_zoo3.utils import ALGOS\nprint(sorted(ALGOS), sys.argv[1:])\n",
    "data.txt": "resource",
}

# Our algorithms without torch, and what every script below starts with
PRELUDE = f"""
import sys, types
names = {tuple(ALGOS.values())}
sys.modules["sb3_dualqdm.algorithms"] = types.SimpleNamespace(**{{name: name for name in names}})
ALL = {sorted([*ALGOS, "ppo"])}

def finders():
    return [finder for finder in sys.meta_path if type(finder).__module__ == "_sb3_dualqdm_startup"]
"""


@pytest.fixture()
def zoo_path(tmp_path):
    """A folder that holds the stand-in for rl_zoo3."""
    (tmp_path / "rl_zoo3").mkdir()
    for name, text in FAKE_ZOO.items():
        (tmp_path / "rl_zoo3" / name).write_text(text)
    return tmp_path


def run(code, *options, path=(), prelude=PRELUDE, check=True, **environment):
    """Run code in a new interpreter, with folders in front of its path; return what it printed."""
    env = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "SB3_", "COV"))}
    env.update(environment, PYTHONPATH=os.pathsep.join(map(str, path)))
    command = [sys.executable, *options]
    if code is not None:
        command += ["-c", prelude + textwrap.dedent(code)]
    # from a folder that holds no package: `-c` puts it first on the path
    result = subprocess.run(command, env=env, cwd=sys.prefix, capture_output=True, text=True, timeout=120)
    if check:
        assert result.returncode == 0, result.stderr
    return result


def test_installed_hook_is_the_one_of_this_source_tree():
    installed = Path(_sb3_dualqdm_startup.__file__).parent
    for name in ("_sb3_dualqdm_startup.py", "sb3_dualqdm.pth", "sb3_dualqdm.start"):
        assert (installed / name).read_bytes() == (ROOT / "startup" / name).read_bytes(), "reinstall the package"


def test_start_entry_point_names_install():
    module, function = (ROOT / "startup" / "sb3_dualqdm.start").read_text().strip().split(":")
    assert module == _sb3_dualqdm_startup.__name__ and getattr(_sb3_dualqdm_startup, function) is _sb3_dualqdm_startup.install


def test_python_starts_with_one_finder_and_nothing_else_of_ours():
    run(
        """
        assert len(finders()) == 1
        assert "sb3_dualqdm" not in sys.modules
        assert not {HEAVY} & set(sys.modules)
        """.replace("{HEAVY}", repr(HEAVY)),
    )


def test_package_import_is_lazy():
    run(
        """
        import sys
        import sb3_dualqdm
        loaded = {HEAVY} & set(sys.modules)
        assert not loaded, loaded
        assert set(sb3_dualqdm.__all__) <= set(dir(sb3_dualqdm))
        assert sb3_dualqdm.__version__ == "0.1.0"
        try:
            sb3_dualqdm.no_such_name
        except AttributeError as error:
            assert "no_such_name" in str(error)
        else:
            raise AssertionError
        """.replace("{HEAVY}", repr(HEAVY)),
        prelude="",
    )


def test_lazy_name_is_imported_on_first_use_and_kept():
    run("import sb3_dualqdm; assert sb3_dualqdm.BC == 'BC'; assert vars(sb3_dualqdm)['BC'] == 'BC'")


IMPORT_ORDERS = ["import rl_zoo3.utils, sb3_dualqdm", "import sb3_dualqdm, rl_zoo3.utils", "import rl_zoo3.utils"]


@pytest.mark.parametrize("order", IMPORT_ORDERS)
def test_algorithms_are_added_in_any_import_order(order, zoo_path):
    run(f"{order}\nassert sorted(sys.modules['rl_zoo3.utils'].ALGOS) == ALL", path=[zoo_path])


def test_without_start_up_files_importing_the_package_serves_an_imported_zoo(zoo_path):
    site_packages = Path(_sb3_dualqdm_startup.__file__).parent
    run(
        """
        assert not finders()
        import rl_zoo3.utils
        assert sorted(rl_zoo3.utils.ALGOS) == ["ppo"]
        import sb3_dualqdm, rl_zoo3.hyperparams_opt
        assert sorted(rl_zoo3.utils.ALGOS) == ALL
        assert "dual_qdm" in rl_zoo3.hyperparams_opt.HYPERPARAMS_SAMPLER
        """,
        "-S",
        path=[zoo_path, ROOT, site_packages],
    )


def test_installing_again_adds_no_second_finder(zoo_path):
    pth = (ROOT / "startup" / "sb3_dualqdm.pth").read_text()
    run(
        f"""
        exec({pth!r})
        import importlib, _sb3_dualqdm_startup, sb3_dualqdm
        importlib.reload(_sb3_dualqdm_startup).install()
        importlib.reload(sb3_dualqdm)
        assert len(finders()) == 1
        """,
    )


def test_reloaded_module_is_served_again(zoo_path):
    run(
        """
        import importlib, rl_zoo3.utils
        assert sorted(importlib.reload(rl_zoo3.utils).ALGOS) == ALL
        """,
        path=[zoo_path],
    )


def test_old_zoo_has_a_sampler_and_no_converter(zoo_path):
    run(
        """
        import rl_zoo3.hyperparams_opt as opt
        assert sorted(opt.HYPERPARAMS_SAMPLER) == [name for name in ALL if name != "ppo"]
        assert not hasattr(opt, "HYPERPARAMS_CONVERTER")
        """,
        path=[zoo_path],
    )


def test_module_keeps_its_loader_source_and_resources(zoo_path):
    run(
        """
        import importlib.machinery, importlib.resources, inspect, rl_zoo3.utils
        assert type(rl_zoo3.utils.__loader__) is importlib.machinery.SourceFileLoader
        assert inspect.getsource(rl_zoo3.utils) == "ALGOS = {'ppo': 'PPO'}\\n"
        assert importlib.resources.files("rl_zoo3").joinpath("data.txt").read_text() == "resource"
        """,
        path=[zoo_path],
    )


COUNT = """
import _sb3_dualqdm_startup as startup
calls = []
startup.notify = lambda module: calls.append(module.__name__)
"""


def test_zoo_in_a_zip_file_is_served_once_per_module(tmp_path):
    with zipfile.ZipFile(tmp_path / "zoo.zip", "w") as archive:
        for name, text in FAKE_ZOO.items():
            archive.writestr(f"rl_zoo3/{name}", text)
    run(
        COUNT + "import rl_zoo3.utils, rl_zoo3.hyperparams_opt, rl_zoo3.train\n"
        "assert calls == ['rl_zoo3.utils', 'rl_zoo3.hyperparams_opt'], calls",
        path=[tmp_path / "zoo.zip"],
    )


@pytest.mark.parametrize("position", [0, 1])
def test_another_delegating_finder_does_not_double_the_call(position, zoo_path):
    run(
        COUNT
        + f"""
class Delegating:  # as import hooks of other packages do: ask everybody again, except itself
    busy = False
    def find_spec(self, name, path=None, target=None):
        if self.busy or not name.startswith("rl_zoo3."):
            return None
        import importlib.util
        self.busy = True
        try:
            return importlib.util.find_spec(name)
        finally:
            self.busy = False

sys.meta_path.insert({position}, Delegating())
import rl_zoo3.utils
assert calls == ["rl_zoo3.utils"], calls
""",
        path=[zoo_path],
    )


def test_four_threads_importing_at_once(zoo_path):
    run(
        COUNT
        + """
import importlib, threading
threads = [threading.Thread(target=importlib.import_module, args=("rl_zoo3.utils",)) for _ in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
assert calls == ["rl_zoo3.utils"], calls
""",
        path=[zoo_path],
    )


def test_forked_child_is_served(zoo_path):
    run(
        """
        import os
        child = os.fork()
        if child == 0:
            import rl_zoo3.utils
            os._exit(0 if sorted(rl_zoo3.utils.ALGOS) == ALL else 1)
        assert os.waitpid(child, 0)[1] == 0
        """,
        path=[zoo_path],
    )


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_worker_process_is_served(method, zoo_path):
    (zoo_path / "worker.py").write_text(
        PRELUDE + "def work(queue):\n    import rl_zoo3.utils\n    queue.put((len(finders()), sorted(rl_zoo3.utils.ALGOS)))\n"
    )
    (zoo_path / "main.py").write_text(
        "import multiprocessing, worker\n"
        "if __name__ == '__main__':\n"
        f"    context = multiprocessing.get_context({method!r})\n"
        "    queue = context.Queue()\n"
        "    process = context.Process(target=worker.work, args=(queue,))\n"
        "    process.start()\n"
        "    assert queue.get(timeout=60) == (1, worker.ALL)\n"
        "    process.join()\n"
    )
    run(None, str(zoo_path / "main.py"), path=[zoo_path])


BROKEN = "raise SyntaxError('broken on purpose')\n"


def test_broken_algorithms_leave_a_warning_and_a_working_zoo(zoo_path):
    result = run(
        "sys.modules['sb3_dualqdm.algorithms'] = None\nimport rl_zoo3.utils; print(sorted(rl_zoo3.utils.ALGOS))",
        path=[zoo_path],
    )
    assert result.stdout.strip() == "['ppo']"
    assert "RuntimeWarning: sb3_dualqdm could not set up rl_zoo3.utils (ModuleNotFoundError" in result.stderr
    assert result.stderr.count("RuntimeWarning") == 1 and "SB3_DUALQDM_NO_HOOK=1" in result.stderr


def test_broken_package_leaves_a_warning_and_a_working_zoo(zoo_path):
    (zoo_path / "sb3_dualqdm.py").write_text(BROKEN)
    result = run("import rl_zoo3.utils; print(sorted(rl_zoo3.utils.ALGOS))", prelude="", path=[zoo_path])
    assert result.stdout.strip() == "['ppo']" and "broken on purpose" in result.stderr


def test_gymnasium_is_imported_silently_though_the_package_is_broken(tmp_path):
    (tmp_path / "sb3_dualqdm.py").write_text(BROKEN)
    code = "import sys, gymnasium; gymnasium.make('CartPole-v1'); assert 'sb3_dualqdm' not in sys.modules"
    result = run(code, prelude="", path=[tmp_path])
    assert "sb3_dualqdm" not in result.stderr


def test_removed_start_up_module_is_silent():
    pth = (ROOT / "startup" / "sb3_dualqdm.pth").read_text()
    result = run(f"import sys; sys.modules['_sb3_dualqdm_startup'] = None; exec({pth!r})", "-S", prelude="")
    assert result.stdout == result.stderr == ""


def test_off_switch(zoo_path):
    run(
        """
        import rl_zoo3.utils, sb3_dualqdm, rl_zoo3.hyperparams_opt
        assert not finders()
        assert rl_zoo3.utils.ALGOS == {"ppo": "PPO"} and not rl_zoo3.hyperparams_opt.HYPERPARAMS_SAMPLER
        """,
        path=[zoo_path],
        SB3_DUALQDM_NO_HOOK="1",
    )


@pytest.mark.parametrize("environment", [{}, {"SB3_DUALQDM_NO_HOOK": "1"}])
def test_explicit_command_works_with_and_without_the_hook(environment, zoo_path):
    code = "from sb3_dualqdm import zoo; zoo.main(['train', '--algo', 'dual_qdm', '-n', '3'])"
    result = run(code, path=[zoo_path], **environment)
    assert result.stdout.strip() == f"{sorted([*ALGOS, 'ppo'])} ['--algo', 'dual_qdm', '-n', '3']"


def test_explicit_command_refuses_what_rl_zoo3_does_not_have():
    result = run(None, "-m", "sb3_dualqdm.zoo", "trian", check=False)
    assert result.returncode == 2 and "invalid choice: 'trian'" in result.stderr and "train" in result.stderr


def test_start_up_files_lie_in_a_site_directory():
    folders = {Path(sysconfig.get_path(name)).resolve() for name in ("purelib", "platlib")}
    assert Path(_sb3_dualqdm_startup.__file__).parent.resolve() in folders
