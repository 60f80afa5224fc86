"""Each row of the table in docs/optax.md is tested: the wrappers of optax that a reducer may sit in."""

import functools
import re

import jax
import numpy as np
import optax
import pytest
from jax import numpy as jnp

import reducers
from reducers.dtypes import mixing_dtypes
from tests import ROOT
from tests.cases import SECONDS
from tests.refused import refused
from tests.test_reducers import WORKER, updated

PAGE = ROOT / "docs" / "optax.md"
RATE = 0.5
GRADIENTS = {"w": np.arange(24, dtype=np.float32).reshape(8, 3), "b": np.ones(8, np.float32)}
PARAMS = {"w": np.zeros(3, np.float32), "b": np.zeros((), np.float32)}
EARLY = {key: g[SECONDS <= 2.5].mean(0) for key, g in GRADIENTS.items()}  # of ``deadline_seconds=2.5``


def late():
    return reducers.deadline(WORKER, deadline_seconds=2.5)


def sgd():
    return optax.sgd(RATE)


def run(transformation, *, steps=1, gradients=GRADIENTS):
    """All workers' parameters, [W, ...], after steps of one compiled program; states are each worker's own."""
    init, update = map(mixing_dtypes, (transformation.init, transformation.update))

    def worker(gradient):
        params = jax.tree.map(jnp.asarray, PARAMS)
        state = init(PARAMS)
        for _ in range(steps):
            updates, state = update(gradient, state, params, arrival_seconds=jnp.asarray(SECONDS))
            params = optax.apply_updates(params, updates)
        return params

    return jax.tree.map(np.asarray, jax.jit(jax.vmap(worker, axis_name=WORKER))(gradients))


def check(transformation, expected, *, steps=1, **options):
    for key, found in run(transformation, steps=steps, **options).items():
        np.testing.assert_allclose(found, np.broadcast_to(expected[key], found.shape), rtol=1e-5, atol=1e-6)


def after(steps, gradient):
    return jax.tree.map(lambda g: -RATE * steps * g, gradient)


# ---- one test per row ----------------------------------------------------------------------------------------------


def chain():
    check(optax.chain(late(), sgd()), after(2, EARLY), steps=2)
    check(optax.chain(sgd(), late()), after(2, EARLY), steps=2)


def named_chain():
    check(optax.named_chain(("reducer", late()), ("optimizer", sgd())), after(2, EARLY), steps=2)


def partition():
    groups = {"late": optax.chain(late(), sgd()), "all": optax.chain(reducers.mean(WORKER), sgd())}
    expected = {"w": EARLY["w"], "b": GRADIENTS["b"].mean(0)}
    for wrapper in (optax.partition, optax.multi_transform):
        check(wrapper(groups, {"w": "late", "b": "all"}), after(2, expected), steps=2)


def masked():
    check(optax.chain(optax.masked(late(), {"w": True, "b": True}), sgd()), after(1, EARLY))
    left_out = run(optax.chain(optax.masked(late(), {"w": True, "b": False}), sgd()), gradients=UNEQUAL)["b"]
    np.testing.assert_allclose(left_out, -RATE * UNEQUAL["b"])  # nobody reduced it


UNEQUAL = {**GRADIENTS, "b": np.arange(8, dtype=np.float32)}


def flatten():
    check(optax.chain(optax.flatten(late()), sgd()), after(2, EARLY), steps=2)
    layers = {"w": np.eye(8, 3, dtype=np.float32), "b": np.ones(8, np.float32)}
    whole = run(optax.chain(reducers.adasum(WORKER, granularity="model"), sgd()), gradients=layers)
    check(
        optax.chain(optax.flatten(reducers.adasum(WORKER)), sgd()),
        jax.tree.map(lambda x: x[0], whole),
        gradients=layers,
    )


def inject_hyperparams():
    seconds = optax.piecewise_constant_schedule(2.5, {1: 100.0})  # all are in time at the second update
    injected = optax.inject_hyperparams(reducers.deadline)(WORKER, deadline_seconds=seconds)
    expected = jax.tree.map(lambda early, g: -RATE * (early + g.mean(0)), EARLY, GRADIENTS)
    check(optax.chain(injected, sgd()), expected, steps=2)


