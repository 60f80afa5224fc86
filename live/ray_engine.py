"""Worker processes by Ray, on this machine or on a cluster: an optional extra, requirements-live.txt.

Ray exchanges pickles between processes that trust each other. A run's own processes, on this machine, listen only at
the loopback address, and ask for the run's token: a file of mode 0600 in a folder of mode 0700.
"""

import contextlib
import importlib.util
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import parallel
from launch import signals
from launch.children import with_repository
from live import leftovers
from live.engine import Died, Done, Event, Raised, Ready, Task
from runs import Inputs
from runs.errors import ConfigError, refusing

_SECONDS_TO_ANSWER = 5.0  # time for a cluster to answer; Ray itself tries for minutes
_LONGEST_SOCKET = 103  # bytes of a Unix socket's path: 107 on Linux, 103 on macOS
# Below the temporary folder, at the longest.
_SOCKET = "/live-12345678/r/session_2026-01-01_00-00-00_000000_1234567/sockets/plasma_store"


def check(address: str | None = None) -> None:
    """Checks what Ray needs, before anything is compiled.

    Raises:
      ConfigError: one line, if Ray is not installed, no cluster listens at the address, or the folder of Ray's sockets
        cannot be made.
    """
    if importlib.util.find_spec("ray") is None:
        raise ConfigError("live: needs Ray; install it by .venv/bin/python -m pip install -r requirements-live.txt")
    if address is None:
        make_folder().rmdir()
        return
    host, _, port = address.rpartition(":")
    if not (host and port.isdecimal()):
        raise ConfigError(f"ray_address={address!r}: must be HOST:PORT of a Ray cluster")
    try:
        socket.create_connection((host, int(port)), timeout=_SECONDS_TO_ANSWER).close()
    except (OSError, OverflowError, UnicodeError) as error:  # the encoding refuses an invalid host name
        raise ConfigError(f"ray_address={address!r}: no Ray cluster answers: {error}") from None


def make_folder() -> Path:
    """Makes a folder of mode 0700 for Ray's sockets, logs and token, below ``RAY_TMPDIR`` or ``/tmp``.

    Raises:
      ConfigError: one line, if the path is too long for sockets, or the folder cannot be made.
    """
    parent = os.path.abspath(os.environ.get("RAY_TMPDIR") or "/tmp")
    most = _LONGEST_SOCKET - len(_SOCKET)
    if len(os.fsencode(parent)) > most:
        raise ConfigError(f"RAY_TMPDIR={parent!r}: must have at most {most} bytes, as paths of sockets are short")
    try:
        return Path(tempfile.mkdtemp(prefix="live-", dir=parent))
    except OSError as error:
        raise ConfigError(f"RAY_TMPDIR={parent!r}: must be a folder that can be written: {error.strerror}") from None


