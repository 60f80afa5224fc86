"""Published rows: which to run again, the run that a row records, and how the new numbers differ from its own."""

import difflib
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from experiments.study.run import Row, Rows, Run
from runs import environment

TOLERANCE = 1e-3
"""Relative difference up to which a row passes: another platform sums in another order in every step. Of an accuracy it
is ten examples in ten thousand; over the seeds those of the published claims deviate by 0.7e-3 to 9e-3, the median of
each claim's points."""

PLATFORM = ("jax", "devices", "cpu", "cores")
"""The keys of a row's origin that name its platform, on which it depends in which order XLA sums."""

Value = Any  # of JSON, and no list or object
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
    """Returns the run that a row records: all that its command needs, and as many cores as it had.

    The number of cores can change the order in which a CPU sums, and so the last bits.
    """
    origin = row["origin"]
    recorded, cores = origin["config"], origin.get("cores")
    if "measure" in recorded:
        return Run(labels=recorded["measure"], cores=cores)
    return Run(
        labels=labels_of(row),
        spec=recorded["spec"],
        overrides={"late_workers": "interrupt", **recorded["overrides"]},  # as of ``results.recorded_config``
        flags=origin["flags"],
        cores=cores,
    )


def environment_of(row: Row) -> list[str]:
    """Returns the beginning of a command line that sets JAX and XLA as they were; nothing where they are so already."""
    recorded, now = row["origin"]["settings"], environment.settings()
    others = {key: value for key, value in recorded.items() if key in now and value != now[key]}
    unset = [f"--unset={key.upper()}" for key, value in now.items() if value is not None and key not in recorded]
    changed = [*unset, *(f"{key.upper()}={value}" for key, value in others.items())]
    return ["env", *changed] if changed else []


def cheapest(rows: Rows, *, count: int, within: Sequence[str] = ("seed",)) -> list[Row]:
    """Returns the rows whose runs took least time, first one of each point.

    Args:
      rows: published rows.
      count: how many.
      within: labels in which rows of one point differ.

    >>> points = [{"n": n, "seed": seed} for n in (1, 9) for seed in (0, 1)]
    >>> rows = [{"run": Run(labels=at).name, **at, "origin": {"wall_seconds": sum(at.values())}} for at in points]
    >>> [row["run"] for row in cheapest(rows, count=3)]
    ['n=1,seed=0', 'n=9,seed=0', 'n=1,seed=1']
    """
    seconds = [row["origin"]["wall_seconds"] for row in rows]
    order = sorted(range(len(rows)), key=lambda i: (math.inf if seconds[i] is None else seconds[i], rows[i]["run"]))
    points: list[Mapping[str, Any]] = []
    first: list[Row] = []
    rest: list[Row] = []
    for row in (rows[i] for i in order):
        point = {key: value for key, value in labels_of(row).items() if key not in within}
        (rest if point in points else first).append(row)
        points.append(point)
    return (first + rest)[:count]


def named(name: str, rows: Rows, *, of: str) -> Row:
    """Returns the row of a run.

    Args:
      name: the run's name.
      rows: published rows.
      of: the experiment's name, for the error.

    Raises:
      ValueError: one line with the names that are most alike, if there is no such row.
    """
    found = {row["run"]: row for row in rows}
    if name in found:
        return found[name]
    alike = difflib.get_close_matches(name, found, n=3, cutoff=0.3)
    hint = f"did you mean {' or '.join(map(repr, alike))}?" if alike else f"see `python -m experiments list {of}`"
    raise ValueError(f"row={f'{of}/{name}'!r}: no published row of that name; {hint}")


