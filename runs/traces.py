"""Files of measured seconds per step and worker, which the arrival model ``trace`` replays."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from reducers.arrivals import foreign_files
from runs import files


class TraceRecorder:
    """Collects seconds[step, worker] of a run, and writes them to a file.

    >>> recorder = TraceRecorder(num_workers=2)
    >>> recorder.add([0.5, 0.25])
    >>> recorder.num_steps, recorder.seconds
    (1, array([[0.5 , 0.25]], dtype=float32))

    Args:
      num_workers: W.
    """

    def __init__(self, *, num_workers: int):
        self._num_workers = num_workers
        self._rows: list[np.ndarray] = []
        self._began: list[np.ndarray] = []

    @property
    def num_steps(self) -> int:
        """S, the number of steps so far."""
        return len(self._rows)

    @property
    def seconds(self) -> np.ndarray:
        """[S, W] float32, the seconds of all steps so far."""
        return np.array(self._rows, np.float32).reshape(-1, self._num_workers)

    def add(self, seconds: Sequence[float] | np.ndarray, *, began: np.ndarray | None = None) -> None:
        """Adds a step.

        Args:
          seconds: [W], above 0; infinite for a worker that had not arrived when the step ended.
          began: [W], when each worker began its gradient, on the clock of ``seconds``; infinite for a worker that did
            not. None if all begin each step together.

        Raises:
          ValueError: for other values.
        """
        row = np.asarray(seconds, np.float32)
        if row.shape != (self._num_workers,) or not (row > 0).all():
            raise ValueError(f"seconds={seconds!r}: must be {self._num_workers} numbers above 0")
        self._rows.append(row)
        if began is not None:
            self._began.append(np.asarray(began, np.float32))

    def go_on(self, path: Path, *, num_steps: int) -> bool:
        """Goes on after the steps of a file if there are exactly ``num_steps``; returns whether there are.

        Raises:
          ValueError: in one line, if the file is damaged, or has another number of workers.
        """
        arrays = read_times(path)
        if arrays["seconds"].shape[1] != self._num_workers:
            count = arrays["seconds"].shape[1]
            raise ValueError(f"{str(path)!r}: holds {count} workers, and the run has {self._num_workers}; move it away")
        fits = len(arrays["seconds"]) == num_steps
        if fits:
            self._rows = list(arrays["seconds"])
            self._began = list(arrays.get("began", ()))
        return fits

    def write(self, path: Path) -> None:
        """Writes all steps so far to an .npz file, atomically.

        Raises:
          SaveError: in one line, for example if the disk is full.
        """
        began = {"began": np.array(self._began)} if self._began else {}
        files.write_arrays(path, {"seconds": self.seconds, **began})


def trace_path(folder: Path, *, first_step: int) -> Path:
    """Returns the file in a run's folder for the seconds of ``first_step`` and the steps after it."""
    return folder / f"worker_seconds-{first_step}.npz"


def read_times(path: Path) -> dict[str, np.ndarray]:
    """Reads a trace: "seconds" [S, W], and "began" [S, W] if the workers were processes.

    Raises:
      ValueError: in one line, if it is damaged.
    """
    try:
        with foreign_files.arrays(path) as arrays:
            found = {"seconds": arrays["seconds"], **arrays}
        seconds = found["seconds"]
        began = found.get("began", found["seconds"])
        if seconds.ndim != 2 or seconds.dtype.kind != "f" or not (seconds > 0).all():
            raise ValueError("seconds of each step and worker must be above 0")
        if began.shape != seconds.shape or began.dtype.kind != "f" or np.isnan(began).any():
            raise ValueError("each worker must have begun at a time, or never")
        return found
    except Exception as error:  # zipfile, zlib and NumPy raise many classes for a damaged archive
        raise ValueError(f"{str(path)!r}: is no trace of seconds ({files.reason(error)}); move it away") from None


def cut_traces(folder: Path, *, last_step: int) -> None:
    """Removes the steps after ``last_step`` from a run's traces; the run will take and measure them again.

    Raises:
      ValueError: in one line, if a trace is damaged.
      SaveError: in one line, if it cannot be written.
    """
    for path in folder.glob("worker_seconds-*.npz"):
        if not (first := path.stem.removeprefix("worker_seconds-")).isdecimal():
            continue
        arrays = read_times(path)
        num_kept = max(last_step + 1 - int(first), 0)
        if num_kept == 0:
            with files.saving(path):
                path.unlink()
        elif num_kept < len(arrays["seconds"]):
            files.write_arrays(path, {name: array[:num_kept] for name, array in arrays.items()})


def slowest_process(seconds: np.ndarray, *, num_processes: int) -> str:
    """Returns a line that names the slowest process, by the median over steps of its last worker's seconds.

    Args:
      seconds: [S, W]; the workers of a process are neighbours.
      num_processes: P.

    >>> slowest_process(np.array([[1.0, 1.0, 2.0, 4.0]]), num_processes=2)
    'slowest process: 1 of 2; its last worker takes 4 s a step, that of the fastest process 1 s'
    """
    of_process = np.median(seconds.reshape(len(seconds), num_processes, -1).max(axis=2), axis=0)  # (P,)
    slowest = int(of_process.argmax())
    fastest = of_process.min()
    slow = f"slowest process: {slowest} of {num_processes}; its last worker takes {of_process[slowest]:.4g} s a step"
    return f"{slow}, that of the fastest process {fastest:.4g} s"
