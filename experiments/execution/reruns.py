"""Published rows: which to run again, the run that a row records, and how the new numbers differ from its own."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from experiments.study.run import Row, Rows, Run
from runs import environment

TOLERANCE = 1e-3
"""Relative difference up to which a row passes: another platform sums in another order in every step. It is ten
examples of ten thousand; the accuracies of published claims deviate by 0.7e-3 to 9e-3 between seeds."""

NOT_MEASURED = ("run", "origin")


def labels_of(row: Row) -> dict[str, Any]:
    """Returns the labels of a row's run: the keys at its beginning that give the run its name.

    >>> labels_of({"run": "rate=0.1,seed=0", "rate": 0.1, "seed": 0, "accuracy": [0.5], "origin": {}})
    {'rate': 0.1, 'seed': 0}
    """
    labels: dict[str, Any] = {}
    for key, value in row.items():
        if labels and Run(labels=labels).name == row["run"]:
            break
        if key not in NOT_MEASURED:
            labels[key] = value
    return labels


def run_of(row: Row) -> Run:
    """Returns the run that a row records, with the number of cores that it had.

    The number of cores can change the order in which a CPU sums, and so the last bits.
    """
    origin = row["origin"]
    recorded, cores = origin["config"], origin.get("cores")
    if "measure" in recorded:
        return Run(labels=recorded["measure"], cores=cores)
    return Run(
        labels=labels_of(row),
        spec=recorded["spec"],
        overrides={"late_workers": "interrupt", **recorded["overrides"]},  # see ``results.recorded_config``
        flags=origin["flags"],
        cores=cores,
    )


def environment_of(row: Row) -> list[str]:
    """Returns the start of a command line that restores a row's settings of JAX and XLA; empty if they are the same."""
    recorded = row["origin"]["settings"]
    unset, changed = [], []
    for key, value in environment.settings().items():
        if key not in recorded and value is not None:
            unset.append(f"--unset={key.upper()}")
        elif key in recorded and recorded[key] != value:
            changed.append(f"{key.upper()}={recorded[key]}")
    return ["env", *unset, *changed] if unset or changed else []


def cheapest(rows: Rows, *, count: int, within: Sequence[str] = ("seed",)) -> list[Row]:
    """Returns the rows whose runs took the least time, one of each point first.

    Args:
      rows: published rows.
      count: how many.
      within: labels in which rows of one point differ.

    >>> points = [{"n": n, "seed": seed} for n in (1, 9) for seed in (0, 1)]
    >>> rows = [{"run": Run(labels=at).name, **at, "origin": {"wall_seconds": sum(at.values())}} for at in points]
    >>> [row["run"] for row in cheapest(rows, count=3)]
    ['n=1,seed=0', 'n=9,seed=0', 'n=1,seed=1']
    """

    def cost(row: Row) -> tuple[float, str]:
        seconds = row["origin"]["wall_seconds"]
        return math.inf if seconds is None else seconds, row["run"]

    of_point: dict[str, Row] = {}
    others = []
    for row in sorted(rows, key=cost):
        point = str({key: value for key, value in labels_of(row).items() if key not in within})
        if point in of_point:
            others.append(row)
        of_point.setdefault(point, row)
    return [*of_point.values(), *others][:count]


class Difference(NamedTuple):
    """The largest difference within a quantity.

    Attributes:
      place: the quantity, with keys and positions within it.
      published: the published value.
      now: the value of the rerun.
      relative: their difference over the published number, or over a tenth of the largest in its list if that is more;
        infinity if one is not a finite number, or if the numbers of values differ.
    """

    place: str
    published: Any
    now: Any
    relative: float

    def __str__(self) -> str:
        size = f"{self.relative:.1g}" if self.relative < 1 else f"{self.relative:.0f}"
        relative = f" (relative difference {size})" if math.isfinite(self.relative) else ""
        return f"{self.place} {_shown(self.published)} published, {_shown(self.now)} now{relative}"


