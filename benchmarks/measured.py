"""What a benchmark found: values round by round, beside the target that they are held to."""

import dataclasses
import operator
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from runs import environment, files

_HELD: Mapping[str, Any] = {"<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt}


class Target(NamedTuple):
    """What the median is held to.

    >>> str(Target(">=", 1.2)), Target(">=", 1.2).met(1.1)
    ('>= 1.2', False)
    """

    relation: str
    value: float

    def met(self, value: float) -> bool:
        """Whether a value meets it."""
        return bool(_HELD[self.relation](value, self.value))

    def __str__(self) -> str:
        return f"{self.relation} {self.value:g}"


@dataclasses.dataclass(frozen=True)
class Measured:
    """One quantity.

    Attributes:
      name: what it is, in words; of one benchmark no two have the same.
      values: of each round; of a ratio, both of its parts were timed in the same round.
      unit: "x" for a ratio, else "s", "images/s", "bytes", ...
      target: what the median is held to, if anything.
    """

    name: str
    values: Sequence[float]
    unit: str = "x"
    target: Target | None = None

    @property
    def median(self) -> float:
        return float(np.median(self.values))

    @property
    def quartiles(self) -> tuple[float, float]:
        low, high = np.quantile(self.values, [0.25, 0.75])
        return float(low), float(high)

    def moved(self, before: "Measured") -> bool:
        """Whether the median left the quartiles of before, and that median these quartiles: by more than the spread.

        >>> Measured("a", [1.0, 1.1, 1.2]).moved(Measured("a", [1.0, 1.1, 1.3]))
        False
        """
        (low, high), (low_before, high_before) = self.quartiles, before.quartiles
        return not (low_before <= self.median <= high_before) and not (low <= before.median <= high)


def in_words(one: Measured) -> str:
    """Returns one line: median, quartiles, rounds, and whether the target is met.

    >>> in_words(Measured("adasum over mean", [1.0, 1.2, 1.6], target=Target("<=", 1.3)))
    'adasum over mean: 1.2 x (quartiles 1.1 to 1.4, 3 rounds); target <= 1.3: met'
    """
    low, high = one.quartiles
    held = f"; target {one.target}: {'met' if one.target.met(one.median) else 'missed'}" if one.target else ""
    spread = f"(quartiles {low:.3g} to {high:.3g}, {len(one.values)} rounds)"
    return f"{one.name}: {one.median:.3g} {one.unit} {spread}{held}"


def write(name: str, found: Sequence[Measured], *, devices: Sequence[str], packages: Mapping[str, str], path: Path):
    """Writes what a benchmark found, and what it was measured on.

    Args:
      name: of the benchmark.
      found: what it measured.
      devices: on these.
      packages: peers that took part, with their versions.
      path: of the JSON file.
    """
    told = environment.describe(devices=devices)
    told = {key: told[key] for key in ("started", "python", "packages", "commit", "tree", "platform", "devices")}
    told["packages"] |= packages
    measured = [dataclasses.asdict(m) | {"target": m.target and m.target._asdict()} for m in found]
    content = {"benchmark": name, "environment": {**told, "cpu_count": os.cpu_count()}, "measured": measured}
    files.write_atomically(path, files.to_json(content))


def read(path: Path) -> tuple[dict[str, Any], list[Measured]]:
    """Returns the environment and what was measured of a file that ``write`` wrote."""
    content = files.from_json(path.read_bytes())
    found = [Measured(**{**m, "target": m["target"] and Target(**m["target"])}) for m in content["measured"]]
    return content["environment"], found
