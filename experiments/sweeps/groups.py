"""The groups of a sweep, by the values of one key: the best point of each, and whether the best of them is better."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from experiments.study import significance
from experiments.study.findings import Table, cut, number
from experiments.sweeps.edge import is_number
from experiments.sweeps.results import CONFIDENCE, Entry, SweepResults, beyond_edges, in_words


class Group(NamedTuple):
    """The points with one value of a key."""

    value: Any
    best: Entry


def key_of(results: SweepResults, by: str | None = None) -> str | None:
    """Returns the key that groups a sweep: the one that is named, or the first whose values are no numbers.

    Raises:
      ValueError: one line, if the named key is the same in all points.
    """
    if by is not None and by not in results.keys:
        raise ValueError(f"by={by!r}: must be a key in which points differ: {', '.join(results.keys) or 'none does'}")
    tried = {key: [point.get(key) for point in results.sweep.points] for key in results.keys}
    return by or next((key for key, values in tried.items() if not all(map(is_number, values))), None)


def text(results: SweepResults, key: str) -> str:
    """Returns which value of a key is best, and a table of all of them, as Markdown; "" if there are fewer than two."""
    lines = answer(results, key)
    broken = "  \n".join(lines)  # two spaces end a line of Markdown
    return f"{broken}\n\n{table(results, key).markdown()}" if lines else ""


def best_of_each(results: SweepResults, key: str) -> list[Group]:
    """Returns the groups that have a finished point with finite runs, the best one first."""
    entries: dict[str, list[Entry]] = {}
    for entry in results.finite:
        entries.setdefault(repr(entry.point.get(key)), []).append(entry)
    groups = [Group(best.point.get(key), best) for best in map(results.best_of, entries.values())]
    return sorted(groups, key=lambda group: -results.goal.sign * group.best.sample(results.goal.metric).mean)


def answer(results: SweepResults, key: str) -> list[str]:
    """Returns which group is best, at which values of the other keys, by how much, and whether that is significant.

    The best group is compared with each other one by Welch's t-test, corrected together by Holm's method.
    """
    metric, groups = results.goal.metric, best_of_each(results, key)
    if len(groups) < 2:
        return []
    first, second = groups[:2]
    best = f"Best {key}: {_at(results, key, first)}: {_cell(first, metric)}.{results.divergence(first.best)}"
    compared = [group for group in groups[1:] if _is_repeated(group, metric)] if _is_repeated(first, metric) else []
    digits = max(group.best.sample(metric).digits for group in (first, second))
    tests = [
        significance.welch(
            first.best.values(metric), other.best.values(metric), compared=str(other.value), side="two-sided"
        )
        for other in compared
    ]
    within = number(first.best.sample(metric).mean - second.best.sample(metric).mean, digits, style="+")
    if second in compared and tests[0].low < tests[0].high:
        most = results.within[1] - results.within[0]
        ends = cut(tests[0].low, tests[0].high, (-most, most))
        within = f"{within} [{', '.join(number(end, digits, style='+') for end in ends)}]"
    alone = [str(group.value) for group in groups if not _is_repeated(group, metric)]
    verdicts = [_verdict(significance.holm(tests))] if tests else []
    if alone:
        verdicts.append(
            f"One seed gives no interval ({', '.join(alone)}): use --seeds=3, or more, and finish all runs."
        )
    difference = f"the difference is {within}"
    next_ = f"Next: {_at(results, key, second)}: {_cell(second, metric)}; {difference}."
    return [best, next_, " ".join(verdicts)]


def _is_repeated(group: Group, metric: str) -> bool:
    """Returns whether a group's best point has finished runs of several seeds, without which no test can be made."""
    return len(group.best.values(metric)) > 1


def _verdict(tests: Sequence[significance.Contrast]) -> str:
    """Returns whether the best group differs from the others, given the tests against each, the nearest first."""
    nearest = tests[0]
    if len(tests) > 1:
        differs = f"it differs from {sum(test.holds for test in tests)} of {len(tests)} other groups"
    else:
        differs = f"it {'differs' if nearest.holds else 'is not shown to differ'} from {nearest.compared}"
    corrected = f" ({nearest.corrected})" if nearest.corrected else ""
    p = f"p = {nearest.p:.2g} against {nearest.compared}"
    return (
        f"By Welch's t-test{corrected} {differs} at {significance.ALPHA:g}, {p}; "
        "each group's point was picked by these runs."
    )


def table(results: SweepResults, key: str) -> Table:
    """Returns a row for each group: the best point, its metric with the interval, and the edges of its grid."""
    metric = results.goal.metric
    others = [other for other in results.keys if other != key]
    cells = []
    for group in best_of_each(results, key):
        within = results.interval_in_words(group.best)
        at_edge = "; ".join(beyond_edges(results, group.best))
        cells.append([str(group.value), in_words(group.best.point, others), _cell(group, metric), within, at_edge])
    return Table([key, "best at", metric.replace("_", " "), f"{100 * CONFIDENCE:g} % interval", "at the edge"], cells)


def _at(results: SweepResults, key: str, group: Group) -> str:
    others = in_words(group.best.point, [other for other in results.keys if other != key])
    return f"{group.value}{f' at {others}' if others else ''}"


def _cell(group: Group, metric: str) -> str:
    sample = group.best.sample(metric)
    return str(sample) if sample.n > 1 else number(sample.mean, sample.digits)
