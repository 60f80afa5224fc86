"""The conservative Armijo line search: alone, with rates that fall, and over workers who must stop together."""

import itertools

import jax
import numpy as np
import optax
import pytest
from jax import numpy as jnp

from optim.rules.noise_adaptive import armijo_conservative
from tests.started import python

CURVATURES = jnp.array([1.0, 4.0, 30.0])


def loss_of(batch):
    """A loss whose batches differ in their curvature."""
    return lambda x: 0.5 * jnp.sum(CURVATURES * jnp.exp(batch) * x**2)


def walk(search, *, steps=12):
    """Yields each step: the loss of its batch, where it starts, its update, and the states before and after."""
    x = jnp.ones(3)
    state = search.init(x)
    update = jax.jit(lambda batch, *given: search.update(*given, value_fn=loss_of(batch)))
    for batch in jax.random.normal(jax.random.key(0), (steps, 3)):
        gradient = jax.grad(loss_of(batch))(x)
        updates, after = update(batch, gradient, state, x)
        yield loss_of(batch), x, gradient, updates, state, after
        x, state = x + updates, after


def test_each_step_has_the_size_of_the_search_before_and_sizes_never_grow():
    sizes = [2.0]
    for _, _, gradient, updates, before, after in walk(armijo_conservative()):
        np.testing.assert_allclose(updates, -before.size * gradient, rtol=1e-6)
        sizes.append(float(after.size))
    assert all(after <= before for before, after in itertools.pairwise(sizes))
    assert 0 < sizes[-1] < 0.1  # of the order of 1 over the largest curvature


@pytest.mark.parametrize("c", [0.1, 0.5])
def test_armijo_s_condition_holds_at_what_a_search_returns(c):
    def holds(loss, x, gradient, size):
        return loss(x - size * gradient) <= loss(x) - c * size * jnp.sum(gradient**2) + 1e-5

    refused = 0
    for loss, x, gradient, _, before, after in walk(armijo_conservative(c=c)):
        assert holds(loss, x, gradient, after.size)
        if after.size < before.size:
            assert not holds(loss, x, gradient, after.size / 0.7)  # it is the largest of those tried
            refused += 1
    assert refused > 1


def test_a_search_that_finds_nothing_cuts_the_size_once():
    search = armijo_conservative(max_tries=3, initial=1.0)
    x = jnp.asarray(1.0)
    _, state = search.update(jnp.asarray(-1.0), search.init(x), x, value_fn=lambda x: x)  # no descent direction
    assert (float(state.size), int(state.tries)) == (pytest.approx(0.7), 3)


def test_it_chains_with_exponential_steps():
    fall = optax.exponential_decay(1.0, 12, 1 / 12)
    search = optax.chain(armijo_conservative(), optax.scale_by_schedule(fall))
    for step, (_, _, gradient, updates, before, after) in enumerate(walk(search)):
        np.testing.assert_allclose(updates, -before[0].size * fall(step) * gradient, rtol=1e-5)
        assert after[0].size <= before[0].size


WORKERS = """
import sys

import jax
import numpy as np
from jax import numpy as jnp
from jax.sharding import PartitionSpec as P

from optim.rules.noise_adaptive import armijo_conservative

jax.config.update("jax_num_cpu_devices", 4)
search = armijo_conservative(sys.argv[1] if sys.argv[1] != "none" else None)
mesh = jax.make_mesh((4,), ("worker",), axis_types=(jax.sharding.AxisType.Auto,))


def train(curvature):
    x = jnp.ones(1)
    state, found = search.init(x), []
    for _ in range(5):
        loss = lambda x: jnp.sum(curvature * x**2)
        gradient = jax.lax.pmean(jax.grad(loss)(x), "worker")
        updates, state = search.update(gradient, state, x, value_fn=loss)
        x = x + updates
        found.append(state.tries)
    return jnp.stack(found)[None]


mapped = jax.shard_map(train, mesh=mesh, in_specs=P("worker"), out_specs=P("worker"), check_vma=False)
tries = np.asarray(jax.jit(mapped)(jnp.array([0.1, 1.0, 10.0, 100.0])))
print(len({tuple(of_worker) for of_worker in tries.tolist()}), tries.max())
"""


@pytest.mark.parametrize(("axis_name", "num_different"), [("worker", 1), ("none", 4)])
def test_all_workers_take_as_many_tries(axis_name, num_different):
    """Workers who leave the search at different tries wait for one another for ever, so there is a limit of time."""
    done = python("-c", WORKERS, axis_name)
    assert done.returncode == 0, done.stderr
    different, most = map(int, done.stdout.split())
    assert different == num_different and most > 3


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"c": 1.0}, r"c=1.0: must be float in \(0, 1\)"),
        ({"backtrack": 0.0}, r"backtrack=0.0: must be float in \(0, 1\)"),
        ({"max_tries": 0}, r"max_tries=0: must be int in \[1, inf\)"),
        ({"initial": -1.0}, r"initial=-1.0: must be float in \(0, inf\)"),
    ],
)
def test_a_number_out_of_range_is_refused_in_one_line(given, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        armijo_conservative(**given)
