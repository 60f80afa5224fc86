"""An arrival model that replays recorded times, and the reader of their files."""

from pathlib import Path
from typing import Any

import numpy as np
from jax import numpy as jnp

from reducers.arrivals import foreign_files

SUFFIXES = (".csv", ".npz")
NPZ_NAME = "seconds"


def trace(*, path: str):
    """Replays recorded times; after the last recorded step it starts again with the first.

    Args:
      path: the path of a file that ``read_trace`` reads.

    Returns:
      An arrival model, which uses the first workers of the trace; those that did not arrive have infinite seconds. It
      raises ValueError, when traced, if the trace has too few workers. The whole trace becomes a constant of the
      compiled program.

    Raises:
      ValueError: if the file is not a valid trace.
    """
    seconds = read_trace(path)

    def model(key, step, num_workers):
        del key
        if num_workers > seconds.shape[1]:
            raise ValueError(f"path={path!r}: holds {seconds.shape[1]} workers, fewer than num_workers={num_workers}")
        return jnp.asarray(seconds[:, :num_workers])[step % len(seconds)]

    return model


def read_trace(path: str | Path) -> np.ndarray:
    """Reads a trace: seconds [steps, workers].

    Args:
      path: the path of a .csv file that has a line per step, with the seconds of each worker separated by commas, and
        comments in lines that begin with #, and perhaps a first line of names; or of an .npz file with an array
        ``seconds``. Infinite seconds are of a worker that had not arrived when the step ended, as runs of real
        processes record it; not all of a step may be.

    Returns:
      [S, W] float32, S and W at least 1.

    Raises:
      ValueError: one line, if the file cannot be read, or holds a value that is not allowed.
    """
    path = Path(path)
    where = f"path={str(path)!r}"
    if path.is_dir():
        inside = sorted(found.name for found in path.iterdir() if found.suffix in SUFFIXES)
        raise ValueError(f"{where}: is a folder, must be a file, such as one of {', '.join(inside[:3]) or 'a run'}")
    if path.suffix not in SUFFIXES:
        raise ValueError(f"{where}: must end in {' or '.join(SUFFIXES)}")
    try:
        seconds = _read_npz(path) if path.suffix == ".npz" else _read_csv(path)
    except FileNotFoundError:
        raise ValueError(f"{where}: no such file") from None
    except Exception as error:  # zipfile, zlib and NumPy raise many classes for a damaged archive
        reason = f"{type(error).__name__} {' '.join(str(error).split())}".strip()
        raise ValueError(f"{where}: not a trace of seconds: {reason}") from None
    if seconds.ndim != 2 or not seconds.size or seconds.dtype.kind not in "fiu":
        raise ValueError(f"{where}: holds {seconds.dtype} {list(seconds.shape)}, must be seconds [steps, workers]")
    is_absent = np.isinf(seconds)
    with np.errstate(over="ignore"):  # a value that overflows float32 is refused below
        seconds = seconds.astype(np.float32)
    wrong = np.argwhere(~((np.isfinite(seconds) | is_absent) & (seconds > 0)))
    if len(wrong):
        step, worker = wrong[0]
        value = seconds[step, worker]
        raise ValueError(f"{where}: {value} seconds of worker {worker} at step {step}, must be finite and above 0")
    if len(nobody := np.flatnonzero(np.isinf(seconds).all(axis=1))):
        raise ValueError(f"{where}: nobody arrives at step {nobody[0]}, at least one worker must")
    return seconds


def replays_arrivals(*, name: str, path: str = "", **options: Any) -> bool:
    """Returns whether an arrival model replays the arrivals of a live run, not the seconds of each gradient.

    Files of live runs have an array "began": when each worker began its gradient.

    >>> replays_arrivals(name="constant", seconds=1.0)
    False
    """
    del options
    if name != "trace" or Path(path).suffix != ".npz":
        return False
    with foreign_files.arrays(path) as arrays:
        return "began" in arrays


def _read_csv(path: Path) -> np.ndarray:
    text = foreign_files.content(path).decode("utf-8-sig")
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    if lines and not any(map(_is_number, lines[0].split(","))):
        del lines[0]
    try:
        rows = [np.array([float(cell) for cell in line.split(",")]) for line in lines]  # lists take ten times as much
    except ValueError as error:
        raise ValueError(f"{error}; a line must have the seconds of each worker, separated by commas") from None
    for i, row in enumerate(rows):
        if len(row) != len(rows[0]):
            raise ValueError(f"step {i} has {len(row)} workers, step 0 has {len(rows[0])}")
    return np.array(rows)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _read_npz(path: Path) -> np.ndarray:
    with foreign_files.arrays(path) as arrays:
        if NPZ_NAME not in arrays:
            raise ValueError(f"no array {NPZ_NAME!r}")
        return arrays[NPZ_NAME]
