"""The processes of one run: how they find each other, and what they must agree on.

A run of one process does not start JAX's distributed runtime, which would send even its own collectives over sockets.
"""

import contextlib
import ctypes
import errno
import importlib.util
import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn, TypeVar
from urllib.request import proxy_bypass

import jax
import numpy as np

T = TypeVar("T")

HEARTBEAT_SECONDS = 20  # if a process is silent for so long, the others abort
SHUTDOWN_SECONDS = 60  # time for the others to end after the first process has ended
INITIALIZATION_SECONDS = 300  # a cluster may start its processes minutes apart

# Variables with the number of processes that a launcher has started; JAX itself finds the coordinator and the index.
# For SLURM it is the number of the step, not of the job: a batch script that calls Python without srun is one process.
# Open MPI comes first, because mpirun starts its daemons by srun.
_COUNTS = ("OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS")
_ORTE = "OMPI_MCA_orte_hnp_uri"  # Open MPI sets it up to version 4; JAX takes the coordinator from it
_TEXT_BYTES = 4096  # lengths of messages are multiples of it, so that few programs are compiled
_MAX_SHOWN = 3  # differences between processes

_tell_runtime: Callable[[int], Any] | None = None  # the handler of SIGTERM that JAX's runtime has installed


def join(*, coordinator: str | None = None, num_processes: int | None = None, process_id: int | None = None) -> int:
    """Joins the other processes of the run, if there are any. Call it before JAX is first used.

    Without arguments it looks for them in the environment: SLURM (``srun``), Open MPI up to 4 (``mpirun``), an indexed
    Kubernetes job if ``kubernetes`` is installed, and the hosts of a TPU slice on Kubernetes.

    JAX's runtime ends the process if the others do not join within INITIALIZATION_SECONDS, and later if one of them is
    silent for HEARTBEAT_SECONDS.

    Args:
      coordinator: host:port of the first process; needs the other two arguments. "auto", alone, makes JAX find all
        three, or fail: for Cloud TPU, whose other hosts only the cloud's metadata list.
      num_processes: P.
      process_id: index of this process, 0 to P - 1.

    Returns:
      P; 1 if only JAX's runtime will know it.

    Raises:
      ValueError: one line that names the argument and what is allowed, or the port that another program uses.
    """
    given = (coordinator, num_processes, process_id)
    if given == ("auto", None, None):
        coordinator = None
    elif given != (None, None, None):
        _check(*given)
    elif (num_processes := _num_launched(os.environ)) is None:
        return 1
    if num_processes == 1:
        return 1
    options: dict[str, Any] = {}
    if given != ("auto", None, None) and "OMPI_COMM_WORLD_SIZE" in os.environ and _ORTE not in os.environ:
        if coordinator is None:
            flags = "--coordinator=HOST:PORT --num_processes=$OMPI_COMM_WORLD_SIZE --process_id=$OMPI_COMM_WORLD_RANK"
            raise ValueError(f"coordinator: Open MPI 5 does not say where process 0 is; give {flags}")
        options = {"cluster_detection_method": "deactivate"}
    if coordinator is not None and process_id == 0:
        _check_port(coordinator)
    if coordinator is not None and proxy_bypass(coordinator.rpartition(":")[0]):
        with contextlib.suppress(AttributeError):  # of another JAX
            jax.config.update("jax_check_proxy_envs", False)  # it would warn of a proxy that is bypassed
    jax.distributed.initialize(
        coordinator,
        num_processes or None,
        process_id,
        initialization_timeout=INITIALIZATION_SECONDS,
        heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
        shutdown_timeout_seconds=SHUTDOWN_SECONDS,
        **options,
    )
    _restore_sigterm_handler()
    return num_processes or 1


def _check(coordinator: str | None, num_processes: int | None, process_id: int | None) -> None:
    """Raises ValueError, one line, for arguments of ``join`` that are incomplete or out of range."""
    if coordinator is None or num_processes is None or process_id is None:
        raise ValueError("coordinator, num_processes, process_id: must be given together, or none of them")
    host, _, port = coordinator.rpartition(":")
    if not host or not (port.isascii() and port.isdecimal() and 0 < int(port) < 1 << 16):
        raise ValueError(f"coordinator={coordinator!r}: must be host:port")
    if num_processes < 1:
        raise ValueError(f"num_processes={num_processes}: must be at least 1")
    if not 0 <= process_id < num_processes:
        raise ValueError(f"process_id={process_id}: must be in [0, {num_processes - 1}]")


