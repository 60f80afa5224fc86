"""Reducers and encodings send what the formulas say, for any number of workers; the table and figure of them."""

import functools

import pytest

from benchmarks import traffic
from benchmarks.kit import drawing, report
from benchmarks.kit.candidates import parse
from benchmarks.kit.leaves import lenet5, resnet50
from benchmarks.kit.result import Measured


def products(n):
    """The bytes of all pairs' dot products, summed twice, where a norm is extreme."""
    return 8 * (n * n - 1)


def reduced(n, sizes):
    return 2 * (n - 1) / n * 4 * sum(sizes)


def multiplied(n, sizes):
    """Slices there and back, and the dot products of each group."""
    return sum(2 * (n - 1) * 4 * -(-size // n) + products(n) for size in sizes)


def folded(n, sizes, *, at_once=16, last=32):
    """Adasum, layer by layer, of n = k_1 k_2 ... devices, at most ``at_once`` in a factor, and ``last`` in the last."""
    factors, left = [], n
    while left > 1:
        factors.append(left if left <= last else min(left, at_once))
        left //= factors[-1]
    sent = 0.0
    for width in sizes:
        is_small = width < max(64, 8 * factors[0])  # gathered whole, level by level
        for k in factors:
            if is_small:
                sent += (k - 1) * 4 * width
            else:
                width = -(-width // k)
                sent += (k - 1) * 4 * width + products(k)
        sent += 0 if is_small else (n - 1) * 4 * width
    return sent


SENT = {  # formula -> the bytes of n workers, for leaves of these sizes
    "2 (n - 1) / n": reduced,
    "(n - 1) / 2 n, of n < 128": lambda n, sizes: reduced(n, sizes) / (4 if n < 128 else 1),
    "2 (n - 1) / n + 8 n^2 / D": lambda n, sizes: multiplied(n, [sum(sizes)]),
    "2 (n - 1) / n + 8 n^2 L / D": multiplied,
    "2 (n - 1) / n + 8 k^2 L / D a level, k = 16": folded,
    "the same, k = 2": functools.partial(folded, at_once=2, last=2),
    "n - 1": lambda n, sizes: (n - 1) * 4 * sum(sizes),
    # All pairs of one level: Adasum's own bytes and those of all dot products are the same.
    "telemetry": lambda n, sizes: folded(n, sizes, at_once=n),
}


def check(label, n, leaves):
    formula = "telemetry" if "telemetry" in label else traffic.FORMULAS[label]
    expected = SENT[formula](n, [leaf.size for leaf in leaves])
    assert parse(label).traffic(leaves, num_workers=n).bytes_per_worker == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("label", traffic.FORMULAS)
@pytest.mark.parametrize(("leaves", "n"), [(lenet5, 64), (resnet50, 512)])
def test_the_bytes_are_those_of_the_formula(label, leaves, n):
    check(label, n, leaves())


def test_formulas_of_few_workers_and_of_many():
    for name, n in [("adasum", 2), ("adasum", 4096), ("krum:num_byzantine=1", 4096), ("adasum:algorithm=halving", 16)]:
        check(name, n, lenet5())


def test_a_row_for_each_reducer_and_a_column_for_each_count(monkeypatch):
    monkeypatch.setattr(traffic, "cases", lambda: {name: parse(name) for name in ("mean", "adasum")})
    found = list(traffic.benchmark(repeats=1, log=print, leaves_of="lenet5", num_workers=(8, 64)))
    columns = ["bytes / D, n = 8", "bytes / D, n = 64", "collectives, n = 8", "collectives, n = 64"]
    assert [one.column for one in found] == 2 * columns
    assert found[0].values == [1.75] and found[1].values == [2 * 63 / 64]


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
