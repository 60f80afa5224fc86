"""The distribution: what its wheel and sdist hold, that its types are seen, and that a closed pipe ends a command."""

import shutil
import signal
import subprocess
import sys
import tarfile
import venv
import zipfile

import pytest

import reducers
from tests import ROOT
from tests.started import python
from tests.test_architecture import SOURCES

MODULES = {path for path in SOURCES if path.startswith("reducers/")}
SOURCE = ("LICENSE", "README.md", "pyproject.toml")

# ---- wheel and sdist ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A folder with the wheel and the sdist, built from a copy of the tracked sources by the build backend itself."""
    copy = tmp_path_factory.mktemp("source")
    out = tmp_path_factory.mktemp("dist")
    for name in SOURCE:
        shutil.copy(ROOT / name, copy)
    for package in ("reducers", "training", "tests"):  # what must be in the distribution, and what must not
        shutil.copytree(ROOT / package, copy / package, ignore=shutil.ignore_patterns("__pycache__"))
    before = {path.relative_to(copy) for path in copy.rglob("*")}
    code = "import sys; from hatchling import build as b; to = sys.argv[1]; b.build_wheel(to); b.build_sdist(to)"
    done = python("-c", code, out, cwd=copy)
    assert done.returncode == 0, done.stderr
    assert {path.relative_to(copy) for path in copy.rglob("*")} == before  # nothing is left in the folder
    return out


def test_the_wheel_holds_the_package_and_nothing_else(built):
    (wheel,) = built.glob("*.whl")
    assert wheel.name == f"syncsum-{reducers.__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        described = archive.read(f"syncsum-{reducers.__version__}.dist-info/METADATA").decode()
    info = f"syncsum-{reducers.__version__}.dist-info"
    of_info = {f"{info}/{name}" for name in ("METADATA", "RECORD", "WHEEL", "licenses/LICENSE")}
    assert names == MODULES | {"reducers/py.typed"} | of_info
    required = [line.split()[1] for line in described.splitlines() if line.startswith("Requires-Dist: ")]
    assert {name.partition(">")[0] for name in required} == {"jax", "numpy", "optax"}


def test_the_wheel_works_by_itself(built, tmp_path):
    """Away from this repository, as a wheel is installed: by unpacking it."""
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    done = python("-m", "reducers", cwd=tmp_path, PYTHONPATH=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert all(f"| `{name}` |" in done.stdout for name in reducers.REDUCERS)


def test_the_sdist_holds_what_builds_it(built):
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames() if archive.getmember(name).isfile()}
    assert names == MODULES | {"reducers/py.typed", *SOURCE, "PKG-INFO"}


# ---- types -------------------------------------------------------------------------------------------------------

PROGRAM = """\
import reducers
reducer: reducers.Reducer = reducers.backup_workers("worker", num_required=6, combine=reducers.adasum("worker"))
reducers.backup_workers("worker", num_required="six")
"""


def test_a_program_is_checked_against_the_types_of_the_package(tmp_path):
    """The package lies in a fresh environment as it would be installed: its types count if it has py.typed."""
    venv.create(tmp_path / "env", symlinks=True)
    (site,) = tmp_path.glob("env/lib/python*/site-packages")
    (site / "reducers").symlink_to(ROOT / "reducers")
    (tmp_path / "program.py").write_text(PROGRAM)
    options = [f"--python-executable={tmp_path}/env/bin/python", f"--cache-dir={tmp_path}/cache", "--config-file="]
    done = python("-m", "mypy", *options, "program.py", cwd=tmp_path, PYTHONPATH="")
    (error, _) = done.stdout.splitlines()
    assert error.startswith("program.py:3: error: ") and '"str"; expected "int"' in error, done


# ---- its command -------------------------------------------------------------------------------------------------


def test_a_closed_pipe_is_an_end():
    process = subprocess.Popen(
        [sys.executable, "-m", "reducers"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    process.stdout.close()
    _, errors = process.communicate(timeout=120)
    assert (process.returncode, errors) == (-signal.SIGPIPE, "")
