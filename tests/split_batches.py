"""The digits in batches of one's own, of which each process reads the part of its workers."""

import time
from typing import Literal

import numpy as np

from data import sources
from data.iterators import Batches
from parallel import processes


class Part:
    """Batches without end, and their number so far; or a process's part of each."""

    def __init__(self, columns, *, parts, of, batch_size, seed, seconds, ends):
        self.columns, self.batch_size, self.seed, self.seconds, self.ends = columns, batch_size, seed, seconds, ends
        self.rows = slice(of * batch_size // parts, (of + 1) * batch_size // parts)
        self.step = 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.step == self.ends and processes.index() == 1:
            raise StopIteration
        time.sleep(self.seconds)
        index = np.random.default_rng((self.seed, self.step)).integers(1000, size=self.batch_size)[self.rows]
        self.step += 1
        return {name: column[index] for name, column in self.columns.items()}

    def get_state(self):
        return {"step": self.step, "process": processes.index()}

    def set_state(self, state):
        assert state["process"] == processes.index()
        self.step = state["step"]


def digits(
    batch_size: int = 128,
    parts: Literal["processes", "nodes"] = "processes",
    kind: Literal["place", "generator"] = "place",
    seconds: float = 0.0,
    ends: int = -1,
):
    found = sources.make("digits", placement="stream", evaluate_on="test")

    def load(seed):
        dataset = found.load(seed)
        given = {"batch_size": batch_size, "seed": seed, "seconds": seconds, "ends": ends}
        size = 2 if parts == "nodes" and processes.several() else 1  # processes that have a worker together
        part = Part(dataset.train.columns, parts=processes.count() // size, of=processes.index() // size, **given)
        batches = part if kind == "place" else (batch for batch in part)
        return dataset._replace(train=Batches(batches, num_examples=dataset.train.num_examples))

    return sources.source_of_batches(found.info, load)
