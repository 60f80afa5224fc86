"""From tests and bounds to one of four words, with the reasons."""

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from experiments.study.inference import Test, compare, equivalent, holm, opposites, paired, runs_needed, trend, welch

__all__ = ["compare", "equivalent", "holm", "paired", "trend", "welch"]  # for the modules of claims
Word = Literal["supported at this scale", "not supported at this scale", "by construction", "not tested"]
HELD: Word = "supported at this scale"
FAILED: Word = "not supported at this scale"
BUILT: Word = "by construction"
UNTESTED: Word = "not tested"


class Verdict(NamedTuple):
    """The decision of a rule, and the numbers that it rests on.

    "By construction" is the word for a claim that could hardly have failed, such as one about arrival times that is
    tested on a model fitted to the claim: it checks the model, and supports nothing.
    """

    word: Word
    because: str
    tests: Sequence[Test] = ()


class Bound(NamedTuple):
    """Whether numbers lie within bounds, whether they speak against the claim, and both in words."""

    said: str
    holds: bool
    refutes: bool


def bound(
    words: str,
    *values: float,
    least: float = -math.inf,
    most: float = math.inf,
    beyond: float = -math.inf,
    unit: str = "",
    digits: int = 2,
    refutes: bool = True,
) -> Bound:
    """Returns whether all numbers lie within bounds. An empty list and NaN do not.

    Args:
      words: what the numbers are.
      *values: the numbers.
      least, most: the bounds, which are allowed themselves.
      beyond: a bound that the numbers must exceed.
      unit: unit of the numbers.
      digits: digits in texts.
      refutes: whether numbers out of bounds speak against the claim; else the claim stays untested.

    >>> bound("the least length", 0.5, least=1, digits=1).said
    'The least length is at least 1: 0.5, fails.'
    """
    unit = unit and f" {unit}"
    held = bool(values) and all(least <= value <= most and value > beyond for value in values)
    limits = (("above", beyond), ("at least", least), ("at most", most))
    allowed = " and ".join(f"{word} {end:g}{unit}" for word, end in limits if math.isfinite(end))
    ends = dict.fromkeys(f"{end:,.{digits}f}" for end in (min(values), max(values))) if values else ["none"]
    said = f"{words} is {allowed}: {' to '.join(ends)}{unit}, {'holds' if held else 'fails'}."
    return Bound(f"{said[:1].upper()}{said[1:]}", held, refutes and not held)


def untested(because: str, tests: Sequence[Test] = ()) -> Verdict:
    """Returns the verdict on rows that the rule cannot decide from."""
    return Verdict(UNTESTED, because, tests)


def decide(
    tests: Sequence[Test],
    *bounds: Bound,
    judged: Sequence[Test] | None = None,
    refuted: bool | None = None,
    against: Sequence[Test] = (),
    shown: Sequence[Test] = (),
    built: bool = False,
) -> Verdict:
    """Returns the verdict: supported if all tests and bounds hold, not supported if something speaks against the claim.

    It is "not tested" if neither is the case, or if a test cannot be made.

    Args:
      tests: the tests, corrected together by `experiments.study.inference.holm`.
      *bounds: bounds that must hold.
      judged: the tests that must hold; by default all.
      refuted: whether the tests contradict the claim; by default they do unless all judged tests hold.
      against: tests that refute the claim if one of them holds, such as the `opposites`; no other tests do then.
      shown: tests that the verdict shows beside its own.
      built: whether this is a check of our own model, which supports nothing.
    """
    judged, shown = tests if judged is None else judged, [*against, *shown]
    every = [*tests, *shown]
    if against:
        refuted = any(test.holds for test in against)
    said, outside = [bound.said for bound in bounds], any(bound.refutes for bound in bounds)
    if missing := [test.missing for test in every if test.missing]:
        return Verdict(FAILED, " ".join(said)) if outside else untested(f"{missing[0]}.")
    failed = [test for test in judged if not test.holds]
    because = " ".join([*_because(judged, failed, shown), *said])
    held = not failed and all(bound.holds for bound in bounds)
    if outside or (bool(failed) if refuted is None else refuted):
        return Verdict(FAILED, because, every)
    if held:
        return Verdict(BUILT if built else HELD, because, every)
    return untested(" ".join([because, *_runs_needed(failed, tests=len(tests))]), every)


def decide_both_ways(tests: Sequence[Test]) -> Verdict:
    """Returns the verdict of tests that are corrected together, and refuted by their `opposites`, another family."""
    tests = holm(*tests)
    return decide(tests, against=opposites(tests))


def not_finite(columns: Any) -> str:
    """Returns the name of the first column of a frame with a value that is not finite; "" if there is none."""
    return next((str(name) for name in columns if not np.isfinite(columns[name]).all()), "")


def _because(judged: Sequence[Test], failed: Sequence[Test], shown: Sequence[Test]) -> list[str]:
    sentences = []
    if failed:
        sentences.append(f"{len(judged) - len(failed)} of {len(judged)} comparisons hold.")
        sentences.append(f"Not shown: {'; '.join(test.compared for test in failed)}.")
    elif judged:
        sentences.append("Each comparison holds." if len(judged) > 1 else "The comparison holds.")
    if held := [test.compared for test in shown if test.holds]:
        sentences.append(f"Shown: {'; '.join(held)}.")
    return sentences


def _runs_needed(failed: Sequence[Test], *, tests: int) -> list[str]:
    """Returns how many runs the equivalences need that were not shown, in a sentence; none if all were."""
    missed = [test for test in failed if math.isfinite(test.margin)]
    if not missed:
        return []
    needed, have = max(runs_needed(test, tests=tests) for test in missed), min(min(test.n) for test in missed)
    if needed <= have:
        return [f"With {have} runs a side each of these would be shown with a power of 80 %, were there no difference."]
    return [f"If there is no difference, {needed} runs a side would show each of these with a power of 80 %."]
