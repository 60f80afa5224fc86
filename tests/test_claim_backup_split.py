"""Backup workers among 100 machines: the runs, the fitted law and the verdict for each outcome of the rule."""

import numpy as np
import pytest

from experiments.claims.backup_split import claim as backup_split
from experiments.study import frames
from tests.claim_rows import HOLDS, UNTESTED, complete, reaching, whole_report

CLAIM = backup_split.CLAIM
SIZES = backup_split.SIZES["laptop"]
KNOWN = {50: 1.58, 60: 1.6, 70: 1.62, 80: 1.66, 90: 1.71, 94: 1.74, 96: 1.78, 98: 1.95, 100: 6.0}  # seconds of a step


def split_rows(*, spread=0.0):
    """Steps fall as a power of N that differs by a spread from seed to seed."""

    def measured(labels):
        n = labels["num_required"]
        exponent = 0.85 + spread * (labels["seed"] - 4.5)  # of ten seeds
        steps = 1000 * (n / 100) ** -exponent * (1 + 0.02 * labels["seed"])
        if labels["stage"] == "tuning":
            steps *= 1 + abs(np.log2(labels["rate"] / 0.28))
        return reaching(steps, seconds=np.interp(n, [*KNOWN], [*KNOWN.values()]), num_steps=4000)

    return complete(CLAIM, measured)


def test_the_interval_is_of_the_exponents_of_single_seeds():
    rows = split_rows(spread=0.05)
    by_seed = frames.by_seed(CLAIM.frame(rows), "num_required", "steps").to_numpy()
    slopes = [np.polyfit(np.log(SIZES), np.log(steps), 1)[0] for steps in by_seed]
    slope = np.polyfit(np.log(SIZES), np.log(np.mean(by_seed, 0)), 1)[0]
    wide = 2.2622 * np.std(slopes, ddof=1) / np.sqrt(10)  # Student's t with 9 degrees of freedom
    interval = f"{-slope:.2f} [{-slope - wide:.2f}, {-slope + wide:.2f}]"
    assert CLAIM.facts(CLAIM.frame(rows))["exponent of steps ~ N^-exponent"][0] == interval
    assert round(wide, 2) > 0


def test_the_split_is_planned_from_the_law_that_is_found_again():
    rows = split_rows()
    (plan,) = [run for run in CLAIM.runs("laptop", rows) if not run.spec]
    assert plan.labels["exponent"] == pytest.approx(0.85, abs=0.02)
    assert plan.labels["steps_of_all"] == pytest.approx(1000 * 1.09, rel=0.01)  # the mean over seeds
    assert CLAIM.verdict(rows).word == UNTESTED and "stage=plan" in CLAIM.verdict(rows).because
    assert "| best split" not in whole_report(CLAIM, rows)
    row = CLAIM.measure(stage="plan", late_workers="finish", exponent=0.85, steps_of_all=1000.0)
    assert 88 <= row["best"] <= 92  # 95 if late workers were interrupted
    step = np.array(row["planned_step_seconds"])
    target = np.array(row["planned_target_seconds"])
    np.testing.assert_allclose(target, step * 1000 * (np.arange(1, 101) / 100) ** -0.85, rtol=1e-3)
    planned = [*rows, {"run": plan.name, **plan.labels, **row}]
    assert CLAIM.verdict(planned).word == HOLDS
    text = whole_report(CLAIM, planned)
    assert "96 + 4 [READ-2nd]" in text and f"{row['best']} + {100 - row['best']}" in text
