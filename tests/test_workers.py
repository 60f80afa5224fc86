"""Layouts, the two lifts, the ways over lanes, and the bounded pipeline."""

import functools

import jax
import numpy as np
import optax
import pytest
from jax import lax
from jax import numpy as jnp

import reducers
from parallel import AXES, Halves, Layout, Window, over_workers, resolve_lanes
from parallel import lift as lifts
from tests.grid import grid

LAYOUTS = [8, 4, 2, 1]  # devices for 8 workers


def toy_halves(*, reducer="mean", num_features=6):
    """Least squares on features made from the draw, with momentum: every part of a step, in a few lines."""
    tx = optax.chain(reducers.make(reducer, axis_name=AXES), optax.sgd(0.01, momentum=0.9))

    def gradient(shared, local, feed, resident):
        params, _ = shared
        rows = resident["rows"][feed["index"]]
        noise = jax.random.normal(jax.random.fold_in(jax.random.key(0), feed["draw"]), rows.shape)

        def loss(params):
            return jnp.square((rows + 0.1 * noise) @ params["w"] + params["b"] - 1.0).mean()

        value, gradients = jax.value_and_grad(loss)(params)
        return gradients, value, local["seen"] + feed["draw"].astype(jnp.int32)

    def reduce(shared, local, computed, plan):
        del local, plan
        gradients, value, seen = computed
        params, state = shared
        updates, state = tx.update(gradients, state, params)
        return (optax.apply_updates(params, updates), state), {"seen": seen}, {"loss": lax.pmean(value, AXES)}

    params = {"w": np.zeros(num_features, np.float32), "b": np.zeros((), np.float32)}
    return Halves(gradient, reduce), (params, tx.init(params))


def run(layout, *, num_steps=5, lift="pmap", lanes="auto", reducer="mean"):
    """Returns the final canonical state."""
    halves, shared = toy_halves(reducer=reducer)
    step = over_workers(halves, layout=layout, lift=lift, lanes=lanes)
    rng = np.random.default_rng(0)
    resident = layout.put_shared({"rows": rng.standard_normal((64, 6)).astype(np.float32)})
    shared = layout.put_shared(shared)
    local = layout.put_local({"seen": np.zeros(layout.num_workers, np.int32)})
    window = Window()
    for number in range(num_steps):
        draws = np.arange(layout.num_workers, dtype=np.uint32) + number * layout.num_workers
        index = rng.integers(0, 64, (layout.num_workers, 4)).astype(np.int32)
        feed = {"draw": layout.split(draws), "index": layout.split(index)}
        shared, local, metrics = step(shared, local, feed, resident)
        window.push(number, metrics)
    window.drain()
    return layout.get_shared(shared), layout.get_local(local)


def largest_difference(one, other):
    return max(np.abs(a - b).max() for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True))


QUICK = {("pmap", "vmap"), ("shard_map", "unrolled"), ("pmap", "dispatched")}


@pytest.mark.parametrize(
    ("lift", "lanes"), grid(["pmap", "shard_map"], ["vmap", "unrolled", "dispatched"], quick=QUICK)
)
def test_result_depends_on_neither_layout_nor_lift(lift, lanes):
    reference = run(Layout.of(8, num_devices=8))
    for num_devices in LAYOUTS:
        shared, local = run(Layout.of(8, num_devices=num_devices), lift=lift, lanes=lanes)
        assert largest_difference(shared, reference[0]) < 1e-6
        # Local state and randomness follow the worker, not the device.
        np.testing.assert_array_equal(local["seen"], reference[1]["seen"])


def test_layout_independence_rejects_randomness_of_the_device(monkeypatch):
    reference = run(Layout.of(8, num_devices=8))
    fold_in = jax.random.fold_in
    monkeypatch.setattr(jax.random, "fold_in", lambda key, draw: fold_in(key, lax.axis_index(AXES[0])))
    shared, _ = run(Layout.of(8, num_devices=4), lanes="unrolled")
    assert largest_difference(shared, reference[0]) > 1e-6


