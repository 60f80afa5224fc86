"""PixelCNN with several workers: the runs, and the verdict for each outcome of each part of the rule."""

import pytest

from experiments.claims import pixelcnn_workers
from experiments.study import report
from tests.claim_rows import FAILS, HOLDS, UNTESTED, complete, some_runs, whole_report, without

CLAIM, TUNED = pixelcnn_workers.EXPERIMENT, pixelcnn_workers.TUNED


def pixelcnn_rows(
    synchronous=(2.0, 2.05), asynchronous=(2.1, 2.15), *, seconds=(10.0, 20.0), epochs=30.0, scale="laptop"
):
    """Final bits per dimension at 8 and 16 workers, and simulated seconds of an epoch, of both modes."""
    final = {("alone", 1): (2.0, 80.0)}
    for mode, bits, per_epoch in zip(pixelcnn_workers.MODES, (synchronous, asynchronous), seconds, strict=True):
        final |= {(mode, n): (end, per_epoch) for n, end in zip((8, 16), bits, strict=True)}

    def measured(labels):
        case, seed = (labels["mode"], labels["num_workers"]), labels["seed"] % 5
        end, per_epoch = final[case]
        worse = 0.1 * (labels["split"] == "validation" and labels["rate"] != pixelcnn_workers.RATES[case][1])
        return {
            "bits_per_dim": [value + worse + (seed - 1) * 0.002 for value in (end + 0.5, end + 0.04, end)],
            "epoch": [epochs / 3, 2 * epochs / 3, epochs],
            "simulated_seconds": [part * epochs * per_epoch / 3 + seed for part in (1, 2, 3)],
        }

    return complete(CLAIM, measured, scale=scale)


@pytest.mark.parametrize("scale", list(CLAIM.hours))
def test_configs_are_what_the_labels_say(scale):
    for run in some_runs(CLAIM, scale):
        config, mode, n = run.config, run.labels["mode"], run.labels["num_workers"]
        assert config["data"]["name"] == run.labels["data"] and config["num_workers"] == n
        assert config["server"]["name"] == ("asynchronous" if mode == "asynchronous" else "synchronous")
        assert config["reducer"].get("num_required", n) == (n - 1 if mode == "synchronous" else n)
        assert config["optimizer"]["learning_rate"] == run.labels["rate"] and config["seed"] == run.labels["seed"]


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({}, HOLDS),
        ({"synchronous": (2.0, 2.16)}, FAILS),  # worse at 16
        ({"asynchronous": (2.001, 2.15)}, FAILS),  # better at 8 by no more than the noise
        ({"seconds": (60.0, 10.0)}, FAILS),  # later
        ({"asynchronous": (2.5, 2.5)}, HOLDS),  # never at the target
        ({"asynchronous": (2.5, 2.5), "seconds": (20.0, 5.0)}, FAILS),  # which the runs are too short to tell
        ({"synchronous": (2.3, 2.3), "asynchronous": (2.5, 2.5)}, UNTESTED),
        ({"epochs": 9.0}, UNTESTED),
    ],
)
def test_pixelcnn(changes, word):
    verdict = CLAIM.verdict(pixelcnn_rows(**changes))
    assert verdict.word == word and len(verdict.contrasts) in ((0, 4) if word == UNTESTED else (4,))


def test_the_scale_gpu_compares_both_modes_alone():
    rows = pixelcnn_rows((3.7, 3.8), (4.0, 4.1), scale="gpu")
    assert {row["mode"] for row in rows} == set(pixelcnn_workers.MODES) and CLAIM.verdict(rows).word == HOLDS
    assert str(CLAIM.basis(rows)) == "cifar10, PixelCNN of 3 layers, n = 3"
    assert "asynchronous | ? / 4.000" in whole_report(CLAIM, rows)


def test_pixelcnn_is_reported():
    rows = pixelcnn_rows()
    because = CLAIM.judge(rows).because
    assert "with 16 workers at 2.052 ± 0.003 (n=5) against 2.152 ± 0.003 (n=5) bits" in because
    assert CLAIM.verdict(without(rows, split="test")).word == UNTESTED
    assert {row["rate"] for row in TUNED.tests(rows, num_workers=16)} == {0.01, 0.0003}
    text = whole_report(CLAIM, rows)
    assert "simulated time to 2.2 bits per dimension, 8 workers, asynchronous | not given | 402 ± 2 s (n=5)" in text
    assert "16 workers, asynchronous | the worst, at a lower rate [MEM lo-med] / 2.152" in text
    times, epochs = report.draw(CLAIM, rows).axes
    assert len(times.lines) == len(epochs.lines) == 5
