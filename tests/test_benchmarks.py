"""The benchmark as a command: what it refuses, and what it leaves; no test looks at a time."""

import inspect
import json

import jax
import numpy as np
import optax
import pytest
from jax import lax

import reducers
from benchmarks import reducers as command
from benchmarks.kit import candidates, leaves, reducer_times, taking_turns
from benchmarks.kit.reducer_times import Row
from parallel import Layout
from reducers import registry
from reducers.traffic import Traffic

# ---- leaves and candidates ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "num_leaves", "num_floats"),
    [("lenet5", 8, 1_663_370), ("resnet50", 161, 25_557_032), ("bert_large", 391, 335_141_888)],
)
def test_known_networks(name, num_leaves, num_floats):
    shapes = leaves.FIXED[name]()
    assert (len(shapes), sum(leaf.size for leaf in shapes)) == (num_leaves, num_floats)
    assert {leaf.dtype for leaf in shapes} == {np.dtype(np.float32)}


@pytest.mark.parametrize(("num_floats", "within"), [(7196, 0), (10_000, 0.3), (1_000_000, 0.1), (40_000_000, 0.02)])
def test_scaled_leaves(num_floats, within):
    original = np.array([leaf.size for leaf in leaves.resnet50()])
    scaled = np.array([leaf.size for leaf in leaves.resnet50_like(num_floats)])
    assert len(scaled) == len(original) and abs(scaled.sum() - num_floats) <= within * num_floats
    if num_floats >= 1_000_000:
        kernels = original > 10_000  # biases grow with the width, these with its square
        share = scaled[kernels] / original[kernels] / (scaled.sum() / original.sum())
        assert np.median(share) == pytest.approx(1, abs=0.1)


def test_sets_in_the_order_asked_for():
    found = leaves.sets(["plain", "lenet5", "resnet50_like"], sizes=[8000, 7196])
    assert [(name, sum(leaf.size for leaf in shapes)) for name, shapes in found] == [
        ("plain", 8000),
        ("plain", 7196),
        ("lenet5", 1_663_370),
        ("resnet50_like", 7196),
        ("resnet50_like", 7196),
    ]


def test_default_candidates_follow_the_registry(monkeypatch):
    labels = [candidate.label for candidate in candidates.defaults()]
    assert {label.partition(":")[0] for label in labels} == set(reducers.REDUCERS)
    algorithms = inspect.get_annotations(reducers.adasum)["algorithm"].__args__
    assert [label for label in labels if label.startswith("adasum")] == [f"adasum:algorithm={a}" for a in algorithms]
    monkeypatch.setitem(reducers.REDUCERS, "newest", lambda axis_name, *, rank: None)
    newest = candidates.defaults()[-1]  # its option is missing, which is said when it is made
    with pytest.raises(ValueError, match="reducers='newest': rank: missing"):
        newest.make(axis_name="worker")


def test_options_may_hold_commas():
    label = r"adasum:granularity=Block_\d{1,2},algorithm=gather"
    assert registry.split_blocks(f"mean,{label},sum") == ["mean", label, "sum"]
    assert candidates.parse(label).make.keywords == {"granularity": r"Block_\d{1,2}", "algorithm": "gather"}


# ---- measuring ---------------------------------------------------------------------------------------------------


def measured(labels, *, make=(), num_devices=8, repeats=1, max_seconds=np.inf, num_floats=1000):
    rows: list[Row] = []
    chosen = [*map(candidates.parse, labels), *(candidates.Candidate("made up", m) for m in make)]
    reducer_times.measure(
        "plain",
        leaves.plain(num_floats),
        chosen,
        layout=Layout.of(8, num_devices=num_devices),
        repeats=repeats,
        max_seconds=max_seconds,
        rows=rows,
    )
    return rows


def stateless(function):
    return lambda axis_name: optax.GradientTransformationExtraArgs(
        lambda params: optax.EmptyState(),
        lambda updates, state, params=None, **extra: (jax.tree.map(lambda g: function(axis_name, g), updates), state),
    )


@pytest.mark.parametrize("num_devices", [8, 2])
def test_rows_are_measured_in_pairs(num_devices):
    for row in measured(["sum", "adacons"], num_devices=num_devices, repeats=3):
        assert len(row.seconds) == len(row.baseline_seconds) == len(row.ratios) == 3 and not row.refused
        assert row.least_bytes == 4 * 1000 * (8 + num_devices)
        assert row.traffic.bytes_per_worker >= 2 * 4000 * (num_devices - 1) / num_devices


def needy(axis_name):
    return optax.GradientTransformationExtraArgs(
        lambda params: optax.EmptyState(), lambda updates, state, params=None, *, contributes, **extra: (updates, state)
    )


