"""The order in which examples are used: shuffled passes, one after another, cut into batches."""

import functools

import numpy as np

NUM_CACHED_PASSES = 4  # asynchronous batches come nearly in order: usually two passes are in use, rarely three


class ExampleOrder:
    r"""The examples of each batch, as a pure function of (seed, batch_index).

    Shuffled passes over the examples follow each other without end. With batch size :math:`B`, batch :math:`i` holds
    the positions :math:`[iB, (i+1)B)` of that stream. So every example occurs exactly once per pass, two batches never
    overlap within a pass, and a batch that reaches the end of a pass continues with the next one.

    Pass :math:`p` sorts the examples by the output of a Philox generator keyed by (seed, p). NumPy guarantees that
    these words stay the same in later versions; it gives no such guarantee for ``Generator.permutation``.

    >>> order = ExampleOrder(num_examples=5, batch_size=2, seed=0)
    >>> sorted(order.indices(0, num_batches=5).ravel().tolist())
    [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    """

    def __init__(self, *, num_examples: int, batch_size: int, seed: int):
        """Shuffles nothing: passes are shuffled when they are first needed.

        Args:
          num_examples: Examples in a pass.
          batch_size: Examples in a batch, B; may exceed ``num_examples``.
          seed: 0 to 2**64 - 1.

        Raises:
          ValueError: If indices of examples do not fit 32 bits.
        """
        if num_examples >= 2**31:
            raise ValueError(f"num_examples={num_examples}: must be below 2**31")
        self.num_examples = int(num_examples)
        self.batch_size = int(batch_size)
        self.seed = int(seed)
        self._pass = functools.lru_cache(NUM_CACHED_PASSES)(
            functools.partial(shuffled_pass, num_examples=self.num_examples, seed=self.seed)
        )

    def indices(self, first_batch_index: int, *, num_batches: int) -> np.ndarray:
        """Returns the examples of consecutive batches.

        Args:
          first_batch_index: At least 0; may exceed 2**63.
          num_batches: At least 1.

        Returns:
          [num_batches, B] int32, indices of examples.
        """
        position = int(first_batch_index) * self.batch_size  # a Python integer never overflows
        stop = position + num_batches * self.batch_size
        parts = []
        while position < stop:
            number, start = divmod(position, self.num_examples)
            part = self._pass(number)[start : start + stop - position]
            parts.append(part)
            position += len(part)
        return np.concatenate(parts).reshape(num_batches, self.batch_size)


def shuffled_pass(number: int, *, num_examples: int, seed: int) -> np.ndarray:
    """Returns the order of the examples in one pass: [num_examples] int32, read-only."""
    words = np.random.Philox(key=np.array([seed, number], np.uint64)).random_raw(num_examples)
    order = np.argsort(words, kind="stable").astype(np.int32)  # stable: ties must not depend on the machine
    order.flags.writeable = False  # it is cached, and callers get views of it
    return order