def _check_port(coordinator: str) -> None:
    """Refuses a port on which another program listens: JAX's runtime would end with a segmentation fault."""
    port = int(coordinator.rpartition(":")[2])
    for family in (socket.AF_INET, socket.AF_INET6):
        with contextlib.suppress(OSError), socket.socket(family) as tried:  # a machine may lack one of the families
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port that was closed just now is free
            try:
                tried.bind(("", port))
            except OSError as error:
                if error.errno in (errno.EADDRINUSE, errno.EACCES):
                    reason = f"port {port} of this machine cannot be used ({error.strerror}); choose another one"
                    raise ValueError(f"coordinator={coordinator!r}: {reason}") from None
                raise


def _restore_sigterm_handler() -> None:
    """Puts Python's handler of SIGTERM back in place of that of JAX's runtime, which ``ask_all_to_stop`` then calls.

    The runtime's handler, in C, only notes the signal until all processes make their next call: a process that waits
    for the others in vain would never end.
    """
    global _tell_runtime
    handler = ctypes.pythonapi.PyOS_getsig
    handler.restype = ctypes.c_void_p
    handler.argtypes = [ctypes.c_int]
    address = handler(signal.SIGTERM)
    if address not in (None, 0, 1):  # 0 and 1 are SIG_DFL and SIG_IGN
        _tell_runtime = ctypes.CFUNCTYPE(None, ctypes.c_int)(address)
    before = signal.getsignal(signal.SIGTERM)
    if callable(before):  # a handler set from Python
        signal.signal(signal.SIGTERM, before)


def ask_all_to_stop() -> None:
    """Makes ``are_to_stop`` true in all processes, at the same call."""
    if _tell_runtime is not None:
        _tell_runtime(signal.SIGTERM)


def _num_launched(environment: Mapping[str, str]) -> int | None:
    """Returns the number of processes that the launcher started, by its environment variables.

    0 if the variables show a launcher but not its number of processes, None if they show no launcher.

    >>> _num_launched({"SLURM_STEP_NUM_TASKS": "4"}), _num_launched({"OMPI_COMM_WORLD_SIZE": "1"}), _num_launched({})
    (4, 1, None)
    """
    for name in _COUNTS:
        if environment.get(name, "").isdecimal():
            return int(environment[name])
    if "TPU_WORKER_HOSTNAMES" in environment:
        return len(environment["TPU_WORKER_HOSTNAMES"].split(","))
    asked = "JOB_COMPLETION_INDEX" in environment and importlib.util.find_spec("kubernetes") is not None
    return 0 if asked else None


def several() -> bool:
    """Returns whether the run has several processes. Does not start JAX."""
    return jax.distributed.is_initialized()


def count() -> int:
    """Returns P, the number of processes."""
    return jax.process_count() if several() else 1


def index() -> int:
    """Returns the index of this process. Process 0 writes and prints for all."""
    return jax.process_index() if several() else 0


def from_first(make: Callable[[], T]) -> T:
    """Calls ``make`` in process 0 and returns its result, which must be JSON, in all processes.

    Raises:
      ValueError: in all processes, if ``make`` raises it.

    >>> from_first(lambda: [1, "two"])
    [1, 'two']
    """
    if not several():
        return make()
    found: dict[str, Any] = {}
    if index() == 0:
        try:
            found = {"value": make()}
        except ValueError as error:
            found = {"error": str(error)}
    (text, *_) = exchange(json.dumps(found))
    found = json.loads(text)
    if "error" in found:
        raise ValueError(found["error"])
    return found["value"]


