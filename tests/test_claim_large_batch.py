"""The claim about large batches: configs, grids, and the verdict for each part of its rule."""

import math

import pytest

from experiments.claims import large_batch
from experiments.study import report
from tests.claim_rows import FAILS, HOLDS, UNTESTED, complete, some_runs, whole_report, without

CLAIM, SETTINGS, TUNED = large_batch.EXPERIMENT, large_batch.SETTINGS, large_batch.TUNED
MOST = 8192


@pytest.fixture(autouse=True)
def no_data(monkeypatch, tmp_path):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))


@pytest.mark.parametrize("scale", CLAIM.hours)
def test_configs_are_what_the_labels_say(scale):
    for run in some_runs(CLAIM, scale):
        config, labels = run.config, run.labels
        assert config["num_workers"] * config["batch_size_per_worker"] == labels["batch"]
        assert config["reducer"]["name"] == {"lars": "mean"}.get(labels["reducer"], labels["reducer"])
        assert config["reducer_on"] == ("updates" if labels["reducer"] == "adasum" else "gradients")
        assert (config["optimizer"]["name"] == "lars") == (labels["reducer"] == "lars")
        assert config["accumulation"]["count"] == SETTINGS[scale].parts[labels["batch"]]
        if labels["reducer"] == "sum":
            assert config["accumulation"]["name"] == "micro_batches"
            assert config["optimizer"]["learning_rate"] == pytest.approx(labels["rate"] / config["num_workers"])
        if scale == "gpu":
            assert config["schedule"] | {"name": "warmup_linear", "warmup_epochs": 5} == config["schedule"]
            assert config["train_epochs"] == 30 and config["data"]["name"] == "cifar10"


def rows(*, scale="gpu", **ends):
    """Runs that end at these accuracies in percent, half a point apart by seed; inner rates are better."""

    def measured(labels):
        name = f"{labels['reducer']}_{labels['batch']}"
        end = ends.get(name, {"sum": 90, "adasum": 90, "lars": 86.5}[labels["reducer"]])
        grid = SETTINGS[scale].rates[labels["reducer"], labels["batch"]]
        away = abs(math.log2(labels["rate"] / sorted(grid)[len(grid) // 2]))
        last = (end - 0.5 * labels["seed"] - away) / 100
        return {"epoch": [10.0, 20.0, 30.0], "accuracy": [0.2, last, last]}

    return complete(CLAIM, measured, scale=scale)


@pytest.mark.parametrize(
    ("ends", "word"),
    [
        ({"sum_8192": 80}, HOLDS),
        ({"sum_8192": 80, "adasum_8192": 88.5}, HOLDS),  # loses little
        ({"sum_8192": 80, "adasum_8192": 86}, FAILS),  # above the mean, but it does not train as well as with few
        ({"sum_8192": 89.9}, FAILS),  # no better than the mean
        ({"sum_8192": 92}, FAILS),
        ({"sum_8192": math.nan}, HOLDS),  # the mean diverges
        ({"sum_8192": 80, "sum_256": 84}, UNTESTED),  # the task is not learnt with few examples, either
    ],
)
def test_verdicts(ends, word):
    found = rows(**ends)
    verdict = CLAIM.verdict(found)
    assert verdict.word == word and len(verdict.contrasts) in ((0, 2) if word == UNTESTED else (2,))
    assert "ResNet-20, n = 3" in str(CLAIM.basis(found))


def test_digits_can_say_nothing():
    verdict = CLAIM.verdict(rows(scale="laptop", sum_1024=20))
    assert verdict.word == UNTESTED and "1,024 examples" in verdict.because


def test_five_rates_a_factor_of_two_apart_are_tried_on_cifar():
    tried = {row["rate"] for row in TUNED.tried(rows(), batch=MOST, reducer="sum")}
    assert sorted(tried) == [0.4, 0.8, 1.6, 3.2, 6.4]
    assert not TUNED.tried(rows(), batch=256, reducer="lars")


def test_a_missing_run_is_named():
    verdict = CLAIM.verdict(without(rows(), split="test", batch=MOST, reducer="lars", seed=2))
    assert verdict.word == UNTESTED and "reducer=lars" in verdict.because


def test_it_is_reported_beside_the_paper_and_mlperf():
    found = rows(sum_8192=80)
    text = whole_report(CLAIM, found)
    assert "| Sum | 62 [MEM-lo] / 20.00 ± 0.00 (n=3) at 256 |" in text
    assert "84.5 ± 0.9 (n=10) at 65,536 [READ: mlcommons/logging, training 4.0.0] / 17" not in text
    assert "84.5 ± 0.9 (n=10) at 65,536 [READ: mlcommons/logging, training 4.0.0] / 20.00" in text
    assert "67,840: 85.9 ± 0.64 (n=28)" in text and "LARS | not given | -3.50 points" in text
    assert len(CLAIM.table(found).cells) == 7
    lines = report.draw(CLAIM, found).axes[0].lines
    crosses = [line.get_xdata().tolist() for line in lines if line.get_marker() == "x"]
    assert crosses == [[MOST], [], []]  # of mean, Adasum and LARS
