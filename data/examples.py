"""The interface between data sets and the rest of the program: examples gathered by index, and their shapes."""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, Protocol

import jax
import numpy as np

Columns = dict[str, np.ndarray]
Shapes = dict[str, jax.ShapeDtypeStruct]
Mode = Literal["training", "evaluation"]


class Examples(Protocol):
    """A split: N examples with the same named columns."""

    num_examples: int

    def gather(self, index: np.ndarray, batch_index: np.ndarray) -> Columns:
        """Returns examples, as a pure function of both arguments.

        Args:
          index: [W, B] integers in [0, N).
          batch_index: [W] int64. Random crops depend on it; -1 where a worker needs no batch.

        Returns:
          name -> [W, B, ...].
        """

    def part(self, start: int, stop: int, *, mode: Mode) -> "Examples":
        """Returns examples [start, stop), prepared for training or for evaluation; reads nothing.

        The part never returns an example from outside the range, not even in place of a damaged one. It opens its own
        files and processes.
        """


class ReadError(RuntimeError):
    """Examples could not be read while a run was under way; the message is one line."""


def gather(examples: Examples, index: np.ndarray, batch_index: np.ndarray) -> Columns:
    """Returns ``examples.gather(index, batch_index)``.

    Raises:
      ReadError: If a file is damaged or missing; the message names it.
    """
    try:
        return examples.gather(index, batch_index)
    except (ValueError, OSError) as error:
        raise ReadError(str(error)) from error


def kind_of(value: Any) -> str:
    """Returns the type of a value in words, for errors."""
    return "None" if value is None else f"a {type(value).__name__}"


class Arrays:
    """Examples in memory or in memory-mapped files: named columns [N, ...].

    >>> Arrays({"label": np.array([7, 8, 9])}).gather(np.array([[2, 0]]), np.array([0]))
    {'label': array([[9, 7]])}
    """

    def __init__(self, columns: Mapping[str, np.ndarray]):
        """Keeps the columns; raises ValueError unless they are arrays of one length."""
        for name, column in columns.items():
            if not getattr(column, "shape", ()):
                raise ValueError(f"{name}: is {kind_of(column)}, must be an array [N, ...]")
        counts = {len(column) for column in columns.values()}
        if len(counts) != 1:
            raise ValueError(f"columns have {sorted(counts)} examples: must all have the same number")
        self.columns = dict(columns)
        self.num_examples = counts.pop()

    def gather(self, index: np.ndarray, batch_index: np.ndarray) -> Columns:
        """Returns the examples; they do not depend on ``batch_index``."""
        del batch_index
        return {name: column[index] for name, column in self.columns.items()}

    def part(self, start: int, stop: int, *, mode: Mode) -> "Arrays":
        """Returns examples [start, stop) without copying them; both modes give the same."""
        del mode
        return Arrays({name: column[start:stop] for name, column in self.columns.items()})


class Info(NamedTuple):
    """Shapes and sizes of a data set, known before an example is read.

    Attributes:
      example: Shapes of one example, as it is stored.
      sizes: Sizes that models and tasks are built with, such as "num_classes".
      num_train: Number of training examples.
      num_test: Number of examples that evaluation reads, as in ``Dataset``.
      constants: Shapes of ``Dataset.constants``.
      fingerprint: Digits that change with the examples; "" if the config alone decides them.
    """

    example: Shapes
    sizes: dict[str, int]
    num_train: int
    num_test: int
    constants: Shapes
    fingerprint: str = ""

    def batch(self, *counts: int) -> Shapes:
        """Returns the shapes of examples with these leading axes, as they are stored."""
        return {name: jax.ShapeDtypeStruct((*counts, *part.shape), part.dtype) for name, part in self.example.items()}

    @property
    def example_bytes(self) -> int:
        """Bytes of one example, as it is stored."""
        return sum(part.size * part.dtype.itemsize for part in self.example.values())


class Dataset(NamedTuple):
    """A data set that can be read; must be closed after use.

    Attributes:
      name: For messages.
      train: The training examples.
      test: The examples that evaluation reads: the test set, or held-out training examples.
      constants: Statistics of the training examples; every device holds them.
    """

    name: str
    train: Examples
    test: Examples
    constants: Columns

    def divided(self, num_kept: int) -> "Dataset":
        """Returns the set with the first training examples; evaluation reads the others instead of the test set."""
        others = self.train.part(num_kept, self.train.num_examples, mode="evaluation")
        return self._replace(train=self.train.part(0, num_kept, mode="training"), test=others)

    def close(self) -> None:
        """Ends the processes that read the examples, if any."""
        for split in (self.train, self.test):
            getattr(split, "close", lambda: None)()
