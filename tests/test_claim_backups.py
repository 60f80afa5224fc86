"""Claims about backup workers: how many of 100 machines, and with Adasum."""

import numpy as np
import pytest

from experiments import datasets
from experiments.claims import backup_adasum, backup_split
from tests.claim_rows import told

SPLIT, BOTH = backup_split.EXPERIMENT, backup_adasum.EXPERIMENT


def curve(*, reaches_at, step_seconds, accuracy=0.98, num_steps=300):
    """A run that is at an accuracy from a step on, and far below it before."""
    steps = list(range(10, num_steps + 1, 10))
    return {
        "step": steps,
        "accuracy": [accuracy if step >= reaches_at else 0.3 for step in steps],
        "simulated_seconds": [step * step_seconds for step in steps],
    }


@pytest.fixture
def mnist(monkeypatch):
    monkeypatch.setattr(datasets, "image_set", lambda scale: {"data.name": "mnist" if scale == "laptop" else "digits"})


# ---- how many of 100 -----------------------------------------------------------------------------------------------

SECONDS = {50: 1.58, 60: 1.6, 70: 1.62, 80: 1.66, 90: 1.71, 94: 1.74, 96: 1.78, 98: 1.95, 100: 6.0}


def split_rows(*, exponent=0.85, seconds=SECONDS, accuracy=0.98):
    """Final runs whose steps fall as a power of N; steps are evaluated to tens."""
    rows = []
    for n, step_seconds in seconds.items():
        for seed in range(3):
            tells = {"stage": "final", "data": "mnist", "num_required": n, "rate": 0.004, "seed": seed}
            reaches_at = 1000 * (n / 100) ** -exponent
            rows.append(
                tells | curve(reaches_at=reaches_at, step_seconds=step_seconds, accuracy=accuracy, num_steps=2500)
            )
    return rows


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({}, "supported"),
        ({"exponent": 0.3}, "not supported"),  # steps hardly fall
        ({"seconds": SECONDS | {100: 1.98}}, "not supported"),  # nothing sharp near 100
        ({"seconds": SECONDS | {n: 3.0 for n in (90, 94, 96, 98)}}, "not supported"),  # steps are long before
        ({"exponent": 1.2}, "supported"),
        ({"accuracy": 0.94}, "not tested at this scale"),
    ],
)
def test_the_split_decides(changes, word):
    assert SPLIT.judge(split_rows(**changes)).word == word


def test_many_backups_as_the_best_split_refute():
    memoryless = {n: float(-np.log(1 - (n - 0.5) / 100)) for n in SECONDS}
    verdict = SPLIT.judge(split_rows(seconds=memoryless))
    assert (verdict.word, "50 + 50" in verdict.because or "60 + 40" in verdict.because) == ("not supported", True)


def test_nothing_is_judged_before_the_reported_runs():
    assert SPLIT.judge(
        [{"stage": "tuning", "data": "mnist", "rate": 0.1} | curve(reaches_at=9, step_seconds=1)]
    ).word == ("not tested at this scale")


def test_the_law_is_found_again():
    exponent, steps = backup_split._law(split_rows(exponent=0.85))
    assert exponent == pytest.approx(0.85, abs=0.02)
    assert steps == pytest.approx(1000, rel=0.01)


def test_the_split_is_planned_by_the_planner():
    row = backup_split._measure(stage="plan", exponent=0.85, steps_of_all=1000.0)
    assert 92 <= row["best"] <= 98
    step, target = np.array(row["planned_step_seconds"]), np.array(row["planned_target_seconds"])
    np.testing.assert_allclose(target, step * 1000 * (np.arange(1, 101) / 100) ** -0.85, rtol=1e-3)
    rows = [*split_rows(), {"stage": "plan", "exponent": 0.85, "steps_of_all": 1000.0} | row]
    text = told(SPLIT, rows)
    assert "96 + 4 [READ-2nd]" in text
    assert f"{row['best']} + {100 - row['best']}" in text


def test_the_split_is_told_without_its_plan():
    assert "not planned yet" in told(SPLIT, split_rows())
    assert "Not all runs reach" in told(SPLIT, split_rows(accuracy=0.5))


