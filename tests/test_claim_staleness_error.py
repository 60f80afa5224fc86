"""Staleness against test error: the map of runs, and the verdict for each outcome of each part of the rule."""

import pytest

from experiments.claims import staleness_error
from experiments.study import report
from tests.claim_rows import FAILS, HOLDS, UNTESTED, complete, some_runs, whole_report, without

CLAIM = staleness_error.EXPERIMENT
RATES = staleness_error.MAPS["laptop"].rates
ERRORS = {0: 1.0, 10: 1.1, 20: 1.3, 50: 1.9}  # with the ramp-up
AT_ONCE = {10: 1.2, 20: 1.4, 50: 2.0}
LOST = 90.2


def stale_rows(ramped=None, abrupt=None, *, scale="laptop"):
    """Test errors in percent of all seeds by (rate, staleness); at 0.04 training at once with staleness 50 fails."""
    ramped, abrupt = ramped or {}, {(0.04, 50): LOST} | (abrupt or {})

    def measured(labels):
        cell = labels["rate"], labels["staleness"]
        is_ramped = labels["start"] == "ramp-up"
        error = ramped.get(cell, ERRORS[cell[1]]) if is_ramped else abrupt.get(cell, AT_ONCE.get(cell[1]))
        return {"accuracy": [0.1, 1 - (error + 0.02 * labels["seed"]) / 100], "step": [1, 2], "epoch": [0.5, 1.0]}

    return complete(CLAIM, measured, scale=scale)


@pytest.mark.parametrize("scale", list(CLAIM.hours))
def test_configs_are_what_the_labels_say(scale):
    for run in some_runs(CLAIM, scale):
        config = run.config
        assert config["reducer"]["delay_steps"] == run.labels["staleness"] and config["train_epochs"] is None
        assert (config["reducer"]["ramp_up_steps"] > 0) == (run.labels["start"] == "ramp-up")
        assert config["optimizer"]["learning_rate"] == run.labels["rate"] and config["seed"] == run.labels["seed"]
        assert config["schedule"]["name"] == "cosine_decay_schedule" and config["data"]["evaluate_on"] == "test"


def test_the_map_has_all_rates_both_starts_and_five_seeds():
    cells = {
        tuple(run.labels[key] for key in ("staleness", "start", "rate", "seed")) for run in CLAIM.runs("laptop", [])
    }
    assert len(cells) == (4 + 3) * len(RATES) * 5 and (0, "abrupt", RATES[0], 0) not in cells


@pytest.mark.parametrize(
    ("ramped", "abrupt", "word", "part"),
    [
        ({}, {}, HOLDS, "5 of 5 learning rates (holds)"),
        ({(0.01, 20): 0.9, (0.01, 50): 0.8}, {}, FAILS, "4 of 5 learning rates (fails)"),  # falls at one rate
        ({}, {(0.04, 50): 2.0}, FAILS, "in 0 of 15 cells, and the other way round in 0 (fails)"),  # nothing to rescue
        ({(0.04, 50): LOST}, {}, FAILS, "in 0 of 15"),  # the ramp-up does not help
        ({(0.02, 50): LOST}, {}, FAILS, "the other way round in 1 (staleness 50, rate 0.02)"),  # it does harm
        ({(0.04, 0): LOST}, {}, FAILS, "in 0 of 12 cells"),  # a rate at which nothing is learned does not count
        ({(rate, 0): LOST for rate in RATES}, {}, UNTESTED, "above 20 %"),
    ],
)
def test_staleness_against_error(ramped, abrupt, word, part):
    verdict = CLAIM.verdict(stale_rows(ramped, abrupt))
    assert verdict.word == word and part in verdict.because


def test_a_difference_within_the_noise_of_the_seeds_is_no_rescue():
    rows = stale_rows()
    for row in rows:  # two of five abrupt runs converge, and one of the ramped ones fails
        if (row["rate"], row["staleness"]) == (0.04, 50):
            fails = row["seed"] in ((0,) if row["start"] == "ramp-up" else (0, 1, 2))
            row["accuracy"] = [0.1, 0.1 if fails else 0.98]
    assert CLAIM.verdict(rows).word == FAILS


def test_staleness_against_error_is_reported():
    rows = [{**row, "data": "mnist"} for row in stale_rows()]
    assert CLAIM.verdict(without(rows, seed=4)).word == UNTESTED
    text = whole_report(CLAIM, rows)
    assert text.count("fails to converge from about 15 on [MEM med]") == 2 and "0.36 % [MEM med] / 1.04" in text
    assert "Page's trend test" in text and str(CLAIM.basis(rows)) == "mnist, small CNN, n = 5"
    ramped, abrupt = report.draw(CLAIM, rows).axes
    assert len(ramped.lines) == len(abrupt.lines) == 4
    table = CLAIM.table(rows)
    assert len(table.cells) == 7 and "90.24 ± 0.03 % (n=5)" in table.cells[-1][-1]


def test_the_scale_gpu_is_judged_by_the_same_rule():
    rows = stale_rows(abrupt={(0.02, 50): LOST}, scale="gpu")
    assert len(rows) == 75 and CLAIM.verdict(rows).word == HOLDS
    assert CLAIM.verdict(stale_rows(scale="gpu")).word == FAILS  # 0.04 is not on its map


def test_measurements_of_stale_runs_have_no_name_of_a_label():
    record = {"kind": "eval", "step": 2, "epoch": 0.5, "accuracy": 0.9, "staleness": 4.0, "learning_rate": 0.1}
    measured = CLAIM.reduce([{"kind": "train", "step": 1}, record])
    assert measured == {"step": [2], "epoch": [0.5], "accuracy": [0.9]}
    assert not set(measured) & set(CLAIM.runs("laptop", [])[0].labels)
