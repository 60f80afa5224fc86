"""The toy polynomial of Horovod's guide, on the guide's own samples: the most steps that Adasum saves."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import numpy as jnp

from experiments.plots import drawing
from experiments.plots.drawing import Figure
from experiments.study import paper_table
from experiments.study import rows as ask
from experiments.study.experiment import Experiment
from experiments.study.findings import Basis, Finding, Quoted, Sample, Table
from experiments.study.paper_table import Cell
from experiments.study.polynomials import (
    LABELS,
    NOT_STOPPED,
    RATES,
    REDUCERS,
    percent_fewer,
    samples_of_numpy,
    steps_to_stop,
)
from experiments.study.prose import beside
from experiments.study.rule import (
    Bound,
    Rule,
)
from experiments.study.run import Row, Rows, repeated

MAXIMA = (1, 2)  # of the samples
OWN = 0  # the seed that stands for the guide's own samples
HALF, NEAR = 50.0, 5.0  # % fewer steps; how near to half counts as half
PAPER = Quoted("up to 50 %", "READ: Horovod's guide to Adasum")


class Saving(NamedTuple):
    """Steps of both at one learning rate."""

    percent: float
    rate: float
    mean: int
    adasum: int

    def __str__(self) -> str:
        return f"{self.percent:.1f} % (rate {self.rate:g}: {self.mean} steps with averaging, {self.adasum} with Adasum)"


def _measure(*, x_max: float, seed: int) -> dict[str, Any]:
    """Counts the steps of both at all rates, on the samples of one pair of NumPy's seeds."""
    x, rates = samples_of_numpy(seed, x_max=x_max), jnp.array(RATES)

    def steps(reducer: str) -> list[int]:
        count = jax.jit(lambda x: steps_to_stop(x, rates, polynomial="square", reducer=reducer))
        return np.asarray(count(x)).tolist()

    return {reducer: steps(reducer) for reducer in REDUCERS}


def _savings(row: Row) -> list[Saving]:
    """Returns what Adasum saves at each rate at which both stop, the most first."""
    pairs = zip(RATES, row["mean"], row["adasum"], strict=True)
    both = [
        Saving(percent_fewer(adasum, than=mean), rate, mean, adasum)
        for rate, mean, adasum in pairs
        if max(mean, adasum) < NOT_STOPPED
    ]
    return sorted(both, reverse=True)


def _own(rows: Rows, x_max: float) -> Row:
    (row,) = ask.select(rows, x_max=x_max, seed=OWN)
    return row


def _least(row: Row, reducer: str) -> tuple[int, float]:
    """Returns the fewest steps at any rate, and that rate."""
    return min(zip(row[reducer], RATES, strict=True))


def _most(rows: Rows) -> Saving:
    """Returns the largest saving on the guide's own samples."""
    return max(saving for x_max in MAXIMA for saving in _savings(_own(rows, x_max))[:1])


def _findings(rows: Rows) -> list[Finding]:
    found = []
    for x_max in MAXIMA:
        own, where = _own(rows, x_max), f"x_max {x_max}"
        savings = _savings(own)
        fewer = sum(saving.percent > 0 for saving in savings)
        (mean, mean_rate), (adasum, adasum_rate) = (_least(own, reducer) for reducer in REDUCERS)
        at_best = Saving(percent_fewer(adasum, than=mean), adasum_rate, mean, adasum)
        found += [
            Finding(f"the next largest saving, {where}", ours=str(savings[1]) if len(savings) > 1 else "none"),
            Finding(
                f"rates at which both stop, {where}",
                ours=f"{len(savings)} of {len(RATES)}; Adasum needs fewer steps at {fewer} of them",
            ),
            Finding(
                f"each at its best rate, {where}",
                ours=f"{at_best.percent:.1f} % ({mean} steps at {mean_rate:g}, {adasum} at {adasum_rate:g})",
            ),
        ]
        others = [_savings(row) for row in ask.select(rows, x_max=x_max) if row["seed"] != OWN]
        if largest := [savings[0].percent for savings in others if savings]:
            quantity = f"most steps saved at one rate, {where}, on samples of other seeds"
            found.append(Finding(quantity, ours=Sample.of(largest, digits=1, unit="%")))
    return found


def _paper_table(rows: Rows) -> Table:
    cells = {}
    for x_max in MAXIMA:
        savings = _savings(_own(rows, x_max))
        cells[f"square, x_max {x_max}"] = [Cell(PAPER, str(savings[0]) if savings else "none")]
    note = "The guide gives one figure for the square polynomial, without x_max and rate."
    return paper_table.table("Problem", ["Fewer steps"], cells, note=note)


def _draw(rows: Rows, figure: Figure) -> None:
    panels: Sequence = figure.subplots(1, 2, sharey=True)
    for ax, x_max in zip(panels, MAXIMA, strict=True):
        own = _own(rows, x_max)
        for position, reducer in enumerate(REDUCERS):
            look = drawing.look(position) | {"linestyle": "", "markersize": 3.5}
            ax.plot(RATES, own[reducer], label=LABELS[reducer], **look)
        if savings := _savings(own):
            most = savings[0]
            ax.plot([most.rate] * 2, [most.mean, most.adasum], color="#000000", linewidth=1)
            ax.annotate(f"{most.percent:.0f} %", (most.rate, most.adasum), (6, -4), textcoords="offset points")
        pairs = [pair for reducer in REDUCERS for pair in zip(RATES, own[reducer], strict=True)]
        stopping = [rate for rate, steps in pairs if steps < NOT_STOPPED]
        ax.set(xlabel="learning rate", xlim=(0, max(stopping, default=1.0) + 0.1), ylim=(0, NOT_STOPPED + 5))
        ax.set_title(f"x in [-{x_max}, {x_max}]", fontsize=9)
    panels[0].set_ylabel("steps (100: did not stop)")
    panels[0].legend(fontsize=8, loc="lower left")


RULE = Rule(
    setting="on the samples of the guide's script (NumPy's seeds 1 and 2) with x_max of 1 or of 2, of the guide's 150 "
    "rates those at which both stop",
    parts=lambda scale: [
        Bound(
            words="the largest saving of steps at one learning rate",
            values=lambda rows: [_most(rows).percent],
            least=HALF - NEAR,
            most=HALF + NEAR,
            unit="%",
            digits=1,
        )
    ],
)


EXPERIMENT = Experiment(
    prose=beside(__file__),
    rule=RULE,
    reworded=("7b017fe0b3d1",),
    hours={"smoke": 0.02, "laptop": 0.04},
    runs=repeated(lambda scale: [{"x_max": x_max} for x_max in MAXIMA], seeds={"smoke": 2, "laptop": 10}),
    measure=_measure,
    findings=_findings,
    basis=lambda rows: Basis("the guide's own samples", "square polynomial", n=1),
    enough=lambda rows: all(
        any(set(REDUCERS) <= set(row) for row in ask.select(rows, x_max=x_max, seed=OWN)) for x_max in MAXIMA
    ),
    paper_table=_paper_table,
    draw=_draw,
    inches=(7.0, 3.2),
)
