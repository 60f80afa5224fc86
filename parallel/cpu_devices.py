"""Virtual devices: a CPU as several, so that what needs devices runs on any machine."""

import contextlib

import jax

from parallel import memory, xla

# By default, and at most.
MAX_VIRTUAL_DEVICES, MAX_FORCED_DEVICES = 8, 64


def configure_cpu_devices(num_workers: int, *, num_devices: int | None, num_processes: int = 1) -> None:
    """Makes virtual CPU devices, as many as asked for or up to 8 that divide the workers, before JAX is first used.

    They share this machine's memory, of which what a step frees is kept for the next (``memory.keep_freed``).

    Changes nothing for GPUs and TPUs, nor where a calling program has started JAX already.

    Args:
      num_workers: of the run.
      num_devices: of all processes.
      num_processes: of which each makes its share.
    """
    memory.keep_freed()
    # A laptop that goes to sleep must not look like a device that missed a collective.
    xla.default("xla_cpu_collective_call_warn_stuck_timeout_seconds", "60")
    xla.default("xla_cpu_collective_call_terminate_timeout_seconds", "600")
    if num_devices is None:
        possible = (d for d in range(num_processes, MAX_VIRTUAL_DEVICES + 1, num_processes) if num_workers % d == 0)
        num_devices = max(possible, default=num_processes)
    with contextlib.suppress(RuntimeError):  # JAX is in use
        own = min(num_devices, num_workers, MAX_FORCED_DEVICES) // num_processes
        jax.config.update("jax_num_cpu_devices", max(1, own))
