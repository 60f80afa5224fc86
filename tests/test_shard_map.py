"""Under ``jax.shard_map``: no gradient is summed twice, every reducer works where JAX keeps track of what differs."""

import functools

import jax
import numpy as np
import optax
import pytest
from jax import lax
from jax import numpy as jnp
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import reducers
from reducers import encodings
from tests.cases import CASES, SECONDS
from tests.refused import refused
from tests.test_reducers import WORKER, every_case, tree_of


def mesh_of(**sizes):
    return jax.make_mesh(tuple(sizes.values()), tuple(sizes), axis_types=(AxisType.Auto,) * len(sizes))


def unmarked(params):
    return params


def marked(params):
    return reducers.per_worker(params, WORKER)


def mapped_updates(case, *, mark, num_updates=2, **options):
    """(params, slopes of all workers) -> updates by gradients that are these slopes, and all workers' states."""
    reducer = case.make(axis_name=WORKER)

    def one(params, slopes):
        slopes = jax.tree.map(lambda x: jnp.squeeze(x, 0), slopes)

        def loss(params):
            return sum(jnp.sum(p * s) for p, s in zip(jax.tree.leaves(params), jax.tree.leaves(slopes), strict=True))

        gradient = jax.grad(loss)(mark(params))
        state = reducer.init(params)
        found = []
        for _ in range(num_updates):
            updates, state = reducer.update(gradient, state, params, **case.shared)
            found.append(updates)
        return found, jax.tree.map(lambda x: jnp.expand_dims(x, 0), state)

    specs = {"in_specs": (P(), P(WORKER)), "out_specs": (P(), P(WORKER))}
    return jax.shard_map(one, mesh=mesh_of(worker=8), **specs, **options)


def arguments(*, leave_out=()):
    slopes = {key: value for key, value in tree_of(8).items() if key not in leave_out}
    return jax.tree.map(lambda x: np.zeros(x.shape[1:], x.dtype), slopes), slopes


@every_case
def test_works_on_varying_gradients_and_with_the_check_off(case):
    jax.eval_shape(mapped_updates(case, mark=marked), *arguments())
    given = arguments(leave_out={"empty"})  # with it jax 0.11.2 crashes, also at its own psum
    tracked = jax.jit(mapped_updates(case, mark=marked, num_updates=1))(*given)
    untracked = jax.jit(mapped_updates(case, mark=unmarked, num_updates=1, check_vma=False))(*given)
    # With the check on, Adasum combines all devices at once, and else two of them, or up to 16, in levels.
    close = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=2e-6)
    jax.tree.map(close if case.name == "adasum" else np.testing.assert_array_equal, tracked, untracked)


def encoded(encoding):
    return reducers.encoded(reducers.mean(WORKER), encoding, axis_name=WORKER)


VARIANTS = {
    "half": lambda: reducers.in_half_precision(reducers.adasum(WORKER), axis_name=WORKER),
    "telemetry": lambda: reducers.adasum(WORKER, telemetry="on"),
    "groups": lambda: reducers.adasum(WORKER, group_size=2, within="adasum"),
    "backup_adasum": lambda: reducers.backup_workers(WORKER, num_required=5, combine=reducers.adasum(WORKER)),
    "backup_median": lambda: reducers.backup_workers(
        WORKER, num_required=5, combine=reducers.coordinate_median(WORKER)
    ),
    "late_adasum": lambda: reducers.stale(WORKER, delay_steps=1, law="uniform", combine=reducers.adasum(WORKER)),
    "finite": lambda: reducers.apply_if_finite(reducers.adacons(WORKER), WORKER, 3),
    "rounds_of_the_first": lambda: reducers.local_sgd(
        WORKER,
        every_steps=2,
        combine=reducers.backup_workers(WORKER, num_required=5, combine=reducers.adasum(WORKER, telemetry="on")),
    ),
    "dynamic_bits": lambda: encoded(encodings.dynamic_bits(error_feedback="on")),
    "low_rank": lambda: encoded(encodings.low_rank(then=encodings.half())),
    "float8": lambda: encoded(encodings.float8(rounding="random", error_feedback="on")),
    "bits_of_rounds": lambda: reducers.local_sgd(WORKER, every_steps=2, combine=encoded(encodings.quantised(bits=4))),
    "backup_top_k": lambda: reducers.backup_workers(WORKER, num_required=5, combine=encoded(encodings.top_k())),
    "injected": lambda: optax.inject_hyperparams(reducers.adacons)(WORKER, momentum=0.5),
}


