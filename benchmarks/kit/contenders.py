"""Parts of a benchmark: contenders that take turns on one device, and the quantities that compare them."""

import importlib.util
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from benchmarks.kit.result import Measured, Target

GIB = 2**30


class Contender(NamedTuple):
    """A program that takes turns.

    Attributes:
      name: a description, unique within its part.
      line: the line that makes it in ``kit.process_groups``, or the arguments of ``twins.training``.
      examples: the number of examples in a step, or in an asynchronous update.
      packages: the packages that a PyTorch contender needs; () for one of ours.
    """

    name: str
    line: str
    examples: int
    packages: tuple[str, ...] = ()


class Taken(NamedTuple):
    """The measurements of a contender.

    Attributes:
      contender: the measured contender.
      seconds: the seconds of a step in each round.
      peak_bytes: the most bytes that it held; NaN if the device does not report them.
      compile_seconds: the seconds from tracing its step to compiled programs; for PyTorch, those of the first step.
    """

    contender: Contender
    seconds: Sequence[float]
    peak_bytes: float
    compile_seconds: float

    @property
    def rates(self) -> list[float]:
        """Examples per second, round by round."""
        return [self.contender.examples / seconds for seconds in self.seconds]


class Row(NamedTuple):
    """A quantity of one or more contenders.

    Attributes:
      name: a description.
      contenders: the names of the contenders.
      values: their measurements, in order -> the value of each round.
      target: the bound for the median, or None.
      unit: the unit of the values.
    """

    name: str
    contenders: tuple[str, ...]
    values: Callable[..., Sequence[float]]
    target: Target | None = None
    unit: str = "x"


class Part(NamedTuple):
    """Contenders that take turns, and the quantities that compare them.

    Attributes:
      contenders: the contenders, the largest first, since they take memory in this order.
      rows: the quantities that compare them.
      examples: the noun for the examples.
    """

    contenders: tuple[Contender, ...]
    rows: tuple[Row, ...]
    examples: str = "images"


def faster(title: str, above: Contender, below: Contender, target: Target | None = None) -> Row:
    """Returns the row for a ratio of examples per second."""

    def values(a: Taken, b: Taken) -> list[float]:
        return [x / y for x, y in zip(a.rates, b.rates, strict=True)]

    return Row(f"{title}, {above.name} over {below.name}", (above.name, below.name), values, target)


def peak(title: str, contender: Contender, target: Target | None) -> Row:
    """Returns the row for a contender's peak memory."""
    name = f"{title}{contender.name}, peak memory"
    return Row(name, (contender.name,), lambda a: [a.peak_bytes / GIB], target, unit="GiB")


def compiling(title: str, contender: Contender) -> Row:
    """Returns the row for a contender's seconds of compiling."""
    name = f"{title}, {contender.name}, trace to programs"
    return Row(name, (contender.name,), lambda a: [a.compile_seconds], Target("<=", 60), unit="s")


def missing(contender: Contender) -> str:
    """Returns a sentence with the packages that are not installed for a contender; "" if all are."""
    absent = [name for name in contender.packages if importlib.util.find_spec(name) is None]
    return f"{', '.join(absent)} is not installed" if absent else ""


def details(part: str, taken: Taken, *, examples: str) -> list[Measured]:
    """Returns the milliseconds, examples per second, peak memory and compile seconds of a contender, if known."""
    name = f"{part}: {taken.contender.name}"
    milliseconds = [1e3 * seconds for seconds in taken.seconds]
    rows = [Measured(f"{name}, step", milliseconds, "ms"), Measured(f"{name}, speed", taken.rates, f"{examples}/s")]
    if math.isfinite(taken.peak_bytes):
        rows.append(Measured(f"{name}, peak memory", [taken.peak_bytes / GIB], "GiB"))
    if math.isfinite(taken.compile_seconds):
        rows.append(Measured(f"{name}, trace to programs", [taken.compile_seconds], "s"))
    return rows