def schedule_free():
    around = optax.contrib.schedule_free(optax.chain(late(), sgd()), learning_rate=RATE)
    behind = optax.chain(late(), optax.contrib.schedule_free(sgd(), learning_rate=RATE))
    alone = optax.contrib.schedule_free(sgd(), learning_rate=RATE)
    same = jax.tree.map(lambda g: np.broadcast_to(g, (8, *np.shape(g))), EARLY)
    expected = jax.tree.map(lambda x: x[0], run(optax.with_extra_args_support(alone), steps=3, gradients=same))
    for transformation in (around, behind):
        check(transformation, expected, steps=3)


def multi_steps():
    check(optax.MultiSteps(optax.chain(late(), sgd()), every_k_schedule=2), after(1, EARLY), steps=3)
    inside = optax.MultiSteps(late(), every_k_schedule=2).gradient_transformation()
    with pytest.raises(TypeError, match="arrival_seconds: missing"):
        run(optax.chain(inside, sgd()))
    behind = optax.MultiSteps(sgd(), every_k_schedule=1, should_skip_update_fn=optax.skip_not_finite)
    check(reducers.chain(reducers.mean(WORKER), behind), jax.tree.map(np.zeros_like, PARAMS), gradients=ONE_NAN)


def apply_if_finite():
    guarded = reducers.apply_if_finite(reducers.mean(WORKER), WORKER, 3)
    behind = optax.chain(reducers.mean(WORKER), optax.apply_if_finite(sgd(), 3))
    for transformation in (optax.chain(guarded, sgd()), behind):
        check(transformation, after(1, jax.tree.map(lambda g: g.mean(0), GRADIENTS)))
        check(transformation, PARAMS, gradients=ONE_NAN)


ONE_NAN = {**GRADIENTS, "b": np.where(np.arange(8) == 5, np.nan, GRADIENTS["b"]).astype(np.float32)}


def line_search():
    """All workers take the steps of one that has the averaged loss, and are equal bit for bit."""
    targets = jnp.asarray(GRADIENTS["w"]) / 10
    weights = jnp.linspace(0.1, 3.0, 8)

    def loss(x, target, weight):
        return weight * jnp.sum((x - target) ** 4 + jnp.cos(x))

    def steps(optimizer, own, averaged):
        def one(carry, _):
            x, state = carry
            value, grad = jax.value_and_grad(averaged)(x)
            updates, state = optimizer.update(jax.grad(own)(x), state, x, value=value, grad=grad, value_fn=averaged)
            return (optax.apply_updates(x, updates), state), None

        x = jnp.zeros(3)
        return jax.lax.scan(one, (x, optimizer.init(x)), length=4)[0][0]

    def alone(optimizer):
        def whole(x):
            return jnp.mean(jax.vmap(loss, in_axes=(None, 0, 0))(x, targets, weights))

        return steps(optax.with_extra_args_support(optimizer), whole, whole)

    def worker(target, weight, *, optimizer):
        def own(x):
            return loss(x, target, weight)

        def averaged(x):
            return jax.lax.pmean(own(jax.lax.pmean(x, WORKER)), WORKER)

        return steps(optax.chain(reducers.mean(WORKER), optimizer), own, averaged)

    searches = (
        optax.lbfgs(),
        optax.chain(sgd(), optax.scale_by_backtracking_linesearch(5, store_grad=True)),
        optax.polyak_sgd(0.1),
    )
    for optimizer in searches:
        mapped = jax.vmap(functools.partial(worker, optimizer=optimizer), axis_name=WORKER)
        found = np.asarray(jax.jit(mapped)(targets, weights))
        assert (found == found[0]).all() and found.any()
        np.testing.assert_allclose(found[0], jax.jit(functools.partial(alone, optimizer))(), rtol=1e-3, atol=1e-4)


