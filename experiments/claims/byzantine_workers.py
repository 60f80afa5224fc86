"""Each rule with two of nine workers that send garbage: on digits, each tuned, beside the mean without them."""

import statistics
from typing import Any

from experiments.plots import drawing
from experiments.plots.drawing import Figure
from experiments.study import paper_table
from experiments.study.comparison import Comparison
from experiments.study.experiment import Quoted, Rows, Scale, Table, Verdict, holds
from experiments.study.paper_table import Cell
from experiments.study.significance import holm, welch_against

WORKERS, CORRUPT = 9, [2, 5]
BROKEN = 10.0  # percentage points below the clean mean: more than that is a failure
MARGIN = 1.0  # percentage points that a robust rule may lose
LEARNED = 90.0  # % of test accuracy that the clean mean must end at, or there is nothing to be lost
CHANCE = 0.2  # validation accuracy: twice that of guessing one of ten digits
EPOCHS = {"smoke": 2, "laptop": 60}
CLEAN = "clean mean"
FAIL = ("mean", "adasum")
STAND = ("krum", "geometric_median", "coordinate_median", "trimmed_mean")
_TOLERATED = {"num_byzantine": len(CORRUPT)}
RULES: dict[str, dict[str, Any]] = {
    "mean": {},
    "adasum": {},
    "krum": _TOLERATED,
    "geometric_median": {},
    "coordinate_median": {},
    "trimmed_mean": {"num_trimmed": len(CORRUPT)},
    "multi_krum": _TOLERATED,
    "sign_majority": {},
    "adacons": {},
    "agreement_scaled_mean": {},
    "mgda": {},
    "pcgrad": {},
    "radial_directional": {},
    "upgrad": {},
}
_GARBAGE: dict[str, Any] = {"reducer.name": "corrupt", "reducer.workers": CORRUPT, "reducer.how": "garbage"}
METHODS: dict[str, dict[str, Any]] = {
    CLEAN: {"reducer.name": "mean"},
    **{name: {**_GARBAGE, "reducer.combine": {"name": name, **options}} for name, options in RULES.items()},
}
_KRUM, _YIN = "READ: abstract, arXiv 1703.02757", "READ: abstract, arXiv 1803.01498"
PAPER = {
    "mean": Quoted("no linear combination of the vectors tolerates a single Byzantine failure", _KRUM),
    "krum": Quoted("resilient, with as many workers as 2 f + 3 or more", "READ: arXiv 1703.02757"),
    "geometric_median": Quoted("more robust than averaging where much is corrupt", "READ: abstract, arXiv 1912.13445"),
    "coordinate_median": Quoted("provably robust; order-optimal error rates for strongly convex losses", _YIN),
    "trimmed_mean": Quoted("provably robust; order-optimal error rates for strongly convex losses", _YIN),
}


def _common(scale: Scale) -> dict[str, Any]:
    epochs = EPOCHS[scale]
    every = {f"{key}_every_epochs": epochs / 10 for key in ("log", "eval")}
    return {
        "data.name": "digits",
        "num_workers": WORKERS,
        "train_epochs": epochs,
        "checkpoint_every_epochs": epochs,
        **every,
    }


COMPARISON = Comparison(
    spec="configs/digits.py",
    methods=METHODS,
    common=_common,
    rates={"smoke": (0.03, 0.1), "laptop": (0.01, 0.02, 0.04, 0.08, 0.16, 0.32)},
    model=f"MLP of the config, {WORKERS} workers",
    target={"digits": 0.95},
    picked_by="end",
    seeds={"smoke": 1, "laptop": 5},
    floor=CHANCE,
)


def _judge(rows: Rows) -> Verdict:
    clean = COMPARISON.ends(rows, CLEAN)
    if not statistics.fmean(clean) > LEARNED:
        return Verdict.untested(f"The {CLEAN} learns little: it ends at {COMPARISON.accuracy(rows, CLEAN)}.")
    fail = [
        welch_against(
            COMPARISON.ends(rows, name),
            clean,
            by=-BROKEN,
            side="less",
            compared=f"{name} lower by over {BROKEN:g} points",
            unit="points",
        )
        for name in FAIL
    ]
    stand = [
        welch_against(
            COMPARISON.ends(rows, name),
            clean,
            by=-MARGIN,
            side="greater",
            compared=f"{name} within {MARGIN:g} point",
            unit="points",
        )
        for name in STAND
    ]
    found = holm([*fail, *stand])
    own = ", ".join(f"{name} {COMPARISON.accuracy(rows, name)}" for name in METHODS)
    parts = "; ".join(f"{contrast.compared}: {holds(contrast.holds)}" for contrast in found)
    return Verdict.of(all(c.holds for c in found), f"At the end: {own}. {parts}.", contrasts=found)


def _paper_table(rows: Rows) -> Table:
    """Returns what the sources say of each rule, which is without numbers, and our accuracies beside it."""
    cells = {
        method: [Cell(PAPER.get(method), str(COMPARISON.accuracy(rows, method)))]
        for method in METHODS
        if COMPARISON.final(rows, method)
    }
    return paper_table.table("Combined by", ["Test accuracy"], cells)


