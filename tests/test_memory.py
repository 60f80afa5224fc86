"""The host's allocator: what is freed is kept, unless the environment says otherwise."""

import os
import platform
import subprocess
import sys

import pytest

from parallel import backend

glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's malloc only")

# Buffers that are large enough to be mapped one by one, as a step has them.
FAULTS = """
import ctypes, resource, sys
from parallel import backend
print(backend.keep_freed_memory() if "keep" in sys.argv else None)
malloc, free = ctypes.CDLL(None).malloc, ctypes.CDLL(None).free
malloc.restype, free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
size = 200 * 2**20
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    buffer = malloc(ctypes.c_size_t(size))
    ctypes.memset(buffer, 1, size)
    free(buffer)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def run(*arguments, **environment):
    own = {key: value for key, value in os.environ.items() if not key.startswith(("MALLOC_", "GLIBC_"))}
    command = [sys.executable, "-c", FAULTS, *arguments]
    printed = subprocess.run(command, env={**own, **environment}, capture_output=True, text=True, check=True).stdout
    kept, faults = printed.split()
    return kept, int(faults)


@glibc
def test_a_buffer_that_is_freed_is_faulted_in_once():
    (_, without), (kept, faults) = run(), run("keep")
    assert kept == "True"
    assert without > 4 * faults  # five times, or once


@glibc
def test_a_process_started_with_it_keeps_too():
    assert run(**backend.malloc_environment())[1] < run()[1] / 4


@pytest.mark.parametrize("name", ["MALLOC_ARENA_MAX", "GLIBC_TUNABLES"])
def test_the_environment_has_the_last_word(name, monkeypatch):
    monkeypatch.setenv(name, "")
    assert backend.keep_freed_memory() is False


def test_other_allocators_are_left_alone(monkeypatch):
    for name in [name for name in os.environ if name.startswith(("MALLOC_", "GLIBC_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(backend.ctypes, "CDLL", lambda name: object())
    assert backend.keep_freed_memory() is False
