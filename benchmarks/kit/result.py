"""Results of benchmarks: values of each round, and the target for their median."""

import dataclasses
import operator
import os
from collections.abc import Mapping, Sequence
from importlib import metadata, util
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from reducers.arrivals import foreign_files
from runs import environment, files

_HELD: Mapping[str, Any] = {"<=": operator.le, ">=": operator.ge, "<": operator.lt}


class Target(NamedTuple):
    """A bound for the median.

    >>> str(Target(">=", 1.2)), Target(">=", 1.2).met(1.1)
    ('>= 1.2', False)
    """

    relation: str
    value: float

    def met(self, value: float) -> bool:
        """Returns whether a value meets the target."""
        return bool(_HELD[self.relation](value, self.value))

    def __str__(self) -> str:
        return f"{self.relation} {self.value:g}"


@dataclasses.dataclass(frozen=True)
class Measured:
    """One quantity.

    Attributes:
      name: a description, unique within a benchmark, or within its column.
      values: the value of each round; both parts of a ratio are timed in the same round.
      unit: "x" for a ratio, else "s", "images/s", "bytes", ...
      target: the bound for the median, or None.
      missing: why the quantity has no values; "" if it has some.
      column: the column, in a table of counts with a row for each name; "" without such a table.
      tolerance: how much larger than the other, as a share, one of two medians may be and say nothing.
    """

    name: str
    values: Sequence[float]
    unit: str = "x"
    target: Target | None = None
    missing: str = ""
    column: str = ""
    tolerance: float = 0.0

    @property
    def title(self) -> str:
        """The name with the column."""
        return f"{self.name}, {self.column}" if self.column else self.name

    @property
    def median(self) -> float:
        return float(np.median(self.values))

    @property
    def quartiles(self) -> tuple[float, float]:
        low, high = np.quantile(self.values, [0.25, 0.75])
        return float(low), float(high)

    @property
    def verdict(self) -> str:
        """ "met" or "missed"; "" without a target or without values."""
        if self.target is None or self.missing:
            return ""
        return "met" if self.target.met(self.median) else "missed"

    def moved(self, before: "Measured") -> bool:
        """Returns whether each median lies outside of the other measurement's quartiles, and beyond the tolerance.

        >>> Measured("a", [1.0, 1.1, 1.2]).moved(Measured("a", [1.0, 1.1, 1.3]))
        False
        """
        if self.missing or before.missing:
            return False
        smaller, larger = sorted([self.median, before.median])
        if self.tolerance and larger <= (1 + self.tolerance) * smaller:
            return False
        (low, high), (low_before, high_before) = self.quartiles, before.quartiles
        return not (low_before <= self.median <= high_before) and not (low <= before.median <= high)


def in_words(one: Measured) -> str:
    """Returns one line with the median, the quartiles, the number of rounds, and whether the target is met.

    >>> in_words(Measured("adasum over mean", [1.0, 1.2, 1.6], target=Target("<=", 1.3)))
    'adasum over mean: 1.2 x (quartiles 1.1 to 1.4, 3 rounds); target <= 1.3: met'
    >>> in_words(Measured("adasum over PyTorch", [], missing="torch is not installed"))
    'adasum over PyTorch: not measured: torch is not installed'
    """
    if one.missing:
        return f"{one.title}: not measured: {one.missing}"
    low, high = one.quartiles
    held = f"; target {one.target}: {one.verdict}" if one.target else ""
    spread = f" (quartiles {low:.3g} to {high:.3g}, {len(one.values)} rounds)" if len(one.values) > 1 else ""
    return f"{one.title}: {one.median:.3g} {one.unit}{spread}{held}"


def environment_of(*, packages: Sequence[str] = ()) -> dict[str, Any]:
    """Returns the environment of results: this process's devices, and the versions of libraries.

    Args:
      packages: other measured libraries; those that are not installed are left out.
    """
    described = environment.describe(devices=[device.device_kind for device in jax.devices()])
    keys = ("started", "python", "packages", "commit", "tree", "platform", "devices")
    found = {key: described[key] for key in keys}
    for name in packages:
        if util.find_spec(name):
            found["packages"][name] = metadata.version(name)
    return {**found, "cpu_count": os.cpu_count()}


def write(name: str, found: Sequence[Measured], *, environment: Mapping[str, Any], path: Path) -> None:
    """Writes the results of a benchmark to a JSON file, with their environment."""
    rows = [dataclasses.asdict(one) | {"target": one.target and one.target._asdict()} for one in found]
    content = {"benchmark": name, "environment": dict(environment), "measured": rows}
    files.write_atomically(path, files.to_json(content))


def read(path: Path) -> tuple[dict[str, Any], list[Measured]]:
    """Reads the environment and the results from a file that ``write`` wrote."""
    content = files.from_json(foreign_files.content(path))
    found = []
    for row in content["measured"]:
        target = row["target"] and Target(**row["target"])
        found.append(Measured(**row | {"target": target}))
    return content["environment"], found


def kept(path: Path, *, environment: Mapping[str, Any]) -> dict[str, Measured]:
    """Returns title -> result from a file; {} if it is missing, or has another commit, devices or versions."""
    if not path.exists():
        return {}
    before, found = read(path)
    is_same = all(before[key] == environment[key] for key in ("commit", "tree", "devices", "packages"))
    return {one.title: one for one in found} if is_same else {}
