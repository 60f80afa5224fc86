"""Worker processes by Ray, on this machine or on a cluster: an optional extra, requirements-live.txt.

Ray exchanges pickles among processes that trust each other; on this machine it listens at the loopback address alone.
"""

import importlib.util
import os
import time
import warnings
from collections.abc import Mapping
from typing import Any

from launch.children import ROOT
from live.engine import Died, Done, Event, Ready, Task
from runs.errors import ConfigError


def check() -> None:
    """Raises ConfigError, one line, if Ray is not installed."""
    if importlib.util.find_spec("ray") is None:
        raise ConfigError("live: needs Ray; install it by .venv/bin/python -m pip install -r requirements-live.txt")


class RayEngine:
    """Runs each worker process as a Ray actor; see ``engine.Engine``.

    Args:
      config: of the run.
      workers_per_process: k.
      address: of a cluster that is there; None starts one for this run, on this machine.
    """

    def __init__(self, config: Mapping[str, Any], *, workers_per_process: int, address: str | None = None):
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        # Ray's processes import this package, and their own packages, as this one does.
        path = os.environ.get("PYTHONPATH", "")
        os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [path])])
        import ray

        self._ray = ray
        local = {} if address else {"_node_ip_address": "127.0.0.1", "num_cpus": 1, "include_dashboard": False}
        with warnings.catch_warnings():  # its processes are forked only to execute another program
            warnings.filterwarnings("ignore", message=".*fork", category=RuntimeWarning)
            ray.init(address, log_to_driver=False, logging_level="ERROR", **local)
        self._config, self._each = dict(config), workers_per_process
        self._actors: dict[int, Any] = {}
        self._pending: dict[Any, tuple[int, int | None]] = {}  # result -> process, and number of the task
        self._shared: tuple[Any, Any] = (None, None)  # what all workers of a step are given, and where Ray keeps it

    def clock(self) -> float:
        """Returns the seconds of this machine's clock."""
        return time.perf_counter()

    def start(self, process: int) -> None:
        """Starts a process, or starts it again."""
        actor = self._ray.remote(_Process).options(num_cpus=0, max_restarts=0).remote(self._config, self._each)
        self._actors[process] = actor
        self._pending[actor.is_ready.remote()] = process, None

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
        except self._ray.exceptions.RayActorError as error:
            return Died(process, type(error).__name__)
        except self._ray.exceptions.RayTaskError as error:
            raise error.cause from None
        return Ready(process) if number is None else Done(process, number, value)

    def end(self) -> None:
        """Ends all processes."""
        self._ray.shutdown()


class _Process:
    """The actor: a ``Worker``, made when its process starts."""

    def __init__(self, config: Mapping[str, Any], num_workers: int):
        from live.worker import Worker

        self._worker = Worker(config, num_workers=num_workers)

    def is_ready(self) -> bool:
        return True

    def compute(self, shared: Any, task: Task) -> Any:
        return self._worker(task._replace(shared=shared))
