"""BERT with Adam and LAMB: fewer steps, or a lower loss at the same batch, with Adasum of their deltas."""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from experiments.study import figures, frames
from experiments.study.claim import Facts, Figure, Frame, Rows, Run, Scale, Value, beside
from experiments.study.tuning import LEARNING_RATE, Score, Tuned
from experiments.study.verdict import UNTESTED, Test, Verdict, decide, holm, untested, welch

NAMES = {"lamb": "LAMB", "adam": "Adam"}
LABELS = {"mean": "alone", "adasum": "with Adasum", "deltas": "with the mean of deltas"}
METRIC = "masked_lm_loss"
MARGIN = 0.15  # nats: the loss that fewer steps may cost
FEWER = 0.8  # share of the steps
FAILS_BY = 0.5  # nats: an optimizer fails at a batch if it ends this far above the smallest batch
VRGD = "[READ: table 1 of VRGD's paper, citing]"
PAPER = {  # (optimizer, reducer, share of the steps) -> what the abstracts say of it
    ("lamb", "adasum", 0.8): "20 % fewer epochs at the same quality [READ: abstract, MLSys]",
    ("lamb", "adasum", 0.7): "30 % fewer steps at the same quality [READ: abstract, arXiv]",
    ("adam", "adasum", 1.0): "converges at 64K, where earlier work stops at 16K [READ: abstract, arXiv]",
}
STEPS_OF_PAPER = {  # the paper's runs -> ours that is like it, and the paper's steps to an F1 of about 90.5
    "LAMB, 64K / 32K": (("lamb", "mean", 1.0), f"7,039 + 1,563 = 8,602 [MEM-hi], F1 90.58 {VRGD}"),
    "LAMB with Adasum, 20 % fewer": (("lamb", "adasum", 0.8), "5,639 + 1,250 = 6,889 [MEM-lo]"),
    "LAMB with Adasum, 30 % fewer": (("lamb", "adasum", 0.7), "5,039 + 1,563 = 6,602 [MEM-lo]"),
    "LAMB with Adasum, 128K / 32K": (None, f"4,574 + 1,563 [MEM-hi] = 6,137, F1 90.50 {VRGD}"),
    "Adam, 64K": (("adam", "mean", 1.0), "does not converge [MEM-hi]"),
    "Adam with Adasum, 64K / 32K": (("adam", "adasum", 1.0), "7,039 + 1,563 = 8,602 [MEM-lo]"),
}
UNLEARNT = math.log(256)  # nats of a uniform guess, which stand for a run that is not finite


class Case(NamedTuple):
    """One of the trainings that are compared."""

    optimizer: str
    reducer: str
    batch: int  # sequences of all workers
    share: float  # share of all steps


class Setting(NamedTuple):
    """The training at a scale."""

    variant: str
    overrides: Mapping[str, Any]
    num_workers: int
    steps: Mapping[int, int]  # sequences of all workers -> steps
    kinds: Sequence[tuple[str, str, float]]  # optimizer, reducer, share of the steps
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
_ADAM = [("adam", reducer, 1.0) for reducer in LABELS]
_SHARES = {"mean": (1.0, FEWER), "adasum": (1.0, FEWER, 0.7), "deltas": (1.0, FEWER)}
_ALL = [*(("lamb", reducer, share) for reducer in LABELS for share in _SHARES[reducer]), *_ADAM]
_RATES = {
    ("lamb", "mean"): (1e-2, 2e-2, 4e-2),
    ("lamb", "adasum"): (5e-3, 1e-2, 2e-2),
    ("lamb", "deltas"): (1e-2, 2e-2, 4e-2),
    ("adam", "mean"): (2e-3, 4e-3, 8e-3),
    ("adam", "adasum"): (1e-3, 2e-3, 4e-3),
    ("adam", "deltas"): (2e-3, 4e-3, 8e-3),
}
_ONE = {kind: (6e-3,) if kind[0] == "lamb" else (2e-3,) for kind in _RATES}
_OF_PAPER = {kind: (3e-3, 6e-3, 1.2e-2) if kind[0] == "lamb" else (1e-4, 3e-4, 1e-3) for kind in _RATES}
_WIDE = {**_BYTES, "data.source": "classics_text", "model.width": 128, "model.num_layers": 4}
_MILLION = {256: 4096, 1024: 1024, 4096: 256, 16384: 64}  # steps of a million sequences
SETTINGS = {
    "smoke": Setting(":laptop", {**_BYTES, "model.num_layers": 1}, 4, {16: 10}, _ALL, _ONE),
    "laptop": Setting(":laptop", {**_BYTES, "model.num_layers": 2}, 16, {64: 250, 256: 250}, _ALL, _RATES),
    "gpu": Setting(":laptop", _WIDE, 32, _MILLION, _ADAM[:2], _RATES),
    "paper": Setting("", {"accumulation.count": 16}, 64, {65_536: 7038}, _ALL, _OF_PAPER),
}


def _points(scale: Scale) -> list[dict[str, Any]]:
    setting = SETTINGS[scale]
    cases = itertools.product(setting.steps, setting.kinds)
    return [Case(name, reducer, batch, share)._asdict() for batch, (name, reducer, share) in cases]


