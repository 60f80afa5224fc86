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

import contextlib
import io
import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from runs import files
from runs.sinks import Sink

# A run that was killed and resumed may differ in these fields alone from one that was not.
HOST_CLOCK_FIELDS = ("wall_seconds", "examples_per_second", "steps_per_second", "data_wait_share")


class Records:
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
          sinks: get every record after metrics.jsonl has it.
          resume_step: the step of the checkpoint from which the run goes on. Records of later steps and a
            half-written last line are removed; the rest stays byte for byte. None removes every record.
          logged_steps: steps up to ``resume_step`` that must have a train record. If some are missing, a record of kind
            "gap" notes the first of them as "first_step" and the last as "step".

        Raises:
          ValueError: in one line, if a line before the last one is damaged.
          SaveError: in one line, if the file cannot be written.
        """
        self._path = path
        lines = _lines_until(path, resume_step)
        content = b"".join(line for line, _ in lines)
        with files.saving(path):
            # A copy by hard links shares the file; appending to it would change both runs.
            if not path.exists() or path.stat().st_nlink > 1 or path.read_bytes() != content:
                files.write_atomically(path, content)
        kept = [record for _, record in lines]
        self.wall_seconds: float = max((record.get("wall_seconds") or 0.0 for record in kept), default=0.0)
        """Seconds of the run at the last record that was kept, from which the clock of a resumed run goes on."""
        self.last_evaluation = next((files.decode_numbers(r) for r in reversed(kept) if r["kind"] == "eval"), None)
        """The last record of an evaluation that was kept."""
        self.lost_steps = _lost(kept, logged_steps)
        """The steps whose records are missing, unless an earlier start has noted the gap."""
        events = [] if tensorboard is None else [_Events(tensorboard, resume_step=resume_step)]
        self._sinks: list[Sink] = [*sinks, *events]  # on a full disk, the last one misses a record
        with files.saving(path):
            self._file = self._open()
        if self.lost_steps:
            self.append({"kind": "gap", "step": self.lost_steps[-1], "first_step": self.lost_steps[0]})

    def append(self, record: Mapping[str, Any]) -> None:
        """Writes a record, which has a "kind", an integer "step", and further numbers, strings or None.

        Raises:
          SaveError: in one line, for example if the disk is full. The next start removes a half-written line.
        """
        plain = {key: _plain(value) for key, value in record.items()}
        if not _is_record(plain):
            raise ValueError(f"record {plain!r}: must have a kind (str) and a step (int)")
        line = (json.dumps(files.encode_numbers(plain), allow_nan=False) + "\n").encode()
        with files.saving(self._path):
            if self._file.write(line) != len(line):
                raise OSError("only part of a record could be written; is the disk full?")
        for sink in self._sinks:
            sink.append(plain)

    def flush(self) -> None:
        """Makes all records survive a power cut, and puts the file back if somebody has removed it.

        Raises:
          SaveError: in one line, for example if the folder was moved, or another file has the name.
        """
        with files.saving(self._path):
            self._keep_in_place()
        self._sync()

    def close(self) -> None:
        """Makes all records survive a power cut, and closes file and sinks, also those after one that fails.

        A second call does nothing.
        """
        if not self._file.closed:
            with contextlib.ExitStack() as stack:
                for sink in self._sinks:
                    stack.callback(sink.close)
                stack.callback(self._close_file)
                self._sync()

    def _open(self) -> io.FileIO:
        return open(self._path, "a+b", buffering=0)

    def _close_file(self) -> None:
        with files.saving(self._path):
            self._file.close()

    def _sync(self) -> None:
        with contextlib.ExitStack() as stack:
            for sink in self._sinks:
                stack.callback(sink.flush)
            with files.saving(self._path):
                os.fsync(self._file.fileno())

    def _keep_in_place(self) -> None:
        if not os.path.lexists(self._path):  # the open file still has its content
            self._file.seek(0)
            files.write_atomically(self._path, self._file.readall())
            self._file.close()
            self._file = self._open()
        elif not os.path.samestat(os.fstat(self._file.fileno()), os.stat(self._path)):
            raise OSError("another file has taken its place")

    def __enter__(self) -> "Records":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read(path: Path | str) -> list[dict[str, Any]]:
    """Returns the records of a run, without a last line that is still being written.

    Raises:
      FileNotFoundError: if the file does not exist.
      ValueError: in one line, if a line before the last one is damaged.
    """
    path = Path(path)
    return [files.decode_numbers(record) for _, record in _lines(path, path.read_bytes())]


def _lines_until(path: Path, resume_step: int | None) -> list[tuple[bytes, dict[str, Any]]]:
    if resume_step is None or not path.exists():
        return []
    return [(line, record) for line, record in _lines(path, path.read_bytes()) if record["step"] <= resume_step]


def _lines(path: Path, content: bytes) -> list[tuple[bytes, dict[str, Any]]]:
    """Returns each line, with its newline, and its record."""
    lines = []
    for number, line in enumerate(io.BytesIO(content), start=1):  # splits at newlines alone
        try:
            record = files.from_json(line)
            if not _is_record(record):
                raise ValueError("not a record")
        except ValueError as error:
            if not line.endswith(b"\n"):
                break  # the process was killed while it wrote the last line
            raise ValueError(f"{str(path)!r}: line {number} is damaged ({error}); mend or remove it") from error
        lines.append((line if line.endswith(b"\n") else line + b"\n", record))
    return lines


def _lost(records: Sequence[Mapping[str, Any]], logged_steps: Iterable[int]) -> list[int]:
    """Returns the steps that have no train record, and are not in a gap that a record notes.

    >>> _lost([{"kind": "train", "step": 8}, {"kind": "gap", "first_step": 2, "step": 4}], [2, 4, 6, 8])
    [6]
    """
    known = {record["step"] for record in records if record["kind"] == "train"}
    gaps = [(record.get("first_step"), record["step"]) for record in records if record["kind"] == "gap"]
    noted = [range(first, last + 1) for first, last in gaps if type(first) is int]
    return [step for step in logged_steps if step not in known and not any(step in gap for gap in noted)]


def _is_record(value: Any) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("kind"), str) or type(value.get("step")) is not int:
        return False
    return isinstance(value.get("wall_seconds") or 0.0, int | float)


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value  # numpy and JAX scalars


class _Events:
    """TensorBoard events: one file per start, one event per record.

    tensorboardX's SummaryWriter is not used: it hands events to a thread, and its `flush` does not wait for that.
    """

    def __init__(self, folder: Path, *, resume_step: int | None):
        from tensorboardX import event_file_writer
        from tensorboardX.proto import event_pb2

        self._proto: Any = event_pb2  # its classes are generated, unseen by a type checker
        self._folder = folder
        with files.saving(folder):
            folder.mkdir(parents=True, exist_ok=True)
            start = len(list(folder.iterdir()))  # makes the names of two starts in one second differ
            self._writer = event_file_writer.EventsWriter(str(folder / "events"), filename_suffix=f".{start}")
        if start > 0:
            # Makes TensorBoard discard what earlier files have of the steps that are written again.
            again = 0 if resume_step is None else resume_step + 1
            self._write(step=again, session_log={"status": "START"})

    def append(self, record: Mapping[str, Any]) -> None:
        numbers = [
            {"tag": f"{record['kind']}/{key}", "simple_value": float(value)}
            for key, value in record.items()
            if key != "step" and isinstance(value, int | float) and not isinstance(value, bool)
        ]
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
