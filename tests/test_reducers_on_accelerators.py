"""Reducers as they are written for GPUs and TPUs, run on CPU: the numbers are those of the reducers written for CPU.

There all vectors are exchanged and multiplied at once, as chunks of one array.
"""

import itertools

import jax
import numpy as np
import pytest

import reducers
from benchmarks.kit.leaves import resnet50
from parallel import AXES, Layout, map_devices
from reducers import targets
from reducers.wrappers import communication
from tests.grid import grid
from tests.test_gram_family import gaussian
from tests.test_reducers import WORKER

REDUCERS = {
    "mean": {},
    "sum": {},
    "coordinate_median": {},
    "trimmed_mean": {"num_trimmed": 1},
    "adasum": {},
    "adasum:telemetry": {"telemetry": "on"},
    "adasum:halving": {"algorithm": "halving"},
    "adasum:model": {"granularity": "model"},
    "adasum:groups": {"group_size": 2, "within": "sum"},
    "krum": {},
    "multi_krum": {"granularity": "layer"},
    "geometric_median": {"granularity": "^[a-z]"},
    "pcgrad": {"granularity": "layer"},
    "mgda": {},
    "adacons": {},
    "meamed": {},
    "centred_clipping": {"radius": 1e3},
    "bucketing": {"combine": "coordinate_median"},
    "nearest_neighbour_mixing": {"num_byzantine": 2},
}
LAYOUTS = {"8 devices": 8, "4 devices x 2 lanes": 4, "8 lanes": 1}
# A leaf has several chunks, or less than one, or is too small for slices; a further one has another dtype.
SIZES = {"kernel": (70, 90), "matrix": (1500,), "bias": (100,), "scale": (3,)}


def gradients(scales):
    grads = {name: gaussian(8, *shape, seed=i) + 0.5 for i, (name, shape) in enumerate(SIZES.items())}
    grads = {name: (g.swapaxes(0, -1) * scales).swapaxes(0, -1) for name, g in grads.items()}
    return {name: g.astype(np.float32) for name, g in grads.items()} | {"half": gaussian(8, 300).astype("bfloat16")}


def result(label, num_devices, grads, counted):
    """Every device's updates, and the telemetry."""
    reducer = reducers.make(label.partition(":")[0], axis_name=AXES, **REDUCERS[label])
    layout = Layout.of(8, num_devices=num_devices)

    def one(grads, counted):
        updates, state = reducer.update(grads, reducer.init(grads), contributes=counted)
        return updates, reducers.report(state).metrics

    mapped = map_devices(jax.vmap(one, axis_name=AXES[1]), layout=layout)
    return jax.device_get(mapped(*layout.put_per_worker((grads, counted))))


def compare(label, num_devices, grads, counted):
    expected, metrics = result(label, num_devices, grads, counted)
    with targets.find("h100:8").assumed():
        found, found_metrics = result(label, num_devices, grads, counted)
    for name, leaf in expected.items():
        ours, theirs = (np.asarray(x, np.float64).reshape(8, -1) for x in (found[name], leaf))
        assert found[name].dtype == leaf.dtype and (ours == ours[0]).all() == (theirs == theirs[0]).all(), name
        tolerance = 1e-2 if name == "half" else 2e-5
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=tolerance * np.abs(theirs).max(), err_msg=name)
    for name, value in metrics.items():
        np.testing.assert_allclose(found_metrics[name], value, rtol=1e-3, atol=1e-4, err_msg=name)


LEFT_TO_SLOW = {"adasum:groups", "adasum:telemetry", "mgda", "multi_krum", "pcgrad"}
QUICK = {row for row in zip(REDUCERS, itertools.cycle(LAYOUTS)) if row[0] not in LEFT_TO_SLOW}


@pytest.mark.parametrize(("label", "layout"), grid(REDUCERS, LAYOUTS, quick=QUICK))
def test_numbers_are_those_of_a_cpu(label, layout):
    counted = np.arange(8) != 5
    for scales in (np.ones(8), 10.0 ** np.linspace(-30, 30, 8)):
        compare(label, LAYOUTS[layout], gradients(scales), counted)


ENCODED = {
    "quantised": {"bits": 4, "error_feedback": "on"},
    "float8": {"rounding": "random", "error_feedback": "on"},
    "sign": {},
    "top_k": {"ratio": 0.1},
    "random_k": {"ratio": 0.1, "then": {"name": "quantised", "bits": 8}},
    "dynamic_bits": {},
}


QUICK_ENCODED = {("quantised", "4 devices x 2 lanes"), ("random_k", "8 lanes")}


@pytest.mark.parametrize(("name", "layout"), grid(ENCODED, LAYOUTS, quick=QUICK_ENCODED))
def test_leaves_of_one_shape_are_encoded_together_as_one_by_one(name, layout):
    """Results and residuals are those of the leaves one by one: whatever is drawn at random is drawn for each leaf."""
    grads = {f"leaf_{i}": gaussian(8, 40, 40, seed=i).astype(np.float32) for i in range(3)}
    grads |= {"other": gaussian(8, 1300, seed=3).astype(np.float32)}

    def run():
        reducer = communication.make(name, reducer=reducers.mean(AXES), axis_name=AXES, **ENCODED[name])

        def two_updates(grads):
            first, state = reducer.update(grads, reducer.init(grads))
            return first, *reducer.update(grads, state)

        placed = Layout.of(8, num_devices=LAYOUTS[layout])
        return jax.device_get(
            map_devices(jax.vmap(two_updates, axis_name=AXES[1]), layout=placed)(*placed.put_per_worker((grads,)))
        )

    expected = run()
    with targets.find("h100:8").assumed():
        found = run()
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), found, expected)


def test_garbage_is_the_same_on_accelerators():
    reducer = reducers.make("corrupt", axis_name=WORKER, workers=(1,))
    grads = {"a": np.ones((4, 30, 3), np.float32), "b": np.ones((4, 30, 3), np.float32)}
    run = jax.vmap(lambda g: reducer.update(g, reducer.init(g))[0], axis_name=WORKER)
    expected = run(grads)
    assert (expected["a"] != expected["b"]).any()
    with targets.find("h100:8").assumed():
        jax.tree.map(np.testing.assert_array_equal, jax.device_get(run(grads)), jax.device_get(expected))


@pytest.mark.parametrize("name", ["adasum", "krum", "pcgrad"])
def test_all_layers_share_one_exchange(name):
    """Dot products are summed twice where norms are extreme; layers too small for slices share a gather."""
    with targets.find("h100:8").assumed():
        sent = reducers.traffic(reducers.make(name, axis_name=WORKER), resnet50(), axis_sizes={WORKER: 8}).collectives
    assert sent == {"all_to_all": 1, "psum": 2, "all_gather": sent["all_gather"]} and sent["all_gather"] < 3


@pytest.mark.parametrize(("target", "count"), [("v5e:16x16", 256), ("v5p:8x8x8", 512)])
def test_a_slice_of_many_tpus_has_two_levels(target, count):
    with targets.find(target).assumed():
        sent = reducers.traffic(reducers.adasum(WORKER), resnet50(), axis_sizes={WORKER: count})
    assert sent.collectives["all_to_all"] == 2 and sum(sent.collectives.values()) <= 12
    assert sent.bytes_per_worker < 1.3 * 2 * 4 * sum(leaf.size for leaf in resnet50())