def test_what_cannot_run_is_listed_with_its_reason():
    not_reducing = stateless(lambda axis, g: g)
    sum_of_lanes = stateless(lambda axis, g: lax.psum(g, axis[1]))
    rows = measured(["trimmed_mean:num_trimmed=4", "sum"], make=[needy, not_reducing, sum_of_lanes])
    assert [bool(row.refused) for row in rows] == [True, False, True, True, False]
    assert "leaves none of 8 workers" in rows[0].refused
    assert "contributes" in rows[2].refused and "out_axes" in rows[3].refused
    assert all("\n" not in row.refused for row in rows)


@pytest.mark.slow
def test_what_is_too_large_is_refused_before_it_is_made(monkeypatch):
    monkeypatch.setattr(reducer_times, "free_bytes", lambda layout: 10_000_000)
    assert not measured(["mean"])[0].refused
    (row,) = measured(["mean"], num_floats=1_000_000)
    assert row.refused == "needs 0.1 GB of memory, of which 0.0 GB are free"
    labels = ["mean", "adasum:algorithm=gather"]
    mean, gather = measured(labels, num_floats=100_000)  # results fit, what is gathered does not
    assert not mean.refused and "GB" in gather.refused


def test_what_is_too_slow_is_refused_after_one_call():
    (row,) = measured(["mean"], repeats=2, max_seconds=0)
    assert row.seconds == [] and row.traffic is not None and "max_seconds=0" in row.refused


def test_free_memory_is_known_on_linux():
    free = reducer_times.free_bytes(Layout.of(8))
    assert free is None or 1e6 < free < 1e15


