"""The records of a run: metrics.jsonl, one JSON object a line, and the same numbers for TensorBoard.

A number that is not finite is written as the string "nan", "inf" or "-inf" and read back as a float. Each line is
handed to the operating system when it is appended, so that a killed process loses none. `flush` makes them survive a
power cut. It is called before each checkpoint, so that the records always reach as far as the checkpoint.

>>> import pathlib, tempfile
>>> path = pathlib.Path(tempfile.mkdtemp()) / "metrics.jsonl"
>>> with Records(path) as records:
...     for step in (1, 2, 3):
...         records.append({"kind": "train", "step": step, "loss": 1.0 / step})
>>> with Records(path, resume_step=2) as records:  # the run was killed, and resumes from the checkpoint of step 2
...     records.append({"kind": "train", "step": 3, "loss": float("nan")})
>>> read(path)[1:]
[{'kind': 'train', 'step': 2, 'loss': 0.5}, {'kind': 'train', 'step': 3, 'loss': nan}]
"""

import bisect
import contextlib
import io
import itertools
import json
import os
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from launch.whole_files import replacing
from reducers.arrivals import foreign_files
from runs import files
from runs.reporting.sinks import Sink
from runs.reporting.trackers import metrics

# A run that was killed and resumed may differ from an uninterrupted one in the fields of ``is_of_host_clock`` alone.
HOST_SECONDS = "host_seconds_"  # and the index of a process
HOST_CLOCK_FIELDS = ("wall_seconds", "examples_per_second", "steps_per_second", "data_wait_share", "slowest_process")
MOST_LINE_BYTES = 1 << 24  # bound of a record; a file without a newline could fill the memory


class Records(contextlib.AbstractContextManager["Records"]):
    """Appends records to metrics.jsonl, to a TensorBoard event file if a folder is given, and to further sinks."""

    def __init__(
        self,
        path: Path,
        *,
        tensorboard: Path | None = None,
        sinks: Sequence[Sink] = (),
        resume_step: int | None = None,
        logged_steps: Iterable[int] = (),
    ):
        """Opens the file, and removes records that the run will write again.

        Args:
          path: metrics.jsonl.
          tensorboard: folder for event files, created if it is missing; None writes none.
          sinks: get every record after it is in metrics.jsonl.
          resume_step: the step of the checkpoint from which the run goes on. Records of later steps and a
            half-written last line are removed; the rest stays byte for byte. None removes every record.
          logged_steps: steps up to ``resume_step``, in ascending order, that must have a train record. If some are
            missing, a record of kind "gap" notes the first of them as "first_step" and the last as "step".

        Raises:
          ValueError: in one line, if a line before the last one is damaged.
          SaveError: in one line, if the file cannot be written.
        """
        self._path = path
        self.wall_seconds: float = 0.0
        """Seconds of the run at the last record that was kept, from which the clock of a resumed run goes on."""
        self.last_evaluation: dict[str, Any] | None = None
        """The last record of an evaluation that was kept."""
        missing = dict.fromkeys(logged_steps)
        num_bytes = 0
        gaps: list[tuple[int, int]] = []  # first and last step of each
        for line, record in _lines_until(path, resume_step):
            num_bytes += len(line)
            kind = record["kind"]
            step = record["step"]
            self.wall_seconds = max(self.wall_seconds, record.get("wall_seconds") or 0.0)
            if kind == "train":
                missing.pop(step, None)
            elif kind == "gap" and type(first := record.get("first_step")) is int:
                gaps.append((first, step))
            elif kind == "eval":
                self.last_evaluation = files.decode_numbers(record)
        gaps.sort()
        firsts = [first for first, _ in gaps]
        lasts = [-1, *itertools.accumulate((last for _, last in gaps), max)]  # last step of the first n gaps
        self.lost_steps = [step for step in missing if lasts[bisect.bisect_right(firsts, step)] < step]
        """The steps whose records are missing, unless an earlier start has noted the gap."""
        with files.saving(path):
            # A copy by hard links shares the file; appending to it would change both runs.
            if not path.exists() or path.stat().st_nlink > 1 or path.stat().st_size != num_bytes:
                with replacing(path) as file:
                    file.writelines(line for line, _ in _lines_until(path, resume_step))
        events = [] if tensorboard is None else [_Events(tensorboard, resume_step=resume_step)]
        self._sinks: list[Sink] = [*sinks, *events]  # on a full disk, the last one misses a record
        with files.saving(path):
            self._file = io.FileIO(self._path, "a+")
        if self.lost_steps:
            self.append({"kind": "gap", "step": self.lost_steps[-1], "first_step": self.lost_steps[0]})

    def append(self, record: Mapping[str, Any]) -> None:
        """Writes a record: a "kind", an integer "step", and further numbers, strings or None.

        Raises:
          SaveError: in one line, for example if the disk is full. The next start removes a half-written line.
        """
        # The scalars of NumPy and JAX as numbers.
        plain = {key: value.item() if hasattr(value, "item") else value for key, value in record.items()}
        line = (json.dumps(files.encode_numbers(plain), allow_nan=False) + "\n").encode()
        with files.saving(self._path):
            if self._file.write(line) != len(line):
                raise OSError("only part of a record could be written; is the disk full?")
        for sink in self._sinks:
            sink.append(plain)

    def flush(self) -> None:
        """Makes all records survive a power cut, and restores the file if it was removed.

        Raises:
          SaveError: in one line, for example if the folder was moved, or another file has the name.
        """
        with files.saving(self._path):
            if not os.path.lexists(self._path):  # the open file still has its content
                self._file.seek(0)
                with replacing(self._path) as file:
                    shutil.copyfileobj(self._file, file)
                self._file.close()
                self._file = io.FileIO(self._path, "a+")
            elif not os.path.samestat(os.fstat(self._file.fileno()), os.stat(self._path)):
                raise OSError("another file has taken its place")
        self._sync()

    def close(self) -> None:
        """Makes all records survive a power cut, and closes the file and all sinks, even if one fails.

        A second call does nothing.
        """
        if not self._file.closed:
            with contextlib.ExitStack() as stack:
                for sink in self._sinks:
                    stack.callback(sink.close)
                stack.enter_context(files.saving(self._path))
                stack.callback(self._file.close)
                self._sync()

    def _sync(self) -> None:
        with contextlib.ExitStack() as stack:
            for sink in self._sinks:
                stack.callback(sink.flush)
            with files.saving(self._path):
                os.fsync(self._file.fileno())

    def __exit__(self, *_: object) -> None:
        self.close()