@pytest.mark.parametrize("make", VARIANTS.values(), ids=VARIANTS)
def test_compositions_keep_track_too(make):
    """Large leaves take other paths: buckets of their own, and on CPU sliced products."""
    reducer = make()

    def one(params, gradient):
        state = reducer.init(params)
        for _ in range(2):
            mask = {"contributes": lax.axis_index(WORKER) > 2} if getattr(reducer, "takes_mask", True) else {}
            given = {**mask, "arrival_seconds": jnp.asarray(SECONDS)}
            updates, state = reducer.update(jax.tree.map(lambda x: x[0], gradient), state, params, **given)
        return updates

    mapped = jax.shard_map(one, mesh=mesh_of(worker=8), in_specs=(P(), P(WORKER)), out_specs=P())
    params = {f"layer_{i}": jax.ShapeDtypeStruct((2000, 500), jnp.float32) for i in range(4)}
    params["bias"] = jax.ShapeDtypeStruct((5,), jnp.float32)
    gradients = jax.tree.map(lambda x: jax.ShapeDtypeStruct((8, *x.shape), x.dtype), params)
    assert jax.eval_shape(mapped, params, gradients) == params


@pytest.mark.parametrize("name", ["adasum", "half", "groups", "backup_adasum", "late_adasum"])
def test_a_mapped_step_can_be_vmapped(name):
    """JAX applies ``vmap`` to a traced program, in which all types must go on to agree."""
    reducer = {**VARIANTS, "adasum": lambda: reducers.adasum(WORKER)}[name]()

    def one(gradient):
        given = {"arrival_seconds": jnp.asarray(SECONDS)}
        return reducer.update(gradient[0], reducer.init(gradient[0]), gradient[0], **given)[0]

    mapped = jax.jit(jax.shard_map(one, mesh=mesh_of(worker=8), in_specs=P(WORKER), out_specs=P()))
    gradients = np.random.default_rng(0).standard_normal((2, 8, 5), np.float32)
    np.testing.assert_allclose(jax.vmap(mapped)(gradients), [mapped(g) for g in gradients], rtol=1e-5, atol=2e-6)


def carried(reducer, **options):
    """(gradients, states) of all workers -> updates, and states as a program carries them from call to call.

    JAX takes all that is in them to differ.
    """

    def one(gradient, state):
        gradient, state = jax.tree.map(lambda x: jnp.squeeze(x, 0), (gradient, state))
        updates, state = reducer.update(gradient, state, gradient, arrival_seconds=jnp.asarray(SECONDS))
        return updates, jax.tree.map(lambda x: jnp.expand_dims(x, 0), state)

    specs = {"in_specs": (P(WORKER), P(WORKER)), "out_specs": (P(), P(WORKER))}
    return jax.shard_map(one, mesh=mesh_of(worker=8), **specs, **options)


IN_AND_OUT = VARIANTS | {
    "rounds_of_late": lambda: reducers.local_sgd(WORKER, every_steps=2, combine=VARIANTS["late_adasum"]())
}


@pytest.mark.parametrize("make", IN_AND_OUT.values(), ids=IN_AND_OUT)
def test_states_of_compositions_go_in_and_out(make):
    reducer = make()
    gradients = {"w": np.ones((8, 40, 30), np.float32), "bias": np.ones((8, 5), np.float32)}
    states = jax.vmap(reducer.init)(gradients)
    _, after = jax.eval_shape(carried(reducer), gradients, states)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), after) == jax.tree.map(lambda x: (x.shape, x.dtype), states)


