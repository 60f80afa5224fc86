"""Turns requests into crops, in a process of its own, which ``data.decoding.pool`` starts."""

import dataclasses
import json
import signal
import socket
import struct
import sys
import warnings
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from data.decoding import crops, records

Task = tuple[int, int, int]  # record, batch_index, position in the batch
LENGTH = struct.Struct("<Q")  # stands before every message


@dataclasses.dataclass(frozen=True)
class Job:
    """What all requests have in common.

    Attributes:
      files: path and number of records of each file of the split.
      size: side of the crops, pixels.
      num_classes: labels are 0 to num_classes - 1.
      mode: "training" for random crops, "evaluation" for the centre.
      seed: of the random crops.
      on_damage: "stop", or "skip" to take the next record of the part in the place of one that is damaged.
      part: the records [start, stop) of the split that may be taken.
    """

    files: Sequence[tuple[str, int]]
    size: int
    num_classes: int
    mode: Literal["training", "evaluation"]
    seed: int
    on_damage: Literal["stop", "skip"]
    part: tuple[int, int]


@dataclasses.dataclass
class Answer:
    """What became of a request.

    Attributes:
      labels: of each crop; none where ``error`` says why.
      damaged: record -> what is wrong with it.
      stopped_at: the damaged record that ended this request.
      error: what else did.
    """

    labels: list[int] = dataclasses.field(default_factory=list)
    damaged: dict[int, str] = dataclasses.field(default_factory=dict)
    stopped_at: int | None = None
    error: str = ""

    @property
    def complete(self) -> bool:
        """Whether the crops follow."""
        return self.stopped_at is None and not self.error


class Decoder:
    """Crops of records, one after another."""

    def __init__(self, job: Job):
        """Opens nothing yet."""
        self._job, self._shards = job, records.Shards(job.files)

    def decode(self, tasks: Sequence[Task], out: np.ndarray) -> Answer:
        """Writes a crop for each task; says what was wrong, and does not raise for what is wrong with the data.

        Args:
          tasks: n of them.
          out: [n, size, size, 3] uint8.
        """
        answer, (start, stop) = Answer(), self._job.part
        for (first, batch_index, position), crop in zip(tasks, out, strict=True):
            record = first
            while True:
                try:
                    crop[:], label = self._crop(record, batch_index, position)
                except records.Unreadable as error:
                    answer.error = str(error)
                    return answer
                except records.Damaged as error:
                    answer.damaged[record] = str(error)
                    following = record + 1 if record + 1 < stop else start
                    if self._job.on_damage == "stop" or following == first:
                        answer.stopped_at = record
                        return answer
                    record = following
                else:
                    answer.labels.append(label)
                    break
        return answer

    def _crop(self, record: int, batch_index: int, position: int) -> tuple[np.ndarray, int]:
        content, label = records.unpack(self._shards.read(record))
        if not 0 <= label < self._job.num_classes:
            raise records.Damaged(f"label {label} is not in [0, {self._job.num_classes})")
        try:
            if self._job.mode == "evaluation":
                return crops.centre_crop(content, size=self._job.size), label
            numbers = crops.uniforms(self._job.seed, batch_index, position)
            return crops.random_resized_crop(content, numbers, size=self._job.size), label
        except MemoryError:
            raise
        except Exception as error:  # what a damaged image gives depends on its format
            raise records.Damaged(records.reason(error)) from None


def send(link: socket.socket, message: Any) -> None:
    """Sends what JSON can hold."""
    content = json.dumps(message).encode()
    link.sendall(LENGTH.pack(len(content)) + content)


def receive(link: socket.socket) -> Any:
    """Returns the next message.

    Raises:
      EOFError: if the other side has ended.
    """
    length, content = bytearray(LENGTH.size), bytearray()
    receive_into(link, memoryview(length))
    content = bytearray(LENGTH.unpack(length)[0])
    receive_into(link, memoryview(content))
    return json.loads(content)


def receive_into(link: socket.socket, place: memoryview) -> None:
    """Fills a place, of bytes, with what comes.

    Raises:
      EOFError: if the other side has ended.
    """
    while place:
        count = link.recv_into(place)
        if not count:
            raise EOFError
        place = place[count:]


def serve(link: socket.socket) -> None:
    """Answers requests until the other side ends: whatever ended it, this process goes with it."""
    try:
        job = Job(**receive(link))
        decoder = Decoder(job)
        while True:
            tasks = receive(link)
            images = np.empty((len(tasks), job.size, job.size, 3), np.uint8)
            answer = decoder.decode(tasks, images)
            send(link, dataclasses.asdict(answer))
            if answer.complete:
                link.sendall(images.data)
    except (EOFError, ConnectionError):
        pass


def main(argv: Sequence[str]) -> int:
    """Serves the socket whose file descriptor is named."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the program, whose end ends this process
    warnings.filterwarnings("ignore", module="PIL")  # of metadata, by the thousand; what cannot be decoded is an error
    with socket.socket(fileno=int(argv[1])) as link:
        serve(link)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
