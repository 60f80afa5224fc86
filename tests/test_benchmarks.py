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
from benchmarks.kit import candidates, leaves, reducer_times
from parallel import Layout
from reducers import registry

# ---- leaves and candidates ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "num_leaves", "num_floats"),
    [("lenet5", 8, 1_663_370), ("resnet50", 161, 25_557_032)],
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
    chosen = [*map(candidates.parse, labels), *(candidates.Candidate("made up", m) for m in make)]
    return reducer_times.measure(
        "plain",
        leaves.plain(num_floats),
        chosen,
        layout=Layout.of(8, num_devices=num_devices),
        repeats=repeats,
        max_seconds=max_seconds,
    )


def stateless(function):
    return lambda axis_name: optax.GradientTransformationExtraArgs(
        lambda params: optax.EmptyState(),
        lambda updates, state, params=None, **extra: (jax.tree.map(lambda g: function(axis_name, g), updates), state),
    )


@pytest.mark.parametrize("num_devices", [8, 2])
def test_rows_are_measured_in_pairs(num_devices):
    for row in measured(["sum", "adacons"], num_devices=num_devices, repeats=3):
        assert len(row.seconds) == len(row.baseline_seconds) == len(row.ratios) == 3 and not row.refused
        assert row.traffic.bytes_per_worker >= 2 * 4000 * 7 / 8


def needy(axis_name):
    return optax.GradientTransformationExtraArgs(
        lambda params: optax.EmptyState(), lambda updates, state, params=None, *, contributes, **extra: (updates, state)
    )


def test_what_cannot_run_is_listed_with_its_reason():
    not_reducing = stateless(lambda axis, g: g)
    summing = stateless(lambda axis, g: lax.psum(g, axis))
    rows = measured(["trimmed_mean:num_trimmed=4", "sum"], make=[needy, not_reducing, summing])
    assert [bool(row.refused) for row in rows] == [True, False, True, True, False]
    assert "leaves none of 8 workers" in rows[0].refused
    assert "contributes" in rows[2].refused and "out_axes" in rows[3].refused
    assert all("\n" not in row.refused for row in rows)


def test_what_is_too_slow_is_refused_after_one_call():
    (row,) = measured(["mean"], repeats=2, max_seconds=0)
    assert row.seconds == [] and row.traffic is not None and "max_seconds=0" in row.refused


# ---- the command -------------------------------------------------------------------------------------------------

QUICK = (
    "--layouts=plain",
    "--sizes=300,1e4",
    "--repeats=1",
    "--reducers=sum,adasum:algorithm=gather,trimmed_mean:num_trimmed=4",
)


def test_a_whole_run(tmp_path, capsys):
    assert command.main([*QUICK, f"--json={tmp_path}/costs.json"]) == 0
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    assert len(lines) == 6 and "compiling sum" in captured.err
    assert lines[0].startswith("plain, 300 floats, sum: ") and lines[0].endswith("sends 0.002 MB in 1 psum")
    assert "leaves none of 8 workers" in lines[2]
    found = json.loads((tmp_path / "costs.json").read_text())
    assert found["num_devices"] == 8 and found["device_kind"] and found["environment"]["packages"]["jax"]
    assert [row["num_floats"] for row in found["rows"]] == [300, 300, 300, 10_000, 10_000, 10_000]
    assert [len(row["seconds"]) for row in found["rows"]] == [1, 1, 0, 1, 1, 0]
    assert found["rows"][0]["traffic"] == {"bytes_per_worker": 2100.0, "collectives": {"psum": 1}}


def test_an_interrupted_run_keeps_the_layouts_that_it_has(tmp_path, capsys, monkeypatch):
    measure = command.measure

    def interrupted(name, shapes, *arguments, **options):
        if sum(leaf.size for leaf in shapes) > 300:
            raise KeyboardInterrupt
        return measure(name, shapes, *arguments, **options)

    monkeypatch.setattr(command, "measure", interrupted)
    assert command.main([*QUICK, f"--json={tmp_path}/costs.json"]) == 130
    assert [row["num_floats"] for row in json.loads((tmp_path / "costs.json").read_text())["rows"]] == [300] * 3
    assert len(capsys.readouterr().out.splitlines()) == 3


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--layouts=vgg", "layouts='vgg': allowed: plain"),
        ("--sizes=many", "sizes='many'"),
        ("--sizes=0", "sizes='0'"),
        ("--sizes=1.5", "sizes='1.5'"),
        ("--sizes=inf", "sizes='inf'"),
        ("--sizes=100", "sizes=100: resnet50_like has 7196 floats at least"),
        ("--workers=0", "workers=0: must be 1 or more"),
        ("--devices=3", "num_devices=3: must be one of 1, 2, 4, 8 for num_workers=8"),
        ("--devices=64 --workers=64", "num_devices=64: must be one of 1, 2, 4, 8 for num_workers=64"),
        ("--reducers=", "name=''"),
        ("--reducers=maen", "did you mean 'mean'"),
        ("--reducers=mean:speed=1", "reducers='mean:speed=1': speed: unknown key; allowed: none"),
        ("--reducers=adasum:algorithm=ring", "algorithm='ring': must be one of 'gram', 'halving'"),
        ("--reducers=adasum:granularity=(", "granularity='('"),
        ("--reducers=adacons:momentum=1", "momentum=1: must be float in [0, 1)"),
        ("--reducers=adacons:momentum", "'momentum' must be key=value"),
        ("--repeats=none", "repeats"),
        ("--json=/proc/nope/costs.json", "json='/proc/nope/costs.json'"),
        ("--config=x", "config"),
        ("leftover", "leftover"),
    ],
)
def test_refused_in_one_line(flag, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "measure", lambda *_, **__: pytest.fail("measuring began"))
    assert command.main(flag.split()) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and len(captured.err.splitlines()) == 1 and message in captured.err, captured.err
    assert not list(tmp_path.iterdir())
