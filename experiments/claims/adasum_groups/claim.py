"""Adasum layer by layer or of the whole model, of all workers or of groups of them: on digits, each tuned."""

from experiments.study import datasets, frames
from experiments.study.claim import Frame, beside
from experiments.study.race import Race
from experiments.study.verdict import Verdict, compare, decide, equivalent, holm, untested

WORKERS, GROUP = 24, 3  # eight groups
MARGIN = 0.5  # percentage points of accuracy, the least difference that matters
LEARNED = 90.0  # % of test accuracy
LAYER, MODEL, MEANS, TREES, MEAN = "layer", "model", "mean in groups", "adasum in groups", "mean"
_GROUPS = {"reducer.name": "adasum", "reducer.group_size": GROUP}
RACE = Race(
    spec="configs/digits.py",
    methods={
        LAYER: {"reducer.name": "adasum"},
        MODEL: {"reducer.name": "adasum", "reducer.granularity": "model"},
        MEANS: {**_GROUPS, "reducer.within": "mean"},
        TREES: {**_GROUPS, "reducer.within": "adasum"},
        MEAN: {"reducer.name": "mean"},
    },
    common=lambda scale: {**datasets.digits(scale), "num_workers": WORKERS, "batch_size_per_worker": 8},
    rates={"smoke": (0.03, 0.1), "laptop": (0.01, 0.02, 0.04, 0.08, 0.16, 0.32)},
    model="MLP of the config, 24 workers",
    target={"digits": 0.975},
    picked_by="end",
    seeds={"smoke": 1, "laptop": 20},
    drawn_below=3.0,
)


def verdict(df: Frame) -> Verdict:
    """Returns the verdict, by the rule of the prose."""
    ends = frames.groups(df, "method", "end")
    if not ends[MEAN].mean() > LEARNED:
        return untested(f"{MEAN} learns little: it ends at {frames.text(ends[MEAN], 2, '%')}.")
    *judged, gain = holm(
        compare(ends, LAYER, "above", MODEL),
        equivalent(MEANS, ends[MEANS], LAYER, ends[LAYER], margin=MARGIN, unit="points"),
        equivalent(TREES, ends[TREES], LAYER, ends[LAYER], margin=MARGIN, unit="points"),
        compare(ends, LAYER, "above", MEAN),
    )
    return decide([*judged, gain], judged=judged)


CLAIM = RACE.claim(
    prose=beside(globals()),
    judge=verdict,
    hours={"smoke": 0.06, "laptop": 0.6},
    paper={
        LAYER: "used: layers differ in how orthogonal their gradients are [READ: MindSpore's tutorial]",
        MEANS: "from 8 nodes up, loss of the benefit insignificant [READ: Horovod's guide]",
        TREES: "benefit identical [READ: Horovod's guide, ring mode]",
    },
)
