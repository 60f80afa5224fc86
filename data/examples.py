"""What a data set is to the rest of the program: examples that are gathered by index, and what is known of them."""

from collections.abc import Mapping
from typing import Literal, NamedTuple, Protocol

import jax
import numpy as np

Columns = dict[str, np.ndarray]
Shapes = dict[str, jax.ShapeDtypeStruct]
Placement = Literal["auto", "device", "stream"]
Mode = Literal["training", "evaluation"]

MAX_RESIDENT_BYTES = 256 * 2**20  # "auto": each device holds a copy of a training set up to this size


class Examples(Protocol):
    """A split: N examples, each of which has the same named parts."""

    num_examples: int

    def gather(self, index: np.ndarray, draw: np.ndarray) -> Columns:
        """Returns the examples of an index, a pure function of both arguments.

        Args:
          index: [W, B] of int, in [0, N).
          draw: [W] int64, the number of each batch, of which random crops are a function; -1 where nobody will look.

        Returns:
          name -> [W, B, ...].
        """

    def part(self, start: int, stop: int, *, mode: Mode) -> "Examples":
        """Returns examples [start, stop) of these, as they are for training or for evaluation; reads nothing.

        No other example is ever given in the place of one of them. What this one holds open stays its own.
        """


class ReadError(RuntimeError):
    """Examples could not be read, in the middle of a run; one line."""


def gather(examples: Examples, index: np.ndarray, draw: np.ndarray) -> Columns:
    """Returns ``examples.gather(index, draw)``.

    Raises:
      ReadError: if a file is damaged or gone; says which.
    """
    try:
        return examples.gather(index, draw)
    except (ValueError, OSError) as error:
        raise ReadError(str(error)) from error


class Arrays:
    """Examples that lie in memory, or are mapped into it: named columns [N, ...].

    >>> Arrays({"label": np.array([7, 8, 9])}).gather(np.array([[2, 0]]), np.array([0]))
    {'label': array([[9, 7]])}
    """

    def __init__(self, columns: Mapping[str, np.ndarray]):
        counts = {len(column) for column in columns.values()}
        if len(counts) != 1:
            raise ValueError(f"columns of {sorted(counts)} examples: must be of one number")
        self.columns = dict(columns)
        self.num_examples = counts.pop()

    def gather(self, index: np.ndarray, draw: np.ndarray) -> Columns:
        """Returns the examples, whatever the draw."""
        del draw
        return {name: column[index] for name, column in self.columns.items()}

    def part(self, start: int, stop: int, *, mode: Mode) -> "Arrays":
        """Returns examples [start, stop), without a copy; they are the same in either mode."""
        del mode
        return Arrays({name: column[start:stop] for name, column in self.columns.items()})


class Info(NamedTuple):
    """What is known of a set before it is read."""

    example: Shapes  # of one example, as it is stored
    sizes: dict[str, int]  # what the set says of itself to models and tasks: "num_classes" and the like
    num_train: int
    num_test: int  # that evaluation reads, as in ``Dataset``
    constants: Shapes  # of what ``Dataset.constants`` will hold

    @property
    def example_bytes(self) -> int:
        """Of one example, as it is stored."""
        return sum(part.size * part.dtype.itemsize for part in self.example.values())


class Dataset(NamedTuple):
    """A set that can be read; to be closed after use."""

    name: str
    train: Examples
    test: Examples  # what evaluation reads: the test set, or what was held out of the training examples
    constants: Columns  # found from the training examples; every device holds them

    def divided(self, num_kept: int) -> "Dataset":
        """Returns the set with so many training examples; evaluation reads the others, and not the test examples."""
        others = self.train.part(num_kept, self.train.num_examples, mode="evaluation")
        return self._replace(train=self.train.part(0, num_kept, mode="training"), test=others)

    def close(self) -> None:
        """Ends what reads the examples, where something does."""
        for split in (self.train, self.test):
            getattr(split, "close", lambda: None)()


def resolve_placement(placement: Placement, *, num_bytes: int) -> Literal["device", "stream"]:
    """Returns where a training set of so many bytes lies: "auto" keeps up to 256 MiB on each device.

    Raises:
      ValueError: if it is no placement.
    """
    if placement not in ("auto", "device", "stream"):
        raise ValueError(f"data.placement={placement!r}: must be one of auto, device, stream")
    if placement == "auto":
        return "device" if num_bytes <= MAX_RESIDENT_BYTES else "stream"
    return placement
