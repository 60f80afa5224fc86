"""Options of the backend that are set before JAX is first used: CPU devices, XLA's flags, the host's allocator."""

import contextlib
import ctypes
import os

import jax

# The most virtual CPU devices: by default, and on request.
MAX_DEFAULT_DEVICES, MAX_FORCED_DEVICES = 8, 64

# glibc's mallopt: name -> (its number in malloc.h, our value).
_MALLOC_OPTIONS = {"MMAP_THRESHOLD": (-3, 2**30), "TRIM_THRESHOLD": (-1, 2**31 - 1), "TOP_PAD": (-2, 2**26)}


def configure_cpu_devices(
    num_workers: int, *, num_devices: int | None, num_processes: int = 1, devices_per_worker: int = 1
) -> None:
    """Makes virtual CPU devices: as many as asked for, or as many as there are cores, up to 8, that divide the workers.

    More devices than cores are slower: their threads wait for one another in every collective.

    Changes nothing for GPUs and TPUs, or if the calling program has started JAX already. With ``num_devices=None`` it
    also keeps a number of virtual devices that the calling program has set.

    Args:
      num_workers: W.
      num_devices: devices of all processes together; None for the default.
      num_processes: P; each process makes its share.
      devices_per_worker: K; by default one node of that many is made in each process.
    """
    # A laptop that goes to sleep must not look like a device that missed a collective.
    set_xla_default("xla_cpu_collective_call_warn_stuck_timeout_seconds", "60")
    set_xla_default("xla_cpu_collective_call_terminate_timeout_seconds", "600")
    if num_devices is None and jax.config.values["jax_num_cpu_devices"] > 0:
        return
    if num_devices is None:
        num_devices = num_processes * devices_per_worker
        if devices_per_worker == 1:
            num_devices = default_cpu_devices(num_workers, num_cores=usable_cores(), num_processes=num_processes)
    with contextlib.suppress(RuntimeError):  # JAX is in use
        most = min(num_workers * devices_per_worker, MAX_FORCED_DEVICES)
        own = min(num_devices, most) // num_processes
        jax.config.update("jax_num_cpu_devices", max(1, own))


def start_backend() -> None:
    """Starts JAX on the platform that ``JAX_PLATFORMS`` names, or on the best one.

    Raises:
      ValueError: in one line, if it cannot be started.
    """
    try:
        jax.devices()
    except (RuntimeError, AssertionError) as error:  # a jaxlib without CUDA asserts, without a message
        named = jax.config.values["jax_platforms"]
        reason = str(error).partition("\n")[0] or "this jaxlib has no such platform"
        raise ValueError(f"JAX_PLATFORMS={named!r}: JAX cannot start: {reason}") from None


def default_cpu_devices(num_workers: int, *, num_cores: int = MAX_DEFAULT_DEVICES, num_processes: int = 1) -> int:
    """Returns the number of virtual CPU devices of all processes together: the most that divide the workers.

    Args:
      num_workers: W.
      num_cores: cores of this process; an upper bound of the devices, unless there are more processes.
      num_processes: P; each has the same number of devices.

    >>> [default_cpu_devices(8, num_cores=cores) for cores in (1, 2, 3, 4, 64)]
    [1, 2, 2, 4, 8]
    """
    most = min(num_cores, MAX_DEFAULT_DEVICES)
    possible = (d for d in range(num_processes, most + 1, num_processes) if num_workers % d == 0)
    return max(possible, default=num_processes)


def usable_cores() -> int:
    """Returns the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def set_xla_default(name: str, value: str) -> None:
    """Sets an option of XLA, unless the user's ``XLA_FLAGS`` sets it or names a file of options.

    Args:
      name: an option that jaxlib knows; an unknown one ends the process.
      value: its value.
    """
    if not _has_xla_option(name):
        os.environ["XLA_FLAGS"] = " ".join([*os.environ.get("XLA_FLAGS", "").split(), f"--{name}={value}"])


def compile_quickly() -> dict[str, int]:
    """Returns ``compiler_options`` of ``jax.jit`` for a program that runs once.

    On CPU, LLVM then optimizes at its first level: initial parameters have the same bits, and compile in a third of the
    time. The user's ``XLA_FLAGS`` take precedence.
    """
    name = "xla_backend_optimization_level"
    return {name: 1} if jax.default_backend() == "cpu" and not _has_xla_option(name) else {}


def _has_xla_option(name: str) -> bool:
    """Returns whether ``XLA_FLAGS`` sets an option, or names a file of options, to which none can be added."""
    flags = os.environ.get("XLA_FLAGS", "").split()
    is_file = bool(flags) and not flags[0].startswith("-")
    return is_file or any(flag.partition("=")[0] == f"--{name}" for flag in flags)


def enable_latency_hiding() -> None:
    """Enables XLA's latency-hiding scheduler for GPUs, so that collectives overlap with computation.

    A collective starts when its gradients are ready, and work that needs none of its results continues meanwhile: for
    reducers that take leaf by leaf, that is the backward pass of earlier layers. It has no effect on CPU, and TPUs
    schedule in this way by default.
    """
    set_xla_default("xla_gpu_enable_latency_hiding_scheduler", "true")


def keep_freed_memory() -> bool:
    """Makes glibc's allocator keep freed buffers of up to 1 GiB for the next step; returns whether it does.

    By default glibc returns every large buffer to the system, and the next step faults it in again page by page.
    Measured on 2 cores: a step of LeNet-5 with Adasum and 8 workers on 8 devices has a tenth of the page faults and
    takes two thirds of the time. The process then stays as large as it once was.

    Changes nothing with another allocator, or if the environment tunes it (``MALLOC_*``, ``GLIBC_TUNABLES``).
    """
    if "GLIBC_TUNABLES" in os.environ or any(name.startswith("MALLOC_") for name in os.environ):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # macOS, musl, Windows
        return False
    return all([mallopt(number, value) == 1 for number, value in _MALLOC_OPTIONS.values()])


def malloc_environment() -> dict[str, str]:
    """Returns environment variables with the same effect as ``keep_freed_memory``, for a process yet to start.

    >>> malloc_environment()["MALLOC_TOP_PAD_"]
    '67108864'
    """
    return {f"MALLOC_{name}_": str(value) for name, (_, value) in _MALLOC_OPTIONS.items()}
