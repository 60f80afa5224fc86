"""Compares the examples of a data set with their declaration when they are loaded.

Without these checks a run would train on wrong examples, with meaningless results: labels [N, 1] broadcast against
predictions [N] to [N, N], and a label beyond the last class adds nothing to a loss.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from data.examples import Arrays, Columns, Dataset, Examples, Info, Shapes, kind_of
from data.iterators import Batches

# Columns of integers in [0, size), and the size in ``Info.sizes`` that bounds them.
BOUNDS = {"label": "num_classes", "tokens": "vocab_size"}

_MOST_BYTES = 2**28  # a column up to this size is checked whole, a larger one at every k-th example


def check_info(info: Any) -> None:
    """Raises ValueError, one line, if the declaration of a data set is invalid."""
    if not isinstance(info, Info):
        raise ValueError(f"info: is {kind_of(info)}, must be a data.examples.Info")
    for key, shapes in (("example", info.example), ("constants", info.constants)):
        if not (
            isinstance(shapes, Mapping) and all(hasattr(x, "shape") and hasattr(x, "dtype") for x in shapes.values())
        ):
            raise ValueError(f"info.{key}: is {kind_of(shapes)}, must be a dict of jax.ShapeDtypeStruct")
    for key, count in (("num_train", info.num_train), ("num_test", info.num_test)):
        if isinstance(count, bool) or not isinstance(count, int | np.integer) or count < 1:
            raise ValueError(f"info.{key}={count!r}: must be an integer of at least 1")
    if not info.example:
        raise ValueError("info.example: names no column, must have one")


def checked(
    dataset: Any,
    info: Info,
    *,
    bounds: Mapping[str, str] = BOUNDS,
    probe: bool = False,
    reads: str = "by_index",
    num_of_step: int = 0,
) -> Dataset:
    """Checks that examples fit their declaration; returns a data set that checks examples on disk when they are read.

    Args:
      dataset: the result of a source's ``load``.
      info: the declaration.
      bounds: column -> the size that bounds its integers.
      probe: whether to read an example of each split that is not in memory.
      reads: how the source says that training examples are read.
      num_of_step: number of examples that a batch of ``Batches`` must have.

    Raises:
      ValueError: one line, if the examples differ from ``info``.
    """
    if not isinstance(dataset, Dataset):
        raise ValueError(f"load returns {kind_of(dataset)}, must return a data.examples.Dataset")
    _check_columns("constants", dataset.constants, info.constants, leading=0)
    splits: dict[str, Any] = {}
    for split, count in (("train", info.num_train), ("test", info.num_test)):
        examples = getattr(dataset, split)
        in_order = split == "train" and isinstance(examples, Batches)
        if split == "train" and in_order != (reads == "in_order"):
            raise ValueError("train: must be data.iterators.Batches with source_of_batches, and with no other source")
        if not (in_order or hasattr(examples, "gather")) or not hasattr(examples, "num_examples"):
            raise ValueError(f"{split}: is {kind_of(examples)}, must be examples, such as data.examples.Arrays")
        if examples.num_examples != count:
            raise ValueError(f"{split}: has {examples.num_examples} examples, and info declares {count}")
        if isinstance(examples, Arrays):
            splits[split] = examples
            _check_columns(split, examples.columns, info.example, leading=1)
            for name, column in examples.columns.items():
                _check_values(f"{split}[{name!r}]", column, info.sizes.get(bounds.get(name, "")))
            continue
        sizes = {name: info.sizes.get(size) for name, size in bounds.items() if name in info.example}
        if in_order:
            splits[split] = examples.checked(_check_of_batches(info.example, sizes, num_of_step))
        else:
            splits[split] = compared = _Compared(examples, info.example, sizes, split=split)
            if probe:
                compared.gather(np.zeros((1, 1), np.int64), np.zeros(1, np.int64))
    return dataset._replace(**splits)


def _check_of_batches(shapes: Shapes, sizes: Mapping[str, int | None], count: int) -> Callable[[Columns], None]:
    def check(batch: Columns) -> None:
        _check_columns("data.train", batch, shapes, leading=1)
        for name, column in batch.items():
            if len(column) != count:
                needs = "config.num_workers times config.batch_size_per_worker, of the workers of this process"
                raise ValueError(
                    f"data.train[{name!r}]: a batch has {len(column)} examples, must have {count}: {needs}"
                )
        for name, size in sizes.items():
            _check_values(f"data.train[{name!r}]", batch[name], size)

    return check


class _Compared:
    """Examples (see ``data.examples.Examples``) that compare each batch with the declaration when it is read."""

    def __init__(self, examples: Examples, shapes: Shapes, sizes: Mapping[str, int | None], *, split: str):
        self._examples = examples
        self._shapes = shapes
        self._sizes = sizes
        self._split = split
        self.num_examples = examples.num_examples

    def gather(self, index: np.ndarray, batch_index: np.ndarray) -> Columns:
        """Returns the examples; raises ValueError for other columns, shapes or dtypes, and integers out of bounds."""
        batch = self._examples.gather(index, batch_index)
        _check_columns(f"data.{self._split}", batch, self._shapes, leading=2)
        for name, size in self._sizes.items():
            _check_values(f"data.{self._split}[{name!r}]", batch[name], size)
        return batch

    def part(self, start: int, stop: int, *, mode: Any) -> "_Compared":
        """Returns examples [start, stop), which are compared in the same way."""
        return _Compared(self._examples.part(start, stop, mode=mode), self._shapes, self._sizes, split=self._split)

    def close(self) -> None:
        """Closes the examples."""
        getattr(self._examples, "close", lambda: None)()


def _check_columns(what: str, columns: Any, shapes: Shapes, *, leading: int) -> None:
    """Compares names, dtypes, and shapes after the leading axes."""
    if not isinstance(columns, Mapping):
        raise ValueError(f"{what}: is {kind_of(columns)}, must be a dict of arrays")
    for name in [*shapes, *columns]:
        if name not in columns or name not in shapes:
            found, wanted = (", ".join(map(repr, names)) or "nothing" for names in (columns, shapes))
            raise ValueError(f"{what}: has {found}, and info declares {wanted}")
    for name, declared in shapes.items():
        column = columns[name]
        if not (hasattr(column, "shape") and hasattr(column, "dtype")):
            raise ValueError(f"{what}[{name!r}]: is {kind_of(column)}, must be an array")
        is_like = tuple(column.shape[leading:]) == tuple(declared.shape) and column.dtype == declared.dtype
        if not is_like:
            raise ValueError(
                f"{what}[{name!r}]: each example is {column.dtype} of shape {tuple(column.shape[leading:])}, and info "
                f"declares {np.dtype(declared.dtype)} of {tuple(declared.shape)}"
            )


def _check_values(what: str, column: Any, size: int | None) -> None:
    """Refuses integers outside of [0, size) or of the range of JAX's integers, and NaN and infinity."""
    dtype = np.dtype(column.dtype)
    if not (np.issubdtype(dtype, np.integer) or jax.dtypes.issubdtype(dtype, np.inexact)):
        return
    values = np.asarray(column[:: 1 + column.size * dtype.itemsize // _MOST_BYTES])
    if not values.size:
        return
    if np.issubdtype(dtype, np.integer):
        least = int(values.min())
        most = int(values.max())
        room = np.iinfo(jax.dtypes.canonicalize_dtype(dtype))
        low, high = (0, size - 1) if size is not None else (int(room.min), int(room.max))
        if least < low or most > high:
            raise ValueError(f"{what}: has {least if least < low else most}, must be in [{low}, {high}]")
    elif not np.isfinite(values.astype(jax.dtypes.canonicalize_dtype(dtype))).all():
        raise ValueError(f"{what}: has NaN or infinity, must have finite numbers")