@pytest.mark.parametrize(
    ("free", "platform", "num_devices", "expected"),
    [
        (70 * 10**9, "gpu", 1, 4 * 10**9),  # far beyond the cache of any device
        (8 * 70 * 10**9, "gpu", 8, 4 * 10**9),
        (8 * 10**9, "gpu", 1, 10**9),  # of a device that is nearly full
        (8 * 8 * 10**9, "tpu", 8, 10**9),
        (None, "gpu", 2, 4 * 10**9),
        (20 * 10**9, "cpu", 1, 2**29),
        (20 * 10**9, "cpu", 8, 2**26),  # they share the host
        (4 * 10**9, "cpu", 8, 4 * 10**9 // 64),
        (0, "cpu", 8, 4),
    ],
)
def test_copies_leave_caches_and_fit_into_memory(free, platform, num_devices, expected):
    assert reducer_times.copy_bytes(free, platform=platform, num_devices=num_devices) == expected


def test_a_bandwidth_is_of_all_devices_together(monkeypatch):
    monkeypatch.setattr(reducer_times, "free_bytes", lambda layout: 10_000_000)
    assert 1e6 < reducer_times.copy_bytes_per_second(Layout.of(8)) < 1e14


# ---- table and figure --------------------------------------------------------------------------------------------

SENT = Traffic(1_750_000.0, {"all-reduce": 2, "all-gather": 1})
ROWS = [
    Row("plain", 10, 1, "sum", 64_000_000, SENT, [0.004, 0.002, 0.003, 0.009], [0.002, 0.002, 0.002]),
    Row("plain", 10, 1, "trimmed_mean:num_trimmed=4", 64_000_000, refused="leaves none"),
    Row("plain", 2000, 1, "sum", 64_000_000, SENT, [0.04], [0.02]),
    Row("resnet50_like", 2000, 161, "mean", 64_000_000, SENT, [0.02], [0.02]),
    Row("resnet50_like", 2000, 161, "sum", 64_000_000),
]


def test_table_of_fixed_rows():
    assert command.table(ROWS, copy_bytes_per_second=64e9).splitlines() == [
        "plain: 10 floats in 1 leaf, rounds: 3",
        "  reducer                       ms  over mean  quartiles  MB sent  bandwidth  collectives",
        "  sum                         3.50       1.50  1.25-1.75    1.750       29 %  2 all-reduce, 1 all-gather",
        "  trimmed_mean:num_trimmed=4  leaves none",
        "",
        "plain: 2,000 floats in 1 leaf, rounds: 1",
        "  reducer     ms  over mean  quartiles  MB sent  bandwidth  collectives",
        "  sum      40.00       2.00  2.00-2.00    1.750        2 %  2 all-reduce, 1 all-gather",
        "",
        "resnet50_like: 2,000 floats in 161 leaves, rounds: 1",
        "  reducer     ms  over mean  quartiles  MB sent  bandwidth  collectives",
        "  mean     20.00       1.00  1.00-1.00    1.750        5 %  2 all-reduce, 1 all-gather",
        "  sum      not measured",
    ]
    assert command.table([], copy_bytes_per_second=np.nan) == ""


def test_figure_of_fixed_rows():
    (axes,) = command.draw(ROWS).axes  # of ResNet-50 there is one size alone
    (bars,) = axes.containers
    points = np.array(bars.lines[0].get_data(), float).T
    np.testing.assert_allclose(points, [[10, 3.5], [2000, 40]])
    assert (axes.get_xscale(), axes.get_yscale(), axes.get_title()) == ("log", "log", "plain")
    with pytest.raises(ValueError, match="more than one size"):
        command.draw(ROWS[:2])


# ---- the command -------------------------------------------------------------------------------------------------

QUICK = ("--layouts=plain", "--sizes=300,1e4", "--repeats=1", "--reducers=sum,adasum:algorithm=gather")


def run(*arguments):
    return command.main(["benchmarks.reducers", *arguments])


def test_a_whole_run(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(reducer_times, "free_bytes", lambda layout: 10_000_000)
    assert run(*QUICK, f"--json={tmp_path}/costs.json", f"--figure={tmp_path}/costs.png") == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("8 workers = 8 devices x 1 lane, cpu")
    assert captured.out.count("adasum:algorithm=gather") == 2 and "compiling sum" in captured.err
    found = json.loads((tmp_path / "costs.json").read_text())
    assert found["num_devices"] == 8 and found["device_kind"] and found["environment"]["packages"]["jax"]
    assert found["copy_bytes_per_second"] > 0
    assert [row["num_floats"] for row in found["rows"]] == [300, 300, 10_000, 10_000]
    assert all(len(row["seconds"]) == len(row["baseline_seconds"]) == 1 for row in found["rows"])
    assert found["rows"][0]["traffic"] == {"bytes_per_worker": 2100.0, "collectives": {"all-reduce": 1}}
    assert (tmp_path / "costs.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("calls_before", [0, 9])
def test_an_interrupted_run_keeps_what_it_has(calls_before, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(reducer_times, "free_bytes", lambda layout: 10_000_000)
    calls, timed = [], taking_turns.timed

    def interrupted(*arguments):
        calls.append(1)
        if len(calls) > calls_before:
            raise KeyboardInterrupt
        return timed(*arguments)

    monkeypatch.setattr(taking_turns, "timed", interrupted)
    assert run(*QUICK, "--repeats=3", f"--json={tmp_path}/costs.json", f"--figure={tmp_path}/costs.png") == 130
    captured = capsys.readouterr()
    assert "interrupted" in captured.err and captured.out.count("not measured") == (0 if calls_before else 2)
    rows = json.loads((tmp_path / "costs.json").read_text())["rows"]
    # Three calls warm up; then sum, mean, adasum, mean; sum, mean.
    assert [len(row["baseline_seconds"]) for row in rows] == ([2, 1] if calls_before else [0, 0])


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--layouts=vgg", "layouts='vgg': allowed: plain"),
        ("--sizes=many", "sizes='many'"),
        ("--sizes=0", "sizes='0'"),
        ("--sizes=1.5", "sizes='1.5'"),
        ("--sizes=inf", "sizes='inf'"),
        ("--sizes=100", "sizes=100: resnet50_like has 7196 floats at least"),
        ("--workers=0", "workers"),
        ("--devices=3", "num_devices=3: does not divide num_workers=8"),
        ("--devices=64 --workers=64", "num_devices=64: this machine has 8"),
        ("--reducers=", "name=''"),
        ("--reducers=maen", "did you mean 'mean'"),
        ("--reducers=mean:speed=1", "reducers='mean:speed=1': speed: unknown key; allowed: none"),
        ("--reducers=adasum:algorithm=ring", "algorithm='ring': must be one of 'gram', 'halving'"),
        ("--reducers=adasum:granularity=(", "granularity='('"),
        ("--reducers=adacons:momentum=1", "momentum=1: must be float in [0, 1)"),
        ("--reducers=adacons:momentum", "'momentum' must be key=value"),
        ("--repeats=none", "repeats"),
        ("--max_seconds=-1", "max_seconds"),
        ("--json=/proc/nope/costs.json", "json='/proc/nope/costs.json'"),
        ("--figure=costs.gif", "must end in .png"),
        ("--figure=costs.png --sizes=1e4", "needs two sizes of plain or resnet50_like"),
        ("--figure=costs.png --layouts=lenet5", "needs two sizes"),
        ("--config=x", "config"),
        ("leftover", "'leftover'"),
    ],
)
def test_refused_in_one_line(flag, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "run", lambda plan: pytest.fail("measuring began"))
    assert run(*flag.split()) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and len(captured.err.splitlines()) == 1 and message in captured.err, captured.err
    assert not list(tmp_path.iterdir())


def test_help_names_every_flag(capsys):
    assert run("--help") == 0
    text = capsys.readouterr().out
    assert all(f"--{name}" in text for name in command.make_flags())
