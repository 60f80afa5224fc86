"""Networks with and without scale invariance over scales of parameters and loss, by four optimizers."""

import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp

from experiments.claims.scale_invariance.training import ADAM, BATCHES, CLIP, OPTIMIZERS, end_losses, task
from experiments.plots import drawing
from experiments.plots.drawing import Figure
from experiments.study import paper_table
from experiments.study import rows as ask
from experiments.study.experiment import Experiment
from experiments.study.findings import Basis, Finding, Quoted, Sample, Table
from experiments.study.paper_table import Cell
from experiments.study.prose import beside
from experiments.study.rule import Compare, Group, Measure, Need, Rule
from experiments.study.run import Row, Rows, Run, Scale
from models.fields import ScaleInvariant
from reducers.dtypes import mixing_dtypes

PAIRS = tuple(itertools.product((0.01, 1.0, 100.0), repeat=2))  # scales of the parameters and of the loss
PLAIN = PAIRS.index((1.0, 1.0))
LEARNED = 0.7  # of the loss of a uniform guess
FORMS: Mapping[ScaleInvariant, str] = {"on": "invariant", "off": "ordinary"}
RATES = {
    name: tuple(float(f"{rate:.3g}") for rate in np.logspace(*((-3.5, -1) if name == ADAM else (-1.5, 1)), 6))
    for name in OPTIMIZERS
}
STEPS: dict[Scale, int] = {"smoke": 10, "laptop": 250}
TUNING, REPORTED = "validation", "test"
TUNING_SEEDS: dict[Scale, int] = {"smoke": 1, "laptop": 3}
SEEDS: dict[Scale, int] = {"smoke": 2, "laptop": 5}


def _measure(*, network: str, form: ScaleInvariant, split: str, steps: int, seed: int, **at: int) -> dict[str, Any]:
    """Returns the loss of a uniform guess, and each optimizer's losses at the end; None is not finite."""
    of = task(network, form, split=split)
    if split == TUNING:
        lanes: list[tuple[float, ...]] = [
            (which, rate, 1.0, 1.0) for which, name in enumerate(OPTIMIZERS) for rate in RATES[name]
        ]
    else:
        rates = [RATES[name][at[place_of(name)]] for name in OPTIMIZERS]
        lanes = [(which, rate, *pair) for which, rate in enumerate(rates) for pair in PAIRS]
    with jax.numpy_rank_promotion("allow"):
        losses = mixing_dtypes(end_losses)(
            jnp.array(lanes, jnp.float32),
            jax.random.key(seed),
            of.train,
            of.held_out,
            model=of.model,
            pattern=of.kernels,
            steps=steps,
            batch=BATCHES[network],
        )
    ends = [float(loss) if math.isfinite(loss) else None for loss in losses.tolist()]
    own = len(lanes) // len(OPTIMIZERS)
    return {"guess": math.log(of.num_classes)} | {
        name: ends[own * which : own * (which + 1)] for which, name in enumerate(OPTIMIZERS)
    }


# ---- runs --------------------------------------------------------------------------------------------------------


def place_of(optimizer: str) -> str:
    """Returns the label of an optimizer's rate: its place in its list."""
    return f"{optimizer}_at"


def picks(rows: Rows, network: str, form: str) -> dict[str, int]:
    """Returns the place of each optimizer's best rate, by the mean over the tuning runs."""
    tried = ask.select(rows, network=network, form=form, split=TUNING)
    return {name: int(np.argmin(np.mean([counted(row, name) for row in tried], axis=0))) for name in OPTIMIZERS}


def _runs(scale: Scale, rows: Rows) -> list[Run]:
    """Returns the tuning runs, and the reported runs of each network whose tuning runs are finished."""
    tuning, reported = [], []
    for network, form in itertools.product(BATCHES, FORMS):
        labels = {"network": network, "form": form, "steps": STEPS[scale]}
        seeds = TUNING_SEEDS[scale]
        tuning += [Run(labels={**labels, "split": TUNING, "seed": seed}) for seed in range(seeds)]
        if len(ask.select(rows, network=network, form=form, split=TUNING)) < seeds:
            continue
        at = {place_of(name): place for name, place in picks(rows, network, form).items()}
        final = {**labels, "split": REPORTED, **at}
        reported += [Run(labels={**final, "seed": seed}) for seed in range(seeds, seeds + SEEDS[scale])]
    return tuning + reported


def _tests(rows: Rows, **labels: Any) -> list[Row]:
    return sorted(ask.select(rows, split=REPORTED, **labels), key=lambda row: row["seed"])


# ---- results -----------------------------------------------------------------------------------------------------


def counted(row: Row, optimizer: str) -> list[float]:
    """Returns a run's losses, of which none counts as more than a uniform guess.

    >>> counted({"guess": 2.0, "adam": [1.0, 3.0, None]}, "adam")
    [1.0, 2.0, 2.0]
    """
    return [row["guess"] if loss is None else min(loss, row["guess"]) for loss in row[optimizer]]


def spreads(rows: Rows, optimizer: str) -> list[float]:
    """Returns the largest loss less the smallest of each run."""
    return [max(losses) - min(losses) for losses in (counted(row, optimizer) for row in rows)]


def _complete(rows: Rows) -> bool:
    return all(_tests(rows, network=network, form=form) for network, form in itertools.product(BATCHES, FORMS))


def _findings(rows: Rows) -> list[Finding]:
    cases: Sequence[tuple[ScaleInvariant, str]] = (("on", CLIP), ("on", ADAM), ("off", CLIP))
    return [
        Finding(
            f"spread of the {network}'s losses, {FORMS[form]}, {OPTIMIZERS[name]}",
            ours=Sample.of(spreads(_tests(rows, network=network, form=form), name), digits=3, unit="nats"),
        )
        for network, (form, name) in itertools.product(BATCHES, cases)
    ]