def _draw(rows: Rows, figure: "Figure") -> None:
    """Draws the accuracy of each seed at the end, by rule: all of the axis, and its upper end."""
    panels = figure.subplots(1, 2, sharey=True, width_ratios=(2, 3))
    names = [name for name in METHODS if COMPARISON.final(rows, name)]
    groups = {
        "not judged": ([name for name in names if name not in (*FAIL, *STAND)], drawing.REFERENCE["color"]),
        "should fail": (FAIL, drawing.COLOURS[1]),
        "should stand": (STAND, drawing.COLOURS[0]),
    }
    for axes in panels:
        for label, (members, colour) in groups.items():
            for i, name in enumerate(name for name in names if name in members):
                ends, place = COMPARISON.ends(rows, name), names.index(name)
                looks: dict[str, Any] = {"color": colour, "label": None if i else label}
                axes.plot(ends, [place] * len(ends), "o", markersize=5, alpha=0.5, markeredgewidth=0, **looks)
                axes.plot([statistics.fmean(ends)], [place], "|", color=colour, markersize=14, markeredgewidth=2)
        if clean := COMPARISON.ends(rows, CLEAN):
            middle = statistics.fmean(clean)
            axes.axvline(middle, **drawing.REFERENCE, label=CLEAN)
            axes.axvline(middle - MARGIN, linestyle=":", **drawing.REFERENCE, label=f"{CLEAN} less {MARGIN:g} point")
        axes.set(xlabel="test accuracy at the end (%)")
    panels[0].set(xlim=(-2, 102))
    panels[0].set_yticks(range(len(names)), names, fontsize=8)
    panels[0].invert_yaxis()
    panels[1].set(xlim=(91, 100))
    drawing.legend_below(figure, panels[1], columns=5)


EXPERIMENT = COMPARISON.experiment(
    number=25,
    title="Workers that send garbage",
    claim="Where two of nine workers send garbage, the mean and Adasum lose more than ten points of accuracy, and "
    "Krum, the geometric median, the coordinate-wise median and the trimmed mean end within a point of the mean "
    "without such workers.",
    source="arXiv 1703.02757, abstract, on linear combinations and Krum; arXiv 1803.01498, abstract, on median and "
    "trimmed mean; on Adasum and the geometric median ours; no numbers are known",
    rule=f"By test accuracy after the last step on digits, {COMPARISON.seeds['laptop']} seeds, {WORKERS} workers of "
    f"which {len(CORRUPT)} send garbage, each method at its own rate; an accuracy that is not finite counts as 0 %. "
    "Supported if the mean and Adasum each end below the mean without such workers by more than "
    f"{BROKEN:g} percentage points (two one-sided Welch tests), and if Krum, the geometric median, the coordinate-wise "
    f"median and the trimmed mean each end above it less {MARGIN:g} point (four one-sided Welch tests of "
    "non-inferiority), at alpha = 0.05 with Holm's correction for all six tests; not supported if one of them does "
    "not hold. The other rules are shown and not judged. Not tested if the mean without such workers ends below "
    f"{LEARNED:g} %.",
    hours={"smoke": 0.06, "laptop": 0.5},
    judge=_judge,
    paper_table=_paper_table,
    draw=_draw,
    inches=(7.5, 4.6),
    notes=(
        "The reducer is `corrupt` with `how='garbage'` around each rule: workers 2 and 5 send normal numbers times a "
        "million in place of their gradients, drawn anew in each step, but the same in all seeds. The clean mean is of "
        "nine workers without garbage, which is two gradients more than any rule here can use. Krum, multi-Krum and "
        "the trimmed mean are given the number of such workers, 2; the medians do not need it.",
        "Garbage of this size is the easy attack, because it is far away from all gradients. Copies of an honest "
        "gradient, flipped signs and NaN are in the tests of the rules, one step each, and were not trained with. "
        "Attacks that know the rule and hide within the spread of the gradients are in neither.",
        "Differs from the papers in: the task, digits with an MLP; all workers draw from the same data; SGD with "
        "momentum follows the rule.",
        "Digits are a small task of 360 test images, so that one image is 0.28 points. Each rate is picked on 143 "
        "images with three seeds. The tests compare seeds at the picked rates, and do not account for the uncertainty "
        "of the picks. A model of NaN is evaluated like one that always guesses the first class.",
        "Seen after the runs: the notes from before them said that no learning rate saves the mean. For this model "
        "that is not so. Garbage makes the weights grow, and the gradients of a network with ReLU grow with its "
        "weights. In the mean's run of seed 0 the workers' gradients have a norm of 5 to 7 million from step 120 on, "
        "and the mean, mostly garbage, one of 31 million. A likely reason for what is learnt: gradients point the "
        "same way in many steps, and garbage does not. The accuracy does not see the scale: the test loss of that run"
        " ends at 2e11. One run with a rate of 0.00001, which is not among those of this claim, ends near guessing.",
        "Seen after the runs: the low accuracy of `radial_directional` is due to its rates. All that were tried ended "
        "below 20 %, so that its grid did not go on. Its result points where most gradients point and is as long as "
        "the mean of their lengths, 44 million, which needs a far smaller rate. One run at 1e-9, which is not among "
        "those of this claim, ends at 97 % on the validation split. `adacons` ended near guessing at 0.001, 1.28 and "
        "10, too.",
        "Seen after the runs: Krum and the coordinate-wise median lose more than a point. No run says whether that is "
        "due to garbage, as no rule but the mean was run without it. Krum takes one gradient of 16 examples in each "
        "step; multi-Krum, which averages seven, ends near the clean mean. For the geometric median and the trimmed "
        "mean, five seeds show neither that they lose less than a point nor that they lose more.",
    ),
)
