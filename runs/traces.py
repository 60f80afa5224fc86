"""Measured seconds per step and worker, in a file that the arrival model ``trace`` replays."""

import contextlib
import io
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from runs.files import saving, write_atomically

FORMATS = (".csv", ".npz")


class TraceRecorder:
    """Collects seconds[step, worker] of a run, and writes them to a file.

    Use ``add`` for a step that was measured elsewhere. To measure a step, put ``timing(worker)`` around each worker's
    part, wait inside for what it starts, and call ``end_step`` after the last worker.

    >>> recorder = TraceRecorder(num_workers=2)
    >>> recorder.add([0.5, 0.25])
    >>> recorder.num_steps, recorder.seconds
    (1, array([[0.5 , 0.25]], dtype=float32))

    Args:
      num_workers: W.
      clock: returns seconds that only grow.
    """

    def __init__(self, *, num_workers: int, clock: Callable[[], float] = time.perf_counter):
        if num_workers < 1:
            raise ValueError(f"num_workers={num_workers}: must be at least 1")
        self._num_workers, self._clock = num_workers, clock
        self._rows: list[np.ndarray] = []
        self._open = np.zeros(num_workers)

    @property
    def num_steps(self) -> int:
        """S, the number of steps so far."""
        return len(self._rows)

    @property
    def seconds(self) -> np.ndarray:
        """[S, W] float32, the seconds of all steps so far."""
        return np.array(self._rows, np.float32).reshape(-1, self._num_workers)

    def add(self, seconds: Sequence[float] | np.ndarray) -> None:
        """Adds a step.

        Args:
          seconds: [W], finite and above 0.

        Raises:
          ValueError: if they are not.
        """
        row = np.asarray(seconds, np.float32)
        if row.shape != (self._num_workers,) or not (np.isfinite(row) & (row > 0)).all():
            raise ValueError(f"seconds={seconds!r}: must be {self._num_workers} finite numbers above 0")
        self._rows.append(row)

    @contextlib.contextmanager
    def timing(self, worker: int) -> Iterator[None]:
        """Adds the time spent inside to the worker's seconds of the current step."""
        start = self._clock()
        yield
        self._open[worker] += self._clock() - start

    def end_step(self) -> None:
        """Ends the current step.

        Raises:
          ValueError: if a worker was not timed in it.
        """
        measured, self._open = self._open, np.zeros(self._num_workers)
        self.add(measured)

    def write(self, path: str | Path) -> Path:
        """Writes all steps so far, atomically: .csv for people, .npz for long runs.

        Raises:
          ValueError: if the suffix is another one, or no step was added.
          SaveError: in one line, for example if the disk is full.
        """
        path = Path(path)
        if path.suffix not in FORMATS:
            raise ValueError(f"path={str(path)!r}: must end in {' or '.join(FORMATS)}")
        if not self._rows:
            raise ValueError(f"path={str(path)!r}: no step has been added yet")
        with saving(path):
            write_atomically(path, _npz(self.seconds) if path.suffix == ".npz" else _csv(self.seconds))
        return path


def slowest_process(seconds: np.ndarray, *, num_processes: int) -> str:
    """Returns a line that names the slowest process, by the median over steps of its last worker's seconds.

    Args:
      seconds: [S, W]; the workers of a process are neighbours.
      num_processes: P.

    >>> slowest_process(np.array([[1.0, 1.0, 2.0, 4.0]]), num_processes=2)
    'slowest process: 1 of 2; its last worker takes 4 s a step, that of the fastest process 1 s'
    """
    of_process = np.median(seconds.reshape(len(seconds), num_processes, -1).max(axis=2), axis=0)  # (P,)
    slowest, fastest = int(of_process.argmax()), of_process.min()
    slow = f"slowest process: {slowest} of {num_processes}; its last worker takes {of_process[slowest]:.4g} s a step"
    return f"{slow}, that of the fastest process {fastest:.4g} s"


def _npz(seconds: np.ndarray) -> bytes:
    content = io.BytesIO()
    np.savez_compressed(content, seconds=seconds)
    return content.getvalue()


def _csv(seconds: np.ndarray) -> bytes:
    content = io.StringIO()
    np.savetxt(content, seconds, fmt="%.9g", delimiter=",", header="seconds: a line per step, a column per worker")
    return content.getvalue().encode()  # nine digits keep every bit of a float32
