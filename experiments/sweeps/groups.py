"""The groups of a sweep, by the values of one key: the best point of each, and whether the best of them is better."""

from collections.abc import Sequence

import numpy as np

from experiments.study.frames import Frame
from experiments.study.inference import ALPHA, Test, holm, welch
from experiments.sweeps.edge import is_number
from experiments.sweeps.results import CONFIDENCE, SweepResults, beyond_edges, digits_of, in_words, number


def key_of(results: SweepResults, by: str | None = None) -> str | None:
    """Returns the key that groups a sweep: the named one, or the first with a value that is not a number.

    Raises:
      ValueError: one line, if the named key is the same in all points.
    """
    if by is not None and by not in results.keys:
        raise ValueError(f"by={by!r}: must be a key in which points differ: {', '.join(results.keys) or 'none does'}")
    for key in [] if by else results.keys:
        if not all(is_number(point.get(key)) for point in results.sweep.points):
            return key
    return by


def best_of_each(results: SweepResults, key: str) -> list[str]:
    """Returns the best point for each value of a key, the best first, of those whose runs are all finite."""
    groups: dict[str, list[str]] = {}
    for at in results.finite:
        groups.setdefault(repr(results.points[at].get(key)), []).append(at)
    means = results.metric["mean"]
    return sorted(map(results.best_of, groups.values()), key=lambda at: -results.goal.sign * means[at])


def answer(results: SweepResults, key: str) -> list[str]:
    """Returns which group is best, at which values of the other keys, by how much, and whether that is significant.

    Welch's t-test compares the best group with each other one; Holm's method corrects the tests together.
    """
    best = best_of_each(results, key)
    if len(best) < 2:
        return []
    samples = results.metric.loc[best]
    names = {at: str(results.points[at].get(key)) for at in best}
    values = {at: results.ends.loc[[at], results.goal.metric] for at in best}
    first, second = best[:2]
    repeated = [at for at in best if samples["n"][at] > 1]  # a test needs runs of several seeds on both sides
    compared = [at for at in repeated if at != first] if first in repeated else []
    tests = [welch(names[first], values[first], "against", names[at], values[at]) for at in compared]
    digits = max(digits_of(samples.loc[at]) for at in (first, second))
    difference = number(samples["mean"][first] - samples["mean"][second], digits, style="+")
    if second in compared and tests[0].low < tests[0].high:
        most = np.ptp(results.within)
        low, high = np.clip([tests[0].low, tests[0].high], -most, most)
        difference += f" [{number(low, digits, style='+')}, {number(high, digits, style='+')}]"
    verdicts = [_verdict(holm(*tests), names[compared[0]])] if tests else []
    if alone := [names[at] for at in best if at not in repeated]:
        one = f"One seed gives no interval ({', '.join(alone)})"
        verdicts.append(f"{one}: use --seeds=3, or more, and finish all runs.")
    is_tie = samples["mean"][first] == samples["mean"][second]
    return [
        f"Best {key}{', in a tie' if is_tie else ''}: {_at(results, key, first)}: {_cell(results, first)}."
        f"{results.divergence(first)}",
        f"Next: {_at(results, key, second)}: {_cell(results, second)}; the difference is {difference}.",
        " ".join(verdicts),
    ]


def _verdict(tests: Sequence[Test], nearest: str) -> str:
    """Returns whether the best group differs from the others, given the tests against each, the nearest first."""
    test = tests[0]
    if len(tests) > 1:
        differs = f"({test.corrected}) it differs from {sum(test.holds for test in tests)} of {len(tests)} other groups"
    else:
        differs = f"it {'differs' if test.holds else 'is not shown to differ'} from {nearest}"
    p = f"p = {test.p:.2g} against {nearest}"
    return f"By Welch's t-test {differs} at {ALPHA:g}, {p}; each group's point was picked by these runs."


def table(results: SweepResults, key: str) -> Frame:
    """Returns a line for each group: the best point, its metric with the interval, and the edges of its grid.

    Groups in which every point has a run that diverged, was stopped early or is not finite come last, without a best
    point.
    """
    others = [other for other in results.keys if other != key]
    cells: list[list[str]] = []
    for at in best_of_each(results, key):
        point, edges = results.points[at], "; ".join(beyond_edges(results, at))
        cells.append([str(point.get(key)), in_words(point, others), _cell(results, at), results.interval(at), edges])
    unranked: dict[str, list[str]] = {}
    for at, point in results.points.items():
        unranked.setdefault(str(point.get(key)), []).append(at)
    for value, points in unranked.items():
        if value not in [line[0] for line in cells]:
            cells.append([value, "", ", ".join(["none", *results.lost(points, results.goal.metric)]), "", ""])
    metric = results.goal.metric.replace("_", " ")
    return Frame(cells, columns=[key, "best at", metric, f"{100 * CONFIDENCE:g} % interval", "at the edge"])


def _at(results: SweepResults, key: str, at: str) -> str:
    point = results.points[at]
    others = in_words(point, [other for other in results.keys if other != key])
    return f"{point.get(key)}{f' at {others}' if others else ''}"


def _cell(results: SweepResults, at: str) -> str:
    sample = results.metric.loc[at]
    return results.in_words(at) if sample["n"] > 1 else number(sample["mean"], digits_of(sample))