ROWS = {
    "lbfgs": line_search,
    "scale_by_backtracking_linesearch": line_search,
    "polyak_sgd": line_search,
    "chain": chain,
    "named_chain": named_chain,
    "partition": partition,
    "multi_transform": partition,
    "masked": masked,
    "flatten": flatten,
    "inject_hyperparams": inject_hyperparams,
    "schedule_free": schedule_free,
    "MultiSteps": multi_steps,
    "apply_if_finite": apply_if_finite,
}


@pytest.mark.parametrize("row", dict.fromkeys(ROWS.values()), ids=lambda row: row.__name__)
def test_row(row):
    row()


def test_the_table_has_these_rows():
    cells = re.findall(r"^\| (.*?) \|", PAGE.read_text(), re.MULTILINE)
    named = {name for cell in cells for name in re.findall(r"`optax\.(?:contrib\.)?(\w+)`", cell)}
    assert named == set(ROWS)


# ---- what needs the loss -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("argument", ["value", "value_fn", "grad", "grad_fn", "obj_fn"])
@pytest.mark.parametrize(
    "behind",
    [
        optax.lbfgs,
        lambda: optax.contrib.sam(optax.sgd(1.0), optax.sgd(1.0), opaque_mode=True),
        lambda: optax.inject_hyperparams(optax.polyak_sgd)(max_learning_rate=1.0),
    ],
    ids=["lbfgs", "sam", "injected"],
)
def test_a_chain_with_a_reducer_refuses_to_be_given_the_loss(behind, argument):
    chained = reducers.chain(reducers.mean(WORKER), behind())
    with pytest.raises(ValueError, match=f"^{argument}: is given to a chain with a reducer"):
        chained.update(PARAMS, chained.init(PARAMS), PARAMS, **{argument: 1.0})


# ---- a state of each worker ----------------------------------------------------------------------------------------


def test_a_state_of_each_worker_is_not_replicated():
    """Under P() JAX refuses it with check_vma, and without it the copies of a replicated array differ."""
    optimizer = reducers.chain(optax.trace(0.5), reducers.adasum(WORKER))
    mesh = jax.make_mesh((8,), (WORKER,), axis_types=(jax.sharding.AxisType.Auto,))

    def step(state, gradients):
        return optimizer.update(gradients[0], state)[1]

    def state_after_a_step(check_vma):
        shared = jax.sharding.PartitionSpec()
        mapped = jax.shard_map(step, mesh=mesh, in_specs=(shared, spec), out_specs=shared, check_vma=check_vma)
        return jax.jit(mapped)(optimizer.init(PARAMS["w"]), GRADIENTS["w"])[0].trace

    trace = state_after_a_step(False)
    assert trace.sharding.is_fully_replicated
    np.testing.assert_array_equal([shard.data for shard in trace.addressable_shards], GRADIENTS["w"])
    with pytest.raises(ValueError, match="check_vma"):
        state_after_a_step(True)


# ---- numbers that optax injects ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "static", "options", "traced"),
    [
        ("adacons", (), {}, {"momentum": 0.5}),
        ("agreement_scaled_mean", (), {}, {"max_scale": 2.0}),
        ("deadline", (), {}, {"deadline_seconds": 2}),
        ("multi_krum", (), {}, {"num_byzantine": 2, "num_selected": 3}),
        ("backup_workers", (), {}, {"num_required": 3}),
        ("dynamic_backup_workers", ("min_required", "max_workers"), {}, {"decay": 0.5, "warmup_steps": 1}),
    ],
)
def test_a_traced_number_gives_what_the_number_gives(name, static, options, traced):
    injected = optax.inject_hyperparams(reducers.REDUCERS[name], static_args=static)(WORKER, **options, **traced)
    plain = reducers.make(name, axis_name=WORKER, **options, **traced)
    expected, found = (run(optax.chain(reducer, sgd()), steps=2) for reducer in (plain, injected))
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-6), found, expected)


