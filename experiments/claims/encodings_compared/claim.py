"""Every encoding of gradients with and without error feedback: accuracy at the end, and bytes."""

from experiments.plots import drawing
from experiments.study import figures, frames
from experiments.study.claim import Facts, Figure, Frame, Value, beside
from experiments.study.encoded_runs import FULL, LEARNED, EncodedRuns
from experiments.study.tuning import RATE_AND_ACCURACY
from experiments.study.verdict import Verdict, compare, decide_both_ways, untested

MARGIN = 0.5  # percentage points: the least difference that matters
WITHOUT, WITH = "", " with feedback"
_EVERY = {"min_elements": 1}  # no leaf is too small
_ENCODINGS = {
    "quantised to 4 bits": {"name": "quantised", "bits": 4, **_EVERY},
    "dynamic_bits from 4 bits": {"name": "dynamic_bits", "start_bits": 4, **_EVERY},
    "sign": {"name": "sign", **_EVERY},
    "top_k of 1 %": {"name": "top_k", "ratio": 0.01, **_EVERY},
    "random_k of 1 %": {"name": "random_k", "ratio": 0.01, **_EVERY},
    "low_rank of 4": {"name": "low_rank", "rank": 4},
}
RUNS = EncodedRuns(
    {
        FULL: {"name": FULL},
        "half": {"name": "half"},
        **{
            name + word: {**block, "error_feedback": feedback}
            for name, block in _ENCODINGS.items()
            for word, feedback in ((WITHOUT, "off"), (WITH, "on"))
        },
    },
    rates=(0.03, 0.06, 0.12),
    other_rates={"random_k of 1 %": (0.25, 0.5, 1.0)},  # 1 % of its numbers are sent
)
BEHIND, LEVEL = (f"top_k of 1 %{word}" for word in (WITHOUT, WITH))
MARK = "[READ: the claim alone, no numbers]"


def verdict(df: Frame) -> Verdict:
    """Returns the verdict, by the rule of the prose."""
    ends = frames.groups(df, "encoding", "end")
    full = ends[FULL]
    if not full.mean() > LEARNED[df["scale"].iloc[0]]:
        return untested(f"With full gradients little is learnt: the runs end at {frames.text(full, 2, '%')}.")
    tests = [
        compare(ends, BEHIND, "below", FULL, -MARGIN),
        compare(ends, LEVEL, "above", FULL, -MARGIN),
    ]
    return decide_both_ways(tests)


def _facts(df: Frame) -> Facts:
    ends = frames.groups(df, "encoding", "end")
    added = {name: ends[name + WITH].mean() - ends[name].mean() for name in _ENCODINGS}
    words = "accuracy that feedback adds, points"
    return {f"{words}, {name} (not judged)": f"{points:+.2f}" for name, points in added.items()}


def _draw(df: Frame, figure: Figure) -> None:
    axes = figure.subplots()
    is_full = df["encoding"] == FULL
    figures.line(axes, df.loc[is_full, "end"].mean(), FULL)
    for name, same in df[~is_full].groupby("encoding", sort=False):
        method = name.removesuffix(WITH)
        look = drawing.look(["half", *_ENCODINGS].index(method)) | {"linestyle": "none", "markersize": 7}
        filled = "none" if name == method else "full"
        place, mean = same[["share", "end"]].mean()
        axes.plot([place], [mean], label=name, fillstyle=filled, **look)
        axes.errorbar([place], [mean], yerr=[same["end"].std()], color=look["color"], linewidth=1)
    axes.set(xlabel="bytes over those of full gradients", ylabel="test accuracy at the end (%)")
    figures.finish(axes, legend=False, xscale="log")
    drawing.legend_below(figure, axes)


CLAIM = RUNS.claim(
    prose=beside(globals()),
    judge=verdict,
    hours={"smoke": 0.15, "laptop": 0.5},
    values={
        **RATE_AND_ACCURACY,
        "MB sent by a worker": Value("sent", is_fixed=True),
        "bytes over full": Value("share", 3, is_fixed=True),
    },
    paper={BEHIND: f"falls behind {MARK}", LEVEL: f"does not fall behind {MARK}"},
    facts=_facts,
    draw=_draw,
    inches=(6.5, 3.4),
)
