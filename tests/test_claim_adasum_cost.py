"""Cost of Adasum: what is read in the benchmark's results, and each verdict."""

import pytest

from experiments.claims import adasum_cost
from experiments.claims.adasum_cost import EXPERIMENT


def _found(*, refused: str = "") -> dict:
    def row(reducer: str, size: int, seconds: list[float], sent: float) -> dict:
        return {
            "reducer": reducer,
            "num_floats": size,
            "seconds": seconds,
            "baseline_seconds": [1.0] * len(seconds),
            "traffic": {"bytes_per_worker": sent, "collectives": {}},
            "refused": refused,
        }

    rows = [
        row("adasum", 10, [4.0, 6.0, 9.0], 101.0),
        row("sum", 10, [2.0, 2.0, 9.0], 100.0),
        row("adasum", 20, [3.0, 3.0, 3.0], 200.0),
        row("sum", 20, [2.0, 2.0, 1.0], 200.0),
    ]
    return {"rows": rows, "num_devices": 8, "cpu_count": 2, "device_kind": "cpu"}


def test_digest_pairs_the_calls_of_a_round():
    row = adasum_cost.digest(_found())
    assert row["num_floats"] == [10, 20]
    assert row["time_ratio"] == [2.0, 1.5]  # medians of 2, 3, 1 and of 1.5, 1.5, 3
    assert row["bytes_ratio"] == [1.01, 1.0]
    assert row["sum_seconds"] == [2.0, 2.0]
    assert row["mean_ratio"] == [6.0, 3.0]


def test_digest_refuses_what_was_not_measured():
    with pytest.raises(ValueError, match="adasum, 10 floats: too slow"):
        adasum_cost.digest(_found(refused="too slow"))


@pytest.mark.slow
def test_measurement_in_a_process_of_its_own():
    row = adasum_cost._measure(sizes=[10_000], repeats=1, seed=0)
    assert row["num_devices"] == 8
    assert row["time_ratio"][0] > 0
    assert 0.9 < row["bytes_ratio"][0] < 8  # small leaves are gathered


def test_measurement_tells_why_it_failed():
    with pytest.raises(ValueError, match=r"resnet50_like has .* floats at least"):
        adasum_cost._measure(sizes=[10], repeats=1, seed=0)


@pytest.mark.parametrize(
    ("time", "sent", "word"),
    [(1.5, 1.0, "supported"), (2.5, 1.0, "not supported"), (1.5, 1.2, "not supported")],
)
def test_verdicts(time, sent, word):
    row = adasum_cost.digest(_found())
    rows = [{**row, "time_ratio": [9.0, time], "bytes_ratio": [9.0, sent], "seed": seed} for seed in range(3)]
    assert EXPERIMENT.judge(rows).word == word  # by the largest size alone
    assert EXPERIMENT.findings(rows)[0].ours.n == 3
    assert [cells[0] for cells in EXPERIMENT.table(rows).cells] == ["10", "20"]


@pytest.mark.parametrize("scale", list(EXPERIMENT.hours))
def test_runs(scale):
    runs = EXPERIMENT.runs(scale, [])
    assert len({run.name for run in runs}) == len(runs) == (1 if scale == "smoke" else 3)
