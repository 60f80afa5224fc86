"""Training examples that come in batches, in an order of their own: from a generator, a loader, an iterator."""

import base64
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from data.examples import Columns, kind_of

# The methods of an iterator, or of what makes it, that read and set its place: grain's, and torchdata's.
_METHODS = (("get_state", "set_state"), ("state_dict", "load_state_dict"))


class Batches:
    """Training examples from an iterable of batches, one for each step, which are read in order.

    A batch has the examples of all workers of this process, those of the first worker first. If the iterable or its
    iterator has the methods ``get_state`` and ``set_state``, or ``state_dict`` and ``load_state_dict``, checkpoints
    hold its state, and a run that goes on sets it. Otherwise the run first reads, and drops, as many batches as it has
    used.

    Attributes:
      num_examples: Number of examples in a pass, by which epochs are counted.

    Args:
      batches: name -> [W B, ...]; arrays, or what ``np.asarray`` takes, such as tensors of PyTorch.
      num_examples: As above.

    >>> batches = Batches(({"label": np.full(2, step)} for step in range(9)), num_examples=18)
    >>> batches.go_on(3)
    'reads past 3 batches, since their iterator has no state to restore'
    >>> batches.take()
    {'label': array([3, 3])}
    """

    def __init__(self, batches: Iterable[Mapping[str, Any]], *, num_examples: int):
        """Reads nothing."""
        self.num_examples = num_examples
        self._batches = batches
        self._iterator: Iterator[Mapping[str, Any]] | None = None
        self._ahead: list[Columns] = []  # a batch that was looked at
        self._num_read = 0
        self._states: dict[int, str] = {}  # number of batches -> the state after them
        self._check: Callable[[Columns], None] = lambda batch: None

    def checked(self, check: Callable[[Columns], None]) -> "Batches":
        """Has ``check`` called with each batch as it is read; reads the first one, which is still to be taken."""
        self._check = check
        self._keep_state()
        self._ahead.append(self._read())
        return self

    def go_on(self, step: int, state: str | None = None) -> str:
        """Goes to the batch of a step, counted from 0; returns a remark, or "".

        Args:
          step: The step.
          state: What ``state`` returned for it; None if there is none.
        """
        self._ahead.clear()
        stateful = self._stateful()
        if state is None or stateful is None:
            while self._num_read < step:
                self._read()
            return f"reads past {step} batches, since their iterator has no state to restore"
        owner, _, write = stateful
        write(_unpacked(json.loads(state)))
        if owner is not self._iterator:  # a loader, whose next iterator begins there
            self._iterator = iter(self._batches)
        self._num_read = step
        return ""

    def take(self) -> Columns:
        """Returns the next batch.

        Raises:
          ValueError: One line; there are no more batches, or this one is not as it must be.
        """
        batch = self._ahead.pop() if self._ahead else self._read()
        self._keep_state()
        return batch

    def state(self, step: int) -> str | None:
        """Returns the state after the batches of the first ``step`` steps, as text; None if there is none."""
        return self._states.get(step)

    def forget(self, step: int) -> None:
        """Forgets the states before a step, which no checkpoint will need."""
        for number in list(self._states):  # a copy, since a thread reads ahead
            if number < step:
                del self._states[number]

    def _begun(self) -> Iterator[Mapping[str, Any]]:
        """Returns the iterator, which begins as it is first needed."""
        if self._iterator is None:
            self._iterator = iter(self._batches)
        return self._iterator

    def _read(self) -> Columns:
        try:
            found = next(self._begun())
        except StopIteration:
            raise ValueError(f"data.train: ends after {self._num_read} batches; needs one for each step") from None
        if not isinstance(found, Mapping):
            raise ValueError(f"data.train: a batch is {kind_of(found)}, must be a dict of arrays")
        batch = {name: np.asarray(column) for name, column in found.items()}
        self._num_read += 1
        self._check(batch)
        return batch

    def _keep_state(self) -> None:
        if (stateful := self._stateful()) is not None:
            _, read, _ = stateful
            self._states[self._num_read] = json.dumps(_packed(read()))

    def _stateful(self) -> tuple[Any, Callable[[], Any], Callable[[Any], Any]] | None:
        """Returns what has a state, the iterator or what makes it, and the functions that read and set it."""
        for owner in (self._begun(), self._batches):
            for read, write in _METHODS:
                if hasattr(owner, read) and hasattr(owner, write):
                    return owner, getattr(owner, read), getattr(owner, write)
        return None


def _packed(value: Any) -> Any:
    """Returns a state as JSON: numbers, texts, bytes, arrays, tensors, and dicts, lists and tuples of them."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {"dict": [[_packed(key), _packed(item)] for key, item in value.items()]}
    if isinstance(value, list | tuple):
        return {"tuple" if isinstance(value, tuple) else "list": [_packed(item) for item in value]}
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode()}
    array = np.asarray(value)
    if array.dtype.hasobject:
        raise ValueError(
            f"data.train: its state has {kind_of(value)}, must have numbers, texts, bytes and arrays alone"
        )
    kind = "tensor" if type(value).__module__.partition(".")[0] == "torch" else "array"
    return {kind: [array.dtype.str, array.shape, base64.b64encode(array.tobytes()).decode()]}


def _unpacked(value: Any) -> Any:
    """Returns what ``_packed`` was given."""
    if not isinstance(value, dict):
        return value
    ((kind, found),) = value.items()
    if kind == "dict":
        return {_unpacked(key): _unpacked(item) for key, item in found}
    if kind in ("list", "tuple"):
        items = [_unpacked(item) for item in found]
        return tuple(items) if kind == "tuple" else items
    if kind == "bytes":
        return base64.b64decode(found)
    dtype, shape, data = found
    array = np.frombuffer(base64.b64decode(data), dtype).reshape(shape).copy()
    return sys.modules["torch"].from_numpy(array) if kind == "tensor" else array
