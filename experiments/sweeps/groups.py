"""The groups of a sweep, by the values of one key: the best point of each, and whether the best of them is better."""

from typing import Any, NamedTuple

from experiments.study import significance
from experiments.study.findings import Sample, Table
from experiments.sweeps.edge import is_number
from experiments.sweeps.results import CONFIDENCE, Entry, SweepResults, beyond_edges, in_words, interval


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
    return (
        "\n\n".join(["\n".join(f"{line}  " for line in lines).rstrip(), table(results, key).markdown()])
        if lines
        else ""
    )


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
    lines = [f"Best {key}: {_at(results, key, first)}: {_cell(first, metric)}."]
    ours = first.best.values(metric)
    try:
        tests = significance.holm(
            [
                significance.welch(ours, other.best.values(metric), compared=str(other.value), side="two-sided")
                for other in groups[1:]
            ]
        )
    except significance.TooFewRuns:
        difference = first.best.sample(metric).mean - second.best.sample(metric).mean
        lines.append(
            f"Next: {_at(results, key, second)}: {_cell(second, metric)}; the difference is {difference:+.4f}."
        )
        return [*lines, "One seed gives no interval: use --seeds=3, or more."]
    test = tests[0]
    within = f"{test.difference:+.4f} [{test.low:+.4f}, {test.high:+.4f}]"
    lines.append(f"Next: {_at(results, key, second)}: {_cell(second, metric)}; the difference is {within}.")
    shown = sum(each.holds for each in tests)
    others = f"{shown} of {len(tests)} other groups" if len(tests) > 1 else f"{second.value}"
    verdict = (
        f"it differs from {others}" if test.holds or len(tests) > 1 else f"it is not shown to differ from {others}"
    )
    corrected = f" ({test.corrected})" if test.corrected else ""
    lines.append(
        f"By Welch's t-test{corrected} {verdict} at {significance.ALPHA:g}, p = {test.p:.2g} against {second.value}; "
        "each group's point was picked by these runs."
    )
    return lines


def table(results: SweepResults, key: str) -> Table:
    """Returns a row for each group: the best point, its metric with the interval, and the edges of its grid."""
    metric = results.goal.metric
    others = [other for other in results.keys if other != key]
    cells = []
    for group in best_of_each(results, key):
        sample = group.best.sample(metric)
        ends = interval(sample)
        within = "" if ends is None else f"[{ends[0]:,.{sample.digits}f}, {ends[1]:,.{sample.digits}f}]"
        at_edge = "; ".join(beyond_edges(results, group.best))
        cells.append([str(group.value), in_words(group.best.point, others), _cell(group, metric), within, at_edge])
    return Table([key, "best at", metric.replace("_", " "), f"{100 * CONFIDENCE:g} % interval", "at the edge"], cells)


def _at(results: SweepResults, key: str, group: Group) -> str:
    others = in_words(group.best.point, [other for other in results.keys if other != key])
    return f"{group.value}{f' at {others}' if others else ''}"


def _cell(group: Group, metric: str) -> str:
    sample: Sample = group.best.sample(metric)
    return f"{sample.mean:,.{sample.digits}f}" + (
        f" ± {sample.std:,.{sample.digits}f} (n={sample.n})" if sample.n > 1 else ""
    )
