"""Large batches: runs of every scale, picks, and each verdict."""

import math

import pytest

from experiments.claims import large_batch
from experiments.claims.large_batch import EXPERIMENT, REDUCERS

BATCHES = (128, 1024, 4096)


def _row(*, batch: int, reducer: str, epochs: float, seed: int, split: str = "test", rate: float = 0.1) -> dict:
    """A run of 10 epochs that is at 91 % after so many, or never."""
    reached = math.isfinite(epochs)
    return {
        "batch": batch,
        "reducer": reducer,
        "rate": rate,
        "split": split,
        "seed": seed,
        "data": "digits",
        "target": 0.9,
        "budget": 10,
        "epoch": [epochs, 10.0] if reached else [5.0, 10.0],
        "accuracy": [0.91, 0.92] if reached else [0.2, 0.3],
    }


def _rows(first: float, added: tuple[float, ...], adasum: tuple[float, ...]) -> list[dict]:
    """The epochs of all runs with the smallest batches, and of each with the largest."""
    rows = []
    for batch in BATCHES:
        for reducer, last in zip(REDUCERS, (added, adasum), strict=True):
            rows.append(_row(batch=batch, reducer=reducer, epochs=first, seed=0, split="validation"))
            for seed in range(3):
                epochs = last[seed] if batch == BATCHES[-1] else first
                rows.append(_row(batch=batch, reducer=reducer, epochs=epochs, seed=seed))
    return rows


@pytest.mark.parametrize(
    ("rows", "word"),
    [
        (_rows(2.0, (math.inf,) * 3, (9.9,) * 3), "supported"),  # the sum does not get there at all
        (_rows(2.0, (4.0,) * 3, (3.0,) * 3), "supported"),
        (_rows(2.0, (3.0,) * 3, (3.0,) * 3), "not supported"),
        (_rows(2.0, (3.0, math.inf, 3.0), (3.0,) * 3), "supported"),  # 10 epochs at least for one: 5.3 on average
        (_rows(2.0, (math.inf,) * 3, (3.0, 3.0, math.inf)), "not supported"),  # one run of Adasum fails
        (_rows(math.inf, (math.inf,) * 3, (3.0,) * 3), "not tested at this scale"),
    ],
)
def test_verdicts(rows, word):
    assert EXPERIMENT.judge(rows).word == word
    findings = EXPERIMENT.findings(rows)
    assert len(findings) == len(EXPERIMENT.table(rows).cells) == len(BATCHES) * len(REDUCERS)
    assert "MEM-lo" in findings[0].paper.mark and findings[0].paper_number is None


def test_a_figure_shows_runs_that_fail():
    from experiments import report

    figure = report.draw(EXPERIMENT, _rows(2.0, (math.inf,) * 3, (3.0,) * 3))
    crosses = [line.get_xdata().tolist() for line in figure.axes[0].lines if line.get_marker() == "x"]
    assert crosses == [[4096], []]


def test_the_rate_that_gets_there_first_is_picked():
    tried = [
        _row(batch=128, reducer="sum", epochs=e, seed=0, split="validation", rate=rate)
        for e, rate in ((3.0, 0.1), (2.0, 0.4), (math.inf, 1.6))
    ]
    assert large_batch._picked(tried) == 0.4


@pytest.mark.parametrize("scale", list(EXPERIMENT.hours))
def test_runs_tune_first_and_then_take_the_pick(scale):
    setting = large_batch._setting(scale)
    tuning = EXPERIMENT.runs(scale, [])
    assert all(run.labels["split"] == "validation" and run.labels["seed"] == 0 for run in tuning)
    for run in tuning:
        config, tells = run.config, run.labels
        assert config["num_workers"] * config["batch_size_per_worker"] == tells["batch"]
        assert config["reducer"]["name"] == tells["reducer"]
        assert config["reducer_on"] == ("updates" if tells["reducer"] == "adasum" else "gradients")
        assert config["accumulation"]["count"] == setting.parts[tells["batch"]]
        if tells["reducer"] == "sum":
            assert config["accumulation"]["name"] == "micro_batches"
            assert config["optimizer"]["learning_rate"] == pytest.approx(tells["rate"] / config["num_workers"])
    rows = [_row(batch=1, reducer="", epochs=2.0, seed=0) | dict(run.labels) for run in tuning]
    finals = EXPERIMENT.runs(scale, rows)[len(tuning) :]
    assert {run.labels["split"] for run in finals} == {"test"}
    assert len(finals) == len(setting.parts) * len(REDUCERS) * large_batch.SEEDS[scale]
