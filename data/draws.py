"""Which examples a draw holds: shuffled passes, one after another, cut into batches."""

import functools

import numpy as np

NUM_KEPT_PASSES = 4  # asynchronous draws come nearly in order, so two passes are in use at a time, seldom three


class Draws:
    r"""The order of examples as a pure function of (seed, draw).

    The passes over the examples, each shuffled anew, form one endless stream; with batch size :math:`B`, draw
    :math:`d` is its positions :math:`[dB, (d+1)B)`. So every example comes exactly once per pass, two draws never
    overlap within a pass, and a batch that crosses the end of a pass takes the rest from the next.

    Pass :math:`p` sorts the examples by the words of a Philox generator keyed by (seed, p). NumPy keeps those words the
    same from version to version; of ``Generator.permutation`` it does not say so.

    >>> draws = Draws(num_examples=5, batch_size=2, seed=0)
    >>> sorted(draws.indices(0, num_draws=5).ravel().tolist())
    [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    """

    def __init__(self, *, num_examples: int, batch_size: int, seed: int):
        """Makes the order.

        Args:
          num_examples: examples in a pass, 1 to 2**31 - 1.
          batch_size: examples in a draw, B; may exceed ``num_examples``.
          seed: 0 to 2**64 - 1.

        Raises:
          ValueError: if one of them is out of its range.
        """
        for name, value, low, high in (
            ("num_examples", num_examples, 1, 2**31 - 1),
            ("batch_size", batch_size, 1, 2**31 - 1),
            ("seed", seed, 0, 2**64 - 1),
        ):
            if not low <= value <= high:
                raise ValueError(f"{name}={value}: must be in [{low}, {high}]")
        self.num_examples, self.batch_size, self.seed = int(num_examples), int(batch_size), int(seed)
        self._pass = functools.lru_cache(NUM_KEPT_PASSES)(
            functools.partial(shuffled_pass, num_examples=self.num_examples, seed=self.seed)
        )

    def indices(self, first_draw: int, *, num_draws: int) -> np.ndarray:
        """Returns the examples of consecutive draws.

        Args:
          first_draw: at least 0; up to 2**63 and beyond.
          num_draws: at least 1.

        Returns:
          [num_draws, B] int32, indices of examples.
        """
        if first_draw < 0 or num_draws < 1:
            raise ValueError(f"first_draw={first_draw}, num_draws={num_draws}: must be at least 0 and 1")
        position = int(first_draw) * self.batch_size  # a Python integer: never overflows
        stop = position + num_draws * self.batch_size
        parts = []
        while position < stop:
            number, start = divmod(position, self.num_examples)
            part = self._pass(number)[start : start + stop - position]
            parts.append(part)
            position += len(part)
        return np.concatenate(parts).reshape(num_draws, self.batch_size)


def shuffled_pass(number: int, *, num_examples: int, seed: int) -> np.ndarray:
    """Returns the examples in the order of one pass: [num_examples] int32."""
    words = np.random.Philox(key=np.array([seed, number], np.uint64)).random_raw(num_examples)
    order = np.argsort(words, kind="stable").astype(np.int32)  # stable: equal words must not depend on the machine
    order.flags.writeable = False  # it is cached, and handed out in slices
    return order