def _at(rows: Rows, optimizer: str, pair: int) -> Sample:
    return Sample.of([counted(row, optimizer)[pair] for row in rows], digits=3)


def _table(rows: Rows) -> Table:
    cells = []
    for network, form, name in itertools.product(BATCHES, FORMS, OPTIMIZERS):
        if not (same := _tests(rows, network=network, form=form)):
            continue
        place, rates = same[0][place_of(name)], RATES[name]
        edge = " (edge)" if place in (0, len(rates) - 1) else ""
        losses = np.array([counted(row, name) for row in same])
        lost = sum(loss >= row["guess"] for row in same for loss in counted(row, name))
        cells.append(
            [
                network,
                FORMS[form],
                OPTIMIZERS[name],
                f"{rates[place]:g}{edge}",
                str(_at(same, name, PLAIN)),
                *(str(Sample.of(end.tolist(), digits=3)) for end in (losses.min(axis=1), losses.max(axis=1))),
                str(Sample.of(spreads(same, name), digits=3)),
                f"{lost} of {losses.size}",
            ]
        )
    header = ["Network", "Form", "Kernels by", "Rate", "Loss at scales of 1", "Least", "Largest", "Spread"]
    return Table([*header, "As bad as a guess"], cells, "Losses are on the test split, in nats.")


def _paper_table(rows: Rows) -> Table:
    ours = {
        "Adam, ordinary network": ("off", ADAM, "1.479"),
        "SGD with decay, invariant network": ("on", "sgd_decay", "1.672"),
        "with clipping": ("on", CLIP, "1.580"),
        "with clipping, twice as long": ("on", "", "1.495"),
    }
    cells = {}
    for method, (form, name, quoted) in ours.items():
        same = _tests(rows, network="transformer", form=form)
        cells[method] = [Cell(Quoted(quoted, "READ"), _at(same, name, PLAIN) if name and same else None)]
    note = "The paper's is the loss of BERT base; ours the transformer's at scales of 1: their order compares alone."
    return paper_table.table("Method", ["Loss"], cells, note=note)


def _draw(rows: Rows, figure: Figure) -> None:
    panels = figure.subplots(1, len(BATCHES))
    cases: list[tuple[ScaleInvariant, str]] = [*(("on", name) for name in OPTIMIZERS), ("off", CLIP)]
    for axes, network in zip(panels, BATCHES, strict=True):
        for position, (form, name) in enumerate(cases):
            same = _tests(rows, network=network, form=form)
            label = f"{OPTIMIZERS[name]}, {FORMS[form]}"
            drawing.band(
                axes, range(len(PAIRS)), [_at(same, name, i) for i in range(len(PAIRS))], position=position, label=label
            )
        axes.set_xticks(range(len(PAIRS)), [f"{c:g}\n{s:g}" for c, s in PAIRS], fontsize=7)
        axes.set(xlabel="scale of the parameters, and of the loss", title=network, ylabel="test loss (nats)")
    drawing.legend_below(figure, panels[0], columns=3)


# ---- the rule ----------------------------------------------------------------------------------------------------


def _spread(network: str, form: ScaleInvariant, optimizer: str, *, times: float = 1) -> Group:
    measure = Measure(
        words="the spread of losses over the nine pairs of scales",
        values=lambda rows: [times * spread for spread in spreads(rows, optimizer)],
        unit="nats",
        digits=3,
    )
    name = f"{OPTIMIZERS[optimizer]} of the {FORMS[form]} network"
    pick = functools.partial(_tests, network=network, form=form)
    return Group(f"ten times {name}" if times != 1 else name, measure, pick)


def _learns_little(rows: Rows) -> str:
    for network, form in itertools.product(BATCHES, FORMS):
        same = _tests(rows, network=network, form=form)
        if np.mean([counted(row, CLIP)[PLAIN] / row["guess"] for row in same]) >= LEARNED:
            return f"The {FORMS[form]} {network} learns little: it ends at {_at(same, CLIP, PLAIN)}."
    return ""


def _parts(scale: Scale) -> Sequence[Compare]:
    del scale
    parts = []
    for network in BATCHES:
        ours = _spread(network, "on", CLIP)
        tenfold, others = _spread(network, "on", CLIP, times=10), _spread(network, "off", CLIP)
        options: dict[str, Any] = {"paired": True, "at": network, "refuted": "reversed"}
        parts.append(Compare(ours=ours, is_="below", theirs=_spread(network, "on", ADAM), **options))
        parts.append(Compare(ours=others, is_="above", theirs=tenfold, **options))
    return parts


RULE = Rule(
    setting="on the test split, where a loss counts as at most that of a uniform guess",
    needs=[Need(f"a network with clipping ends above {LEARNED} of a uniform guess at scales of 1", _learns_little)],
    parts=_parts,
)


EXPERIMENT = Experiment(
    prose=beside(__file__),
    rule=RULE,
    selection="The rate of each optimizer and network: the least loss at scales of 1 on the validation split, mean of "
    "three seeds that are not reported, out of six rates at equal distances on a logarithmic scale, "
    f"{RATES[ADAM][0]:g} to {RATES[ADAM][-1]:g} for Adam and {RATES[CLIP][0]:g} to {RATES[CLIP][-1]:g} for the others.",
    hours={"smoke": 0.1, "laptop": 0.25},
    runs=_runs,
    measure=_measure,
    findings=_findings,
    basis=lambda rows: Basis(
        "Python's own reference, digits", "transformer, CNN", n=len(ask.distinct(_tests(rows), "seed"))
    ),
    enough=_complete,
    table=_table,
    paper_table=_paper_table,
    draw=_draw,
    inches=(9.0, 4.0),
)
