"""Reducers and encodings send what the formulas say, for any number of workers; the table and figure of them."""

import pytest

from benchmarks import traffic
from benchmarks.kit import drawing, report
from benchmarks.kit.leaves import lenet5, resnet50
from benchmarks.kit.result import Measured

CASES = traffic.cases()


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(("leaves", "n"), [(lenet5, 64), (resnet50, 512)])
def test_the_bytes_are_those_of_the_formula(name, leaves, n):
    sent = CASES[name].candidate.traffic(leaves(), num_workers=n).bytes_per_worker
    assert sent == pytest.approx(CASES[name].sent(n, leaves()), rel=1e-3)


def test_formulas_of_few_workers_and_of_many():
    for name, n in [("adasum", 2), ("adasum", 4096), ("krum:num_byzantine=1", 4096), ("adasum:algorithm=halving", 16)]:
        sent = CASES[name].candidate.traffic(lenet5(), num_workers=n).bytes_per_worker
        assert sent == pytest.approx(CASES[name].sent(n, lenet5()), rel=1e-3)


def test_a_row_for_each_reducer_and_a_column_for_each_count():
    found = traffic.benchmark(repeats=1, log=print, names=["mean", "adasum"], leaves_of="lenet5", num_workers=(8, 64))
    assert [one.column for one in found.measured[:5]] == [
        *("bytes / D, n = 8", "bytes / D, n = 64", "collectives, n = 8", "collectives, n = 64"),
        "temporaries / D, 8 devices",
    ]
    assert found.measured[0].values == [1.75] and found.measured[1].values == [2 * 63 / 64]
    assert len(found.measured) == 10 and found.devices


def test_counts_are_a_table_and_curves():
    found = [
        Measured(f"{name}: its formula", [value * n], column=f"bytes / D, n = {n:,}")
        for name, value in [("mean", 1), ("adasum", 2)]
        for n in (8, 4096)
    ]
    environment = {"python": "3", "packages": {}, "devices": ["cpu"], "commit": "", "tree": "clean", "started": "2026"}
    text = report.section("traffic", {**environment, "cpu_count": 1}, found)
    assert (
        "| What | bytes / D, n = 8 | bytes / D, n = 4,096 |\n| --- | --- | --- |\n| mean: its formula | 8 | 4,096 |"
        in text
    )
    (axes,) = drawing.traffic(found).axes
    curves = {line.get_label(): (list(line.get_xdata()), list(line.get_ydata())) for line in axes.lines}
    assert curves["mean"] == ([8, 4096], [8, 4096]) and curves["Adasum"] == ([8, 4096], [16, 8192])