@pytest.mark.parametrize("scale", ["smoke", "laptop"])
def test_runs_of_the_split_come_in_stages(mnist, scale):
    tuning = SPLIT.runs(scale, [])
    assert {run.config["data"]["evaluate_on"] for run in tuning} == {"validation"}
    rates = backup_split.RATES[scale]
    rows = [
        run.labels | curve(reaches_at=50 if run.labels["rate"] == rates[-1] else 90, step_seconds=1) for run in tuning
    ]
    assert SPLIT.runs(scale, rows[:-1]) != SPLIT.runs(scale, rows)  # all must be there
    final = SPLIT.runs(scale, rows)[len(tuning) :]
    assert {run.labels["rate"] for run in final} == {rates[-1]}
    configs = [run.config for run in final[::3]]
    assert {config["data"]["evaluate_on"] for config in configs} == {"test"}
    assert {config["num_workers"] for config in configs} == {100}
    rows += [
        run.labels | curve(reaches_at=2e4 / run.labels["num_required"], step_seconds=1, num_steps=500) for run in final
    ]
    (plan,) = SPLIT.runs(scale, rows)[len(tuning) + len(final) :]
    assert plan.labels["exponent"] == pytest.approx(1, abs=0.05)
    rows[-1]["accuracy"] = [0.1] * len(rows[-1]["accuracy"])
    assert len(SPLIT.runs(scale, rows)) == len(tuning) + len(final)  # no law without all of them


# ---- with Adasum ---------------------------------------------------------------------------------------------------


def both_rows(**changes):
    """Final runs of three seeds: method -> steps to the target, seconds of a step; a list tells each seed's steps."""
    found = {"mean": (100, 3), "adasum": (80, 3), "backup": (100, 1.7), "backup_adasum": (80, 1.7), "async": (200, 0.1)}
    rows = []
    for method, (steps, seconds) in (found | changes).items():
        for seed in range(3):
            tells = {"stage": "final", "data": "mnist", "method": method, "rate": 0.1, "seed": seed}
            reaches_at = steps[seed] if isinstance(steps, list) else steps
            rows.append(tells | curve(reaches_at=reaches_at, step_seconds=seconds))
    return rows


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({}, "supported"),
        ({"backup": (80, 1.7)}, "not supported"),  # Adasum adds nothing
        ({"adasum": (40, 3)}, "not supported"),  # backups add nothing
        ({"backup_adasum": ([80, 80, 110], 1.7)}, "not supported"),  # not in every seed
        ({"async": (20, 0.1)}, "supported"),  # of which the claim says nothing
        ({"adasum": (9999, 3)}, "not tested at this scale"),
    ],
)
def test_both_together_decide(changes, word):
    assert BOTH.judge(both_rows(**changes)).word == word


def test_both_together_are_told():
    text = told(BOTH, both_rows(adasum=(9999, 3)))
    assert "0 of 3 runs get there" in text
    assert "136 ± 0 s (n=3)" in text  # 80 steps of 1.7 s


@pytest.mark.parametrize("scale", ["smoke", "laptop"])
def test_runs_of_each_method_come_in_stages(mnist, scale):
    tuning = BOTH.runs(scale, [])
    assert {run.labels["stage"] for run in tuning} == {"tuning"}
    rates = backup_adasum.COMPARISON.rates[scale]
    assert len(tuning) == 5 * len(rates)  # the same grid for each method
    rows = [
        run.labels | curve(reaches_at=50 if run.labels["rate"] == rates[-1] else 90, step_seconds=1) for run in tuning
    ]
    final = [run for run in BOTH.runs(scale, rows) if run.labels["stage"] == "final"]
    assert {run.labels["rate"] for run in final} == {rates[-1]}
    assert len(final) == 5 * (1 if scale == "smoke" else 3)
    configs = {run.labels["method"]: run.config for run in final}
    assert configs["backup_adasum"]["reducer"]["combine"] == "adasum"
    assert configs["backup"]["reducer"]["combine"] == "mean"
    assert configs["async"]["server"]["name"] == "asynchronous"
    assert {config["data"]["evaluate_on"] for config in configs.values()} == {"test"}
    assert {config["arrivals"]["name"] for config in configs.values()} == {"paper_cluster"}


def test_a_method_that_never_gets_there_is_tuned_by_its_accuracy():
    rows = [
        {"data": "mnist", "rate": rate} | curve(reaches_at=50, step_seconds=1, accuracy=accuracy)
        for rate, accuracy in ((0.1, 0.6), (0.2, 0.9), (0.4, float("nan")))
    ]
    tuning = [{"stage": "tuning", "method": "mean", **row} for row in rows]
    assert backup_adasum.COMPARISON.picked(tuning, "mean") == 0.2
    assert backup_split._fastest(rows) == 0.2