def _listen_alone(folder: Path) -> None:
    """Sets the variables that make Ray's processes listen only at the loopback address and ask for a token."""
    token = folder / "token"
    with open(os.open(token, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(secrets.token_hex(32))
    os.environ.pop("RAY_AUTH_TOKEN", None)  # it would take precedence over the file
    os.environ["RAY_AUTH_MODE"] = "token"
    os.environ["RAY_AUTH_TOKEN_PATH"] = str(token)
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # Ray would replace 127.0.0.1 by another address


@contextlib.contextmanager
def _keeping_handlers() -> Iterator[None]:
    """Sets this process's handlers again after the block; ``ray.init`` replaces that of SIGTERM."""
    before = {number: signal.getsignal(number) for number in signals.STOPS}
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler not in (None, signal.getsignal(number)):  # Python sets handlers in the main thread alone
                signal.signal(number, handler)


class RayEngine:
    """Runs each worker process as a Ray actor; see ``engine.Engine``.

    Args:
      config: the run's config.
      workers_per_process: k.
      devices_per_process: D. Where Ray knows of GPUs, each process has D of them for itself, unless JAX_PLATFORMS=cpu.
      address: address of a running cluster; None starts one for this run, on this machine.
      inputs: the files and data that the workers must find unchanged.

    Raises:
      ConfigError: one line, if the cluster cannot be joined, or has GPUs, but too few.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        *,
        workers_per_process: int,
        devices_per_process: int,
        address: str | None,
        inputs: Inputs,
    ):
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        os.environ["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = "0"  # under `uv run`, Ray would start workers by uv, elsewhere
        # Ray's processes import this package, and their own packages, as this one does.
        os.environ.update(with_repository(os.environ))
        local: dict[str, Any] = {}
        self._leftovers: subprocess.Popen[bytes] | None = None
        if address is None:
            folder = make_folder()
            self._leftovers = subprocess.Popen(
                [sys.executable, leftovers.__file__, str(folder)], stdin=subprocess.PIPE, start_new_session=True
            )
            _listen_alone(folder)
            local = {"_node_ip_address": "127.0.0.1", "num_cpus": 1, "include_dashboard": False}
            local["_temp_dir"] = str(folder / "r")  # in a separate folder, which Ray makes writable for all users
        with _keeping_handlers(), warnings.catch_warnings():
            import ray  # reads some variables as it is imported

            self._ray: Any = ray
            from ray._private import worker as driver

            # Ray prints a coloured paragraph about each process that dies; `wait` returns the reason instead.
            driver.listen_error_messages = lambda *_: None
            # Ray's processes are forked only to execute another program.
            warnings.filterwarnings("ignore", message=".*fork", category=RuntimeWarning)
            try:
                self._ray.init(address or "local", log_to_driver=False, logging_level="ERROR", **local)
            except (RuntimeError, OSError, ray.exceptions.AuthenticationError) as error:
                self.end()
                what = "live: Ray does not start" if address is None else f"ray_address={address!r}"
                raise ConfigError(f"{what}: {error.__cause__ or error}") from None
            if address is None:
                self._check_private()
        self._process = dict(config), workers_per_process, devices_per_process, inputs
        num_gpus = self._gpus_of_each(config["num_workers"] // workers_per_process)
        # Ray spreads actors that use resources over the nodes of a cluster, and puts others anywhere.
        resources = {"num_cpus": 0.001, "num_gpus": num_gpus}
        self._options = {**resources, "scheduling_strategy": "SPREAD", "max_restarts": 0}
        self._actors: dict[int, Any] = {}
        self._pending: dict[Any, tuple[int, int | None]] = {}  # result -> process, and number of the task
        self._shared: tuple[Any, Any] = (None, None)  # the shared part of a step's tasks, and Ray's reference to it

    def _check_private(self) -> None:
        """Raises ConfigError unless Ray listens at the loopback address and asks for a token."""
        from ray._private.authentication.authentication_utils import is_token_auth_enabled

        host = self._ray.get_runtime_context().gcs_address.rpartition(":")[0]
        asks = is_token_auth_enabled()
        if host != "127.0.0.1" or not asks:
            self.end()
            raise ConfigError(f"live: Ray listens at {host}, token {asks}; must be 127.0.0.1 and True")

    def _gpus_of_each(self, num_processes: int) -> int:
        """Returns how many GPUs each process has for itself."""
        num_gpus = int(self._ray.cluster_resources().get("GPU", 0))
        each = self._process[2]
        needed = num_processes * each
        if not num_gpus or os.environ.get("JAX_PLATFORMS") == "cpu":
            return 0
        if needed > num_gpus:
            self.end()
            raise ConfigError(
                f"devices_per_process={each}: {num_processes} processes need {needed} GPUs, and Ray has "
                f"{num_gpus}; more workers_per_process need fewer, and JAX_PLATFORMS=cpu needs none"
            )
        return each

    def clock(self) -> float:
        """Returns the seconds of this machine's clock."""
        return time.perf_counter()

    def start(self, process: int) -> None:
        """Starts a process, or starts it again."""
        actor = self._actors[process] = self._ray.remote(_Process).options(**self._options).remote()
        self._pending[actor.start.remote(*self._process)] = process, None

    def give(self, process: int, task: Task) -> None:
        """Gives a process a task; the part that all processes share is handed to Ray once."""
        if task.shared is not self._shared[0]:
            self._shared = task.shared, self._ray.put(task.shared)
        result = self._actors[process].compute.remote(self._shared[1], task._replace(shared=None))
        self._pending[result] = process, task.number

    def wait(self, seconds: float) -> list[Event]:
        """Waits for events; returns all that have come."""
        results = list(self._pending)
        found, others = self._ray.wait(results, num_returns=1, timeout=seconds)
        if found and others:
            found += self._ray.wait(others, num_returns=len(others), timeout=0)[0]
        return [self._event(result) for result in found]

    def _event(self, result: Any) -> Event:
        """Returns the event of a finished Ray call: a process is ready or done, raised an exception, or died."""
        process, number = self._pending.pop(result)
        try:
            value = self._ray.get(result)
        except self._ray.exceptions.RayTaskError as error:
            self._ray.kill(self._actors[process])
            return Raised(process, type(error.cause).__name__, str(error.cause))
        except self._ray.exceptions.RayError as error:  # its actor died, was killed for memory, or its node is gone
            return Died(process, type(error).__name__)
        return Ready(process) if number is None else Done(process, number, value)

    def end(self) -> None:
        """Ends all processes."""
        self._ray.shutdown()
        if self._leftovers is not None:
            self._leftovers.communicate(leftovers.LAST_WORD)


class _Process:
    """The actor: a ``Worker``."""

    def start(self, config: Mapping[str, Any], num_workers: int, num_devices: int, inputs: Inputs) -> None:
        """Makes the worker in a separate call, because Ray reports an actor whose constructor raises as dead."""
        parallel.configure_cpu_devices(num_workers, num_devices=num_devices)
        from live.worker import Worker

        with refusing():
            self._worker = Worker(config, num_workers=num_workers, num_devices=num_devices, inputs=inputs)

    def compute(self, shared: Any, task: Task) -> Any:
        return self._worker(task._replace(shared=shared))
