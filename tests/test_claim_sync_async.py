"""Synchronous against asynchronous: the runs, and the verdict for each outcome of each part of the rule."""

import pytest

from experiments.claims import sync_async
from experiments.study import datasets, report
from experiments.study import rows as ask
from tests.claim_rows import FAILS, HOLDS, UNTESTED, complete, some_runs, whole_report, without

CLAIM, TUNED = sync_async.EXPERIMENT, sync_async.TUNED
WORKERS = (53, 106, 212)


def modes_rows(
    synchronous=(0.98, 0.98, 0.979), asynchronous=(0.978, 0.976, 0.972), *, seconds=(10.0, 20.0), scale="laptop"
):
    """Final accuracies at 53, 106 and 212 workers, and simulated seconds of an epoch, of both modes."""
    final = dict(zip(sync_async.MODES, (synchronous, asynchronous), strict=True))
    per_epoch = dict(zip(sync_async.MODES, seconds, strict=True))

    def measured(labels):
        seed = labels["seed"] % 5 if labels["mode"] == "synchronous" else 2 * labels["seed"] % 5
        end = final[labels["mode"]][WORKERS.index(labels["num_workers"])] + (seed - 2) * 0.0002
        worse = 0.01 * (labels["split"] == "validation" and labels["rate"] not in (0.004, 0.04))
        return {
            "accuracy": [end - 0.06, end - 0.004, end - worse],
            "epoch": [1.0, 2.0, 3.0],
            "simulated_seconds": [per_epoch[labels["mode"]] * epoch + labels["seed"] % 5 for epoch in (1, 2, 3)],
        }

    return complete(CLAIM, measured, scale=scale)


@pytest.mark.parametrize("scale", list(CLAIM.hours))
def test_configs_are_what_the_labels_say(scale):
    for run in some_runs(CLAIM, scale):
        config, n = run.config, run.labels["num_workers"]
        assert config["num_workers"] == n and config["data"]["name"] == run.labels["data"]
        assert config["model"]["name"] == ("resnet20" if scale == "gpu" else "mlp")
        assert config["server"]["name"] == run.labels["mode"] and config["arrivals"]["name"] == "paper_cluster"
        assert config["seed"] == run.labels["seed"]
        if run.labels["mode"] == "synchronous":
            assert config["reducer"]["num_required"] == n - sync_async.SETTINGS[scale].backups[n]
        else:
            assert config["optimizer"]["learning_rate"] == pytest.approx(run.labels["rate"] * 53 / n)


def test_digits_stand_in_at_the_laptop_scale_alone():
    with datasets.stand_in("digits"):
        for scale, data in {"smoke": "digits", "laptop": "digits", "gpu": "cifar10"}.items():
            runs = CLAIM.runs(scale, [])
            assert {run.config["data"]["name"] for run in runs} == {run.labels["data"] for run in runs} == {data}
            assert (runs[0].config["train_epochs"] == 200) == (scale == "laptop")


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({}, HOLDS),
        ({"synchronous": (0.98, 0.98, 0.96)}, FAILS),  # worse at 212
        ({"synchronous": (0.98, 0.9761, 0.979)}, FAILS),  # better at 106 by no more than the noise
        ({"asynchronous": (0.96, 0.976, 0.972)}, FAILS),  # the gap narrows
        ({"asynchronous": (0.975, 0.976, 0.9739)}, FAILS),  # the gap widens by no more than the noise
        ({"seconds": (30.0, 10.0)}, FAILS),  # later
        ({"asynchronous": (0.978, 0.9, 0.9)}, HOLDS),  # never at the target
        ({"synchronous": (0.98, 0.93, 0.93), "asynchronous": (0.978, 0.9, 0.9)}, UNTESTED),
    ],
)
def test_synchronous_against_asynchronous(changes, word):
    verdict = CLAIM.verdict(modes_rows(**changes))
    assert verdict.word == word and len(verdict.contrasts) in ((0, 5) if word == UNTESTED else (5,))


def test_a_run_that_never_is_at_the_target_counts_to_its_end_alone():
    rows = modes_rows(asynchronous=(0.978, 0.9, 0.9), seconds=(10.0, 1.0))  # it ends before the other is there
    assert CLAIM.verdict(rows).word == FAILS


def test_the_scale_gpu_is_judged_by_the_same_rule():
    rows = modes_rows(scale="gpu")
    assert CLAIM.verdict(rows).word == HOLDS and len(CLAIM.verdict(rows).contrasts) == 3
    assert str(CLAIM.basis(rows)) == "cifar10, ResNet-20, n = 3"


def test_synchronous_against_asynchronous_is_reported():
    rows = modes_rows()
    assert "at 212 workers 97.90 ± 0.03 % (n=5) against 97.20 ± 0.03 % (n=5)" in CLAIM.judge(rows).because
    fewer = [row for row in rows if row["num_workers"] != 212]
    assert CLAIM.verdict(without(rows, split="test")).word == CLAIM.verdict(fewer).word == UNTESTED
    assert {row["rate"] for row in TUNED.tests(rows)} == {0.004, 0.04}
    text = whole_report(CLAIM, rows)
    assert text.count("[MEM med]") == 3 and "about 18 h [MEM lo-med] / 20 ± 0 s (n=5)" in text
    ours = {finding.quantity: finding.ours for finding in CLAIM.findings(rows)}
    assert ours["epochs to 94 %, 106 workers, synchronous"].mean == 2.0
    assert ours["simulated time to 94 %, 106 workers, asynchronous"].mean == 42.0
    levels, curves = report.draw(CLAIM, rows).axes
    assert [list(line.get_xdata()) for line in levels.lines] == [[53, 106, 212]] * 2 and len(curves.lines) == 6


def test_a_mode_is_reported_without_the_others():
    rows = modes_rows()
    tuning = ask.select(rows, split="validation")
    own = ask.select(tuning, mode="asynchronous", num_workers=53)
    assert len(CLAIM.runs("laptop", own)) == len(tuning) + 5
