"""Synchronous against asynchronous: runs, pick, target and verdict."""

import pytest

from experiments import report
from experiments.claims import sync_async as claim


def finals(mode, num_workers, final, *, seconds_per_epoch=10.0, spread=0.0002, data="mnist"):
    curve = [final - 0.02, final - 0.004, final]
    return [
        {
            "mode": mode,
            "num_workers": num_workers,
            "rate": 0.005,
            "split": "test",
            "seed": seed,
            "data": data,
            "accuracy": [value + (seed - 1) * spread for value in curve],
            "epoch": [1.0, 2.0, 3.0],
            "simulated_seconds": [seconds_per_epoch * epoch for epoch in (1, 2, 3)],
        }
        for seed in range(3)
    ]


def outcome(synchronous, asynchronous, *, seconds=(10.0, 20.0)):
    return [
        row
        for n, accuracies in zip((53, 106, 212), zip(synchronous, asynchronous, strict=True), strict=True)
        for mode, final, per_epoch in zip(claim.MODES, accuracies, seconds, strict=True)
        for row in finals(mode, n, final, seconds_per_epoch=per_epoch)
    ]


SUPPORTING = outcome([0.98, 0.98, 0.979], [0.978, 0.976, 0.972])


def test_the_claims_outcome_supports_it():
    verdict = claim._judge(SUPPORTING)
    assert verdict.word == "supported" and "at 212 workers by +0.70 ± 0.02 points" in verdict.because


@pytest.mark.parametrize(
    "rows",
    [
        outcome([0.98, 0.98, 0.96], [0.978, 0.976, 0.972]),  # worse at 212
        outcome([0.98, 0.9761, 0.979], [0.978, 0.976, 0.972]),  # better at 106 by no more than the noise
        outcome([0.98, 0.98, 0.979], [0.96, 0.976, 0.972]),  # the gap narrows
        outcome([0.98, 0.98, 0.979], [0.978, 0.976, 0.972], seconds=(30.0, 10.0)),  # later
    ],
)
def test_other_outcomes_do_not(rows):
    assert claim._judge(rows).word == "not supported"


@pytest.mark.parametrize("rows", [SUPPORTING[:-1], SUPPORTING[:12], []])
def test_nothing_is_said_where_runs_are_missing(rows):
    assert claim._judge(rows).word == "not tested at this scale"


def test_the_target_is_what_all_runs_get_to():
    both = claim._finals(outcome([0.98] * 3, [0.9725] * 3))[106]
    assert claim._target(both) == 0.972  # the worst run of the worse mode gets to 0.9723
    assert claim._until(both["synchronous"], 0.972, along="epoch").mean == 2.0
    assert claim._until(both["asynchronous"], 0.972, along="simulated_seconds").mean == 60.0


@pytest.mark.parametrize("scale", ["smoke", "laptop"])
def test_runs_come_in_two_stages_of_configs_that_load(scale):
    first = claim._runs(scale, [])
    assert {run.labels["split"] for run in first} == {"validation"}
    rows = [{**run.labels, "accuracy": [0.5 + run.labels["rate"]]} for run in first]
    own = [row for row in rows if (row["mode"], row["num_workers"]) == ("asynchronous", first[0].labels["num_workers"])]
    assert len(claim._runs(scale, own)) == len(first) + claim.SEEDS[scale]
    second = claim._runs(scale, rows)[len(first) :]
    assert len(second) == len(claim.BACKUPS[scale]) * len(claim.MODES) * claim.SEEDS[scale]
    assert {run.labels["rate"] for run in second} == {max(claim._rates(scale, mode)) for mode in claim.MODES}
    for run in (first[0], second[0], second[-1]):
        config = run.config
        n = run.labels["num_workers"]
        assert (config["num_workers"], config["model"]["name"], config["batch_size_per_worker"]) == (n, "mlp", 32)
        assert config["server"]["name"] == run.labels["mode"] and config["arrivals"]["name"] == "paper_cluster"
        if run.labels["mode"] == "synchronous":
            assert config["reducer"]["num_required"] == n - claim.BACKUPS[scale][n]


def test_rates_of_asynchronous_workers_fall_with_their_number():
    runs = [
        run for run in claim._runs("laptop", []) if (run.labels["mode"], run.labels["rate"]) == ("asynchronous", 0.01)
    ]
    rates = {run.labels["num_workers"]: run.overrides["optimizer.learning_rate"] for run in runs}
    assert rates == pytest.approx({53: 0.01, 106: 0.005, 212: 0.0025})


def test_the_report_shows_both():
    origin = {"commit": "0" * 40, "tree": "clean", "jax": "0", "devices": ["cpu"], "wall_seconds": 1.0}
    text = report.section(claim.EXPERIMENT, [{**row, "origin": origin} for row in SUPPORTING])
    assert text.count("[MEM med]") == 3 and "simulated time to 97.1 %, 212 workers, synchronous" in text
    levels, curves = report.draw(claim.EXPERIMENT, SUPPORTING).axes
    assert [list(line.get_xdata()) for line in levels.lines] == [[53, 106, 212]] * 2 and len(curves.lines) == 6
