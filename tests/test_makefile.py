"""The Makefile accepts any interpreter that runs, names one where none does, and lists what it can make."""

import os
import pathlib
import pty
import re
import shutil
import subprocess
import sys

import pytest

from tests import ROOT

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")


def make(
    *arguments: str, folder: pathlib.Path, stdout: int = subprocess.PIPE, **environment: str
) -> subprocess.CompletedProcess:
    """Runs make without executing recipes, in a folder that holds the Makefile alone."""
    shutil.copy(ROOT / "Makefile", folder)
    for path in ROOT.glob("requirements*.txt"):
        shutil.copy(path, folder)
    paths = {"PATH": "/usr/bin:/bin", "HOME": str(folder)}
    return subprocess.run(
        ["make", *arguments],
        cwd=folder,
        env={**paths, **environment},
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
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


@pytest.mark.parametrize(
    ("on", "ci", "quiet"), [("pipe", "", True), ("terminal", "", False), ("terminal", "true", True)]
)
def test_pip_shows_its_progress_on_a_terminal_alone(on, ci, quiet, tmp_path):
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\ntest "$2" != pip && exec {sys.executable} "$@"\necho "$@" >> {tmp_path / "calls"}\n')
    python.chmod(0o755)
    (tmp_path / ".venv" / "interpreter").touch()
    reader, writer = pty.openpty() if on == "terminal" else os.pipe()
    done = make(".venv/train-ready", folder=tmp_path, stdout=writer, CI=ci)
    os.close(writer)
    said = os.read(reader, 4096).decode()
    os.close(reader)
    assert done.returncode == 0, done.stderr
    assert "Installing requirements.txt into .venv, which takes minutes ..." in said
    (call,) = (tmp_path / "calls").read_text().splitlines()
    assert ("--quiet" in call) == quiet and call.endswith("--no-input -r requirements.txt")
    assert (tmp_path / ".venv" / "train-ready").exists() and not (tmp_path / ".venv" / "unfinished").exists()


@pytest.mark.parametrize(("fails", "calls"), [("none", ["test", "test-compilers"]), ("test", ["test"])])
def test_continuous_integration_compiles_for_accelerators_after_the_tests(fails, calls, tmp_path):
    log, instead = tmp_path / "calls", tmp_path / "make"
    instead.write_text(f'#!/bin/sh\necho "$@" >> "{log}"\ntest "$1" != {fails}\n')
    instead.chmod(0o755)
    done = subprocess.run([ROOT / ".ci" / "run"], env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, timeout=60)
    assert log.read_text().split() == calls and (done.returncode == 0) == (fails == "none")
