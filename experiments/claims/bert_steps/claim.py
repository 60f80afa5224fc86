"""BERT with Adam and LAMB: fewer steps, or a lower loss at the same batch, with Adasum of their deltas."""

import math
import statistics
from collections.abc import Mapping
from typing import Any, NamedTuple

from experiments.plots import drawing
from experiments.plots.drawing import Figure
from experiments.study import paper_table
from experiments.study import rows as ask
from experiments.study.findings import Finding, Quoted, Sample, Table
from experiments.study.paper_table import Cell
from experiments.study.prose import beside
from experiments.study.rule import (
    Compare,
    Group,
    Measure,
    Need,
    Rule,
)
from experiments.study.run import Row, Rows, Run, Scale
from experiments.study.tuning import Point, Score, Tuned

NAMES = {"lamb": "LAMB", "adam": "Adam"}
LABELS = {"mean": "alone", "adasum": "with Adasum", "deltas": "with the mean of deltas"}
METRIC = "masked_lm_loss"
MARGIN = 0.15  # nats: the loss that fewer steps may cost
FAILS_BY = 0.5  # nats: an optimizer fails at a batch that ends so far above the smallest
PAPER = {  # (optimizer, reducer, share of the steps) -> what the abstracts say of it
    ("lamb", "adasum", 0.8): Quoted("20 % fewer epochs at the same quality", "READ: abstract, MLSys"),
    ("lamb", "adasum", 0.7): Quoted("30 % fewer steps at the same quality", "READ: abstract, arXiv"),
    ("adam", "adasum", 1.0): Quoted("converges at 64K, where earlier work stops at 16K", "READ: abstract, arXiv"),
}
UNLEARNT = math.log(256)  # nats of a guess among all bytes, for a run that is not finite


class Case(NamedTuple):
    """One of the trainings that are compared."""

    optimizer: str
    reducer: str
    batch: int  # sequences of all workers
    share: float  # of all steps


class Setting(NamedTuple):
    """The training at a scale."""

    variant: str
    overrides: Mapping[str, Any]
    num_workers: int
    batches: Mapping[int, tuple[int, int]]  # sequences of all workers -> steps, micro-batches of a worker
    shares: Mapping[tuple[str, str], tuple[float, ...]]  # (optimizer, reducer) -> of the steps
    rates: Mapping[tuple[str, str], tuple[float, ...]]  # (optimizer, reducer) -> to be tried first


_BYTES = {
    "data.source": "pydoc",
    "data.tokenizer": "bytes",
    "data.sequence_length": 32,
    "task.max_predictions": 5,
    "model.width": 64,
    "model.num_heads": 2,
    "model.max_length": 32,
}
_LAMB = {("lamb", "mean"): (1.0, 0.8), ("lamb", "adasum"): (1.0, 0.8, 0.7), ("lamb", "deltas"): (1.0, 0.8)}
_ADAM = {("adam", "mean"): (1.0,), ("adam", "adasum"): (1.0,), ("adam", "deltas"): (1.0,)}
_ALONE_AND_ADASUM = {("adam", "mean"): (1.0,), ("adam", "adasum"): (1.0,)}
_ALL = {**_LAMB, **_ADAM}
_RATES = {
    ("lamb", "mean"): (1e-2, 2e-2, 4e-2),
    ("lamb", "adasum"): (5e-3, 1e-2, 2e-2),
    ("lamb", "deltas"): (1e-2, 2e-2, 4e-2),
    ("adam", "mean"): (2e-3, 4e-3, 8e-3),
    ("adam", "adasum"): (1e-3, 2e-3, 4e-3),
    ("adam", "deltas"): (2e-3, 4e-3, 8e-3),
}
_ONE = {kind: (6e-3,) if kind[0] == "lamb" else (2e-3,) for kind in _ALL}
_OF_PAPER = {kind: (3e-3, 6e-3, 1.2e-2) if kind[0] == "lamb" else (1e-4, 3e-4, 1e-3) for kind in _ALL}
SETTINGS: dict[Scale, Setting] = {
    "smoke": Setting(":laptop", {**_BYTES, "model.num_layers": 1}, 4, {16: (10, 1)}, _ALL, _ONE),
    "laptop": Setting(":laptop", {**_BYTES, "model.num_layers": 2}, 16, {64: (250, 1), 256: (250, 1)}, _ALL, _RATES),
    "gpu": Setting(
        ":laptop",
        {**_BYTES, "data.source": "classics_text", "model.width": 128, "model.num_layers": 4},
        32,
        {256: (4096, 1), 1024: (1024, 1), 4096: (256, 1), 16384: (64, 1)},  # a million sequences each
        _ALONE_AND_ADASUM,
        _RATES,
    ),
    "paper": Setting("", {}, 64, {65_536: (7038, 16)}, _ALL, _OF_PAPER),
}


