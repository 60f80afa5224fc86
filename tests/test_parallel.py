"""Layouts, pmap and shard_map, the ways over lanes, and the bounded pipeline."""

import os

import jax
import numpy as np
import optax
import pytest
from jax import lax
from jax import numpy as jnp

import parallel
import reducers
from parallel import AXES, Layout, StepsInFlight, resolve_lanes
from tests.grid import grid
from tests.started import python
from tests.stepper import largest_difference

LAYOUTS = [8, 4, 2, 1]  # devices for 8 workers


STATE_AXES = (None, 0)  # shared state, and what each worker has seen


def toy_step(*, reducer="mean", num_features=6):
    """Least squares on features made from the batch's index, with momentum: every part of a step, in a few lines."""
    tx = optax.chain(reducers.make(reducer, axis_name=AXES), optax.sgd(0.01, momentum=0.9))

    def compute(state, batch, resident):
        (params, _), own = state
        rows = resident["rows"][batch["index"]]
        noise = jax.random.normal(jax.random.fold_in(jax.random.key(0), batch["batch_index"]), rows.shape)

        def loss(params):
            return jnp.square((rows + 0.1 * noise) @ params["w"] + params["b"] - 1.0).mean()

        value, gradients = jax.value_and_grad(loss)(params)
        return gradients, value, own["seen"] + batch["batch_index"].astype(jnp.int32)

    def update(state, mine, inputs):
        del inputs
        gradients, value, seen = mine
        (params, opt_state), _ = state
        updates, opt_state = tx.update(gradients, opt_state, params)
        return ((optax.apply_updates(params, updates), opt_state), {"seen": seen}), {"loss": lax.pmean(value, AXES)}

    params = {"w": np.zeros(num_features, np.float32), "b": np.zeros((), np.float32)}
    return compute, update, (params, tx.init(params))


def map_toy(layout, *, mapping="pmap", lanes="vmap", reducer="mean"):
    """Returns the mapped step, and its state on the devices."""
    compute, update, shared = toy_step(reducer=reducer)
    options = {"layout": layout, "state_axes": STATE_AXES, "mapping": mapping}
    if lanes == "dispatched":
        step = parallel.dispatch_lanes(compute, update, **options)
    else:
        step = parallel.map_workers(compute, update, **options)
    return step, layout.put((shared, {"seen": np.zeros(layout.num_workers, np.int32)}), STATE_AXES)


def run(layout, *, num_steps=5, **options):
    """Returns the final state in canonical form."""
    step, state = map_toy(layout, **options)
    rng = np.random.default_rng(0)
    resident = layout.put_shared({"rows": rng.standard_normal((64, 6)).astype(np.float32)})
    in_flight = StepsInFlight()
    for number in range(num_steps):
        batch_index = np.arange(layout.num_workers, dtype=np.uint32) + number * layout.num_workers
        index = rng.integers(0, 64, (layout.num_workers, 4)).astype(np.int32)
        batch = {"batch_index": layout.split_steps(batch_index[None]), "index": layout.split_steps(index[None])}
        state, metrics = step(state, batch, resident, {})
        in_flight.push(number, metrics)
    in_flight.drain()
    return layout.get(state, STATE_AXES)


QUICK = {("pmap", "vmap"), ("shard_map", "vmap"), ("pmap", "dispatched")}


@pytest.mark.parametrize(("mapping", "lanes"), grid(["pmap", "shard_map"], ["vmap", "dispatched"], quick=QUICK))
def test_result_depends_on_neither_layout_nor_mapping(mapping, lanes):
    reference = run(Layout.of(8, num_devices=8))
    for num_devices in LAYOUTS:
        shared, local = run(Layout.of(8, num_devices=num_devices), mapping=mapping, lanes=lanes)
        assert largest_difference(shared, reference[0]) < 1e-6
        # Local state and randomness follow the worker, not the device.
        np.testing.assert_array_equal(local["seen"], reference[1]["seen"])


def test_layout_independence_rejects_randomness_of_the_device(monkeypatch):
    reference = run(Layout.of(8, num_devices=8))
    fold_in = jax.random.fold_in
    monkeypatch.setattr(jax.random, "fold_in", lambda key, batch_index: fold_in(key, lax.axis_index(AXES[0])))
    shared, _ = run(Layout.of(8, num_devices=4), lanes="vmap")
    assert largest_difference(shared, reference[0]) > 1e-6


@pytest.mark.parametrize("lanes", ["vmap", "dispatched"])
def test_state_is_donated(lanes):
    layout = Layout.of(8, num_devices=2)
    step, state = map_toy(layout, lanes=lanes)
    resident = layout.put_shared({"rows": np.ones((64, 6), np.float32)})
    batch = {
        "batch_index": layout.split_steps(np.arange(8, dtype=np.uint32)[None]),
        "index": layout.split_steps(np.zeros((1, 8, 4), np.int32)),
    }
    step(state, batch, resident, {})
    assert all(x.is_deleted() for x in jax.tree.leaves(state[0]))
    assert not any(x.is_deleted() for x in jax.tree.leaves(resident))
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), (state, batch, resident, {}))
    program, _ = step.lower(*shapes)["update" if lanes == "dispatched" else "step"]
    one_copy = sum(x.nbytes for x in jax.tree.leaves(state[0])) // layout.num_devices
    assert program.compile().memory_analysis().alias_size_in_bytes >= one_copy


