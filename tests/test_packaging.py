"""What the wheel and the sdist hold, and that a plain installation finds it."""

import ast
import importlib.metadata
import importlib.util
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

pytest.importorskip("hatchling")
pytestmark = pytest.mark.both

ROOT = Path(__file__).parent.parent
ALGORITHMS = ("dual_qdm", "iq_learn", "reg_iq_learn", "bc", "sqil", "ls_iq", "dac", "value_dice", "hype", "recoil", "rize")
HYPERPARAMS = {f"{algo}.yml" for algo in ALGORITHMS}
BUILTIN = ("CartPole-v1", "Acrobot-v1", "Pendulum-v1", "MountainCarContinuous-v0", "HalfCheetah-v4", "Hopper-v4", "Swimmer-v4")


@pytest.fixture(scope="module")
def archives(tmp_path_factory):
    """Wheel and sdist, built without isolation (and so without downloads)."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=120)
    return next(folder.glob("*.whl")), next(folder.glob("*.tar.gz"))


@pytest.fixture(scope="module")
def installed(archives, tmp_path_factory):
    """A folder with the installed wheel and nothing else."""
    target = tmp_path_factory.mktemp("target")
    options = ["-q", "--no-deps", "--no-index", "--target", str(target)]
    command = [sys.executable, "-m", "pip", "install", *options, str(archives[0])]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    return target


def run(code, installed):
    """Run code where the installed wheel hides the source tree, in a folder that holds neither."""
    code = f"import sys; sys.path.insert(0, {str(installed)!r})\n{code}"
    result = subprocess.run([sys.executable, "-I", "-c", code], cwd=sys.prefix, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def test_wheel_has_the_hook_at_its_root_and_the_data_in_the_package(archives):
    names = set(zipfile.ZipFile(archives[0]).namelist())
    assert {"_sb3_dualqdm_startup.py", "sb3_dualqdm.pth", "sb3_dualqdm.start"} <= names
    assert {f"sb3_dualqdm/hyperparams/{name}" for name in HYPERPARAMS} <= names
    assert {f"sb3_dualqdm/demonstrations/data/{env_id}.npz" for env_id in BUILTIN} <= names
    roots = {name.split("/")[0] for name in names if not name.split("/")[0].endswith(".dist-info")}
    assert archives[0].stat().st_size < 25e6
    assert roots == {"sb3_dualqdm", "_sb3_dualqdm_startup.py", "sb3_dualqdm.pth", "sb3_dualqdm.start"}


def test_wheel_names_its_version_licence_and_extras(archives):
    wheel = zipfile.ZipFile(archives[0])
    metadata = wheel.read(next(name for name in wheel.namelist() if name.endswith("METADATA"))).decode()
    assert "\nName: sb3-dualqdm\nVersion: 0.1.0\n" in metadata and "\nLicense-Expression: MIT\n" in metadata
    core = [line for line in metadata.splitlines() if line.startswith("Requires-Dist") and "extra ==" not in line]
    assert len(core) == 4 and not [line for line in core if "imitation" in line or "zoo" in line]
    for extra in ("zoo", "mujoco", "arrow", "imitation", "tabular", "benchmark", "ray", "test", "docs"):
        assert f"\nProvides-Extra: {extra}\n" in metadata


def test_sdist_has_one_copy_of_everything_a_build_needs(archives):
    with tarfile.open(archives[1]) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    assert {f"hyperparams/{name}" for name in HYPERPARAMS} <= names
    assert {"startup/_sb3_dualqdm_startup.py", "startup/sb3_dualqdm.pth", "startup/sb3_dualqdm.start"} <= names
    assert {"pyproject.toml", "setup.cfg", "Makefile", "LICENSE", "README.md", "constraints-imitation.txt"} <= names
    assert {f"sb3_dualqdm/demonstrations/data/{env_id}.npz" for env_id in BUILTIN} <= names
    assert not [name for name in names if name.startswith((".venv", "logs", "docs/_build"))]


def test_installed_wheel_finds_its_hyperparameters_and_demonstrations(installed):
    code = (
        "from sb3_dualqdm.zoo import ALGOS, hyperparams_path\n"
        "import sb3_dualqdm\n"
        "from sb3_dualqdm.demonstrations import builtin_ids, builtin_path\n"
        "print(sb3_dualqdm.__file__)\n"
        "for path in [hyperparams_path(algo) for algo in ALGOS] + [builtin_path(i) for i in builtin_ids()]:\n"
        "    import pathlib; assert pathlib.Path(path).is_file(), path; print(path)\n"
    )
    paths = run(code, installed).splitlines()
    assert len(paths) >= 1 + len(HYPERPARAMS) + len(BUILTIN)
    assert all(Path(path).is_relative_to(installed) for path in paths)


def required(name: str, extras: frozenset[str], seen: set[str]) -> set[str]:
    """Distributions that are installed with one, itself included."""
    name = canonicalize_name(name)
    if (name, extras) in seen:
        return set()
    seen.add((name, extras))
    names = {name}
    for requirement in map(Requirement, importlib.metadata.requires(name) or ()):
        if requirement.marker is None or any(requirement.marker.evaluate({"extra": extra}) for extra in extras | {""}):
            names |= required(requirement.name, frozenset(requirement.extras), seen)
    return names


def test_the_zoo_extra_brings_what_rl_zoo3_imports():
    """rl_zoo3 imports more than it requires, and this environment has more than the extra asks for."""
    names = required("sb3-dualqdm", frozenset({"zoo"}), set())
    distributions = importlib.metadata.packages_distributions()
    folder = Path(importlib.util.find_spec("rl_zoo3").origin).parent
    imported = set()
    for path in folder.rglob("*.py"):
        if path.name == "push_to_hub.py":  # does not work with its current dependency
            continue
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.Import):
                imported |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                imported.add(node.module.split(".")[0])
    imported -= set(sys.stdlib_module_names)
    assert {"scipy", "seaborn", "stable_baselines3"} <= imported
    missing = {name for name in imported if not names & {canonicalize_name(d) for d in distributions.get(name, [name])}}
    assert not missing


def test_source_tree_finds_its_hyperparameters():
    from sb3_dualqdm.zoo import ALGOS, hyperparams_path

    assert {hyperparams_path(algo) for algo in ALGOS} == {ROOT / "hyperparams" / name for name in HYPERPARAMS}


def test_start_up_file_of_an_installed_wheel_is_executed_by_site(installed):
    code = (
        f"import site, sys; site.addsitedir({str(installed)!r})\n"
        "finders = [f for f in sys.meta_path if type(f).__module__ == '_sb3_dualqdm_startup']\n"
        "assert len(finders) == 1; print(sys.modules['_sb3_dualqdm_startup'].__file__)"
    )
    result = subprocess.run([sys.executable, "-S", "-c", code], cwd=sys.prefix, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    assert Path(result.stdout.strip()).parent == installed