class Difference(NamedTuple):
    """Where the numbers of a quantity differ most.

    Attributes:
      place: the quantity, with keys and positions within it.
      published: the published value.
      now: the value of the rerun.
      relative: their difference over the published number, or over a tenth of the largest in its list if that is more;
        infinity where they are no finite numbers, or not as many.
    """

    place: str
    published: Value
    now: Value
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
      differences: of each quantity that is not equal bit for bit, where it differs most.
      times: the same of measured times, which are not judged.
      is_judged: whether the row has anything else.
    """

    published: Row
    now: Row
    differences: Sequence[Difference]
    times: Sequence[Difference]
    is_judged: bool = True

    @property
    def relative(self) -> float:
        """The largest relative difference; 0 if all is equal bit for bit."""
        return max((difference.relative for difference in self.differences), default=0.0)

    @property
    def is_equal(self) -> bool:
        """Whether all quantities but times are equal, bit for bit or to the tolerance."""
        return self.relative <= TOLERANCE

    @property
    def word(self) -> str:
        """How equal they are."""
        if not self.is_judged:
            return "measured anew"
        if not self.differences:
            return "equal bit for bit"
        return (
            f"equal to {TOLERANCE:g} (largest relative difference {self.relative:.1g})"
            if self.is_equal
            else "different"
        )

    def __str__(self) -> str:
        parts = [self.word]
        parts += [str(difference) for difference in self.differences]
        if self.differences and (changed := _changes(self.published["origin"], self.now["origin"])):
            parts.append(f"run {', '.join(changed)}")
        parts += [f"time {place} {_shown(old, 3)} published, {_shown(new, 3)} now" for place, old, new, _ in self.times]
        return f"{self.published['run']}: {'; '.join(parts)}"


def compare(published: Row, now: Row, *, timings: Sequence[str] = ()) -> Rerun:
    """Compares what two rows of one run measured; quantities that the published row lacks are left out.

    Args:
      published: the published row.
      now: the row of the rerun.
      timings: the quantities that are measured times. Of a live run all are: no two take the same gradients.

    >>> old, new = ({"run": "seed=0", "seed": 0, "loss": [2.0, loss], "origin": {}} for loss in (1.0, 1.0 + 2**-23))
    >>> compare(old, new).word
    'equal to 0.001 (largest relative difference 1e-07)'
    """
    labels = labels_of(published)
    measured = [key for key in published if key not in labels and key not in NOT_MEASURED]
    if published["origin"].get("flags", {}).get("live"):
        timings = measured
    found = {key: worst for key in measured if (worst := _worst(published[key], now.get(key), place=key))}
    return Rerun(
        published,
        now,
        differences=[worst for key, worst in found.items() if key not in timings],
        times=[worst for key, worst in found.items() if key in timings],
        is_judged=not set(measured) <= set(timings),
    )


def summary(reruns: Sequence[Rerun]) -> str:
    """Returns how many rows are equal, and what differs in the others, a line each."""
    exact = sum(rerun.is_judged and not rerun.differences for rerun in reruns)
    anew = sum(not rerun.is_judged for rerun in reruns)
    rounded = [rerun.relative for rerun in reruns if rerun.differences and rerun.is_equal]
    different = [rerun for rerun in reruns if not rerun.is_equal]
    counts = [f"{exact} equal bit for bit"] if exact else []
    if rounded:
        counts.append(f"{len(rounded)} equal to {TOLERANCE:g} (largest relative difference {max(rounded):.1g})")
    if different:
        counts.append(f"{len(different)} different")
    if anew:
        counts.append(f"{anew} measured anew")
    return "\n".join([f"{', '.join(counts)}{':' if different else '.'}", *(f"  {rerun}" for rerun in different)])


def _worst(published: Any, now: Any, *, place: str) -> Difference | None:
    """Returns where two values differ most; None if they are equal bit for bit."""
    old, new = dict(_lists(published, place)), dict(_lists(now, place))
    found = [
        difference
        for at in {**old, **new}
        if (difference := _worst_of_list(old.get(at, ()), new.get(at, ()), place=at)) is not None
    ]
    return max(found, key=lambda difference: difference.relative, default=None)


def _worst_of_list(published: Sequence[Value], now: Sequence[Value], *, place: str) -> Difference | None:
    if len(published) != len(now):
        return Difference(place, f"{len(published)} values", f"{len(now)} values", math.inf)
    sizes = [abs(value) for value in published if _is_finite(value)]
    largest = max(sizes, default=0.0)
    found = []
    for i, (old, new) in enumerate(zip(published, now, strict=True)):
        if old == new or (old != old and new != new):  # NaN equals NaN
            continue
        relative = math.inf
        if _is_finite(old) and _is_finite(new) and largest:
            relative = abs(new - old) / max(abs(old), largest / 10)
        at = f"{place}[{i}]" if len(published) > 1 else place
        found.append(Difference(at, old, new, relative))
    return max(found, key=lambda difference: difference.relative, default=None)


def _lists(value: Any, place: str) -> Iterator[tuple[str, Sequence[Value]]]:
    """Yields the innermost lists of a value with their places; a number alone is a list of one."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from _lists(part, f"{place}.{key}")
    elif not isinstance(value, (list, tuple)):
        yield place, [value]
    elif any(isinstance(part, (list, tuple, Mapping)) for part in value):
        for i, part in enumerate(value):
            yield from _lists(part, f"{place}[{i}]")
    else:
        yield place, value


def _is_finite(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


def _shown(value: Value, digits: int = 9) -> str:
    return f"{value:.{digits}g}" if isinstance(value, float) else str(value)


def _changes(published: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Returns in words what differs between the origins of two rows of one run."""
    found = []
    for key in ("fingerprint", "commit", "python", *PLATFORM, "settings"):
        before, after = published.get(key), now.get(key)
        if before is None and after is not None and key in PLATFORM:
            found.append(f"with {key} {after}, and the published row records none")
        elif before is not None and after is not None and before != after:
            digits = slice(10) if key in ("fingerprint", "commit") else slice(None)
            found.append(f"with {key} {str(after)[digits]}, not {str(before)[digits]}")
    return found
