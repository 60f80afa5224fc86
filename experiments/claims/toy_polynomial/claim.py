"""The toy polynomial of Horovod's guide, on the guide's own samples: the most steps that Adasum saves."""

from functools import partial
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp

from experiments.plots import drawing
from experiments.study import figures, frames, polynomials
from experiments.study.claim import Claim, Facts, Figure, Frame, Rows, Value, beside, repeated
from experiments.study.polynomials import NOT_STOPPED, RATES, REDUCERS, percent_fewer, samples_of_numpy, steps_to_stop
from experiments.study.verdict import Verdict, bound, decide

MAXIMA = (1, 2)  # of the samples
OWN = 0  # the seed that stands for the guide's own samples
LEAST, MOST = 45.0, 55.0  # % fewer steps that count as half
NUM_RATES = len(RATES)
GUIDES, OTHERS = "the guide's", "of other seeds"
PAPER = {(GUIDES, x_max): "up to 50 % [READ: Horovod's guide to Adasum]" for x_max in MAXIMA}


def _measure(*, x_max: float, seed: int) -> dict[str, Any]:
    """Counts the steps of both at all rates, on the samples of one pair of NumPy's seeds."""
    x, rates = samples_of_numpy(seed, x_max=x_max), jnp.array(RATES)
    steps = {name: jax.jit(partial(steps_to_stop, polynomial="square", reducer=name)) for name in REDUCERS}
    return {name: np.asarray(count(x, rates)).tolist() for name, count in steps.items()}


def savings(df: Frame) -> Frame:
    """Returns a line for each rate at which both stop, with Adasum's saving, the largest first."""
    lines = df.assign(rate=[RATES] * len(df)).explode(["rate", *REDUCERS])
    both = lines[(lines[[*REDUCERS]] < NOT_STOPPED).all(axis=1)]
    return both.assign(saved=percent_fewer(both["adasum"], than=both["mean"])).sort_values(["saved", "rate"])[::-1]


def frame(rows: Rows) -> Frame:
    """Returns the runs, with the origin of their samples and Adasum's largest saving at one rate."""
    df = frames.frame(rows)
    return df.assign(
        samples=np.where(df["seed"] == OWN, GUIDES, OTHERS),
        saved=savings(df).groupby(level=0)["saved"].first().astype(float),
    )


def verdict(df: Frame) -> Verdict:
    """Returns the verdict, by the rule of the prose."""
    most = df[df["seed"] == OWN]["saved"].max()
    words = "the largest saving of steps at one learning rate"
    return decide((), bound(words, most, least=LEAST, most=MOST, unit="%", digits=1))


def _facts(df: Frame) -> Facts:
    found: Facts = {}
    for run in df[df["seed"] == OWN].to_dict("records"):
        saved, where = savings(Frame([run])), f"x_max {run['x_max']}"
        most = [
            f"{line.saved:.1f} % (rate {line.rate:g}: {line.mean} steps with averaging, {line.adasum} with Adasum)"
            for line in saved.itertuples()
        ]
        largest, following = [*most, "none", "none"][:2]
        found[f"the largest saving, {where}"] = largest
        found[f"the next largest saving, {where}"] = following
        fewer = f"Adasum needs fewer steps at {(saved['saved'] > 0).sum()} of them"
        found[f"rates at which both stop, {where}"] = f"{len(saved)} of {NUM_RATES}; {fewer}"
        (mean, mean_rate), (adasum, adasum_rate) = (min(zip(run[name], RATES, strict=True)) for name in REDUCERS)
        each = f"({mean} steps at {mean_rate:g}, {adasum} at {adasum_rate:g})"
        found[f"each at its best rate, {where}"] = f"{percent_fewer(adasum, than=mean):.1f} % {each}"
    return found


def _draw(df: Frame, figure: Figure) -> None:
    own = df[df["seed"] == OWN].to_dict("records")
    panels = figure.subplots(1, len(MAXIMA), sharey=True)
    for at, run in zip(panels, own, strict=False):
        for position, reducer in enumerate(REDUCERS):
            look = drawing.look(position) | {"linestyle": "", "markersize": 3.5}
            at.plot(RATES, run[reducer], label=polynomials.LABELS[reducer], **look)
        for most in savings(Frame([run]))[:1].itertuples():
            at.plot([most.rate] * 2, [most.mean, most.adasum], color="#000000", linewidth=1)
            at.annotate(f"{most.saved:.0f} %", (most.rate, most.adasum), (6, -4), textcoords="offset points")
        stopped = np.min([run[reducer] for reducer in REDUCERS], axis=0) < NOT_STOPPED
        last = max(np.array(RATES)[stopped], default=1.0)
        xlim, ylim = (0, last + 0.1), (0, NOT_STOPPED + 5)
        figures.finish(at, legend=at is panels[0], xlabel="learning rate", xlim=xlim, ylim=ylim)
        at.set_title(f"x in [-{run['x_max']}, {run['x_max']}]")
    panels[0].set_ylabel("steps (100: did not stop)")


CLAIM = Claim(
    prose=beside(globals()),
    judge=verdict,
    hours={"smoke": 0.02, "laptop": 0.04},
    runs=repeated(lambda scale: [{"x_max": x_max} for x_max in MAXIMA], seeds={"smoke": 2, "laptop": 10}),
    measure=_measure,
    data="the guide's own samples",
    model="square polynomial",
    frame=frame,
    rests_on=lambda df: df[df["seed"] == OWN],
    labels=["samples", "x_max"],
    values={"most steps saved at one rate": Value("saved", 1, "%", is_fixed=True)},
    paper=PAPER,
    facts=_facts,
    draw=_draw,
    inches=(7.0, 3.2),
)
