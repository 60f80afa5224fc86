"""Eight CPU devices, strict ranks and dtypes: a multi-device test never skips."""

import gc
import importlib
import os
import pathlib
import signal

import jax
import pytest
from absl import flags

# It defines flags where it is imported; inside a flagsaver, which undoes what was defined in it, they would be lost.
from array_record.python import array_record_data_source  # noqa: F401

from reducers import targets

# A device that misses a collective aborts the process after these, so a deadlock is a failure and not a hang.
_XLA_FLAGS = (
    "--xla_cpu_collective_call_warn_stuck_timeout_seconds=20",
    "--xla_cpu_collective_call_terminate_timeout_seconds=60",
)
# Linux allows a process 65,530 mappings of memory; each compiled program takes some, and XLA aborts at the limit.
_MANY_MAPPINGS = 20_000
_COMPILED = "/jax/core/compile/backend_compile_duration"


def pytest_configure(config):
    os.environ["XLA_FLAGS"] = " ".join([os.environ.get("XLA_FLAGS", ""), *_XLA_FLAGS]).strip()
    jax.config.update("jax_platforms", os.environ.get("JAX_PLATFORMS", "cpu"))
    jax.config.update("jax_num_cpu_devices", 8)
    jax.config.update("jax_numpy_rank_promotion", "raise")
    jax.config.update("jax_numpy_dtype_promotion", "strict")
    # Compiling is most of the suite's time, and many tests compile the same programs. Each process has a folder of its
    # own, since JAX does not write its files at once. Programs that tests start, and may kill, have another.
    compiled = config.rootpath / ".pytest_cache" / "xla" / os.environ.get("PYTEST_XDIST_WORKER", "alone")
    os.environ["JAX_COMPILATION_CACHE_DIR"] = f"{compiled}-started"
    jax.config.update("jax_compilation_cache_dir", str(compiled))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    assert jax.local_device_count() == 8 or _on_gpu(), "tests need eight devices"
    if os.environ.get("COMPILERS") == "required" and not _has_compilers():
        raise pytest.UsageError(f"COMPILERS=required: needs {_COMPILERS}")


def _on_gpu() -> bool:
    """Returns whether the suite was started for the tests that need a GPU: JAX_PLATFORMS=cuda pytest -m gpu."""
    return jax.default_backend() == "gpu"


_COMPILERS = "libtpu and JAX's plugin for CUDA: make test-compilers"


def _has_compilers() -> bool:
    """Returns whether programs can be compiled for TPUs and for GPUs."""
    return targets.has_compiler("tpu") and targets.has_compiler("gpu")


_SLOW = pathlib.Path(__file__).parent / "tests" / "slow.txt"
_COMPILED_TABLE = _SLOW.with_name("compiled.txt")
_seconds: dict[str, float] = {}
_needs: dict[str, list[int]] = {}


def pytest_addoption(parser):
    parser.addoption(
        "--measure",
        action="store_true",
        help="write the seconds of the slow tests that run into tests/slow.txt, and what compiled programs need into "
        "tests/compiled.txt",
    )


def slow_tests() -> dict[str, str]:
    """Returns the tests, or whole functions of tests, that tests/slow.txt lists, with the first word of their line."""
    lines = (line.split(maxsplit=1) for line in _SLOW.read_text().splitlines() if line and line[0] != "#")
    return {name: word for word, name in lines}


def pytest_runtest_logreport(report):
    _seconds[report.nodeid] = _seconds.get(report.nodeid, 0) + report.duration
    _needs.update({needs[0]: needs[1:] for name, needs in report.user_properties if name == "compiled"})


def pytest_sessionfinish(session):
    """Writes the seconds of the listed tests that ran; those of a function are those of its longest case."""
    if not session.config.getoption("--measure") or hasattr(session.config, "workerinput"):
        return
    listed, measured = slow_tests(), {}
    for test, seconds in _seconds.items():
        name = test if test in listed else test.partition("[")[0]
        if listed.get(name, "quick") != "quick":
            measured[name] = max(seconds, measured.get(name, 0))
    listed |= {name: f"{seconds:.1f}" for name, seconds in measured.items()}
    comments = [line for line in _SLOW.read_text().splitlines() if line.startswith("#")]
    _SLOW.write_text("\n".join([*comments, *(f"{word:>5} {name}" for name, word in sorted(listed.items()))]) + "\n")
    if _needs:
        _write_compiled_table()


def _write_compiled_table():
    """Writes what the programs that were compiled need, and keeps the lines of the others."""
    lines = _COMPILED_TABLE.read_text().splitlines()
    rows = {" ".join(line.split()[:2]): line for line in lines if not line.startswith("#")}
    for name, numbers in _needs.items():
        program, target = name.split()
        rows[name] = f"{program:<56} {target:<8}" + "".join(f"{number:>12}" for number in numbers)
    comments = [line for line in lines if line.startswith("#")]
    _COMPILED_TABLE.write_text("\n".join([*comments, *(rows[name] for name in sorted(rows))]) + "\n")


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(items):
    """Marks slow tests, and skips the tests that need a GPU where there is none, and the others on a GPU.

    Skips the tests that need the compilers of TPUs and GPUs where these are not installed.
    """
    listed, has_compilers = slow_tests(), _has_compilers()
    for item in items:
        if listed.get(item.nodeid, listed.get(item.nodeid.partition("[")[0], "quick")) != "quick":
            item.add_marker(pytest.mark.slow)
        if (item.get_closest_marker("gpu") is not None) != _on_gpu():
            needs = "eight CPU devices" if _on_gpu() else "a GPU: JAX_PLATFORMS=cuda python -m pytest -m gpu"
            item.add_marker(pytest.mark.skip(reason=f"needs {needs}"))
        if item.get_closest_marker("compilers") and not has_compilers:
            item.add_marker(pytest.mark.skip(reason=f"needs {_COMPILERS}"))


def pytest_collection_finish():
    """Keeps the garbage collector off what stays to the end, which takes a fifth of the time of tracing."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


def pytest_runtest_teardown(item, nextitem):
    """Drops the compiled programs after a file of tests if there are many."""
    mappings = pathlib.Path("/proc/self/maps")
    is_last = nextitem is None or nextitem.path != item.path
    if is_last and mappings.exists() and mappings.read_bytes().count(b"\n") > _MANY_MAPPINGS:
        jax.clear_caches()


@pytest.fixture(scope="module", autouse=True)
def _flags_stay():
    """Fails the file whose tests leave a flag changed, not the tests that read the flag after it."""
    before = flags.FLAGS.flag_values_dict()
    yield
    after = flags.FLAGS.flag_values_dict()
    assert {name: after[name] for name in before} == before, "a test changed a flag outside of a flagsaver"


@pytest.fixture(scope="module")
def three_widths():
    """Makes dynamic bits have three branches instead of eight, which take long to compile."""
    hidden_by_its_function = importlib.import_module("reducers.encodings.dynamic_bits")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hidden_by_its_function, "WIDTHS", (2, 4, 16))
        yield


@pytest.fixture
def hears_sighup():
    """Makes SIGHUP a signal like the others where the suite was started by nohup, which ignores it."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture(scope="session")
def compilations():
    """A list that grows by one with each program that XLA compiles."""
    compiled = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda name, seconds, **_: compiled.append(seconds) if name == _COMPILED else None
    )
    return compiled