def cases(scale: Scale) -> list[Case]:
    """Returns all trainings of a scale."""
    setting = SETTINGS[scale]
    return [
        Case(*kind, batch, share)
        for batch in setting.batches
        for kind in setting.shares
        for share in setting.shares[kind]
    ]


def _recipe(scale: Scale, *, optimizer: str, reducer: str, batch: int, share: float, rate: float) -> Run:
    setting = SETTINGS[scale]
    all_steps, parts = setting.batches[batch]
    steps = round(share * all_steps)
    overrides = {
        **setting.overrides,
        "num_workers": setting.num_workers,
        "batch_size_per_worker": batch // setting.num_workers,
        "accumulation.count": parts,
        "reducer.name": "adasum" if reducer == "adasum" else "mean",
        "reducer_on": "gradients" if reducer == "mean" else "updates",
        "optimizer.learning_rate": rate,
        "train_steps": steps,
        "log_every_steps": max(1, all_steps // 100),
        "eval_every_steps": max(1, all_steps // 10),
        "checkpoint_every_steps": steps if scale != "paper" else 200,
        "keep_checkpoints": 1,
    }
    spec = f"configs/bert_{optimizer}.py{setting.variant}"
    return Run(labels={}, spec=spec, overrides=overrides, cost=share * all_steps * (batch + 100))


def _longest(scale: Scale, point: Point) -> Point:
    """Returns the longest run of the same kind, whose rate a shorter one takes."""
    return {**point, "share": max(SETTINGS[scale].shares[point["optimizer"], point["reducer"]])}


TUNED = Tuned(
    points=lambda scale: [case._asdict() for case in cases(scale)],
    tuned_at=_longest,
    grid=lambda scale, point: SETTINGS[scale].rates[point["optimizer"], point["reducer"]],
    recipe=_recipe,
    seeds={"smoke": 1, "laptop": 6, "gpu": 3, "paper": 1},
    score=Score(METRIC, mode="min", digits=3, factor=1.0),
    tuning_seeds={"gpu": 1, "paper": 1},
)


def _finals(rows: Rows) -> dict[Case, list[Row]]:
    """Returns the reported rows of each case that has some."""
    return {Case(*point): same for point, same in TUNED.reported(rows).items()}


def _ends(found: Rows) -> list[float]:
    """Returns the loss at the end; a run that is not finite has learnt nothing."""
    ends = [ask.last(row, METRIC) for row in found]
    return [end if math.isfinite(end) else UNLEARNT for end in ends]


def _loss(found: Rows) -> Sample:
    return Sample.of(_ends(found), digits=3, unit="nats")


def _name(case: Case) -> str:
    steps = "" if case.share == 1 else f", {case.share:.0%} of the steps"
    return f"{NAMES[case.optimizer]} {LABELS[case.reducer]}, {case.batch:,} sequences{steps}"


def _findings(rows: Rows) -> list[Finding]:
    """Returns what fewer steps and other reducers cost, against the same optimizer alone with all steps."""
    finals, found = _finals(rows), []
    for case, own in finals.items():
        alone = finals.get(case._replace(reducer="mean", share=1.0))
        if alone and own is not alone:
            more = statistics.fmean(_ends(own)) - statistics.fmean(_ends(alone))
            quantity = f"{_name(case)}: above {NAMES[case.optimizer]} alone with all steps"
            found.append(Finding(quantity, ours=f"{more:+.3f} nats", paper=PAPER.get((*case[:2], case.share))))
    return found


def _paper_table(rows: Rows) -> Table:
    finals = _finals(rows)
    most = max((case.batch for case in finals), default=0)

    def ours(optimizer: str, reducer: str, share: float) -> str | None:
        found = finals.get(Case(optimizer, reducer, most, share))
        return f"{found[0]['step'][-1]:,} steps, {_loss(found)}" if found else None

    def line(*paper: str, marks: tuple[str, ...], value: str | None = None) -> list[Cell]:
        quoted = [Quoted(text, mark) if text else None for text, mark in zip(paper, marks, strict=True)]
        return [Cell(known, value if place == 0 else None) for place, known in enumerate(quoted)]

    high, low, vrgd = ("MEM-hi",) * 4, ("MEM-lo",) * 4, "READ: table 1 of VRGD's paper, citing"
    of_lamb, of_128k = ("MEM-hi",) * 3 + (vrgd,), ("MEM-hi", "MEM-hi", vrgd, vrgd)
    cells = {
        "LAMB, 64K / 32K": line("7,039", "1,563", "8,602", "90.58", marks=of_lamb, value=ours("lamb", "mean", 1.0)),
        "LAMB with Adasum, 20 % fewer": line(
            "5,639", "1,250", "6,889", "", marks=low, value=ours("lamb", "adasum", 0.8)
        ),
        "LAMB with Adasum, 30 % fewer": line(
            "5,039", "1,563", "6,602", "", marks=low, value=ours("lamb", "adasum", 0.7)
        ),
        "LAMB with Adasum, 128K / 32K": line("4,574", "1,563", "6,137", "90.50", marks=of_128k),
        "Adam, 64K": line("does not converge", "", "", "", marks=high, value=ours("adam", "mean", 1.0)),
        "Adam with Adasum, 64K / 32K": line(
            "7,039", "1,563", "8,602", "", marks=low, value=ours("adam", "adasum", 1.0)
        ),
    }
    note = (
        "The paper's are steps to an F1 of about 90.5 on SQuAD 1.1, ours end at the masked-LM loss that is given, with "
        f"{most:,} sequences a step."
    )
    return paper_table.table("Run", ["Phase 1", "Phase 2", "Both", "F1"], cells, note=note)


def _draw(rows: Rows, figure: Figure) -> None:
    finals, (along, ends) = _finals(rows), figure.subplots(1, 2, sharey=True)
    if not finals:
        return
    most = max(case.batch for case in finals)
    optimizer = "lamb" if any(case.optimizer == "lamb" for case in finals) else "adam"
    shown = [case for case in finals if (case.optimizer, case.batch) == (optimizer, most)]
    groups = {f"{LABELS[case.reducer]}, {case.share:.0%}": finals[case] for case in shown}
    drawing.curves(along, groups, along="step", of=METRIC)
    along.set_title(f"{NAMES[optimizer]}, {most:,} sequences", fontsize=9)
    along.set(xlabel="step", ylabel="masked-LM loss (nats)")
    for position, kind in enumerate(dict.fromkeys(case[:2] for case in finals)):
        same = {case.batch: _loss(found) for case, found in finals.items() if (*case[:2], 1.0) == (*kind, case.share)}
        label = f"{NAMES[kind[0]]} {LABELS[kind[1]]}"
        drawing.band(ends, list(same), list(same.values()), position=position, label=label)
    ends.set_title("all steps", fontsize=9)
    ends.set(xscale="log", xlabel="sequences a step")
    drawing.ticks(ends, {case.batch: f"{case.batch:,}" for case in finals})
    for axes in (along, ends):
        axes.legend(fontsize=7)


BITS = Measure(words="masked-LM loss on the test set at the end", values=_ends, unit="nats", digits=3)


def _of(case: Case) -> Group:
    return TUNED.group(_name(case), BITS, **case._asdict())


def _below(ours: Case, than: Case, *, by: float = 0.0) -> Compare:
    return Compare(ours=_of(ours), is_="below", theirs=_of(than), by=by)


def _parts(scale: Scale) -> list[Compare]:
    """Returns what must hold: at each batch for LAMB and for Adam; at scale gpu for Adam, most against fewest."""
    batches = list(SETTINGS[scale].batches)
    if scale == "gpu":
        few, many = (Case("adam", "mean", batch, 1.0) for batch in (batches[0], batches[-1]))
        adasum = many._replace(reducer="adasum")
        fails = Compare(ours=_of(many), is_="above", theirs=_of(few), by=FAILS_BY, needed=True)
        return [fails, _below(adasum, many), _below(adasum, few, by=FAILS_BY)]
    found = []
    for batch in batches:
        alone, adasum, deltas = (Case("adam", reducer, batch, 1.0) for reducer in LABELS)
        fewer, with_fewer, deltas_of_fewer = (Case("lamb", reducer, batch, 0.8) for reducer in LABELS)
        found.append(_below(with_fewer, fewer._replace(share=1.0), by=MARGIN))
        found += [_below(with_fewer, other) for other in (fewer, deltas_of_fewer)]
        found += [_below(adasum, other) for other in (alone, deltas)]
    return found


def _diverges(rows: Rows) -> str:
    lamb = [ask.last(row, METRIC) for row in TUNED.tests(rows, optimizer="lamb", reducer="mean")]
    return "" if all(map(math.isfinite, lamb)) else "LAMB alone diverges: there is nothing to be as good as."


RULE = Rule(
    needs=[Need("LAMB alone diverges", _diverges)],
    parts=_parts,
    other_scales=("gpu",),
    remark="A run with fewer steps has a schedule of that length. The scale gpu tests the last part of the claim "
    "alone.",
)
COLUMNS: Mapping[str, Any] = {
    "Steps": lambda same: f"{same[0]['step'][-1]:,}",
    "Masked-LM loss at the end": _loss,
}


EXPERIMENT = TUNED.experiment(
    prose=beside(__file__),
    rule=RULE,
    reworded=("19603686b7d8",),
    model="BERT",
    columns=COLUMNS,
    hours={"smoke": 0.1, "laptop": 2.7, "gpu": 0.5, "paper": 20000.0},
    findings=_findings,
    basis=lambda rows: TUNED.basis(rows, model="BERT")._replace(data="text"),
    enough=lambda rows: any("batch" in row for row in rows) and bool(_finals(rows)),
    paper_table=_paper_table,
    draw=_draw,
    inches=(7.0, 3.4),
)
