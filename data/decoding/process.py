"""A decoding process: turns requests into crops. ``data.decoding.pool`` starts it."""

import signal
import warnings
from collections.abc import Sequence
from multiprocessing.connection import Connection

import numpy as np

from data.decoding import crops, records
from data.decoding.pool import Answer, Job, Task, send
from launch.signals import WARNINGS


class Decoder:
    """Decodes and crops records of one job."""

    def __init__(self, job: Job):
        """Opens no file yet."""
        self._job = job
        self._shards = records.Shards(job.files)

    def decode(self, tasks: Sequence[Task], out: np.ndarray) -> Answer:
        """Writes a crop for each task; reports damaged data in the answer instead of raising an exception.

        Args:
          tasks: n tasks.
          out: [n, S, S, 3] uint8.
        """
        answer = Answer()
        start, stop = self._job.records
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
                return crops.centre_crop(content, size=self._job.image_size), label
            numbers = crops.uniforms(self._job.seed, batch_index, position)
            return crops.random_resized_crop(content, numbers, size=self._job.image_size), label
        except MemoryError:
            raise
        except Exception as error:  # damaged images raise exceptions that depend on their format
            raise records.Damaged(records.reason(error)) from None


def main(descriptor: int) -> None:
    """Answers requests on the socket with this file descriptor until the other side closes it or dies."""
    for number in (signal.SIGINT, *WARNINGS):  # a scheduler sends them to all processes; the program ends this one
        signal.signal(number, signal.SIG_IGN)
    # Pillow warns about metadata thousands of times; undecodable images raise errors.
    warnings.filterwarnings("ignore", module="PIL")
    with Connection(descriptor) as link:
        try:
            job: Job = link.recv()
            decoder = Decoder(job)
            while True:
                tasks = link.recv()
                images = np.empty((len(tasks), job.image_size, job.image_size, 3), np.uint8)
                answer = decoder.decode(tasks, images)
                link.send(answer)
                if answer.complete:
                    send(link.fileno(), images.reshape(-1).data)
        except (EOFError, ConnectionError):
            pass