@pytest.mark.parametrize("name", ["elastic_averaging", "gossip", "local_sgd"])
def test_states_of_workers_that_stand_apart_go_in_and_out(name):
    case = next(case for case in CASES if case.name == name)
    reducer = case.make(axis_name=WORKER)
    gradients = {"w": np.arange(24, dtype=np.float32).reshape(8, 3)}
    states = jax.vmap(reducer.init)(gradients)
    expected = None
    for options in ({}, {"check_vma": False}):
        step = jax.jit(carried(reducer, **options))
        updates, after = step(gradients, step(gradients, states)[1])
        found = updates["w"], reducers.report(after).drift["w"]
        expected = expected or found
        jax.tree.map(np.testing.assert_array_equal, found, expected)


@every_case
def test_refuses_gradients_that_are_summed_already(case):
    with refused(ValueError, r"axis_name='worker': updates\['.*per_worker.*check_vma=False"):
        jax.eval_shape(mapped_updates(case, mark=unmarked), *arguments())


def reduced_by(reducer, loss, params, *, mark):
    """The update by the gradients of ``loss(params, slope)`` of workers with the slopes 0 to 7."""

    def one(params, slope):
        gradient = jax.grad(lambda params: jnp.sum(loss(params, slope)))(mark(params))
        return reducer.update(gradient, reducer.init(params), params)[0]

    mapped = jax.shard_map(one, mesh=mesh_of(worker=8), in_specs=(P(), P(WORKER)), out_specs=P())
    return jax.jit(mapped)(params, jnp.arange(8.0))


def test_one_leaf_is_enough():
    def mark(params):
        return {"fine": marked(params["fine"]), "summed": params["summed"]}

    with pytest.raises(ValueError, match=r"updates\['summed'\]"):
        params = {"fine": jnp.ones(()), "summed": jnp.ones(())}
        reduced_by(reducers.mean(WORKER), lambda p, slope: (p["fine"] + p["summed"]) * slope, params, mark=mark)


@pytest.mark.parametrize("wrap", [reducers.chain, lambda reducer: reducers.apply_if_finite(reducer, WORKER, 3)])
def test_wrappers_refuse_them_too(wrap):
    with pytest.raises(ValueError, match="already summed"):
        reduced_by(wrap(reducers.mean(WORKER)), jnp.multiply, jnp.ones(()), mark=unmarked)


def test_a_parameter_that_no_loss_depends_on_has_a_gradient_per_worker():
    params = {"used": jnp.ones(()), "unused": jnp.ones(())}
    found = reduced_by(reducers.mean(WORKER), lambda p, slope: p["used"] * slope, params, mark=marked)
    assert found == {"used": 3.5, "unused": 0}


MOMENTUM = optax.sgd(1.0, momentum=0.9)
BEHIND_AN_OPTIMIZER = {
    "momentum": lambda axis: (MOMENTUM, reducers.mean(axis)),
    "average": lambda axis: (optax.ema(0.9), optax.scale(-1.0), reducers.adasum(axis, telemetry="on")),
    "chain_in_a_chain": lambda axis: (MOMENTUM, reducers.chain(optax.clip(100.0), reducers.mean(axis))),
    "local_workers": lambda axis: (MOMENTUM, reducers.local_sgd(axis, every_steps=1, delay_steps=1)),
    "made": lambda axis: (MOMENTUM, reducers.make("stale", axis_name=axis, delay_steps=0, combine="trimmed_mean")),
}


def stepped(make, mark, *, axis_name=WORKER, **options):
    """The first update by gradients that are 0 to 7, of optimizers whose states are the workers' own."""
    optimizer = reducers.chain(*make(axis_name))
    states = jax.vmap(optimizer.init, in_axes=None, axis_size=8)(jnp.ones(()))

    def one(weight, slope, state):
        gradient = jax.grad(lambda w: jnp.sum(w * slope))(mark(weight))
        return optimizer.update(gradient, jax.tree.map(lambda x: x[0], state))[0]

    sizes = {"worker": 8} if axis_name == WORKER else dict(zip(axis_name, (2, 4), strict=True))
    specs = {"in_specs": (P(), P(axis_name), P(axis_name)), "out_specs": P()}
    return jax.jit(jax.shard_map(one, mesh=mesh_of(**sizes), **specs, **options))(jnp.ones(()), jnp.arange(8.0), states)


