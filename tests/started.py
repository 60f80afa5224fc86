"""Programs in processes of their own, and waiting for what they do."""

import os
import pathlib
import re
import subprocess
import sys
import time

import pytest

from tests import ROOT


def python(*arguments, cwd=ROOT, timeout=120, without=(), **environment) -> subprocess.CompletedProcess:
    """Runs Python to its end, with this repository on its path.

    Args:
      *arguments: of the interpreter.
      cwd: the working folder.
      timeout: in seconds.
      without: beginnings of names of variables that it is not to inherit.
      **environment: variables that it has besides those of this process.
    """
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(tuple(without))}
    environment = {**inherited, "PYTHONPATH": str(ROOT), **environment}
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=timeout)


def start(command, *, stderr=subprocess.STDOUT, cwd=ROOT, **environment) -> subprocess.Popen:
    """Starts a command, whose streams are pipes of text; its errors are in its output, unless they have a pipe too."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": stderr, "text": True}
    return subprocess.Popen(list(map(str, command)), cwd=cwd, env={**os.environ, **environment}, **pipes)


def in_namespace(script, *arguments, timeout=240, **environment) -> subprocess.CompletedProcess:
    """Runs a bash script that mounts something of its own, and ends with 77 if it may not; skips the test if so."""
    command = ["unshare", "-rm", "bash", "-c", script, "bash", *map(str, arguments)]
    environment = {**os.environ, **environment}
    pipes = {"capture_output": True, "text": True, "timeout": timeout}
    if subprocess.run(["unshare", "-rm", "true"], capture_output=True).returncode:
        pytest.skip("needs leave to make a user namespace with a mount of its own")
    done = subprocess.run(command, cwd=ROOT, env=environment, **pipes)
    if done.returncode == 77:
        pytest.skip("needs leave to mount")
    return done


def signals_of(pid, name):
    """Returns the numbers of the signals that a process catches (SigCgt) or ignores (SigIgn)."""
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    bits = int(re.search(rf"^{name}:\s*(\w+)$", status, re.MULTILINE)[1], 16)
    return {number for number in range(1, 65) if bits >> (number - 1) & 1}


def wait_for(condition, seconds=60.0):
    """Waits until a condition holds, and fails if it takes too long."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.01)
