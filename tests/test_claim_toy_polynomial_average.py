"""The claim about the toy polynomial, averaged over random samples."""

import numpy as np
import pytest

from experiments.claims import toy_polynomial_average
from experiments.claims.toy_polynomial_average import PROBLEMS
from experiments.study.polynomials import NOT_STOPPED, RATES
from tests.claim_rows import FAILS, HOLDS, UNTESTED, whole_report

CLAIM = toy_polynomial_average.EXPERIMENT


def test_the_polynomial_is_measured_at_every_rate():
    row = CLAIM.measure(polynomial="square", x_max=1.0, num_draws=4, seed=0)
    assert set(row) == {f"{reducer}_{what}" for reducer in ("mean", "adasum") for what in ("steps", "stopped")}
    assert {len(values) for values in row.values()} == {len(RATES)}
    assert all(2 < steps <= NOT_STOPPED for steps in row["adasum_steps"])


def polynomial_rows(mean, adasum, *, spread=0.1, stopped=(1.0, 1.0)):
    """Rows whose best rate is RATES[3] for both; elsewhere nothing stops."""
    rows = []
    for name, x_max in PROBLEMS:
        for seed in range(4):
            row = {"polynomial": name, "x_max": x_max, "seed": seed}
            for reducer, steps, share in zip(("mean", "adasum"), (mean, adasum), stopped, strict=True):
                values, shares = np.full(len(RATES), 100.0), np.zeros(len(RATES))
                values[3] = steps + spread * seed * (reducer == "adasum")
                shares[3] = share
                row[f"{reducer}_steps"], row[f"{reducer}_stopped"] = values.tolist(), shares.tolist()
            rows.append(row)
    return rows


@pytest.mark.parametrize(
    ("rows", "word"),
    [
        (polynomial_rows(40, 20), HOLDS),
        (polynomial_rows(40, 39), HOLDS),
        (polynomial_rows(40, 30, spread=20), FAILS),  # within the spread of the seeds
        (polynomial_rows(20, 40), FAILS),
        (polynomial_rows(40, 35, stopped=(0.8, 1.0)), FAILS),  # averaging pays for runs that do not stop alone
    ],
)
def test_the_average(rows, word):
    verdict = CLAIM.judge(rows)
    assert verdict.word == word and len(verdict.contrasts) == 4
    assert all(contrast.corrected for contrast in verdict.contrasts)
    assert len(CLAIM.table(rows).cells) == 2 * len(PROBLEMS)
    assert "n = 3" in whole_report(CLAIM, rows)


def test_one_problem_is_not_enough():
    rows = polynomial_rows(40, 20)
    for row in rows:
        if (row["polynomial"], row["x_max"]) == ("square", 2):
            row["mean_steps"], row["adasum_steps"] = row["adasum_steps"], row["mean_steps"]
    assert CLAIM.judge(rows).word == FAILS
    assert CLAIM.verdict([row for row in rows if row["polynomial"] == "square"]).word == UNTESTED


def test_the_seed_that_picks_is_not_reported():
    rows = polynomial_rows(40, 20)
    for row in rows:
        if row["seed"] == 0:
            row["adasum_steps"][3] = 1.0
    fewer = CLAIM.findings(rows)[0].ours
    assert fewer.n == 3 and 49 < fewer.mean < 51
