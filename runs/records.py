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

import io
import json
import os
import time
from collections.abc import Mapping, Sequence
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
    ):
        """Opens the file, and removes records that the run will write again.

        Args:
          path: metrics.jsonl.
          tensorboard: folder for event files, created if it is missing; None writes none.
          sinks: get every record after metrics.jsonl has it.
          resume_step: the step of the checkpoint from which the run goes on. Records of later steps and a
            half-written last line are removed; the rest stays byte for byte. None removes every record.

        Raises:
          ValueError: in one line, if a line before the last one is damaged.
          SaveError: in one line, if the file cannot be written.
        """
        kept = _lines_until(path, resume_step)
        content = b"".join(line for line, _ in kept)
        with files.saving(path):
            if not path.exists() or path.read_bytes() != content:
                files.write_atomically(path, content)
        self.wall_seconds: float = max((record.get("wall_seconds") or 0.0 for _, record in kept), default=0.0)
        """Seconds of the run at the last record that was kept, from which the clock of a resumed run goes on."""
        with files.saving(path):
            self._file = open(path, "ab", buffering=0)  # noqa: SIM115
            self._events = None if tensorboard is None else _Events(tensorboard, resume_step=resume_step)
        self._sinks = sinks

    def append(self, record: Mapping[str, Any]) -> None:
        """Writes a record, which has a "kind", an integer "step", and further numbers, strings or None.

        Raises:
          SaveError: in one line, for example if the disk is full. The next start removes a half-written line.
        """
        plain = {key: _plain(value) for key, value in record.items()}
        if not _is_record(plain):
            raise ValueError(f"record {plain!r}: must have a kind (str) and a step (int)")
        line = (json.dumps(files.encode_numbers(plain), allow_nan=False) + "\n").encode()
        with files.saving(self._file.name):
            if self._file.write(line) != len(line):
                raise OSError("only part of a record could be written; is the disk full?")
            if self._events is not None:
                self._events.append(plain)
        for sink in self._sinks:
            sink.append(plain)

    def flush(self) -> None:
        """Makes all records survive a power cut."""
        with files.saving(self._file.name):
            os.fsync(self._file.fileno())
            if self._events is not None:
                self._events.flush()
        for sink in self._sinks:
            sink.flush()

    def close(self) -> None:
        """Flushes and closes; a second call does nothing."""
        if not self._file.closed:
            try:
                self.flush()
            finally:
                with files.saving(self._file.name), self._file:
                    if self._events is not None:
                        self._events.close()
                for sink in self._sinks:
                    sink.close()

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
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()

    def _write(self, **fields: Any) -> None:
        self._writer.write_event(self._proto.Event(wall_time=time.time(), **fields))
