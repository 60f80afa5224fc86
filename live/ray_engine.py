"""Worker processes by Ray, on this machine or on a cluster: an optional extra, requirements-live.txt.

Ray exchanges pickles among processes that trust each other; on this machine it listens at the loopback address alone.
"""

import importlib.util
import os
import socket
import time
import warnings
from collections.abc import Mapping
from typing import Any

import parallel
from launch.children import ROOT
from live.engine import Died, Done, Event, Ready, Task
from runs.errors import ConfigError, refusing

_SECONDS_TO_ANSWER = 5.0  # that a cluster has; Ray itself tries for minutes


def check(address: str | None = None) -> None:
    """Raises ConfigError, one line, if Ray is not installed, or nobody listens at the address of a cluster."""
    if importlib.util.find_spec("ray") is None:
        raise ConfigError("live: needs Ray; install it by .venv/bin/python -m pip install -r requirements-live.txt")
    if address is None:
        return
    host, _, port = address.rpartition(":")
    if not (host and port.isdecimal()):
        raise ConfigError(f"ray_address={address!r}: must be HOST:PORT of a Ray cluster")
    try:
        socket.create_connection((host, int(port)), timeout=_SECONDS_TO_ANSWER).close()
    except (OSError, OverflowError, UnicodeError) as error:  # names that are no host's are refused by an encoding
        raise ConfigError(f"ray_address={address!r}: no Ray cluster answers: {error}") from None


class RayEngine:
    """Runs each worker process as a Ray actor; see ``engine.Engine``.

    Args:
      config: of the run.
      workers_per_process: k.
      devices_per_process: D. Where Ray knows of GPUs, each process has D of them for itself, unless JAX_PLATFORMS=cpu.
      address: of a cluster that is there; None starts one for this run, on this machine.

    Raises:
      ConfigError: one line, if the cluster cannot be joined, or has GPUs, but too few.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        *,
        workers_per_process: int,
        devices_per_process: int = 1,
        address: str | None = None,
    ):
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        # Ray's processes import this package, and their own packages, as this one does.
        path = os.environ.get("PYTHONPATH", "")
        os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [path])])
        import ray

        self._ray: Any = ray
        local = {} if address else {"_node_ip_address": "127.0.0.1", "num_cpus": 1, "include_dashboard": False}
        with warnings.catch_warnings():  # its processes are forked only to execute another program
            warnings.filterwarnings("ignore", message=".*fork", category=RuntimeWarning)
            try:
                self._ray.init(address or "local", log_to_driver=False, logging_level="ERROR", **local)
            except (ConnectionError, ray.exceptions.AuthenticationError) as error:
                reason = str(error.__cause__ or error).strip().splitlines()[-1]
                raise ConfigError(f"ray_address={address!r}: {reason}") from None
            except RuntimeError as error:  # a cluster of another version of Ray or Python
                if address is None:
                    raise
                raise ConfigError(f"ray_address={address!r}: {' '.join(str(error).split())}") from None
        self._process = dict(config), workers_per_process, devices_per_process
        num_gpus = self._gpus_of_each(config["num_workers"] // workers_per_process)
        # Ray spreads over the nodes of a cluster what takes something of them; the rest it puts anywhere.
        resources = {"num_cpus": 0.001, "num_gpus": num_gpus}
        self._options = {**resources, "scheduling_strategy": "SPREAD", "max_restarts": 0}
        self._actors: dict[int, Any] = {}
        self._pending: dict[Any, tuple[int, int | None]] = {}  # result -> process, and number of the task
        self._shared: tuple[Any, Any] = (None, None)  # what all workers of a step are given, and where Ray keeps it

    def _gpus_of_each(self, num_processes: int) -> int:
        """Returns how many GPUs each process has for itself."""
        num_gpus, each = int(self._ray.cluster_resources().get("GPU", 0)), self._process[-1]
        if not num_gpus or os.environ.get("JAX_PLATFORMS") == "cpu":
            return 0
        if num_processes * each > num_gpus:
            self.end()
            raise ConfigError(
                f"devices_per_process={each}: {num_processes} processes need {num_processes * each} GPUs, and Ray has "
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
        """Gives a process a task; what is shared is handed to Ray once for all of them."""
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
        process, number = self._pending.pop(result)
        try:
            value = self._ray.get(result)
        except self._ray.exceptions.RayTaskError as error:
            raise error.cause from None
        except self._ray.exceptions.RayError as error:  # its actor died, was killed for memory, or its node is gone
            return Died(process, type(error).__name__)
        return Ready(process) if number is None else Done(process, number, value)

    def end(self) -> None:
        """Ends all processes."""
        self._ray.shutdown()


class _Process:
    """The actor: a ``Worker``."""

    def start(self, config: Mapping[str, Any], num_workers: int, num_devices: int) -> None:
        """Makes the worker; in a call of its own, because an actor whose constructor raises is one that died."""
        parallel.configure_cpu_devices(num_workers, num_devices=num_devices)
        from live.worker import Worker

        with refusing():
            self._worker = Worker(config, num_workers=num_workers, num_devices=num_devices)

    def compute(self, shared: Any, task: Task) -> Any:
        return self._worker(task._replace(shared=shared))
