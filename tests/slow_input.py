"""The digits as a data set of one's own, of which process 1 reads each batch slowly."""

import time

from data import sources
from parallel import processes

SECONDS = 2.0


class Slow:
    """Examples that process 1 reads slowly."""

    def __init__(self, examples):
        self._examples = examples
        self.num_examples = examples.num_examples

    def gather(self, index, batch_index):
        if processes.index() == 1:
            time.sleep(SECONDS)
        return self._examples.gather(index, batch_index)

    def part(self, start, stop, *, mode):
        return Slow(self._examples.part(start, stop, mode=mode))


def digits(evaluate_on="test"):
    source = sources.make("digits", placement="stream", evaluate_on=evaluate_on)

    def load(seed):
        dataset = source.load(seed)
        return dataset._replace(train=Slow(dataset.train))

    return source._replace(load=load)
