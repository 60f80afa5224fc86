"""Worker processes as a script has them, on a clock of its own, so that the server is tried whole without Ray."""

import heapq
import itertools
import pickle

import jax
import numpy as np

from live.engine import Died, Done, Raised, Ready
from live.worker import Worker


class Script:
    """An ``Engine`` whose gradients come when a table says; what they are, ``work`` computes from each task.

    Tasks and work are pickled on their way, as they are between real processes.

    Args:
      seconds: (process, number of tasks it was given before) -> how long it takes; inf for never.
      work: task -> work.
      dies: (process, number of tasks given before) of tasks in which the process dies, at their end.
      raises: (process, number of tasks given before) -> whether its code raises MemoryError, at the task's end.
      never_starts: (process, number of starts before) -> whether it dies as it starts.
      on_wait: called at each wait.
    """

    def __init__(
        self,
        seconds,
        work,
        *,
        dies=(),
        raises=lambda process, count: False,
        never_starts=lambda process, starts: False,
        on_wait=lambda: None,
    ):
        self._seconds = seconds
        self._work = work
        self._dies = set(dies)
        self._raises = raises
        self._never_starts, self._on_wait = never_starts, on_wait
        self._now = 0.0
        self._order = itertools.count()
        self._coming = []
        self._given, self._starts = {}, {}
        self.ended, self.message = False, "no room for a batch"

    def clock(self):
        return self._now

    def start(self, process):
        starts = self._starts[process] = self._starts.get(process, -1) + 1
        self._push(1.0, Died(process, "no memory") if self._never_starts(process, starts) else Ready(process))

    def give(self, process, task):
        count = self._given[process] = self._given.get(process, -1) + 1
        seconds = self._seconds(process, count)
        if (process, count) in self._dies:
            self._push(seconds, Died(process, "killed"))
        elif self._raises(process, count):
            self._push(seconds, Raised(process, "MemoryError", self.message))
        elif np.isfinite(seconds):
            work = self._work(pickle.loads(pickle.dumps(task)))
            self._push(seconds, Done(process, task.number, pickle.loads(pickle.dumps(work))))

    def wait(self, seconds):
        self._on_wait()
        end = self._now + seconds
        if not self._coming or self._coming[0][0] > end:
            self._now = end
            return []
        self._now = self._coming[0][0]
        return [heapq.heappop(self._coming)[2] for _ in range(sum(at == self._now for at, *_ in self._coming))]

    def end(self):
        self.ended = True

    def _push(self, seconds, event):
        heapq.heappush(self._coming, (self._now + seconds, next(self._order), event))


def scripted(seconds, *, spoilt=lambda task: False, **options):
    """Returns what stands for ``RayEngine``: the script, with real gradients; NaN where a task's is ``spoilt``."""

    def make(config, *, workers_per_process, devices_per_process, address=None, inputs):
        worker = Worker(config, num_workers=workers_per_process, num_devices=devices_per_process, inputs=inputs)

        def work(task):
            found = worker(task._replace(least_seconds=0.0))
            if spoilt(task):
                return jax.tree.map(lambda x: np.full_like(x, np.nan if x.dtype.kind == "f" else 0), found)
            return found

        return Script(seconds, work, **options)

    return make
