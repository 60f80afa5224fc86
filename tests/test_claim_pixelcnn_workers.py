"""PixelCNN with 1, 8 and 16 workers: runs of every scale, pick, target and verdict."""

import pytest

from experiments import report
from experiments.claims import pixelcnn_workers as claim


def finals(mode, num_workers, final, *, seconds_per_epoch=10.0, epochs=30.0, spread=0.002):
    return [
        {
            "mode": mode,
            "num_workers": num_workers,
            "rate": 0.003,
            "split": "test",
            "seed": seed,
            "data": "digits",
            "bits_per_dim": [value + (seed - 1) * spread for value in (final + 0.5, final + 0.1, final)],
            "epoch": [epochs / 3, 2 * epochs / 3, epochs],
            "simulated_seconds": [part * epochs * seconds_per_epoch / 3 for part in (1, 2, 3)],
        }
        for seed in range(3)
    ]


def outcome(synchronous, asynchronous, *, seconds=(10.0, 20.0), epochs=30.0):
    return finals("alone", 1, 2.0, seconds_per_epoch=80.0, epochs=epochs) + [
        row
        for n, bits in zip(claim.MANY, zip(synchronous, asynchronous, strict=True), strict=True)
        for mode, final, per_epoch in zip(("synchronous", "asynchronous"), bits, seconds, strict=True)
        for row in finals(mode, n, final, seconds_per_epoch=per_epoch, epochs=epochs)
    ]


SUPPORTING = outcome([2.0, 2.05], [2.1, 2.3])


def test_the_claims_outcome_supports_it():
    verdict = claim._judge(SUPPORTING)
    assert verdict.word == "supported"
    assert "with 16 workers synchronous SGD ends at 2.050 ± 0.002 (n=3) bits" in verdict.because
    assert "at 2.31 after 200 s and 600 s" in verdict.because


@pytest.mark.parametrize(
    "rows",
    [
        outcome([2.0, 2.35], [2.1, 2.3]),  # worse at 16
        outcome([2.0, 2.05], [2.001, 2.3]),  # better at 8 by no more than the noise
        outcome([2.0, 2.05], [2.1, 2.3], seconds=(60.0, 10.0)),  # later
    ],
)
def test_other_outcomes_do_not(rows):
    assert claim._judge(rows).word == "not supported"


@pytest.mark.parametrize("rows", [SUPPORTING[:-1], outcome([2.0, 2.05], [2.1, 2.3], epochs=3.0), []])
def test_nothing_is_said_of_missing_or_short_runs(rows):
    assert claim._judge(rows).word == "not tested at this scale"


def test_the_target_is_what_all_runs_get_to():
    rows = finals("synchronous", 8, 2.0) + finals("asynchronous", 8, 2.104)
    assert claim._target(rows) == pytest.approx(2.11)  # the worst run gets to 2.106
    assert claim._seconds(rows[:3], 2.11).mean == 200.0


@pytest.mark.parametrize("scale", ["smoke", "laptop", "gpu", "paper"])
def test_runs_come_in_two_stages_of_configs_that_load(scale):
    first = claim._runs(scale, [])
    assert {run.labels["split"] for run in first} == {"validation"}
    rows = [{**run.labels, "bits_per_dim": [5 + run.labels["rate"]]} for run in first]
    second = claim._runs(scale, rows)[len(first) :]
    assert {run.labels["rate"] for run in second} == {min(run.labels["rate"] for run in first)}
    assert len(second) == len(claim.POINTS) * claim.SEEDS[scale]
    for run in second[:: claim.SEEDS[scale]]:
        config, (mode, n) = run.config, (run.labels["mode"], run.labels["num_workers"])
        assert config["data"]["name"] == run.labels["data"] and config["num_workers"] == n
        assert config["server"]["name"] == ("asynchronous" if mode == "asynchronous" else "synchronous")
        assert config["reducer"].get("num_required", n) == (n - 1 if mode == "synchronous" else n)


def test_the_report_shows_every_point():
    origin = {"commit": "0" * 40, "tree": "clean", "jax": "0", "devices": ["cpu"], "wall_seconds": 1.0}
    text = report.section(claim.EXPERIMENT, [{**row, "origin": origin} for row in SUPPORTING])
    assert "simulated time to 2.11 bits, 8 workers, asynchronous" in text
    times, epochs = report.draw(claim.EXPERIMENT, SUPPORTING).axes
    assert len(times.lines) == len(epochs.lines) == len(claim.POINTS)