@pytest.mark.parametrize(
    ("name", "options", "key"),
    [
        ("trimmed_mean", {"num_trimmed": 1}, "num_trimmed"),
        ("stale", {"delay_steps": 1}, "delay_steps"),
        ("adasum", {}, "group_size"),
        ("geometric_median", {"num_steps": 4}, "num_steps"),
        ("pcgrad", {"seed": 0}, "seed"),
    ],
)
def test_a_number_that_shapes_the_program_is_refused(name, options, key):
    injected = optax.inject_hyperparams(reducers.REDUCERS[name])(WORKER, **options)
    with refused(ValueError, f"^{key}=.*must be a Python int; .*static_args"):
        run(injected)


# ---- apply_if_finite ---------------------------------------------------------------------------------------------


def lifted(step, *, lift):
    if lift == "pmap":
        return jax.pmap(step, axis_name=WORKER)
    if lift == "vmap":
        return jax.jit(jax.vmap(step, axis_name=WORKER))

    def one(*arguments):
        return jax.tree.map(lambda x: x[None], step(*jax.tree.map(lambda x: x[0], arguments)))

    mesh = jax.make_mesh((8,), (WORKER,), axis_types=(jax.sharding.AxisType.Auto,))
    return jax.jit(jax.shard_map(one, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=lift == "tracked"))


spec = jax.sharding.PartitionSpec(WORKER)


@pytest.mark.parametrize("lift", ["pmap", "vmap", "shard_map", "tracked"])
def test_workers_decide_alike(lift):
    """Worker 5 has a NaN at updates 1 to 3; two in a row are dropped, and the third is applied as it is."""
    transformation = reducers.chain(
        reducers.apply_if_finite(
            reducers.chain(reducers.adacons(WORKER), optax.trace(0.5)), WORKER, max_consecutive_errors=2
        ),
        optax.sgd(1.0),
    )
    states = jax.tree.map(lambda x: jnp.stack([x] * 8), transformation.init(PARAMS))
    step = lifted(lambda g, s: transformation.update(g, s), lift=lift)
    finite, dropped = [], []
    for number in range(4):
        updates, states = jax.block_until_ready(step(ONE_NAN if number else GRADIENTS, states))
        updates = jax.tree.map(np.asarray, updates)
        assert all(np.array_equal(x, np.broadcast_to(x[:1], x.shape), equal_nan=True) for x in updates.values())
        finite.append(bool(np.isfinite(updates["w"]).all()))
        dropped.append(not updates["w"].any())
        (guard, _) = states
        assert np.asarray(guard.total_notfinite).tolist() == [number] * 8
        (adacons, trace) = guard.inner_state
        assert np.isfinite(adacons.rule.average).all()
        assert bool(np.isfinite(trace.trace["w"]).all()) == (number < 3)
    assert finite == [True, True, True, False] and dropped == [False, True, True, False]


def test_a_worker_that_is_left_out_has_no_say():
    late_nan = {
        key: np.where((SECONDS > 2.5).reshape(-1, *[1] * (g.ndim - 1)), np.nan, g) for key, g in GRADIENTS.items()
    }
    inside = reducers.deadline(
        WORKER, deadline_seconds=2.5, combine=reducers.apply_if_finite(reducers.mean(WORKER), WORKER, 3)
    )
    around = reducers.apply_if_finite(late(), WORKER, 3)
    check(optax.chain(inside, sgd()), after(1, EARLY), gradients=late_nan)
    check(optax.chain(around, sgd()), PARAMS, gradients=late_nan)


def test_facts_and_the_record_of_who_arrived():
    guarded = reducers.apply_if_finite(late(), WORKER, 3)
    assert guarded.needs_arrivals and not guarded.takes_mask and not guarded.homogeneous
    assert reducers.apply_if_finite(reducers.sum(WORKER), WORKER, 3).takes_mask

    _, state = updated(guarded, ONE_NAN, shared={"arrival_seconds": jnp.asarray(SECONDS)})
    assert reducers.report(state).counted.tolist() == (SECONDS <= 2.5).tolist()  # time has passed all the same
