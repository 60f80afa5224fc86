"""LeNet-5 with ever more workers: which runs there are, what is picked, and each verdict."""

import dataclasses

import pytest

from experiments import report
from experiments.claims import lenet_workers as claim
from experiments.experiment import Run
from tests.claim_rows import ORIGIN


def rows_of(runs: list[Run], accuracy) -> list[dict]:
    """What runs would give, where accuracy(reducer, num_workers, factor, seed) were what they reach."""

    def reached(tells):
        return accuracy(*(tells[key] for key in ("reducer", "num_workers", "factor", "seed")))

    return [{**run.labels, "accuracy": [0.5, reached(run.labels)], "origin": ORIGIN} for run in runs]


def all_rows(accuracy) -> list[dict]:
    rows: list[dict] = []
    while len(runs := claim._runs("laptop", rows)) > len(rows):
        rows = rows_of(runs, accuracy)
    return rows


def as_claimed(reducer, num_workers, factor, seed):
    best = {"mean": 1, "sum": 4 / num_workers, "adasum": 2}[reducer]
    loss = abs(factor / best - 1) / 1000 + (0.004 if reducer == "sum" else 0) + seed / 10_000
    return 0.11 if (reducer, factor, num_workers) == ("sum", 1.0, 32) else 0.992 - loss


def but(changed):
    """The claimed accuracies, but for what ``changed`` has another value for."""

    def accuracy(reducer, num_workers, factor, seed):
        value = changed(reducer, num_workers, factor)
        return as_claimed(reducer, num_workers, factor, seed) if value is None else value - seed / 10_000

    return accuracy


@pytest.fixture(autouse=True)
def digits(monkeypatch, tmp_path):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))


@pytest.mark.parametrize("scale", claim.EXPERIMENT.hours)
def test_runs_are_configs_and_untuned_ones_come_first(scale):
    runs = claim._runs(scale, [])
    rows = rows_of(runs, as_claimed)
    more = claim._runs(scale, rows)
    assert [run.labels for run in more[: len(runs)]] == [run.labels for run in runs]
    assert len({run.name for run in more}) == len(more) and more[len(runs) :]
    splits = [run.labels["split"] for run in runs]
    assert splits == sorted(splits)  # test, then validation
    assert {run.labels["factor"] for run in runs if run.labels["split"] == "test"} == {1.0}
    for run in (runs[0], runs[-1], more[-1]):
        config = run.config
        assert config["num_workers"] == run.labels["num_workers"] and config["seed"] == run.labels["seed"]
        assert config["data"]["evaluate_on"] == run.labels["split"] and config["reducer_on"] == "updates"
        assert config["optimizer"]["learning_rate"] == pytest.approx(run.labels["factor"] * claim.RATE)
        assert config["reducer"]["name"] == run.labels["reducer"]


def test_counts_of_runs_and_reuse_of_the_untuned_rate(monkeypatch):
    first = claim._runs("laptop", [])
    untuned, tuning, picks = 3 + 4 * 2 * 3, 2 * 3, 2 * 3
    assert len(first) == untuned + tuning
    assert len(all_rows(as_claimed)) == untuned + tuning + picks
    monkeypatch.setitem(claim.TUNED, "laptop", (32, 8))
    assert len(claim._runs("laptop", rows_of(first, as_claimed))) == untuned + tuning + picks + tuning
    assert len(all_rows(as_claimed)) == untuned + 2 * (tuning + picks)
    always_1 = all_rows(lambda reducer, num_workers, factor, seed: 1 - abs(factor - 1) / 10)
    finals = [row for row in always_1[untuned:] if row["split"] == "test"]
    assert [row["factor"] for row in finals] == [1 / 4] * 3  # of the sum at 32; at 8 it is tuned at 1, too


def test_rates_are_picked_on_the_validation_split_alone(monkeypatch):
    monkeypatch.setitem(claim.TUNED, "laptop", (32, 8))
    rows = all_rows(as_claimed)
    assert claim._picked(rows, num_workers=32, reducer="sum") == 1 / 8
    assert claim._picked(rows, num_workers=8, reducer="sum") == 1 / 2
    better = [{**row, "accuracy": [1.0]} if row["split"] == "test" and row["factor"] == 1 else row for row in rows]
    assert claim._picked(better, num_workers=8, reducer="sum") == 1 / 2
    some = [row for row in rows if (row["split"], row["factor"]) != ("validation", 1 / 8)]
    assert claim._picked(some, num_workers=32, reducer="sum") is None


def test_supported_as_claimed():
    verdict = claim._judge(all_rows(as_claimed))
    assert verdict.word == "supported" and verdict.because.count("(holds)") == 3


@pytest.mark.parametrize(
    ("changed", "fails"),
    [
        (lambda r, n, f: 0.995 if r == "sum" and f == 1 else None, 1),
        (lambda r, n, f: 0.975 if r == "adasum" and f == 1 and n == 32 else None, 1),
        (lambda r, n, f: 0.993 if r == "sum" and f == 1 / 8 and n == 32 else None, 1),
    ],
)
def test_not_supported_where_a_part_fails(changed, fails):
    verdict = claim._judge(all_rows(but(changed)))
    assert verdict.word == "not supported" and verdict.because.count("(fails)") == fails


@pytest.mark.parametrize("kept", [0, 1, 5, 20, 27, 33, 38])
def test_whatever_rows_are_there_can_be_told(kept):
    rows = all_rows(as_claimed)[:kept]
    assert "not tested at this scale" in report.section(claim.EXPERIMENT, rows) or not rows
    assert claim.EXPERIMENT.draw is claim._draw and report.draw(claim.EXPERIMENT, rows).axes


def test_the_whole_is_told():
    rows = all_rows(as_claimed)
    table = claim._table(rows)
    assert len(table.cells) == 8 and {len(cell) for cell in table.cells} == {len(table.header)}
    assert table.cells[6][:2] == ["32", "sum"] and table.cells[6][4] == "1/8" and "1/16: " in table.cells[6][5]
    one = claim._findings([{**row, "data": "mnist"} for row in rows])[0]
    assert one.paper_number == 99.3 and one.difference and claim._findings(rows)[0].paper is None
    assert dataclasses.is_dataclass(claim.EXPERIMENT) and len(claim._findings(rows)) == 1 + 4 * 2 + 2
