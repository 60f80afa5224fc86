"""The distribution: what its wheel and sdist hold, that its types are seen, and that a closed pipe ends a command."""

import importlib
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
from tests.test_architecture import GRAPH, SOURCES

PACKAGES = ("optim", "reducers", "syncsum", "tensor_parallel")
FILES = {path for path in SOURCES if path.startswith(PACKAGES)} | {f"{package}/py.typed" for package in PACKAGES}
SHARED = [name for name in GRAPH if name.startswith(PACKAGES) and not name.endswith(("syncsum", "__main__"))]
SOURCE = ("LICENSE", "README.md", "pyproject.toml")

# ---- wheel and sdist ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A folder with the wheel and the sdist, built from a copy of the tracked sources by the build backend itself."""
    copy = tmp_path_factory.mktemp("source")
    out = tmp_path_factory.mktemp("dist")
    for name in SOURCE:
        shutil.copy(ROOT / name, copy)
    for package in (*PACKAGES, "training", "tests"):  # what must be in the distribution, and what must not
        shutil.copytree(ROOT / package, copy / package, ignore=shutil.ignore_patterns("__pycache__"))
    before = {path.relative_to(copy) for path in copy.rglob("*")}
    code = "import sys; from hatchling import build as b; to = sys.argv[1]; b.build_wheel(to); b.build_sdist(to)"
    done = python("-c", code, out, cwd=copy)
    assert done.returncode == 0, done.stderr
    assert {path.relative_to(copy) for path in copy.rglob("*")} == before  # nothing is left in the folder
    return out


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory):
    """The folder of packages of a fresh environment, with the wheel as it is installed: by unpacking it."""
    environment = tmp_path_factory.mktemp("environment")
    venv.create(environment, symlinks=True)
    (site,) = environment.glob("lib/python*/site-packages")
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    return site


def test_the_wheel_holds_the_package_and_nothing_else(built):
    (wheel,) = built.glob("*.whl")
    assert wheel.name == f"syncsum-{reducers.__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        described = archive.read(f"syncsum-{reducers.__version__}.dist-info/METADATA").decode()
    info = f"syncsum-{reducers.__version__}.dist-info"
    of_info = {f"{info}/{name}" for name in ("METADATA", "RECORD", "WHEEL", "licenses/LICENSE")}
    assert names == FILES | of_info
    required = [line.split()[1] for line in described.splitlines() if line.startswith("Requires-Dist: ")]
    assert {name.partition(">")[0] for name in required} == {"jax", "numpy", "optax"}


def test_the_wheel_works_by_itself(installed, tmp_path):
    done = python("-m", "reducers", cwd=tmp_path, PYTHONPATH=str(installed))
    assert done.returncode == 0, done.stderr
    assert all(f"| `{name}` |" in done.stdout for name in reducers.REDUCERS)


PROGRAM = """\
import importlib
import sys

import jax
from jax import numpy as jnp
from jax.sharding import PartitionSpec as P

import syncsum

jax.config.update("jax_num_cpu_devices", 2)
mesh = jax.make_mesh((2,), ("worker",), axis_types=(jax.sharding.AxisType.Auto,))
reducer = syncsum.reducers.adasum("worker")
outer = syncsum.optim.outer.make({"name": "sgd", "learning_rate": 0.5})


def step(gradient):
    combined, _ = reducer.update(gradient, reducer.init(gradient))
    return outer.update(combined, outer.init(combined))[0]


print(jax.shard_map(step, mesh=mesh, in_specs=P("worker"), out_specs=P(), check_vma=False)(jnp.array([2.0, 0, 0, 4])))
print(syncsum.tensor_parallel.make_mesh(q=1, d=2).shape["depth"])
of_syncsum = [importlib.import_module(f"syncsum.{name}") for name in sys.argv[1:]]
print(of_syncsum == [importlib.import_module(name) for name in sys.argv[1:]])
"""


def test_a_program_needs_the_name_syncsum_alone(installed, tmp_path):
    done = python("-c", PROGRAM, *SHARED, cwd=tmp_path, PYTHONPATH=str(installed))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["[1. 2.]", "2", "True"]


def test_a_module_has_two_names_and_is_one():
    combine = reducers.adasum
    assert all(importlib.import_module(f"syncsum.{name}") is importlib.import_module(name) for name in SHARED)
    assert reducers.adasum is combine is not importlib.import_module("syncsum.reducers.adasum")  # a function, a module


def test_the_sdist_holds_what_builds_it(built):
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames() if archive.getmember(name).isfile()}
    assert names == FILES | {*SOURCE, "PKG-INFO"}


# ---- types -------------------------------------------------------------------------------------------------------

TYPED = """\
from syncsum import reducers
reducer: reducers.Reducer = reducers.backup_workers("worker", num_required=6, combine=reducers.adasum("worker"))
reducers.backup_workers("worker", num_required="six")
"""


def test_a_program_is_checked_against_the_types_of_the_package(installed, tmp_path):
    """They count if the installed packages have py.typed."""
    (tmp_path / "program.py").write_text(TYPED)
    interpreter = installed.parents[2] / "bin/python"
    options = [f"--python-executable={interpreter}", f"--cache-dir={tmp_path}/cache", "--config-file="]
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
