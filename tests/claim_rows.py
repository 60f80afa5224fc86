"""A claim that is made up, and rows of runs that never ran, for tests of claims."""

import dataclasses

from experiments.study import frames, report
from experiments.study.claim import Claim
from experiments.study.frames import Value
from experiments.study.prose import Prose
from experiments.study.verdict import Verdict

HOLDS, FAILS, UNTESTED = "supported at this scale", "not supported at this scale", "not tested"
BUILT = "by construction"
ORIGIN = {"commit": "0" * 40, "tree": "clean", "jax": "0", "devices": ["cpu"], "wall_seconds": 1.0}


def made_up(tuned=None, **declared):
    """Returns a claim that holds, of runs that are ``tuned``; ``declared`` is what else it has."""
    parts = {
        "prose": Prose(99, "Made up", "Runs end well.", "nowhere", "Adasum", [], "Supported if they do."),
        "judge": lambda df: Verdict(HOLDS, "As made up."),
        "hours": {"smoke": 0.01, "laptop": 0.01},
        "model": "MLP",
        "labels": ["data"],
        "values": {"accuracy at the end": Value("end", 2, "%")},
        "draw": lambda df, figure: figure.subplots().plot(df["end"]),
    }
    if tuned:
        parts |= {"tuned": tuned, "runs": tuned.runs, "frame": lambda rows: _ending(tuned.tests(rows))}
    return Claim(**parts | declared)


def _ending(rows):
    df = frames.frame(rows, "data", "accuracy")
    return df.assign(end=frames.accuracy(df))


def under(claim, rule):
    """Returns the claim with another text of its rule."""
    return dataclasses.replace(claim, prose=claim.prose._replace(rule=rule))


def rows_of(runs, measured, *, scale="laptop"):
    """Returns the rows of runs of train.py, where ``measured(labels)`` gives what each one measures."""
    origin = {**ORIGIN, "scale": scale}
    return [{"run": run.name, **measured(run.labels), **run.labels, "origin": origin} for run in runs if run.spec]


def complete(claim, measured, *, scale="laptop"):
    """Returns the rows of all runs, in as many stages as the claim has."""
    rows = []
    while len(found := rows_of(claim.runs(scale, rows), measured, scale=scale)) > len(rows):
        rows = found
    return rows


def anything(labels=None, *, end=0.98):
    """Returns a measurement with every quantity that some claim needs, which ends at this accuracy."""
    steps = range(1, 7)
    losses = [2 - end + 3 * 0.5**step for step in steps]
    return {
        "step": [10 * step for step in steps],
        "epoch": [5.0 * step for step in steps],
        "simulated_seconds": [20.0 * step for step in steps],
        "wall_seconds": [21.0 * step for step in steps],
        "accuracy": [end * (1 - 0.5**step) for step in steps[:-1]] + [end],
        "bits_per_dim": losses,
        "masked_lm_loss": losses,
        "loss": losses,
        "sent_bytes": [1e6 * step for step in steps],
        "staleness_mean": 7.0,
        "staleness_max": 12.0,
        "bytes_per_worker": 1e6,
        "examples_per_second": 1e3,
        "gradient_seconds": 1e-3,
        "examples": [320 * step for step in steps],
        "updates": [10.0 * step for step in steps],
        "length": 1.0,
        "length_of_mean": 0.5,
        "cosine": 0.1,
    }


def whole_report(claim, rows):
    """Draws the figure and returns the section."""
    report.draw(claim, rows)
    return report.section(claim, [{**row, "origin": ORIGIN} for row in rows], figure="figure.png")


def reaching(at, *, seconds, accuracy=0.98, num_steps=300):
    """A run that is at an accuracy from a step on, and far below it before."""
    steps = range(10, num_steps + 1, 10)
    return {
        "step": list(steps),
        "accuracy": [accuracy if step >= at else 0.3 for step in steps],
        "simulated_seconds": [step * seconds for step in steps],
    }


def without(rows, count=1, **labels):
    """Rows but for so many of those with these labels."""
    gone = [row for row in rows if labels.items() <= row.items()][:count]
    assert len(gone) == count
    return [row for row in rows if row not in gone]
