"""The benchmark as a command: what it refuses, and what it leaves; no test looks at a time."""

import inspect

import jax
import numpy as np
import optax
import pytest
from jax import lax

import reducers
from benchmarks import reducers as command
from benchmarks.kit import candidates, leaves, reducer_times, result
from parallel import Layout
from reducers import registry
from tests.refused import only_line_of

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


def measured(labels, *, make=(), num_devices=8, repeats=1, max_seconds=np.inf):
    chosen = [*map(candidates.parse, labels), *(candidates.Candidate(f"made up {i}", m) for i, m in enumerate(make))]
    layout = Layout.of(8, num_devices=num_devices)
    found = reducer_times.measure(
        "x", leaves.plain(1000), chosen, layout=layout, repeats=repeats, max_seconds=max_seconds
    )
    where = f", {num_devices} devices, x"
    assert all(one.name.endswith(where) for one in found)
    return {one.name.removesuffix(where): one for one in found}


def stateless(function):
    return lambda axis_name: optax.GradientTransformationExtraArgs(
        lambda params: optax.EmptyState(),
        lambda updates, state, params=None, **extra: (jax.tree.map(lambda g: function(axis_name, g), updates), state),
    )


@pytest.mark.parametrize("num_devices", [8, 2])
def test_reducers_are_measured_in_pairs_with_the_mean(num_devices):
    found = measured(["sum", "adacons"], num_devices=num_devices, repeats=3)
    assert list(found) == ["sum over mean", "adacons over mean", "sum sends", "adacons sends", "gradient", "mean"]
    assert [len(one.values) for one in found.values()] == [3, 3, 1, 1, 1, 6]
    assert found["sum sends"].values == [1.75] and found["adacons sends"].median > 1.75


def needy(axis_name):
    return optax.GradientTransformationExtraArgs(
        lambda params: optax.EmptyState(), lambda updates, state, params=None, *, contributes, **extra: (updates, state)
    )


def test_what_cannot_run_is_listed_with_its_reason():
    not_reducing = stateless(lambda axis, g: g)
    summing = stateless(lambda axis, g: lax.psum(g, axis))
    found = measured(["trimmed_mean:num_trimmed=4", "sum"], make=[needy, not_reducing, summing])
    reasons = [found[name].missing for name in found if name.endswith(" over mean")]
    assert "leaves none of 8 workers" in reasons[0]
    assert "contributes" in reasons[2]
    assert "out_axes" in reasons[3]
    assert reasons[1] == reasons[4] == "" and not any("\n" in reason for reason in reasons)
    assert [name for name in found if name.endswith(" sends")] == ["sum sends", "made up 2 sends"]


def test_what_is_too_slow_is_refused_after_one_call():
    found = measured(["mean"], repeats=2, max_seconds=0)
    assert list(found) == ["mean over mean", "mean sends"]
    assert "max_seconds=0" in found["mean over mean"].missing


# ---- the command -------------------------------------------------------------------------------------------------

QUICK = ("--layouts=plain", "--sizes=300,1e4", "--repeats=1", "--reducers=sum,trimmed_mean:num_trimmed=4")


def test_an_interrupted_run_keeps_the_layouts_that_it_has(tmp_path, capsys, monkeypatch):
    measure = command.measure

    def interrupted(what, shapes, *arguments, **options):
        if sum(leaf.size for leaf in shapes) > 300:
            raise KeyboardInterrupt
        return measure(what, shapes, *arguments, **options)

    monkeypatch.setattr(command, "measure", interrupted)
    path = tmp_path / "costs.json"
    assert command.main([*QUICK, f"--json={path}"]) == 130
    captured = capsys.readouterr()
    ratio, refused, sends, gradient, mean = captured.out.splitlines()
    where = "8 devices, 0.0003 M floats in one leaf"
    assert ratio.startswith(f"sum over mean, {where}: ")
    assert sends.startswith(f"sum sends, {where}: 1.75 gradients")
    assert "leaves none of 8 workers" in refused and mean.startswith(f"mean, {where}: ")
    assert gradient == f"gradient, {where}: 300 floats"
    assert "compiling sum" in captured.err
    environment, found = result.read(path)
    assert len(environment["devices"]) == 8 and environment["packages"]["jax"]
    assert [len(one.values) for one in found] == [1, 0, 1, 1, 1]


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--layouts=vgg", "layouts='vgg': allowed: plain"),
        ("--sizes=many", "sizes='many'"),
        ("--sizes=1.5", "sizes='1.5'"),
        ("--sizes=0", "sizes='0'"),
        ("--sizes=100", "sizes=100: resnet50_like has 7196 floats at least"),
        ("--workers=0", "workers=0: must be 1 or more"),
        ("--devices=3", "num_devices=3: must be one of 1, 2, 4, 8 for num_workers=8"),
        ("--reducers=", "name=''"),
        ("--reducers=maen", "did you mean 'mean'"),
        ("--reducers=mean:speed=1", "reducers='mean:speed=1': speed: unknown key; allowed: none"),
        ("--reducers=adasum:algorithm=ring", "algorithm='ring': must be one of 'gram', 'halving'"),
        ("--reducers=adacons:momentum", "'momentum' must be key=value"),
        ("--reducers=adasum:granularity=(", "granularity='('"),
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
    assert message in only_line_of(capsys)
    assert not list(tmp_path.iterdir())
