"""The learning rate at 100 workers: runs, pick, target and verdict."""

import pytest

from experiments import report
from experiments.claims import rate_tradeoff as claim


def finals(factor, curve, *, spread=0.0002):
    return [
        {
            "base": 0.001,
            "factor": factor,
            "split": "test",
            "seed": seed,
            "data": "mnist",
            "accuracy": [value + (seed - 1) * spread for value in curve],
            "epoch": [1.0, 2.0, 3.0, 4.0],
        }
        for seed in range(3)
    ]


def outcome(**changes):
    curves = {
        0.25: [0.940, 0.970, 0.9705, 0.9705],
        0.5: [0.930, 0.960, 0.972, 0.973],
        1.0: [0.920, 0.950, 0.970, 0.978],
        2.0: [0.900, 0.940, 0.965, 0.9775],
    } | changes.get("curves", {})
    return [row for factor, curve in curves.items() for row in finals(factor, curve)]


def test_the_claims_outcome_supports_it():
    verdict = claim._judge(outcome())
    assert verdict.word == "supported"
    assert "ends at 97.05 ± 0.02 % (n=3), the best of the four rates, 1 of the linear rule's" in verdict.because
    assert "To 97.0 % it takes 2.3 ± 0.6 (n=3) epochs against 3.3 ± 0.6 (n=3)" in verdict.because


@pytest.mark.parametrize(
    "curves",
    [
        {0.25: [0.94, 0.96, 0.965, 0.9705]},  # no sooner at the target
        {0.25: [0.94, 0.97, 0.975, 0.9779]},  # lower by less than the noise
        {0.25: [0.94, 0.97, 0.975, 0.9800]},  # the best itself
    ],
)
def test_other_outcomes_do_not(curves):
    assert claim._judge(outcome(curves=curves)).word == "not supported"


@pytest.mark.parametrize("rows", [outcome()[:-1], outcome()[3:], []])
def test_nothing_is_said_where_runs_are_missing(rows):
    assert claim._judge(rows).word == "not tested at this scale"


def test_the_target_and_convergence():
    assert claim._target(outcome()) == 0.97  # the worst run gets to 0.9703
    assert claim._to_converge(finals(0.25, [0.9, 0.9694, 0.9700, 0.9701])).mean == 2.0


@pytest.mark.parametrize("scale", ["smoke", "laptop"])
def test_runs_come_in_two_stages_of_configs_that_load(scale):
    first = claim._runs(scale, [])
    assert {run.labels["split"] for run in first} == {"validation"} and len(first) == len(claim.BASES)
    rows = [{**run.labels, "accuracy": [1 - abs(run.labels["base"] - 0.002)]} for run in first]
    second = claim._runs(scale, rows)[len(first) :]
    assert {run.overrides["optimizer.learning_rate"] for run in second} == {0.0005, 0.001, 0.002, 0.004}
    assert len(second) == len(claim.FACTORS) * claim.SEEDS[scale]
    config = second[0].config
    assert (config["num_workers"], config["reducer"]["num_required"]) == (106, 100)
    assert config["learning_rate_scaling"] == "linear" and config["schedule"]["decay_factor"] == 0.94


def test_the_report_shows_all_rates():
    rows = outcome()
    origin = {"commit": "0" * 40, "tree": "clean", "jax": "0", "devices": ["cpu"], "wall_seconds": 1.0}
    text = report.section(claim.EXPERIMENT, [{**row, "origin": origin} for row in rows])
    assert text.count("[MEM med-hi]") == 4 and text.count("[DERIVED from MEM med-hi]") == 4
    levels, curves = report.draw(claim.EXPERIMENT, rows).axes
    assert list(levels.lines[0].get_xdata()) == list(claim.FACTORS) and len(curves.lines) == 5
