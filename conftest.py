"""Eight CPU devices, strict ranks: a multi-device test never skips."""

import os

import jax
import pytest

# A device that misses a collective aborts the process after these, so a deadlock is a failure and not a hang.
_XLA_FLAGS = (
    "--xla_cpu_collective_call_warn_stuck_timeout_seconds=20",
    "--xla_cpu_collective_call_terminate_timeout_seconds=60",
)
_COMPILED = "/jax/core/compile/backend_compile_duration"


def pytest_configure(config):
    del config
    os.environ["XLA_FLAGS"] = " ".join([os.environ.get("XLA_FLAGS", ""), *_XLA_FLAGS]).strip()
    jax.config.update("jax_platforms", os.environ.get("JAX_PLATFORMS", "cpu"))
    jax.config.update("jax_num_cpu_devices", 8)
    jax.config.update("jax_numpy_rank_promotion", "raise")
    assert jax.local_device_count() == 8, "tests need eight devices"


@pytest.fixture(scope="session")
def compilations():
    """A list that grows by one with each program that XLA compiles."""
    compiled = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda name, seconds, **_: compiled.append(seconds) if name == _COMPILED else None
    )
    return compiled
