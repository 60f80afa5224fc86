"""Compiled programs that are kept, and traces of steps."""

import contextlib
import gzip
import json

import jax
import pytest

import runs
from tests.in_process import train_py
from tests.started import python

PROGRAM = """
import sys, jax, runs
jax.random.key(0)  # programs are compiled before the cache is set
events = []
jax.monitoring.register_event_listener(lambda name, **_: events.append(name))
with runs.keep_compiled(sys.argv[1] if len(sys.argv) > 1 else None):
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.jit(lambda x: x * 2)(1.0)
print(*(name.rpartition("/")[2] for name in events if "cache_hits" in name or "cache_misses" in name))
"""


def of_a_process(folder, *arguments, **environment):
    """Returns the cache's hits and misses of a process in a folder, and its warnings."""
    environment = {"JAX_PLATFORMS": "cpu", **environment}
    done = python("-c", PROGRAM, *arguments, cwd=folder, without=["JAX_COMPILATION_CACHE_DIR"], **environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.split(), done.stderr


def test_the_next_process_need_not_compile(tmp_path):
    assert of_a_process(tmp_path) == (["cache_misses"], "")
    assert len(list((tmp_path / "out" / "compiled").iterdir())) == 1  # where nothing else is said
    assert of_a_process(tmp_path) == (["cache_hits"], "")


def test_where_it_is_kept(tmp_path):
    assert of_a_process(tmp_path, JAX_COMPILATION_CACHE_DIR=str(tmp_path / "theirs"))[0] == ["cache_misses"]
    assert of_a_process(tmp_path, str(tmp_path / "mine"))[0] == ["cache_misses"]
    assert of_a_process(tmp_path, "")[0] == []
    for flag, found in ((str(tmp_path / "flag"), ["cache_misses"]), ("", [])):
        assert of_a_process(tmp_path, flag, JAX_COMPILATION_CACHE_DIR=str(tmp_path / "environment"))[0] == found
    found = {path.name: len(list(path.iterdir())) for path in tmp_path.iterdir()}
    assert {name: found[name] for name in ("flag", "mine", "theirs")} == dict.fromkeys(("flag", "mine", "theirs"), 1)
    assert len(list((tmp_path / "environment").glob("*lambda*"))) == 0, "a flag has precedence"


def cache_settings():
    names = ("compilation_cache_dir", "persistent_cache_min_compile_time_secs", "persistent_cache_min_entry_size_bytes")
    return [getattr(jax.config, f"jax_{name}") for name in names]


def test_a_calling_programs_cache_is_left():
    before = cache_settings()
    assert before[0]  # the tests' own
    with runs.keep_compiled(None):
        assert cache_settings() == before


@pytest.mark.parametrize("flag", ["--compilation_cache={}/kept", "--compilation_cache="])
def test_a_cache_is_that_of_one_call(flag, tmp_path, capsys):
    before = cache_settings()
    short = ["--config.model.name=softmax", "--config.train_steps=1", "--num_devices=1", f"--workdir={tmp_path}/run"]
    assert train_py(*short, flag.format(tmp_path)) == 0
    assert cache_settings() == before


@pytest.mark.parametrize(("num_steps", "traced"), [(25, range(11, 21)), (4, [4])])
def test_ten_steps_are_traced_or_the_last_one_of_a_short_run(num_steps, traced, tmp_path, capsys):
    arguments = ["--config.model.name=softmax", f"--config.train_steps={num_steps}", "--profile"]
    assert train_py(f"--workdir={tmp_path}/run", "--num_devices=2", *arguments) == 0
    (trace,) = (tmp_path / "run" / "profile").glob("plugins/profile/*/perfetto_trace.json.gz")
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    steps = [int(event["args"]["step_num"]) for event in events if event.get("name") == "train"]
    assert steps == list(traced)


@pytest.mark.parametrize(("calls", "num_steps"), [(5, 1), (15, 1), (5, 4)])
def test_a_run_that_ends_before_the_trace_does(calls, num_steps, tmp_path):
    with contextlib.closing(runs.Profile(tmp_path)) as profile:
        for call in range(calls):
            with profile.step(call * num_steps, num_steps=num_steps, is_last=call == calls - 1, state=()):
                pass
    assert len(list(tmp_path.glob("plugins/profile/*/*.xplane.pb"))) == 1
