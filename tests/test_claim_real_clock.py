"""The claim about the steps of real processes: what is predicted, the rule and the report."""

import pytest

from experiments.claims import real_clock
from experiments.study import report
from experiments.study.significance import TooFewRuns
from tests.claim_rows import FAILS, HOLDS, UNTESTED, whole_report

CLAIM = real_clock.EXPERIMENT
ARRIVALS = [0.10, 0.15, 0.20, 0.25, 0.30, 0.36, 0.45, 0.70]
OWN = 0.02


def rows(*, seeds=5, noise=0.01, **late):
    """Runs of which those that wait for N take so many times the predicted time as ``late`` says of "nN"."""
    found = []
    for run in CLAIM.runs("laptop", []):
        labels = run.labels
        wobble = 1 + noise * (labels["seed"] - 2)
        required = labels["required"]
        if labels["delays"] == "none":
            measured = {"step_seconds": 0.03 + OWN, "arrival_seconds": [0.03] * 8}
        else:
            arrived = [seconds if k < required else None for k, seconds in enumerate(ARRIVALS)]
            step = (ARRIVALS[required - 1] + OWN) * wobble * late.get(f"n{required}", 1.0)
            measured = {"step_seconds": step, "arrival_seconds": arrived}
        if labels["seed"] < seeds:
            found.append({"run": run.name, **labels, **measured})
    return found


def test_the_prediction_is_of_the_run_that_waits_for_all():
    assert real_clock.predicted(rows(), 4) == pytest.approx(dict.fromkeys(range(5), 0.25 + OWN))
    assert real_clock.measured(rows(noise=0.0, n4=1.5), 4) == pytest.approx(dict.fromkeys(range(5), 1.5 * (0.25 + OWN)))


@pytest.mark.parametrize(
    ("changes", "word", "held"),
    [
        ({}, HOLDS, 5),
        ({"n5": 1.05}, HOLDS, 5),
        ({"n4": 1.3}, FAILS, 4),
        ({"n4": 0.7}, FAILS, 4),
        ({"noise": 0.2}, FAILS, 0),  # too noisy to show anything
        ({"n4": 1.09, "n5": 1.09, "n6": 1.09, "n7": 1.09, "n8": 1.09, "noise": 0.02}, FAILS, 0),  # too near the margin
    ],
)
def test_every_n_decides(changes, word, held):
    verdict = CLAIM.verdict(rows(**changes))
    assert verdict.word == word and CLAIM.basis(rows()).n == 5
    assert sum(contrast.holds for contrast in verdict.contrasts) == held


def test_the_best_n_decides_too(monkeypatch):
    assert real_clock.best({4: 0.27, 5: 0.32, 6: 0.38, 7: 0.47, 8: 0.72}) == 5  # 0.0831, 0.0815, 0.0829, 0.0899, 0.123
    monkeypatch.setattr(real_clock, "MARGIN", 10.0)
    assert CLAIM.verdict(rows(n4=3.0, n5=3.0, n6=3.0)).word == FAILS


def test_missing_runs_are_told():
    found = rows()
    assert CLAIM.verdict(found[:-1]).word == UNTESTED
    assert CLAIM.verdict([]).word == UNTESTED
    with pytest.raises(TooFewRuns):
        CLAIM.judge(rows(seeds=1))


def test_the_report():
    text = whole_report(CLAIM, rows())
    assert "N = 4" in text and CLAIM.claim in text
    (axes,) = report.draw(CLAIM, rows()).axes
    assert len(axes.lines) == 2


@pytest.mark.slow
def test_a_live_run_is_measured():
    pytest.importorskip("ray", reason="live runs need Ray: pip install -r requirements-live.txt")
    row = CLAIM.measure(required=2, delays="lognormal", workers=3, steps=10, data="digits", seed=0)
    assert row["step_seconds"] > row["arrival_seconds"][1] > 0.05