@pytest.mark.parametrize(
    ("make", "axis_name"), [*((make, WORKER) for make in BEHIND_AN_OPTIMIZER), ("momentum", ("host", "device"))]
)
def test_a_chain_sees_gradients_before_an_optimizer_whose_state_hides_their_sum(make, axis_name):
    make = BEHIND_AN_OPTIMIZER[make]
    with pytest.raises(ValueError, match=r"updates is the same on all workers, .* already summed"):
        stepped(make, unmarked, axis_name=axis_name)


@pytest.mark.parametrize("options", [{}, {"check_vma": False}], ids=str)
def test_optimizers_of_the_workers_have_the_mean_of_their_updates(options):
    for mark in (marked, *((unmarked,) if options else ())):
        assert stepped(BEHIND_AN_OPTIMIZER["momentum"], mark, **options) == -3.5


def test_a_worker_s_parameters_need_their_axis():
    with pytest.raises(NameError, match=r"^axis_name='wroker': no such axis"):
        jax.vmap(lambda p: reducers.per_worker(p, "wroker"), axis_name=WORKER)(jnp.ones(2))


def reduced(mesh, mark, *, axis_name, spec, gradients):
    def one(weight, slope):
        gradient = jax.grad(lambda w: jnp.sum(w * slope))(mark(weight))
        return reducers.mean(axis_name).update(gradient, ())[0]

    mapped = jax.shard_map(one, mesh=mesh, in_specs=(P(), spec), out_specs=P())
    return jax.jit(mapped)(jnp.ones(()), gradients)


def test_over_two_axes_of_a_mesh():
    both = {"axis_name": ("host", "device"), "spec": P(("host", "device")), "gradients": jnp.arange(8.0)}
    mesh = mesh_of(host=2, device=4)
    assert reduced(mesh, lambda w: reducers.per_worker(w, ("host", "device")), **both) == 3.5
    with pytest.raises(ValueError, match=r"axis_name='host': .*per_worker\(params, 'host'\)"):
        reduced(mesh, lambda w: reducers.per_worker(w, "device"), **both)
    with pytest.raises(ValueError, match=r"axis_name=\('device', 'host'\)"):
        reduced(mesh, unmarked, **both)


def test_one_device_needs_no_mark():
    one = {"axis_name": "worker", "spec": P("worker"), "gradients": jnp.ones(1)}
    mesh = jax.make_mesh((1,), ("worker",), devices=jax.devices()[:1], axis_types=(AxisType.Auto,))
    for mark in (marked, unmarked):  # the sum over one worker is its gradient
        assert reduced(mesh, mark, **one) == 1


@pytest.mark.parametrize("axis_name", [("device", "lane"), "lane"])
def test_vmapped_axes_need_the_check_off(axis_name):
    def device(gradients):  # (2,) of this device's lanes
        update = jax.vmap(lambda g: reducers.mean(axis_name).update(g, ())[0], axis_name="lane", out_axes=None)
        return lax.pmean(update(gradients), "device")

    specs = {"mesh": mesh_of(device=4), "in_specs": P("device"), "out_specs": P()}
    with pytest.raises(ValueError, match=r"axis_name='lane': JAX cannot keep track .* check_vma=False"):
        jax.shard_map(device, **specs)(jnp.arange(8.0))
    assert jax.jit(jax.shard_map(device, check_vma=False, **specs))(jnp.arange(8.0)) == 3.5


def test_the_question_adds_nothing_to_the_program():
    mean = next(case for case in CASES if case.name == "mean")
    assert "= axis_index[" not in str(jax.make_jaxpr(mapped_updates(mean, mark=marked))(*arguments()))