class Rerun(NamedTuple):
    """A published row beside that of its rerun.

    Attributes:
      published: the published row.
      now: the row of the rerun.
      differences: the largest difference within each quantity that is not equal bit for bit.
      is_judged: whether the rerun should be equal: not if the row has measured times alone, or if the run was live, as
        no two live runs take the same gradients.
    """

    published: Row
    now: Row
    differences: Sequence[Difference]
    is_judged: bool

    @property
    def is_equal(self) -> bool:
        """Whether all quantities but times are equal, bit for bit or to the tolerance, or the rerun is not judged."""
        return not self.is_judged or all(difference.relative <= TOLERANCE for difference in self.differences)

    @property
    def word(self) -> str:
        """How equal they are."""
        if not self.is_judged:
            return "measured anew"
        if not self.differences:
            return "equal bit for bit"
        return f"equal to {TOLERANCE:g}" if self.is_equal else "different"

    def __str__(self) -> str:
        parts = [self.word, *map(str, self.differences)]
        if self.differences and (changed := _changes(self.published["origin"], self.now["origin"])):
            parts.append(f"run {', '.join(changed)}")
        return f"{self.published['run']}: {'; '.join(parts)}"


def compare(published: Row, now: Row, *, timings: Sequence[str] = ()) -> Rerun:
    """Compares what two rows of one run measured; quantities that the published row lacks are left out.

    Args:
      published: the published row.
      now: the row of the rerun.
      timings: the measured times, which are left out.

    >>> old, new = ({"run": "seed=0", "seed": 0, "loss": [2.0, loss], "origin": {}} for loss in (1.0, 1.0 + 2**-23))
    >>> str(compare(old, new))
    'seed=0: equal to 0.001; loss[1] 1 published, 1.00000012 now (relative difference 1e-07)'
    """
    leave_out = {*labels_of(published), *NOT_MEASURED, *timings}
    measured = [key for key in published if key not in leave_out]
    worst = []
    for key in measured:
        differences = list(_differences(published[key], now.get(key), place=key))
        if differences:
            worst.append(max(differences, key=lambda difference: difference.relative))
    is_live = published["origin"].get("flags", {}).get("live", False)
    return Rerun(published, now, worst, is_judged=bool(measured) and not is_live)


def summary(reruns: Sequence[Rerun]) -> str:
    """Returns how many rows are equal, and what differs in the others, a line each."""
    counts = Counter(rerun.word for rerun in reruns)
    said = ", ".join(f"{count} {word}" for word, count in sorted(counts.items()))
    return "\n".join([said, *(f"  {rerun}" for rerun in reruns if not rerun.is_equal)])


def _differences(published: Any, now: Any, *, place: str, largest: float = 0.0) -> Iterator[Difference]:
    """Yields the places at which two values are not equal bit for bit; ``largest`` is the largest of their list."""
    if isinstance(published, Mapping) and isinstance(now, Mapping):
        for key in {**published, **now}:
            yield from _differences(published.get(key), now.get(key), place=f"{place}.{key}")
    elif isinstance(published, list | tuple) and isinstance(now, list | tuple):
        if len(published) != len(now):
            yield Difference(place, f"{len(published)} values", f"{len(now)} values", math.inf)
            return
        largest = max((abs(value) for value in published if _is_finite(value)), default=0.0)
        for i, (old, new) in enumerate(zip(published, now, strict=True)):
            yield from _differences(old, new, place=f"{place}[{i}]", largest=largest)
    elif published != now and (published == published or now == now):  # NaN equals NaN
        are_finite = _is_finite(published) and _is_finite(now)
        size = max(abs(published), largest / 10) if are_finite else 0.0
        yield Difference(place, published, now, abs(now - published) / size if size else math.inf)


def _is_finite(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


def _shown(value: Any) -> str:
    return f"{value:.9g}" if isinstance(value, float) else str(value)


def _changes(published: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Returns in words what differs between the origins of two rows of one run: the code, and the platform."""
    found = []
    for key in ("fingerprint", "commit", "python", "jax", "devices", "cpu", "cores", "settings"):
        before, after = published.get(key), now.get(key)
        if before != after:
            digits = 10 if key in ("fingerprint", "commit") else None
            found.append(f"with {key} {str(after)[:digits]}, not {str(before)[:digits]}")
    return found