def is_of_host_clock(field: str) -> bool:
    """Returns whether a field is one of HOST_CLOCK_FIELDS, or the seconds of a process."""
    return field in HOST_CLOCK_FIELDS or field.startswith(HOST_SECONDS)


def read(path: Path | str) -> list[dict[str, Any]]:
    """Returns the records of a run, without a last line that is still being written.

    Raises:
      FileNotFoundError: if the file does not exist.
      ValueError: in one line, if a line before the last one is damaged.
    """
    return list(stream(path))


def stream(path: Path | str) -> Iterator[dict[str, Any]]:
    """Yields the records that ``read`` returns, with one at a time in memory.

    Raises:
      FileNotFoundError: if the file does not exist.
      ValueError: in one line, if a line before the last one is damaged.
    """
    for _, record in _lines(Path(path)):
        yield files.decode_numbers(record)


def _lines_until(path: Path, resume_step: int | None) -> Iterator[tuple[bytes, dict[str, Any]]]:
    if resume_step is not None and path.exists():
        yield from ((line, record) for line, record in _lines(path) if record["step"] <= resume_step)


def _lines(path: Path) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Yields each line, with its newline, and its record."""
    with foreign_files.opened(path) as file:
        for number, line in enumerate(iter(lambda: file.readline(MOST_LINE_BYTES), b""), start=1):
            try:
                if len(line) == MOST_LINE_BYTES:
                    raise ValueError(f"it has {MOST_LINE_BYTES} bytes or more")
                record = files.from_json(line)
                if not _is_record(record):
                    raise ValueError("not a record")
            except ValueError as error:
                if not line.endswith(b"\n") and len(line) < MOST_LINE_BYTES:
                    return  # the process was killed while it wrote the last line
                raise ValueError(f"{str(path)!r}: line {number} is damaged ({error}); mend or remove it") from error
            yield line if line.endswith(b"\n") else line + b"\n", record


def due(cadences: Sequence[tuple[int, int]], until: int) -> Iterator[int]:
    """Yields the steps up to ``until`` that must have a train record, in ascending order.

    Args:
      cadences: (step, n) of each start of the run, oldest first: the start went on from that step, and logged every
        n-th one until the next start took over. Steps before the first start count as its own.
      until: the last step.

    >>> list(due([(0, 10), (40, 10), (20, 5)], until=32))  # the second start was killed, and its checkpoint damaged
    [10, 20, 25, 30]
    """
    parts = []
    for first, every in (*reversed(cadences), (0, cadences[0][1])):
        if first < until:
            parts.append(range(first - first % every + every, until + 1, every))
            until = first
    return itertools.chain.from_iterable(reversed(parts))


def _is_record(value: Any) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("kind"), str) or type(value.get("step")) is not int:
        return False
    return isinstance(value.get("wall_seconds") or 0.0, int | float)


class _Events:
    """TensorBoard events: one file per start, one event per record.

    tensorboardX's SummaryWriter is not used: it hands events to a thread, and its `flush` does not wait for that.
    """

    def __init__(self, folder: Path, *, resume_step: int | None):
        from tensorboardX import event_file_writer
        from tensorboardX.proto import event_pb2

        self._proto: Any = event_pb2  # its classes are generated; a type checker does not see them
        self._folder = folder
        with files.saving(folder):
            folder.mkdir(parents=True, exist_ok=True)
            start = len(list(folder.iterdir()))  # makes the names of two starts in one second differ
            self._writer = event_file_writer.EventsWriter(str(folder / "events"), filename_suffix=f".{start}")
        if start > 0:
            # Makes TensorBoard discard records of earlier files from the steps that are written again.
            again = 0 if resume_step is None else resume_step + 1
            self._write(step=again, session_log={"status": "START"})

    def append(self, record: Mapping[str, Any]) -> None:
        numbers = [{"tag": tag, "simple_value": value} for tag, value in metrics(record).items()]
        self._write(step=record["step"], summary={"value": numbers})

    def flush(self) -> None:
        with files.saving(self._folder):
            self._writer.flush()

    def close(self) -> None:
        with files.saving(self._folder):
            self._writer.close()

    def _write(self, **fields: Any) -> None:
        with files.saving(self._folder):
            self._writer.write_event(self._proto.Event(wall_time=time.time(), **fields))