@pytest.mark.parametrize("lanes", ["unrolled", "dispatched"])
def test_state_is_donated(lanes):
    layout = Layout.of(8, num_devices=2)
    halves, shared = toy_halves()
    step = over_workers(halves, layout=layout, lanes=lanes)
    resident = layout.put_shared({"rows": np.ones((64, 6), np.float32)})
    shared, local = layout.put_shared(shared), layout.put_local({"seen": np.zeros(8, np.int32)})
    feed = {"draw": layout.split(np.arange(8, dtype=np.uint32)), "index": layout.split(np.zeros((8, 4), np.int32))}
    step(shared, local, feed, resident)
    assert all(x.is_deleted() for x in jax.tree.leaves(shared))
    assert not any(x.is_deleted() for x in jax.tree.leaves(resident))
    lowered = step.lower(
        *jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), (shared, local, feed, resident))
    )
    program, _ = lowered["reduce" if lanes == "dispatched" else "step"]
    one_copy = sum(x.nbytes for x in jax.tree.leaves(shared)) // layout.num_devices
    assert program.compile().memory_analysis().alias_size_in_bytes >= one_copy


def test_two_thousand_steps_on_eight_devices():
    layout = Layout.of(8, num_devices=8)
    bounded = run(layout, num_steps=2000)
    assert np.isfinite(bounded[0][0]["w"]).all()
    assert bounded[1]["seen"].sum() == sum(range(8 * 2000))


def test_window_waits_for_the_oldest_and_keeps_order():
    window = Window(limit=3)
    left = [window.push(number, jnp.full((), number)) for number in range(5)]
    assert [[tag for tag, _ in some] for some in left] == [[], [], [], [0], [1]]
    assert len(window) == 3
    assert [(tag, int(value)) for tag, value in window.drain()] == [(2, 2), (3, 3), (4, 4)]
    assert len(window) == 0
    with pytest.raises(ValueError, match="limit=0"):
        Window(limit=0)


@pytest.mark.parametrize("num_workers", [1, 2, 6, 7, 8, 12, 100])
def test_default_layout_uses_the_most_devices_that_divide(num_workers):
    layout = Layout.of(num_workers)
    assert layout.num_devices * layout.lanes == num_workers
    assert not any(num_workers % d == 0 for d in range(layout.num_devices + 1, 9))


@pytest.mark.parametrize(
    ("num_devices", "message"), [(3, "does not divide"), (0, "this machine has 8"), (16, "has 8 cpu")]
)
def test_layout_refuses(num_devices, message):
    with pytest.raises(ValueError, match=message):
        Layout.of(16 if num_devices == 16 else 8, num_devices=num_devices)


def test_canonical_form_is_worker_order():
    layout = Layout.of(8, num_devices=4)
    tree = {"x": np.arange(24, dtype=np.float32).reshape(8, 3)}
    placed = layout.put_local(tree)
    assert placed["x"].shape == (4, 2, 3)
    np.testing.assert_array_equal(layout.get_local(placed)["x"], tree["x"])
    shared = layout.put_shared({"x": np.arange(3.0)})
    assert shared["x"].shape == (4, 3) and {s.data.shape for s in shared["x"].addressable_shards} == {(1, 3)}
    np.testing.assert_array_equal(layout.get_shared(shared)["x"], np.arange(3.0))


def test_resolve_lanes_on_cpu():
    resolve = functools.partial(resolve_lanes, "auto")
    assert resolve(layout=Layout.of(8)) == "unrolled"
    assert resolve(layout=Layout.of(64, num_devices=1)) == "dispatched"
    assert resolve(layout=Layout.of(16, num_devices=8), num_bytes=10**6) == "unrolled"
    assert resolve(layout=Layout.of(16, num_devices=8), num_bytes=10**7) == "dispatched"
    assert resolve(layout=Layout.of(8, num_devices=1), num_bytes=10**7) == "unrolled"
    assert resolve_lanes("vmap", layout=Layout.of(64, num_devices=1)) == "vmap"


def test_dispatched_lanes_are_limited_as_steps_are(monkeypatch):
    seen = []

    class Recording(Window):
        def push(self, tag, outputs):
            left = super().push(tag, outputs)
            seen.append(len(self))
            return left

        def drain(self):
            seen.append("drained")
            return super().drain()

    monkeypatch.setattr(lifts, "Window", Recording)
    for num_devices, expected in [(2, [*range(1, 9), *[8] * 8, "drained"]), (1, [*range(1, 33)])]:
        seen.clear()
        run(Layout.of(32, num_devices=num_devices), lanes="dispatched", num_steps=1)
        assert seen == expected
