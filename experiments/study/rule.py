"""The rule of a claim: from one declaration of what decides follow its text, its verdict and the verdict's words.

A rule has parts, which compare groups of runs by a test, or hold numbers against a bound. The p-values of all tests are
corrected together by Holm's method. The claim is supported if every part holds, and not supported if a part is refuted,
which a part that is not shown may or may not be (`Refuted`). It is not tested if neither is so, or if the runs lack
something that the rule needs.
"""

import dataclasses
import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal, NamedTuple

from experiments.study import rows as ask
from experiments.study.experiment import Verdict, holds
from experiments.study.findings import Sample
from experiments.study.run import Rows, Scale, scale_of
from experiments.study.significance import (
    ALPHA,
    Contrast,
    Side,
    TooFewRuns,
    equivalence_runs_needed,
    equivalent,
    equivalent_to,
    holm,
    paired,
    shifted,
    trend,
    welch,
)

Relation = Literal["above", "below", "as"]
Refuted = Literal["not shown", "reversed", "beyond", "never"]
"""When a test speaks against a claim: if it does not hold; if the opposite does, by the same tests with the other side;
if the 90 % interval of a difference lies beyond the margin of its equivalence; or never: the claim stays untested."""
_SIDES: dict[Relation, Side] = {"above": "greater", "below": "less"}
_OPPOSITES: dict[Relation, Relation] = {"above": "below", "below": "above"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measure:
    """A quantity by which runs are compared.

    Attributes:
      words: what it is called, such as "test accuracy at the end".
      values: rows -> one value per run.
      unit: unit of a value, in texts.
      gap: unit of a difference, where it is called otherwise.
      digits: digits in texts.
      short: what it is called in a comparison, where a rule has several measures; "" where it has one.
      note: what the rule says of it in brackets; "" for nothing.
      most: the largest difference of two values that there can be.
      missing: what a value that is not finite means.
    """

    words: str
    values: Callable[[Rows], Sequence[float]]
    unit: str = ""
    gap: str | None = None
    digits: int = 2
    short: str = ""
    note: str = ""
    most: float = math.inf
    missing: str = "a value is not finite"

    @property
    def difference(self) -> dict[str, Any]:
        """Unit and digits of a difference, as the tests take them."""
        return {"unit": self.unit if self.gap is None else self.gap, "digits": self.digits}

    def sample(self, rows: Rows) -> Sample:
        """Returns the values of rows as one sample."""
        return Sample.of(self.values(rows), digits=self.digits, unit=self.unit)

    def reached(self, rows: Rows) -> Sample | str:
        """Returns the ways to a target as one sample, or how many runs get there if not all do."""
        there = sum(map(math.isfinite, self.values(rows)))
        return self.sample(rows) if there == len(rows) else f"{there} of {len(rows)} runs get there"


def at_end(key: str, *, words: str, unit: str, digits: int, short: str = "") -> Measure:
    """Returns the measure of a quantity at the last evaluation."""
    values = lambda rows: [ask.last(row, key) for row in rows]  # noqa: E731
    return Measure(words=words, values=values, unit=unit, digits=digits, short=short)


def until(
    target: Callable[[Rows], float],
    *,
    words: str,
    of: str = "accuracy",
    along: str = "step",
    mode: ask.Mode = "max",
    unit: str = "",
    digits: int = 0,
    short: str = "",
) -> Measure:
    """Returns the measure of the way to a target; a run that does not get there is at infinity.

    Args:
      target: rows -> the value to be reached.
      words: what the measure is called.
      of: the quantity that reaches the target.
      along: the quantity in which the way is measured.
      mode: which values of ``of`` are better.
      unit: unit of the way.
      digits: digits of the way in texts.
      short: as of `Measure`.
    """

    def values(rows: Rows) -> list[float]:
        aim = target(rows) if rows else math.nan
        return [ask.first_at(row, aim, of=of, along=along, mode=mode) for row in rows]

    missing = "the target is not reached"
    return Measure(words=words, values=values, unit=unit, digits=digits, short=short, missing=missing)


def capped(way: Measure, *, along: str) -> Measure:
    """Returns the measure of a way in which a run that does not get there counts as if it did at its end."""

    def values(rows: Rows) -> list[float]:
        return [min(found, ask.last(row, along)) for found, row in zip(way.values(rows), rows, strict=True)]

    note = "a run that never is at the target counts as if it were at its end"
    return dataclasses.replace(way, values=values, note=note)


ACCURACY = Measure(
    words="test accuracy at the end",
    values=ask.accuracies,
    unit="%",
    gap="points",
    most=100,
    note="an accuracy that is not finite counts as 0 %",
)
FINITE_ACCURACY = Measure(  # one that is not finite decides nothing
    words="test accuracy at the end",
    values=lambda rows: [100 * ask.last(row, "accuracy") for row in rows],
    unit="%",
    gap="points",
    most=100,
    short="accuracy",
)
LOSS = at_end("loss", words="loss on the test split at the end", unit="nats", digits=4)


@dataclasses.dataclass(frozen=True)
class Group:
    """Runs that a rule compares with others.

    Attributes:
      name: what they are called.
      measure: what they are compared by.
      pick: rows of the claim -> theirs.
    """

    name: str
    measure: Measure
    pick: Callable[[Rows], Rows] = lambda rows: rows

    def values(self, rows: Rows) -> list[float]:
        """Returns one value for each of its runs."""
        return list(self.measure.values(self.pick(rows)))

    def mean(self, rows: Rows) -> float:
        """Returns the mean over its runs."""
        return statistics.fmean(self.values(rows))

    def sample(self, rows: Rows) -> Sample:
        """Returns the values of its runs as one sample."""
        return self.measure.sample(self.pick(rows))


class Condition(NamedTuple):
    """A condition on rows, in words that end "if ..." or "where ..."."""

    words: str
    is_met: Callable[[Rows], bool]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Compare:
    """A test that one group is above another, is below it, or as it is.

    Attributes:
      ours: the first group.
      is_: the relation that is tested.
      theirs: the second group, or a number.
      by: what is added to the second group first, such as a margin of non-inferiority; of "as" the margin.
      share: whether ``by`` is a share of the second group's mean.
      paired: whether values of the same place belong together, such as those of a seed.
      at: where both groups are from, in texts.
      refuted: when the part speaks against the claim.
      judged: whether it decides; one that does not is in Holm's correction all the same.
      needed: whether nothing is decided unless it holds.
      where: the part counts only where this is so.
    """

    ours: Group
    is_: Relation
    theirs: Group | float
    by: float = 0.0
    share: bool = False
    paired: bool = False
    at: str = ""
    refuted: Refuted = "not shown"
    judged: bool = True
    needed: bool = False
    where: Condition | None = None

    def __post_init__(self):
        if self.paired and self.is_ == "as" and isinstance(self.theirs, Group):
            raise ValueError(f"{self.compared()}: no equivalence test of pairs is known here; leave paired out")

    @property
    def groups(self) -> list[Group]:
        """The groups that are compared."""
        return [group for group in (self.ours, self.theirs) if isinstance(group, Group)]

    @property
    def _is_welch(self) -> bool:
        return isinstance(self.theirs, Group) and not self.paired

    @property
    def method(self) -> str:
        """The test in words, such as "one-sided Welch test"."""
        if self.is_ == "as":
            return f"equivalence test by two one-sided {'Welch ' if self._is_welch else 't-'}tests"
        return "one-sided Welch test" if self._is_welch else "one-sided paired t-test"

    def compared(self, is_: Relation | None = None) -> str:
        """Returns what is compared, in words."""
        return f"{self.ours.name} {self.relation(is_ or self.is_)}{self.at and f', {self.at}'}"

    def relation(self, is_: Relation) -> str:
        """Returns how the first group stands to the second one, such as "above b less 1 mm"."""
        name = self.theirs.name if isinstance(self.theirs, Group) else f"{self.theirs:.3g}"
        unit = self.ours.measure.difference["unit"]
        amount = f"{abs(self.by):.3g}" if not self.share else f"{100 * abs(self.by):g} %"
        if unit and not self.share:
            amount = f"{amount} {unit.removesuffix('s') if abs(self.by) == 1 else unit}"
        if is_ == "as":
            shift = f" to within {amount}"
        else:
            shift = f" {'plus' if self.by > 0 else 'less'} {amount}" if self.by else ""
        measure = self.ours.measure.short and f" in {self.ours.measure.short}"
        return f"{is_} {name}{shift}{measure}"

    def margin(self, rows: Rows) -> float:
        """Returns what is added to the second group."""
        return self.by * self.theirs.mean(rows) if self.share and isinstance(self.theirs, Group) else self.by

    def contrast(self, rows: Rows, is_: Relation | None = None) -> Contrast:
        """Returns the test, or that of the opposite relation."""
        return dataclasses.replace(self._test(rows, is_ or self.is_), most=self.ours.measure.most)

    def _test(self, rows: Rows, is_: Relation) -> Contrast:
        ours, by = self.ours.values(rows), self.margin(rows)
        shown = {"compared": self.compared(is_), **self.ours.measure.difference}
        if not isinstance(self.theirs, Group):
            if is_ == "as":
                return equivalent_to(ours, self.theirs, margin=by, **shown)
            theirs = [float(self.theirs)] * len(ours)
        else:
            theirs = self.theirs.values(rows)
            if is_ == "as":
                return equivalent(ours, theirs, margin=by, **shown)
        test = welch if self._is_welch else paired
        if by or self.by:
            return shifted(test, ours, theirs, by=by, side=_SIDES[is_], **shown)
        return test(ours, theirs, side=_SIDES[is_], **shown)

    def is_refuted(self, rows: Rows, found: Contrast, opposite: Contrast | None) -> bool:
        """Returns whether the tests speak against the claim; they are corrected, the interval of "beyond" is not."""
        if opposite:
            return opposite.holds
        if self.refuted == "beyond":
            margin = self.margin(rows)
            return found.low > margin or found.high < -margin
        return self.refuted == "not shown" and not found.holds


@dataclasses.dataclass(frozen=True, kw_only=True)
class Grows:
    """A test that a measure grows along ordered groups, by Page's trend test over the seeds.

    Attributes:
      words: what grows with what.
      by_run: rows -> for each run, or for the runs of each seed, its values in the order in which they should grow.
      unit, digits: of the values, in texts.
      at: where the runs are from, in texts.
      where: the part counts only where this is so.
    """

    words: str
    by_run: Callable[[Rows], Sequence[Sequence[float]]]
    unit: str = ""
    digits: int = 2
    at: str = ""
    where: Condition | None = None
    judged: bool = True
    needed: bool = False
    refuted: ClassVar[Refuted] = "not shown"
    method: ClassVar[str] = "Page's trend test"

    @property
    def groups(self) -> list[Group]:
        """The groups, of which none is listed in a verdict."""
        return []

    def compared(self) -> str:
        """Returns what is compared, in words."""
        return f"{self.words}{self.at and f', {self.at}'}"

    def contrast(self, rows: Rows) -> Contrast:
        """Returns the test."""
        return trend(self.by_run(rows), compared=self.compared(), digits=self.digits, unit=self.unit)

    def is_refuted(self, rows: Rows, found: Contrast, opposite: Contrast | None) -> bool:
        """Returns whether the trend is not shown."""
        del rows, opposite
        return not found.holds


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bound:
    """A part that holds if all of some numbers lie within bounds; an interval may lie on both sides of one.

    Attributes:
      words: what the numbers are.
      values: rows -> the numbers; of an interval its two ends.
      least, most: the bounds, which belong to what is allowed.
      beyond: a bound that the numbers must exceed.
      unit: unit of the numbers.
      digits: digits in texts.
      interval: whether the numbers are the ends of a confidence interval: it speaks against the claim only if it lies
        outside as a whole.
      refutes: whether it speaks against the claim if it does not hold; else the claim stays untested.
    """

    words: str
    values: Callable[[Rows], Sequence[float]]
    least: float = -math.inf
    most: float = math.inf
    beyond: float = -math.inf
    unit: str = ""
    digits: int = 2
    interval: bool = False
    refutes: bool = True

    def text(self) -> str:
        """Returns the part as the rule states it."""
        unit = self.unit and f" {self.unit}"
        limits = [
            f"above {self.beyond:g}{unit}" if self.beyond > -math.inf else "",
            f"at least {self.least:g}{unit}" if self.least > -math.inf else "",
            f"at most {self.most:g}{unit}" if self.most < math.inf else "",
        ]
        return f"{self.words} {'lies' if self.interval else 'is'} {' and '.join(filter(None, limits))}"

    def fits(self, value: float) -> bool:
        """Returns whether a number lies within the bounds."""
        return self.least <= value <= self.most and value > self.beyond

    def found(self, rows: Rows) -> "Found":
        """Returns whether the part holds, whether it speaks against the claim, and both in words."""
        values = list(self.values(rows))
        inside = [self.fits(value) for value in values]
        if self.interval:
            held, refuted = all(inside), not any(inside) and all(map(math.isfinite, values))
            shown = f"[{values[0]:.{self.digits}f}, {values[-1]:.{self.digits}f}]"
        else:
            held = bool(values) and all(inside)
            refuted = self.refutes and not held
            ends = dict.fromkeys(f"{end:,.{self.digits}f}" for end in (min(values), max(values))) if values else {}
            shown = " to ".join(ends) or "none"
        unit = self.unit and f" {self.unit}"
        return Found(held, refuted, f"{shown}{unit}, {holds(held)}")


class Found(NamedTuple):
    """What the numbers say of a bound: whether it holds, whether they speak against the claim, and both in words."""

    holds: bool
    refutes: bool
    said: str


Test = Compare | Grows
Part = Test | Bound


class Need(NamedTuple):
    """Something without which the rule cannot decide.

    Attributes:
      words: completes "Not tested if ...".
      lacks: rows -> a sentence on what they lack; "" if they lack nothing.
    """

    words: str
    lacks: Callable[[Rows], str]


def ends_above(group: Group, least: float) -> Need:
    """Returns the need that a group has learnt something: its mean is above a value."""
    return _learns(group, "above", least, lambda mean: mean > least)


def ends_below(group: Group, most: float) -> Need:
    """Returns the need that a group has learnt something: its mean is below a value."""
    return _learns(group, "below", most, lambda mean: mean < most)


def _learns(group: Group, word: str, limit: float, fits: Callable[[float], bool]) -> Need:
    def lacks(rows: Rows) -> str:
        return "" if fits(group.mean(rows)) else f"{group.name} learns little: it ends at {group.sample(rows)}."

    unit = group.measure.unit and f" {group.measure.unit}"
    return Need(f"{group.name} is not {word} {limit:g}{unit} on average", lacks)


def all_finite(*groups: Group) -> Need:
    """Returns the need that each of the groups' values is finite, such as the way to a target that all runs reach."""
    missing = groups[0].measure.missing
    names = dict.fromkeys(group.name for group in groups)

    def lacks(rows: Rows) -> str:
        off = [group.name for group in groups if not all(map(math.isfinite, group.values(rows)))]
        return f"{_capital(missing)} in a run of {off[0]}." if off else ""

    return Need(f"{missing} in a run of {' or '.join(names)}", lacks)


class OwnRule(NamedTuple):
    """A rule that is like no other: its text, and the function that decides by it."""

    text: str
    judge: Callable[[Rows], Verdict]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rule:
    """What decides a claim.

    Attributes:
      parts: scale -> what must hold.
      setting: what runs there are, in words, such as "on digits, five seeds"; "" where the parts say it.
      needs: what the rows must have before anything is compared, in order.
      against: scale -> tests of which one that holds speaks against the claim; a family of their own.
      shown: rows -> tests that a verdict shows beside its own.
      constructed: whether it is a check of our own model, which supports nothing.
      remark: a last sentence of the text.
      listed: whether a verdict lists the groups with their values.
      other_scales: scales whose rule the text has beside that of the laptop.
    """

    parts: Callable[[Scale], Sequence[Part]]
    setting: str = ""
    needs: Sequence[Need] = ()
    against: Callable[[Scale], Sequence[Compare]] = lambda scale: ()
    shown: Callable[[Rows], Sequence[Contrast]] = lambda rows: ()
    constructed: bool = False
    remark: str = ""
    listed: bool = True
    other_scales: Sequence[Scale] = ()

    @property
    def text(self) -> str:
        """The rule as it is stated before the runs."""
        texts = [self._text("laptop")]
        texts += [f"At scale {scale}: {self._text(scale)}" for scale in self.other_scales]
        return " ".join([*texts, *filter(None, [self.remark])])

    def judge(self, rows: Rows) -> Verdict:
        """Returns the verdict on rows, of which none is missing."""
        for need in self.needs:
            if lack := need.lacks(rows):
                return Verdict.untested(lack)
        scale = scale_of(rows)
        parts = self.parts(scale)
        bounds = {part.text(): part.found(rows) for part in parts if isinstance(part, Bound)}
        within, outside = all(at.holds for at in bounds.values()), any(at.refutes for at in bounds.values())
        said = [f"{_capital(text)}: {at.said}." for text, at in bounds.items()]
        tests = [part for part in parts if not isinstance(part, Bound) and (not part.where or part.where.is_met(rows))]
        try:
            found = holm([test.contrast(rows) for test in tests])
            others = self._opposites(rows, tests)
            against = holm([test.contrast(rows) for test in self.against(scale)])
        except TooFewRuns:
            if not outside:
                raise
            return self._verdict(" ".join(said), held=False)
        contrasts = [*found, *others.values(), *against, *self.shown(rows)]
        because = " ".join([*self._because(rows, tests, found, [*others.values(), *against]), *said])
        judged = [(test, contrast) for test, contrast in zip(tests, found, strict=True) if test.judged]
        held = within and all(contrast.holds for _, contrast in judged)
        refuted = outside or any(contrast.holds for contrast in against)
        refuted |= any(test.is_refuted(rows, contrast, others.get(test.compared())) for test, contrast in judged)
        if not (refuted or held) or any(test.needed and not contrast.holds for test, contrast in judged):
            needed = self._runs_needed(rows, judged, count=len(tests))
            return Verdict.untested(" ".join([because, *needed]), contrasts=contrasts)
        return self._verdict(because, held=held and not refuted, contrasts=contrasts)

    def _verdict(self, because: str, *, held: bool, contrasts: Sequence[Contrast] = ()) -> Verdict:
        if self.constructed:
            return Verdict.by_construction(held, because)
        return Verdict.of(held, because, contrasts=contrasts)

    def _runs_needed(self, rows: Rows, judged: Sequence[tuple[Test, Contrast]], *, count: int) -> list[str]:
        """Returns how many runs the equivalences need that were not shown, in a sentence; none if all were."""
        missed = [
            test for test, contrast in judged if isinstance(test, Compare) and test.is_ == "as" and not contrast.holds
        ]
        if not missed:
            return []
        needed = max(
            equivalence_runs_needed(
                std=math.sqrt(statistics.fmean(statistics.variance(group.values(rows)) for group in test.groups)),
                margin=test.margin(rows),
                sides=len(test.groups),
                tests=count,
            )
            for test in missed
        )
        have = min(len(group.values(rows)) for test in missed for group in test.groups)
        if needed <= have:
            return [
                f"With {have} runs a side each of these would be shown with a power of 80 %, were there no difference."
            ]
        return [f"If there is no difference, {needed} runs a side would show each of these with a power of 80 %."]

    def _opposites(self, rows: Rows, tests: Sequence[Test]) -> dict[str, Contrast]:
        """Returns the tests of the opposite relations, by what the tests compare; they are a family of their own."""
        both = [test for test in tests if isinstance(test, Compare) and test.refuted == "reversed" and test.judged]
        found = holm([test.contrast(rows, _OPPOSITES[test.is_]) for test in both])
        return {test.compared(): contrast for test, contrast in zip(both, found, strict=True)}

    def _because(
        self, rows: Rows, tests: Sequence[Test], found: Sequence[Contrast], others: Sequence[Contrast]
    ) -> list[str]:
        """Returns what a verdict rests on: the groups, the tests that do not hold, the opposites that do."""
        groups: dict[str, dict[str, Group]] = {}
        for test in tests if self.listed else ():
            for group in test.groups:
                groups.setdefault(group.measure.words, {})[f"{group.name}{test.at and f', {test.at}'}"] = group
        sentences = []
        for words, named in groups.items():
            values = "; ".join(f"{name} {group.sample(rows)}" for name, group in named.items())
            sentences.append(f"{_capital(words)}: {values}.")
        judged = [contrast for test, contrast in zip(tests, found, strict=True) if test.judged]
        if missing := [contrast.compared for contrast in judged if not contrast.holds]:
            sentences.append(f"{len(judged) - len(missing)} of {len(judged)} comparisons hold.")
            sentences.append(f"Not shown: {'; '.join(missing)}.")
        elif judged:
            sentences.append("Each comparison holds." if len(judged) > 1 else "The comparison holds.")
        if shown := [contrast.compared for contrast in others if contrast.holds]:
            sentences.append(f"Shown: {'; '.join(shown)}.")
        return sentences

    def _text(self, scale: Scale) -> str:
        parts = self.parts(scale)
        tests = [part for part in parts if not isinstance(part, Bound)]
        bounds = [part for part in parts if isinstance(part, Bound)]
        said = dict.fromkeys(
            f"{group.measure.words}{group.measure.note and f' ({group.measure.note})'}"
            for test in tests
            for group in test.groups
        )
        opening = ", ".join(filter(None, [f"by {_listed(list(said))}" if said else "", self.setting]))
        family = f" ({_counted(tests)})" if tests else ""
        judged = _listed(_clauses([test for test in tests if test.judged]))
        clauses = [*([f"{judged}{family}"] if judged else []), *(bound.text() for bound in bounds)]
        sentences = [f"{_capital(opening)}."] if opening else []
        sentences.append(f"{'By construction' if self.constructed else 'Supported'} if {_listed(clauses)}.")
        if unjudged := _listed(_clauses([test for test in tests if not test.judged])):
            of_all = f"In the correction, and not judged: {unjudged}" if judged else f"Not judged: {unjudged}{family}"
            sentences.append(f"{of_all}.")
        return " ".join([*sentences, *self._else(tests, bounds, self.against(scale))])

    def _else(self, tests: Sequence[Test], bounds: Sequence[Bound], against: Sequence[Test]) -> list[str]:
        """Returns when the claim is not supported, and when it is not tested."""
        judged = [test for test in tests if test.judged and not test.needed]
        ways = {test.refuted for test in judged}
        reasons = []
        if "reversed" in ways:
            reasons.append("one of these is shown the other way round, by the same tests with the other side")
        if "beyond" in ways:
            reasons.append("the 90 % interval of a difference lies beyond its margin")
        if any(bound.interval for bound in bounds):
            reasons.append("the interval lies outside as a whole")
        if against:
            reasons.append(f"one of these is shown: {_listed(_clauses(against))} ({_counted(against)})")
        rest = _clauses([test for test in judged if test.refuted == "not shown"])
        rest += [bound.text() for bound in bounds if bound.refutes and not bound.interval]
        is_open = bool(reasons) or not all(bound.refutes for bound in bounds)
        needs = [need.words for need in self.needs]
        needs += [f"this is not shown: {clause}" for clause in _clauses([test for test in tests if test.needed])]
        if rest and not is_open:
            return [*([f"Not tested if {', or if '.join(needs)}."] if needs else []), "Not supported otherwise."]
        reasons += [f"one of these is not shown: {_listed(rest)}"] if rest else []
        untested = ", or if ".join(["neither is so", *needs])
        return [f"Not supported if {', or if '.join(reasons)}.", f"Not tested if {untested}."]


def _clauses(tests: Sequence[Test]) -> list[str]:
    """Returns the tests in words, those together that differ in one group, or in where their groups are from.

    >>> ends = Measure(words="accuracy", values=lambda rows: [])
    >>> a, b, c = (Group(name, ends) for name in "abc")
    >>> _clauses([Compare(ours=one, is_="above", theirs=c, at=at) for at in ("here", "there") for one in (a, b)])
    ['each of a and b is above c, at each of here and there']
    """
    clauses = []
    for test in tests:
        where = f", where {test.where.words}" if test.where else ""
        if isinstance(test, Compare):
            clauses.append(_Clause((test.ours.name,), f" is {test.relation(test.is_)}", (test.at,), where))
        else:
            clauses.append(_Clause((test.words,), "", (test.at,), where))
    return [str(clause) for clause in _joined(_joined(clauses, "ours"), "places")]


class _Clause(NamedTuple):
    """Some of a rule's tests in words: each of our groups stands in a relation, at each of the places."""

    ours: tuple[str, ...]
    relation: str
    places: tuple[str, ...]
    where: str

    def __str__(self) -> str:
        names = list(dict.fromkeys(self.ours))
        name = f"each of {_listed(names)}" if len(names) > 1 else names[0]
        places = [place for place in dict.fromkeys(self.places) if place]
        at = f", {'at each of ' if len(places) > 1 else ''}{_listed(places)}" if places else ""
        return f"{name}{self.relation}{at}{self.where}"


def _joined(clauses: Sequence[_Clause], field: Literal["ours", "places"]) -> list[_Clause]:
    """Returns the clauses, of which those are one that differ in a field alone."""
    found: dict[tuple[Any, ...], list[_Clause]] = {}
    for clause in clauses:
        others = tuple(value for name, value in clause._asdict().items() if name != field)
        found.setdefault(others, []).append(clause)
    return [
        _Clause(**{**same[0]._asdict(), field: tuple(v for clause in same for v in getattr(clause, field))})
        for same in found.values()
    ]


def _counted(tests: Sequence[Test]) -> str:
    """Returns how many tests of which kind there are, and their correction."""
    kinds = list(dict.fromkeys(test.method for test in tests))
    numbers = [sum(test.method == kind for test in tests) for kind in kinds]
    counts = [f"{n} {kind if n == 1 else _plural(kind)}" for n, kind in zip(numbers, kinds, strict=True)]
    if len(tests) == 1:
        return f"{tests[0].method}, at {ALPHA:g}"
    return f"{' and '.join(counts)}, corrected together by Holm's method, at {ALPHA:g}"


def _plural(kind: str) -> str:
    return kind.replace("test", "tests", 1)


def _listed(texts: Sequence[str]) -> str:
    """Returns texts as one: with commas, or semicolons where they have commas, and "and" before the last.

    >>> _listed(["a", "b", "c"]), _listed(["a, b", "c"])
    ('a, b and c', 'a, b; and c')
    """
    if len(texts) < 2:
        return "".join(texts)
    mark = ";" if any("," in text for text in texts) else ","
    last = "; and " if mark == ";" else " and "
    return f"{f'{mark} '.join(texts[:-1])}{last}{texts[-1]}"


def _capital(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}"