@contextlib.contextmanager
def together(kind: type[Exception]) -> Iterator[None]:
    """Raises an error in all processes if the body, which may not have collectives, raises one of this kind in any.

    >>> with together(ValueError):
    ...     pass
    """
    if not several():
        yield
        return
    found = ""
    try:
        yield
    except kind as error:
        found = str(error) or "no reason given"
    texts = exchange(found)
    if found:
        raise kind(found)
    for process, text in enumerate(texts):
        if text:
            raise kind(f"process {process} of {len(texts)}: {text}")


def check_same(facts: Mapping[str, Any]) -> None:
    """Refuses facts that differ between the processes.

    Args:
      facts: facts of this process, by key; the values must be JSON.

    Raises:
      ValueError: in all processes, in one line that names the first process that differs from process 0, and the keys.

    >>> check_same({"config.seed": 0})
    """
    if not several():
        return
    first, *others = (json.loads(text) for text in exchange(json.dumps(facts)))
    for process, theirs in enumerate(others, start=1):
        if found := differences(first, theirs):
            more = f" and {len(found) - _MAX_SHOWN} more" if len(found) > _MAX_SHOWN else ""
            keys = "; ".join(found[:_MAX_SHOWN]) + more
            raise ValueError(f"process {process} of {count()} runs something else than process 0: {keys}")


def differences(first: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Returns the keys in which the facts of a process differ from those of process 0, with both values.

    >>> differences({"config.seed": 0, "jax": "1"}, {"config.seed": 1, "jax": "1"})
    ['config.seed=1, which is 0 in process 0']
    """
    return [
        f"{key}={_shown(other, key)}, which is {_shown(first, key)} in process 0"
        for key in sorted(first.keys() | other.keys())
        if _shown(first, key) != _shown(other, key)
    ]


def _shown(facts: Mapping[str, Any], key: str) -> str:
    return repr(facts[key]) if key in facts else "absent"


def gather(values: np.ndarray) -> np.ndarray:
    """Returns the arrays of all processes, each [...] with the same shape and dtype, as [P, ...].

    >>> gather(np.ones(2)).shape
    (1, 2)
    """
    if not several():
        return values[None]
    data = np.frombuffer(np.ascontiguousarray(values).tobytes(), np.uint8)  # JAX would make float32 of float64
    # One device of each process: multihost_utils.process_allgather fails if one has more devices than another.
    devices = {device.process_index: device for device in reversed(jax.devices())}
    mesh = jax.sharding.Mesh(np.array([devices[process] for process in sorted(devices)]), ("process",))
    split = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("process"))
    everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    own = jax.device_put(data[None], devices[jax.process_index()])
    shards = jax.make_array_from_single_device_arrays((len(devices), data.size), split, [own])
    gathered = jax.jit(_identity, out_shardings=everywhere)(shards)
    rows = np.asarray(gathered.addressable_data(0))
    flat = [np.frombuffer(row.tobytes(), values.dtype) for row in rows]
    return np.stack(flat).reshape(len(flat), *values.shape)


def _identity(shards: jax.Array) -> jax.Array:
    return shards  # a function of the module, so that jax.jit finds the program that it compiled for it


def exchange(text: str) -> list[str]:
    """Returns the texts of all processes, by index."""
    data = text.encode()
    sizes = gather(np.array(len(data)))
    length = max(1, -(-int(sizes.max()) // _TEXT_BYTES)) * _TEXT_BYTES
    rows = gather(np.frombuffer(data.ljust(length), np.uint8))
    return [row.tobytes()[:size].decode(errors="replace") for row, size in zip(rows, sizes, strict=True)]


def are_to_stop(call: int) -> bool:
    """Returns whether a process got SIGTERM; True at the same call in all processes, which number their calls alike."""
    from jax.experimental import multihost_utils

    return multihost_utils.reached_preemption_sync_point(call)


def same_on_all(tree: Any) -> Any:
    """Returns process 0's arrays, on the host, in all processes: another kind of machine may round differently."""
    if not several():
        return tree
    from jax.experimental import multihost_utils

    return jax.tree.map(np.asarray, multihost_utils.broadcast_one_to_all(tree))


def abandon(code: int) -> NoReturn:
    """Ends this process at once, without JAX's shutdown barrier, which waits for the others.

    The others notice: their collectives with this process fail, or its heartbeat is missing.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
