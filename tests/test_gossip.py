"""Gossip: the mean over neighbours against matrices, consensus, messages, and workers that wait for few."""

import functools

import jax
import numpy as np
import pytest
from jax import numpy as jnp

import reducers
from parallel import AXES, Layout, map_devices
from reducers.collectives import shift_workers
from reducers.local.gossip import distances
from tests.softmax_digits import Digits, own_params, stepper_of, vector

STEPS = 50
TOPOLOGIES = ("complete", "exponential", "one_peer_exponential", "ring")
GOSSIP = ("--config.reducer.name=gossip",)
every_topology = pytest.mark.parametrize("topology", TOPOLOGIES)


def matrix(topology, n, step=0):
    """W of a step, written down neighbour by neighbour."""
    neighbours = {
        "complete": lambda i: set(range(n)),
        "ring": lambda i: {i, (i - 1) % n, (i + 1) % n},
        "exponential": lambda i: {i, *((i - 2**k) % n for k in range(n) if 2**k < n)},
        "one_peer_exponential": lambda i: {i, (i - 2 ** (step % max(1, int(np.ceil(np.log2(n)))))) % n},
    }[topology]
    w = np.zeros((n, n))
    for i in range(n):
        found = sorted(neighbours(i))
        w[i, found] = 1 / len(found)
    return w


@functools.cache
def mixed(topology, n, num_devices):
    """One update of n workers without progress of their own: drifts [n, m], step -> drifts."""
    layout = Layout.of(n, num_devices=num_devices)
    reducer = reducers.gossip(AXES, topology=topology)

    def one(drift, step):
        state = reducer.init(drift)
        state = state._replace(num_updates=step, report=state.report._replace(drift=drift))
        return reducer.update(jnp.zeros_like(drift), state)[1].report.drift

    lanes = jax.vmap(one, in_axes=(0, None), axis_name=AXES[1])
    over = map_devices(lanes, layout=layout)

    def update(drifts, step):
        steps = layout.put_shared(np.int32(step))
        return layout.get_per_worker(over(layout.put_per_worker(np.float32(drifts)), steps))

    return update


LAYOUTS = [(16, 8), (8, 8), (8, 4), (8, 2), (8, 1), (6, 2), (5, 1), (4, 4), (2, 1), (2, 2), (1, 1)]


@every_topology
@pytest.mark.parametrize(("n", "num_devices"), LAYOUTS)
def test_an_update_is_a_product_with_the_matrix(topology, n, num_devices):
    drifts = np.random.default_rng(0).standard_normal((n, 5))
    for step in range(3 if topology == "one_peer_exponential" else 1):
        found = mixed(topology, n, num_devices)(drifts, step)
        np.testing.assert_allclose(found, matrix(topology, n, step) @ drifts, atol=1e-6)


@every_topology
@pytest.mark.parametrize("n", [1, 2, 3, 5, 8, 16])
def test_the_matrix_is_doubly_stochastic(topology, n):
    for step in range(len(distances(topology, n))):
        w = matrix(topology, n, step)
        assert w.sum(0) == pytest.approx(1) and w.sum(1) == pytest.approx(1)
        assert all(0 < d < n for d in distances(topology, n)[step])


# ---- training ----------------------------------------------------------------------------------------------------


def d_psgd(digits, *, topology, adapt_first):
    xs = np.tile(digits.start, (8, 1))
    for step in range(STEPS):
        w = matrix(topology, 8, step)
        progress = digits.updates(xs, step)
        xs = w @ (xs + progress) if adapt_first else w @ xs + progress
    return xs


ORDERS = ("adapt_then_combine", "combine_then_adapt")


@pytest.mark.parametrize("order", ORDERS)
@every_topology
def test_agrees_with_a_loop_in_float64(topology, order):
    stepper = stepper_of(*GOSSIP, f"--config.reducer.topology={topology}", f"--config.reducer.order={order}")
    expected = d_psgd(Digits(stepper), topology=topology, adapt_first=order == "adapt_then_combine")
    start = vector(stepper.params())
    own, shared = own_params(stepper.steps(0, STEPS))
    np.testing.assert_array_equal(shared, start)  # nothing is shared
    np.testing.assert_allclose(own, expected, atol=1e-6)


# ---- messages ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("topology", "permutations"), [("ring", 2), ("exponential", 3), ("one_peer_exponential", 1), ("complete", 0)]
)
def test_a_worker_sends_its_parameters_to_each_neighbour(topology, permutations):
    reducer = reducers.gossip("worker", topology=topology)
    params = {"w": jnp.zeros(1000), "b": jnp.zeros(10)}
    moved = reducers.traffic(reducer, params, axis_sizes={"worker": 8})
    if topology == "complete":
        assert moved == reducers.traffic(reducers.mean("worker"), params, axis_sizes={"worker": 8})
    else:
        assert moved.bytes_per_worker == 4 * 1010 * permutations
        assert moved.collectives == {"ppermute": permutations}


@pytest.mark.parametrize(("distance", "rows"), [(1, [1]), (2, [2]), (3, [1, 1]), (4, [2]), (7, [1]), (8, [])])
def test_rows_that_leave_a_device(distance, rows):
    """4 devices with two lanes: a shift is at most two permutations, of each lane once, and none within a device."""
    lanes = jax.vmap(lambda x: shift_workers(x, distance, AXES), axis_name=AXES[1])
    program = jax.make_jaxpr(jax.pmap(lanes, axis_name=AXES[0], devices=jax.devices()[:4]))(jnp.zeros((4, 2, 5)))
    sent = [line for line in str(program).splitlines() if "ppermute" in line]
    assert [int(line.partition("f32[")[2].partition(",")[0]) for line in sent] == rows
