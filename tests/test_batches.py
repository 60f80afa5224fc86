"""Small leaves share a collective, and what comes out is what it is without."""

import jax
import numpy as np
import pytest
from jax import numpy as jnp

import reducers
from parallel import AXES, Layout, map_devices
from reducers.collectives import backend
from tests.test_reducers import WORKER, tree_of

ELEMENTWISE = ("mean", "sum", "sign_majority", "coordinate_median", "trimmed_mean")
HALF_A_BATCH = backend.BUCKET_BYTES // 8  # floats


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_collectives_follow_the_bytes(name):
    small = [jax.ShapeDtypeStruct((HALF_A_BATCH // 10,), jnp.float32)] * 40  # two batches
    large = [jax.ShapeDtypeStruct((4 * HALF_A_BATCH,), jnp.float32)] * 3
    moved = reducers.traffic(reducers.make(name, axis_name=WORKER), [*small, *large], axis_sizes={WORKER: 8})
    of_each_kind = 2 if name == "sign_majority" else 5  # a vote is a byte
    kinds = {"coordinate_median": ["all_gather", "all_to_all"], "trimmed_mean": ["all_gather", "all_to_all"]}
    assert moved.collectives == dict.fromkeys(kinds.get(name, ["psum"]), of_each_kind)


def test_small_leaves_share_more_between_processes(monkeypatch):
    leaves = [jax.ShapeDtypeStruct((HALF_A_BATCH,), jnp.float32)] * 64  # 8 x 4 MB
    reducer = reducers.mean(WORKER)
    within = reducers.traffic(reducer, leaves, axis_sizes={WORKER: 8})
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    between = reducers.traffic(reducer, leaves, axis_sizes={WORKER: 8})
    assert (within.collectives, between.collectives) == ({"psum": 32}, {"psum": 8})
    assert within.bytes_per_worker == between.bytes_per_worker


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_leaves_that_travel_together_are_what_they_are_alone(name):
    layout = Layout.of(8, num_devices=4)
    reducer = reducers.make(name, axis_name=AXES)

    def update(grads):
        return reducer.update(grads, reducer.init(grads), grads)[0]

    reduce = map_devices(jax.vmap(update, axis_name=AXES[1]), layout=layout, mapping="shard_map")
    grads = jax.tree.map(layout.split, {"half": tree_of(8, dtype=jnp.bfloat16), "full": tree_of(8, seed=1)})
    alone = jax.tree.map(reduce, grads)
    jax.tree.map(np.testing.assert_array_equal, reduce(grads), alone)
