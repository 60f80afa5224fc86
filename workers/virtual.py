"""Virtual devices: a CPU as several, so that what needs devices runs on any machine."""

import contextlib
import os

import jax

# By default, and at most.
MAX_VIRTUAL_DEVICES, MAX_FORCED_DEVICES = 8, 64


def claim_cpu_devices(num_workers: int, *, num_devices: int | None) -> None:
    """Makes virtual CPU devices, as many as asked for or up to 8 that divide the workers, before JAX is first used.

    Changes nothing for GPUs and TPUs, nor where a calling program has started JAX already.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    if "xla_cpu_collective_call_terminate" not in flags:
        # A laptop that goes to sleep must not look like a device that missed a collective.
        stuck = "--xla_cpu_collective_call_warn_stuck_timeout_seconds=60"
        os.environ["XLA_FLAGS"] = f"{flags} {stuck} --xla_cpu_collective_call_terminate_timeout_seconds=600".strip()
    if num_devices is None:
        num_devices = max(d for d in range(1, MAX_VIRTUAL_DEVICES + 1) if num_workers % d == 0)
    with contextlib.suppress(RuntimeError):  # JAX is in use
        jax.config.update("jax_num_cpu_devices", min(num_devices, num_workers, MAX_FORCED_DEVICES))
