"""Images of sets that are too large to keep: read from TFDS's files, decoded and cropped batch by batch.

A crop depends on (seed, batch_index, position in the batch) and the record, and not on the number of processes, the
order of requests, or the step at which a run was resumed. So no state has to be saved.

Grain does not fit: its ``mp_prefetch`` walks one order, fixed when the iterator is made, and checkpoints its place in
it. Here the order follows the step plans, asynchronous ones too, and resuming takes one number. Grain's workers are
also started by ``multiprocessing``'s spawn, which imports the main module, and JAX with it, in each of them.
"""

import dataclasses
import os
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
from absl import logging

from data import tfds_sets
from data.decoding.pool import Answer, Job, Pool, Request, default_processes
from data.examples import Mode

MAX_REQUEST = 8  # crops


class Images:
    """The examples of one split, or of a part of it, as [S, S, 3] crops.

    Decoding processes start with the first ``gather`` and end with ``close``, or when this program ends.

    Attributes:
      num_examples: Number of examples.
      damaged: Record of the split -> why it cannot be decoded, for the damaged records that were skipped so far.
    """

    def __init__(self, job: Job, *, name: str, split: str, processes: int | None = None):
        """Opens no file and starts no process.

        Args:
          job: The records and how to crop them. In evaluation with ``on_damage="skip"``, the record that replaces a
            damaged one counts twice.
          name: Name of the set, for messages.
          split: Name of the split in TFDS, for messages.
          processes: Number of decoding processes. Default: the usable cores less one, at least 1. 0: the calling
            thread decodes.
        """
        self.num_examples = job.records[1] - job.records[0]
        self.damaged: dict[int, str] = {}
        self._job = job
        self._name = name
        self._split = split
        self._num_processes = default_processes() if processes is None else processes
        self._pool = Pool(job, count=self._num_processes)
        self._decoder: Any = None  # of the calling thread, without processes

    def gather(self, index: np.ndarray, batch_index: np.ndarray) -> dict[str, np.ndarray]:
        """Returns examples; waits until they are decoded.

        Args:
          index: [W, B] indices of examples.
          batch_index: [W] of each worker; training returns zeros where it is -1. Evaluation ignores it.

        Returns:
          {"image": [W, B, S, S, 3] uint8, "label": [W, B] int32}

        Raises:
          ValueError: One line; a record is damaged, or a file is missing, cut off or damaged.
          RuntimeError: A process died, or ``close`` was called meanwhile.
        """
        size = self._job.image_size
        images = np.zeros((*index.shape, size, size, 3), np.uint8)
        labels = np.zeros(index.shape, np.int32)
        requests = self._requests(index, batch_index, images, labels)
        if self._num_processes:
            self._pool.run(requests, check=self._check)
        else:
            self._decode(requests)
        return {"image": images, "label": labels}

    def _requests(
        self, index: np.ndarray, batch_index: np.ndarray, images: np.ndarray, labels: np.ndarray
    ) -> Iterator[Request]:
        """Cuts a batch into requests, four or more for each process, so that all finish at about the same time."""
        workers = np.arange(len(index)) if self._job.mode == "evaluation" else np.flatnonzero(batch_index >= 0)
        quarter = len(workers) * index.shape[1] // max(1, 4 * self._num_processes)  # of a process's share
        step = min(MAX_REQUEST, max(1, quarter))
        for w in workers:
            for start in range(0, index.shape[1], step):
                part = slice(start, start + step)
                records = (index[w, part] + self._job.records[0]).tolist()
                tasks = [(record, int(batch_index[w]), start + i) for i, record in enumerate(records)]
                yield Request(tasks, images[w, part], labels[w, part])

    def _decode(self, requests: Iterator[Request]) -> None:
        from data.decoding.process import Decoder

        self._decoder = self._decoder or Decoder(self._job)
        for request in requests:
            answer = self._decoder.decode(request.tasks, request.images)
            self._check(answer)
            request.labels[:] = answer.labels

    def _check(self, answer: Answer) -> None:
        """Logs records that were skipped; raises a ValueError if the answer is not complete."""
        for record, reason in answer.damaged.items():
            message = f"data.name={self._name!r}: record {record} of split {self._split!r} cannot be decoded: {reason}"
            if record == answer.stopped_at:
                raise ValueError(message)
            if record not in self.damaged:
                self.damaged[record] = reason
                logging.warning("%s; the next record takes its place (%d so far)", message, len(self.damaged))
        if answer.error:
            raise ValueError(f"data.name={self._name!r}: split {self._split!r} cannot be read: {answer.error}")

    def part(self, start: int, stop: int, *, mode: Mode) -> "Images":
        """Returns examples [start, stop) with the same seed; the part starts its own processes."""
        first = self._job.records[0]
        job = dataclasses.replace(self._job, mode=mode, records=(first + start, first + stop))
        return Images(job, name=self._name, split=self._split, processes=self._num_processes)

    def close(self) -> None:
        """Ends the processes at once; a gather in another thread fails. The next gather starts them again."""
        self._pool.close()


def open_images(
    prepared: tfds_sets.Prepared,
    split: Literal["train", "test"],
    *,
    image_size: int,
    mode: Mode,
    seed: int = 0,
    processes: int | None = None,
    on_damage: Literal["stop", "skip"] = "stop",
) -> Images:
    """Returns the examples of a split of a prepared set; the arguments are those of ``Job`` and ``Images``."""
    files = [
        (os.path.abspath(path), count) for path, count in tfds_sets.files(prepared.builder.info, prepared.splits[split])
    ]
    job = Job(
        files=files,
        image_size=image_size,
        num_classes=prepared.num_classes,
        mode=mode,
        seed=seed,
        on_damage=on_damage,
        records=(0, sum(count for _, count in files)),
    )
    return Images(job, name=prepared.name, split=prepared.splits[split], processes=processes)
