"""The cost of staleness: test error against how many updates late each gradient is, with and without a ramp-up."""

import itertools
from typing import Any

from experiments.plots import drawing
from experiments.study import datasets, figures, frames
from experiments.study.claim import Claim, Facts, Figure, Frame, Rows, Run, Scale, Value, beside, evaluations_of
from experiments.study.verdict import Verdict, bound, decide, holm, trend, untested, welch

RAMP, ABRUPT = "ramp-up", "abrupt"
STARTS = {RAMP: "ramped up over 3/4 of the run", ABRUPT: "from the first update on"}
PAPER = {0: "0.36 %", 20: "0.47 %", 50: "0.79 %"}  # test error; at which rate is not known
FAILS = "fails to converge from about 15 on"  # without a ramp-up
LEARNED = 20.0  # % of test error
FAILED = 50.0  # % of test error


# Staleness in updates. Each value runs with each peak learning rate, and each but 0 with both starts.
STALENESS = {"smoke": (0, 2, 4), "laptop": (0, 10, 20, 50), "gpu": (0, 20, 50)}
RATES = {"smoke": (0.02,), "laptop": (0.0025, 0.005, 0.01, 0.02, 0.04), "gpu": (0.005, 0.01, 0.02)}
UPDATES = {"smoke": 20, "laptop": 1875, "gpu": 9375}  # each of 32 examples
SEEDS = {"smoke": 1, "laptop": 5, "gpu": 5}


def _runs(scale: Scale, rows: Rows) -> list[Run]:
    del rows
    data, staleness, updates = datasets.image_set(scale), STALENESS[scale], UPDATES[scale]
    common = {
        **data,
        "batch_size_per_worker": 32,
        "optimizer.momentum": 0.0,
        "schedule.name": "cosine_decay_schedule",
        "reducer.name": "stale",
        "train_steps": updates,
        "eval_every_steps": -(-updates // 2),
        "checkpoint_every_steps": updates,
        "data.evaluate_on": "test",
    }
    cases = [(level, RAMP) for level in staleness] + [(level, ABRUPT) for level in staleness if level]
    found = []
    for seed, rate, (level, start) in itertools.product(range(SEEDS[scale]), RATES[scale], cases):
        own = {
            "optimizer.learning_rate": rate,
            "reducer.delay_steps": level,
            "reducer.ramp_up_steps": 3 * updates // 4 if start == RAMP else 0,
            "seed": seed,
        }
        labels = {"staleness": level, "start": start, "rate": rate, "seed": seed, "data": data["data.name"]}
        run = Run(labels=labels, spec="configs/mnist_cnn.py", overrides=common | own, flags={"num_devices": 1})
        found.append(run)
    return found


def frame(rows: Rows) -> Frame:
    """Returns the runs, with their test error in percent after the last update."""
    df = frames.frame(rows)
    return df.assign(error=100 * (1 - frames.last(df, "accuracy")))


def verdict(df: Frame) -> Verdict:
    """Returns the verdict, by the rule of the prose."""
    error = frames.groups(df, ["rate", "start", "staleness"], "error")
    levels = sorted(df.loc[df["start"] == RAMP, "staleness"].unique())
    rates = sorted(df["rate"].unique())
    counting = [rate for rate in rates if error[rate, RAMP, 0].mean(skipna=False) <= LEARNED]
    if not counting:
        return untested(f"Without staleness, too, the test error is above {LEARNED:g} % at every rate.")

    grows, means, differences = [], [], []
    for rate in counting:
        by_level = frames.by_seed(df[(df["rate"] == rate) & (df["start"] == RAMP)], "staleness", "error")
        words = "the error with the ramp-up grows with staleness"
        grows.append(trend(words, by_level, unit="points", at=f"rate {rate:g}"))
        for level in filter(None, levels):
            abrupt, ramped = error[rate, ABRUPT, level], error[rate, RAMP, level]
            means.append((abrupt.mean(), ramped.mean()))
            at = f"staleness {level}, rate {rate:g}"
            differences.append(welch("abrupt", abrupt, "against", "ramped", ramped, unit="points", at=at))
    shown = holm(*differences)
    if missing := [test.missing for test in shown if test.missing]:
        return untested(f"{missing[0]}.")
    differ = [both for both, test in zip(means, shown, strict=True) if test.holds]
    rescued = sum(abrupt > FAILED >= ramped for abrupt, ramped in differ)
    harmed = sum(ramped > FAILED >= abrupt for abrupt, ramped in differ)
    words = (
        f"the number of cells whose mean error is above {FAILED:g} % without the ramp-up and not with it, and differs "
        "by Welch's two-sided t-test, corrected by Holm's method over all cells,"
    )
    return decide(
        holm(*grows),
        bound(words, rescued, least=1, digits=0),
        bound("the number of cells the other way round", harmed, most=0, digits=0),
        shown=shown,
    )


def _facts(df: Frame) -> Facts:
    """Returns the errors of each case at two rates: the best one without staleness, and the case's own best."""
    means = df.groupby(["start", "staleness", "rate"])["error"].mean().unstack()
    error = frames.groups(df, ["start", "staleness", "rate"], "error")
    fresh, found = means.loc[RAMP, 0].idxmin(), Facts()
    for (start, staleness), rate in means.sort_index(ascending=[False, True]).idxmin(axis=1).items():
        case = f"staleness {staleness}" + (f" {STARTS[start]}" if staleness else "")
        first, lowest = (frames.text(error[start, staleness, at], unit="%") for at in (fresh, rate))
        paper = PAPER.get(staleness) if start == RAMP else FAILS if staleness >= 15 else None
        words = f"test error at the rate {fresh:g}, the best without staleness, {case}"
        found[words] = (first, f"{paper} [MEM med]") if paper else first
        found[f"lowest test error of the rates, {case}"] = f"{lowest}, at {rate:g}"
    return found


def _draw(df: Frame, figure: Figure) -> None:
    panels = figure.subplots(1, 2, sharey=True)
    order = sorted(df["staleness"].unique())
    looks: Any = {"xlabel": "peak learning rate", "xscale": "log", "yscale": "log", "legend": False}
    for axes, (start, title) in zip(panels, STARTS.items(), strict=True):
        part = df[(df["start"] == start) | (df["staleness"] == 0)]
        y = {"error": ""}
        figures.values(axes, part, x="rate", y=y, by="staleness", order=order, title=title, **looks)
        drawing.percent_ticks(axes)
    panels[0].set_ylabel("test error (%)")
    panels[0].legend(title="staleness")


CLAIM = Claim(
    prose=beside(globals()),
    judge=verdict,
    hours={"smoke": 0.03, "laptop": 2.0, "gpu": 0.4},
    runs=_runs,
    reduce=evaluations_of("step", "epoch", "accuracy"),  # not the staleness of the records, which is a label
    frame=frame,
    model="small CNN",
    labels=["staleness", "start", "rate"],
    values={"test error": Value("error", unit="%")},
    facts=_facts,
    draw=_draw,
    inches=(8.0, 3.4),
)
