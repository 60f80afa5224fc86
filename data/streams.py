"""Examples too many to decode ahead: read from TFDS's files, decoded and cropped by processes, batch by batch.

What a crop is depends on (seed, batch_index, position in the batch) and the record, on nothing else: not on the number of
processes, on the order in which batches are asked for, or on where a run was resumed. So there is no state to save.

Not Grain. Its ``mp_prefetch`` walks one order, fixed when the iterator is made, from a place that a checkpoint of its
own names; here the order follows the turns of the run, asynchronous ones too, and to resume takes one number. Its
workers start with ``multiprocessing``'s spawn, which imports the main module, and JAX with it, in each.
"""

import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from absl import logging

from data import tfds_sets
from data.decoding.pool import Processes, Request, resolve_processes
from data.examples import Mode

OnDamage = Literal["stop", "skip"]

MAX_REQUEST = 8  # crops
MAX_IMAGE_SIZE = 4096  # pixels


class Images:
    """The examples of one split, or of a part of it, as [S, S, 3] crops.

    Processes start with the first ``gather`` and end with ``close``, or by themselves when this one ends.

    Attributes:
      num_examples: of the part.
      damaged: record of the split -> what is wrong with it, of the damaged records met so far that others took the
        place of.
    """

    def __init__(
        self,
        files: Sequence[tuple[str, int]],
        *,
        name: str,
        split: str,
        num_classes: int,
        image_size: int,
        mode: Mode,
        seed: int = 0,
        processes: int | Literal["auto"] = "auto",
        on_damage: OnDamage = "stop",
        records: tuple[int, int] | None = None,
    ):
        """Opens nothing and starts nothing.

        Args:
          files: path and number of records of each array_record file, in order; ``open_images`` finds them.
          name: of the set, for messages.
          split: likewise, its name in TFDS.
          num_classes: labels are 0 to num_classes - 1.
          image_size: side of a crop, S, pixels.
          mode: "training" for random-resized crops, mirrored with probability 1/2; "evaluation" for centre crops.
          seed: of the random crops, 0 to 2**64 - 1.
          processes: that decode; "auto" is one less than the cores this process may use, and at least 1; 0 decodes
            in the calling thread.
          on_damage: at a record that cannot be decoded, "stop" with an error, or "skip": say so once and take the next
            record in its place, label and all. In evaluation that record then counts twice.
          records: [start, stop) of the split's, to which these examples are confined, damaged or not; by default all.

        Raises:
          ValueError: if a value is not allowed.
        """
        if mode not in ("training", "evaluation"):
            raise ValueError(f"mode={mode!r}: must be one of training, evaluation")
        if on_damage not in ("stop", "skip"):
            raise ValueError(f"data.on_damage={on_damage!r}: must be one of stop, skip")
        if not 1 <= image_size <= MAX_IMAGE_SIZE:
            raise ValueError(f"data.image_size={image_size}: must be in [1, {MAX_IMAGE_SIZE}]")
        start, stop = records or (0, sum(count for _, count in files))
        self.num_examples = stop - start
        self.damaged: dict[int, str] = {}
        self._key, self._split, self._random = f"data.name={name!r}", split, mode == "training"
        self._job: dict[str, Any] = {
            "files": [(os.path.abspath(path), count) for path, count in files],
            "size": image_size,
            "num_classes": num_classes,
            "mode": mode,
            "seed": seed,
            "on_damage": on_damage,
            "part": (start, stop),
        }
        self._name, self._start = name, start
        self._num_processes = resolve_processes(processes)
        self._processes = Processes(self._job, count=self._num_processes)
        self._decoder: Any = None  # of the calling thread, where there are no processes

    def gather(self, index: np.ndarray, batch_index: np.ndarray) -> dict[str, np.ndarray]:
        """Returns examples; blocks until they are there.

        Args:
          index: [W, B] of examples.
          batch_index: [W] of each worker; -1 where it needs none, which gives zeros in training. Evaluation ignores it.

        Returns:
          {"image": [W, B, S, S, 3] uint8, "label": [W, B] int32}

        Raises:
          ValueError: one line; a record is damaged, or a file is missing, cut off or damaged.
          RuntimeError: a process has died, or ``close`` was called meanwhile.
        """
        size = self._job["size"]
        images, labels = np.zeros((*index.shape, size, size, 3), np.uint8), np.zeros(index.shape, np.int32)
        requests = self._requests(index, batch_index, images, labels)
        if self._num_processes:
            self._processes.run(requests)
        else:
            self._decode_here(requests)
        return {"image": images, "label": labels}

    def _requests(
        self, index: np.ndarray, batch_index: np.ndarray, images: np.ndarray, labels: np.ndarray
    ) -> Iterator[Request]:
        """Cuts what is needed into requests: small ones, so that no process works for long when others have ended."""
        rows = [w for w in range(len(batch_index)) if batch_index[w] >= 0 or not self._random]
        fair = len(rows) * index.shape[1] // max(1, 4 * self._num_processes)
        step = min(MAX_REQUEST, max(1, fair))
        for w in rows:
            for start in range(0, index.shape[1], step):
                positions = range(index.shape[1])[start : start + step]
                tasks = [
                    (self._start + int(index[w, position]), int(batch_index[w]), position) for position in positions
                ]
                labels_place = labels[w, start : start + step]

                def take(answer: Mapping[str, Any], place: np.ndarray = labels_place) -> None:
                    self._look_at(answer)
                    place[:] = answer["labels"]

                yield Request(tasks, images[w, start : start + step], take)

    def _decode_here(self, requests: Iterator[Request]) -> None:
        from data.decoding.process import Decoder, Job

        self._decoder = self._decoder or Decoder(Job(**self._job))
        for request in requests:
            request.take(dataclasses.asdict(self._decoder.decode(request.tasks, request.place)))

    def _look_at(self, answer: Mapping[str, Any]) -> None:
        """Says what is new in an answer, or raises it."""
        for number, why in answer["damaged"].items():
            record = int(number)  # JSON made it a string
            told = f"{self._key}: record {record} of split {self._split!r} cannot be decoded: {why}"
            if record == answer["stopped_at"]:
                raise ValueError(told)
            if record not in self.damaged:
                self.damaged[record] = why
                logging.warning("%s; the next record takes its place (%d so far)", told, len(self.damaged))
        if answer["error"]:
            raise ValueError(f"{self._key}: split {self._split!r} cannot be read: {answer['error']}")

    def part(self, start: int, stop: int, *, mode: Mode) -> "Images":
        """Returns examples [start, stop) of these, with the same seed, and processes of their own."""
        job = self._job
        return Images(
            job["files"],
            name=self._name,
            split=self._split,
            num_classes=job["num_classes"],
            image_size=job["size"],
            mode=mode,
            seed=job["seed"],
            processes=self._num_processes,
            on_damage=job["on_damage"],
            records=(self._start + start, self._start + stop),
        )

    def close(self) -> None:
        """Ends the processes at once; a gather under way in another thread fails. They start again if need be."""
        self._processes.close()

    def __enter__(self) -> "Images":
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()


def open_images(prepared: tfds_sets.Prepared, split: Literal["train", "test"], **options: Any) -> Images:
    """Returns the examples of a split of a prepared set; ``options`` are those of ``Images`` that it does not know."""
    return Images(
        tfds_sets.files(prepared, split),
        name=prepared.name,
        split=prepared.splits[split],
        num_classes=prepared.num_classes,
        **options,
    )