def test_two_thousand_steps_on_eight_devices():
    layout = Layout.of(8, num_devices=8)
    bounded = run(layout, num_steps=2000)
    assert np.isfinite(bounded[0][0]["w"]).all()
    assert bounded[1]["seen"].sum() == sum(range(8 * 2000))


def test_the_pipeline_waits_for_the_oldest_and_keeps_order():
    in_flight = StepsInFlight(limit=3)
    left = [in_flight.push(number, jnp.full((), number)) for number in range(5)]
    assert [[tag for tag, _ in some] for some in left] == [[], [], [], [0], [1]]
    assert [(tag, int(value)) for tag, value in in_flight.drain()] == [(2, 2), (3, 3), (4, 4)]
    assert in_flight.drain() == []


@pytest.mark.parametrize("num_workers", [1, 2, 6, 7, 8, 12, 100])
def test_default_layout_uses_the_most_devices_that_divide(num_workers):
    layout = Layout.of(num_workers)
    assert layout.num_devices * layout.lanes == num_workers
    assert not any(num_workers % d == 0 for d in range(layout.num_devices + 1, 9))


@pytest.mark.parametrize(
    ("num_devices", "message"), [(3, "one of 1, 2, 4, 8 for"), (0, "one of 1, 2, 4, 8 for"), (16, "on 8 cpu devices")]
)
def test_layout_refuses(num_devices, message):
    with pytest.raises(ValueError, match=message):
        Layout.of(16 if num_devices == 16 else 8, num_devices=num_devices)


def test_canonical_form_is_worker_order():
    layout = Layout.of(8, num_devices=4)
    tree = {"x": np.arange(24, dtype=np.float32).reshape(8, 3)}
    placed = layout.put_per_worker(tree)
    assert placed["x"].shape == (4, 2, 3)
    np.testing.assert_array_equal(layout.get_per_worker(placed)["x"], tree["x"])
    shared = layout.put_shared({"x": np.arange(3.0)})
    assert shared["x"].shape == (4, 3)
    assert {s.data.shape for s in shared["x"].addressable_shards} == {(1, 3)}
    np.testing.assert_array_equal(layout.get_shared(shared)["x"], np.arange(3.0))


def test_resolve_lanes_on_cpu():
    many = Layout.of(64, num_devices=1)
    assert resolve_lanes("auto", layout=many) == "vmap"
    assert resolve_lanes("auto", layout=many, work="some") == "dispatched"
    assert resolve_lanes("auto", layout=many, work="some", steps_per_call=2) == "vmap"
    assert resolve_lanes("auto", layout=many, work="some", lanes_at_once=2) == "vmap"
    assert resolve_lanes("auto", layout=Layout.of(8), work="some") == "vmap"
    assert resolve_lanes("auto", layout=many, kernels="images") == "vmap"
    assert resolve_lanes("auto", layout=Layout.of(8, num_devices=2), kernels="images") == "dispatched"
    assert resolve_lanes("auto", layout=Layout.of(8, num_devices=2)) == "vmap"
    assert resolve_lanes("dispatched", layout=Layout.of(8)) == "dispatched"


def test_many_dispatched_lanes_on_several_devices():
    """32 calls without a limit deadlock on jax 0.10.2."""
    shared, own = run(Layout.of(32, num_devices=2), lanes="dispatched", num_steps=20)
    assert np.isfinite(shared[0]["w"]).all() and own["seen"].sum() == sum(range(32 * 20))


@pytest.mark.parametrize(
    ("num_workers", "num_cores", "num_processes", "expected"),
    [(8, 2, 1, 2), (8, 64, 1, 8), (6, 4, 1, 3), (7, 4, 1, 1), (32, 6, 1, 4), (8, 2, 4, 4), (8, 4, 2, 4), (12, 5, 3, 3)],
)
def test_virtual_devices_are_no_more_than_cores_unless_processes_are(num_workers, num_cores, num_processes, expected):
    found = parallel.default_cpu_devices(num_workers, num_cores=num_cores, num_processes=num_processes)
    assert found == expected and num_workers % found == 0


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="macOS binds no process to a core")
def test_cores_are_those_that_the_process_may_use():
    program = (
        "import os, jax, parallel; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); "
        "parallel.configure_cpu_devices(8, num_devices=None); print(jax.device_count())"
    )
    done = python("-c", program, JAX_PLATFORMS="cpu")
    assert done.stdout == "1\n", done.stderr