def _recipe(scale: Scale, *, optimizer: str, reducer: str, batch: int, share: float, rate: float) -> Run:
    setting = SETTINGS[scale]
    all_steps = setting.steps[batch]
    steps = round(share * all_steps)
    overrides = {
        "accumulation.count": 1,
        **setting.overrides,
        "num_workers": setting.num_workers,
        "batch_size_per_worker": batch // setting.num_workers,
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
    return Run(spec=spec, overrides=overrides)


TUNED = Tuned(
    points=_points,
    tuned_at=lambda scale, point: {**point, "share": 1.0},  # a shorter run takes the rate of the longest
    grid=lambda scale, point: SETTINGS[scale].rates[point["optimizer"], point["reducer"]],
    recipe=_recipe,
    seeds={"smoke": 1, "laptop": 6, "gpu": 3, "paper": 1},
    score=Score(METRIC, mode="min", digits=3),
    tuning_seeds={"gpu": 1, "paper": 1},
)


def frame(rows: Rows) -> Frame:
    """Returns the reported runs with their loss at the end, which is that of a guess if it is not finite."""
    df = TUNED.frame(rows)
    loss = frames.last(df, METRIC)
    return df.assign(
        nats=loss.where(np.isfinite(loss), UNLEARNT),
        is_finite=np.isfinite(loss),
        steps=frames.last(df, "step"),
        kind=df["optimizer"].map(NAMES) + " " + df["reducer"].map(LABELS),
        method=df["reducer"].map(LABELS) + ", " + df["share"].map("{:.0%}".format),
    )


def _name(case: Case) -> str:
    steps = "" if case.share == 1 else f", {case.share:.0%} of the steps"
    return f"{NAMES[case.optimizer]} {LABELS[case.reducer]}, {case.batch:,} sequences{steps}"


def verdict(df: Frame) -> Verdict:
    """Returns the verdict, by the rule of the prose: at scale gpu of Adam alone, with most sequences and fewest."""
    nats = frames.groups(df, list(Case._fields), "nats")

    def test(ours: Case, is_: Any, than: Case, by: float = 0.0) -> Test:
        return welch(_name(ours), nats[ours], is_, _name(than), nats[than], by=by, unit="nats", digits=3)

    is_lamb = (df["optimizer"] == "lamb") & (df["reducer"] == "mean")
    if not df.loc[is_lamb, "is_finite"].all():
        return untested("LAMB alone diverges: there is nothing to be as good as.")
    scale = df["scale"].iloc[0]
    batches = list(SETTINGS[scale].steps)
    if scale == "gpu":
        few = Case("adam", "mean", batches[0], 1.0)
        many = few._replace(batch=batches[-1])
        adasum = many._replace(reducer="adasum")
        tests = holm(
            test(many, "above", few, FAILS_BY), test(adasum, "below", many), test(adasum, "below", few, FAILS_BY)
        )
        found = decide(tests)
        return found if tests[0].holds else found._replace(word=UNTESTED)
    tests = []
    for batch in batches:
        alone, adasum, deltas = (Case("adam", reducer, batch, 1.0) for reducer in LABELS)
        fewer, with_fewer, deltas_of_fewer = (Case("lamb", reducer, batch, FEWER) for reducer in LABELS)
        tests += [
            test(with_fewer, "below", fewer._replace(share=1.0), MARGIN),
            test(with_fewer, "below", fewer),
            test(with_fewer, "below", deltas_of_fewer),
            test(adasum, "below", alone),
            test(adasum, "below", deltas),
        ]
    return decide(holm(*tests))


def _facts(df: Frame) -> Facts:
    """Returns the paper's steps beside our losses, and how far each case ends above its optimizer alone."""
    cells = {Case(*at): same for at, same in df.groupby(list(Case._fields), sort=False)}
    most = max(case.batch for case in cells)
    kinds = {(case.optimizer, case.reducer, case.share): same for case, same in cells.items() if case.batch == most}
    found: Facts = {}
    for name, (ours, theirs) in STEPS_OF_PAPER.items():
        shown = "not run"
        if ours in kinds:
            same = kinds[ours]
            shown = f"{same['steps'].iloc[0]:,.0f} steps, {frames.text(same['nats'], 3, 'nats')}"
        found[f"steps of both phases, {name}; ours with {most:,} sequences a step"] = (shown, theirs)
    for case, same in cells.items():
        alone = case._replace(reducer="mean", share=1.0)
        if case != alone:
            more = f"{same['nats'].mean() - cells[alone]['nats'].mean():+.3f} nats"
            words = f"{_name(case)}: above {NAMES[case.optimizer]} alone with all steps"
            paper = PAPER.get((case.optimizer, case.reducer, case.share))
            found[words] = (more, paper) if paper else more
    return found


def _draw(df: Frame, figure: Figure) -> None:
    along, ends = figure.subplots(1, 2, sharey=True)
    most = df["batch"].max()
    optimizer = "lamb" if (df["optimizer"] == "lamb").any() else "adam"
    shown = df[(df["optimizer"] == optimizer) & (df["batch"] == most)]
    title = f"{NAMES[optimizer]}, {most:,} sequences"
    figures.curves(
        along,
        shown,
        along="step",
        of=METRIC,
        by="method",
        xlabel="step",
        ylabel="test masked-LM loss (nats)",
        title=title,
    )
    whole = df[df["share"] == 1]
    figures.values(ends, whole, x="batch", y={"nats": ""}, by="kind", xscale="log")
    ends.set(xlabel="sequences a step", title="all steps")


CLAIM = TUNED.claim(
    prose=beside(globals()),
    judge=verdict,
    frame=frame,
    data="text",
    model="BERT",
    labels=Case._fields,
    values={
        **LEARNING_RATE,
        "steps": Value("steps", 0, is_fixed=True),
        "masked-LM loss at the end": Value("nats", 3, "nats"),
    },
    facts=_facts,
    hours={"smoke": 0.1, "laptop": 2.7, "gpu": 0.5, "paper": 20000.0},
    draw=_draw,
    inches=(7.0, 3.4),
)
