"""The Makefile accepts any interpreter that runs, names one where none does, and lists what it can make."""

import pathlib
import re
import shutil
import subprocess
import sys

import pytest

from tests import ROOT

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")


def make(*arguments: str, folder: pathlib.Path, **environment: str) -> subprocess.CompletedProcess:
    """Runs make without executing recipes, in a folder that holds the Makefile alone."""
    shutil.copy(ROOT / "Makefile", folder)
    for path in ROOT.glob("requirements*.txt"):
        shutil.copy(path, folder)
    paths = {"PATH": "/usr/bin:/bin", "HOME": str(folder)}
    return subprocess.run(
        ["make", *arguments], cwd=folder, env={**paths, **environment}, capture_output=True, text=True, timeout=60
    )


@pytest.fixture
def shim(tmp_path):
    """A command that is found and does not run, like a shim of pyenv for a version that is not switched on."""
    path = tmp_path / "shims" / "python3"
    path.parent.mkdir()
    path.write_text("#!/bin/sh\necho 'pyenv: python3: command not found' >&2; exit 127\n")
    path.chmod(0o755)
    return path


def test_an_interpreter_that_does_not_run_is_refused_and_another_named(tmp_path, shim):
    installed = tmp_path / ".pyenv" / "versions" / "3.12.1" / "bin" / "python"
    installed.parent.mkdir(parents=True)
    installed.symlink_to(sys.executable)
    done = make("-n", "lint", f"PYTHON={shim}", folder=tmp_path)
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1
    assert f"PYTHON={shim} does not run" in done.stderr and f"PYTHON={installed}" in done.stderr


def test_no_interpreter_at_all(tmp_path, shim):
    for name in ("python3.11", "python3.12", "python3.13"):
        (shim.parent / name).symlink_to(shim)
    done = make("-n", "lint", folder=tmp_path, PATH=f"{shim.parent}:/usr/bin:/bin")
    assert done.returncode == 2 and "PYTHON=" in done.stderr


def test_an_interpreter_in_a_folder_with_a_space(tmp_path):
    odd = tmp_path / "an odd folder" / "python"
    odd.parent.mkdir()
    odd.symlink_to(sys.executable)
    done = make("-n", "lint", f"PYTHON={odd}", folder=tmp_path)
    assert done.returncode == 0 and f'"{odd}" -m venv' in done.stdout


def test_help_lists_every_target(tmp_path):
    (targets,) = re.findall(r"^\.PHONY: (.*) FORCE$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    done = make(folder=tmp_path)
    assert re.findall(r"^  make ([a-z-]+) ", done.stdout, re.MULTILINE) == targets.split()


def test_the_compilers_have_an_environment_of_their_own(tmp_path):
    done = make("-n", "test-compilers", f"PYTHON={sys.executable}", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "-m venv --clear .venv-compilers" in done.stdout and "-r requirements-compilers.txt" in done.stdout
    assert "COMPILERS=required .venv-compilers/bin/python -m pytest" in done.stdout
    assert not re.search(r"(?<!\S)\.venv/", done.stdout)
    assert "compilers.txt" not in make("-n", "test", f"PYTHON={sys.executable}", folder=tmp_path).stdout


@pytest.mark.parametrize(("fails", "calls"), [("none", ["test", "test-compilers"]), ("test", ["test"])])
def test_continuous_integration_compiles_for_accelerators_after_the_tests(fails, calls, tmp_path):
    log, instead = tmp_path / "calls", tmp_path / "make"
    instead.write_text(f'#!/bin/sh\necho "$@" >> "{log}"\ntest "$1" != {fails}\n')
    instead.chmod(0o755)
    done = subprocess.run([ROOT / ".ci" / "run"], env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, timeout=60)
    assert log.read_text().split() == calls and (done.returncode == 0) == (fails == "none")
