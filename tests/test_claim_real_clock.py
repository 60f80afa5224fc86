"""The claim about the steps of real processes: what is predicted, the rule and the report."""

import pytest

from experiments.claims.real_clock import claim as real_clock

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


@pytest.mark.slow
def test_a_live_run_is_measured():
    pytest.importorskip("ray", reason="live runs need Ray: pip install -r requirements-live.txt")
    row = CLAIM.measure(required=2, delays="lognormal", workers=3, steps=10, data="digits", seed=0)
    assert row["step_seconds"] > row["arrival_seconds"][1] > 0.05
