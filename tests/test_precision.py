"""Half precision: the two scales, what an overflow does and what it leaves alone, and what reducers report."""

import functools
import inspect
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
import pytest
from jax import numpy as jnp

import models
import reducers
from models import tasks
from runs.errors import ConfigError
from tests import cases, inputs
from tests.grid import grid
from tests.in_process import keys
from tests.refused import refused
from tests.stepper import Stepper, dtypes_of, largest_difference, same_bits, setup_of
from tests.test_reducers import check_replication, extras, reduce, tree_of
from training import dry_run
from training.steps.gradient_wrappers import (
    dynamic_loss_scaling,
    scale_loss,
    skip_worker_overflow,
    through_worker_optimizer,
)
from training.steps.train_step import value_and_grad
from training.train_state import TrainState, WorkerState

DYNAMIC = keys("loss_scaling.name=dynamic loss_scaling.initial_scale=1024")
HALF = keys("communication.name=half communication.initial_scale=64")
SOFTMAX = keys("model.name=softmax ema_decay=0.9")


# ---- compute in half precision ----------------------------------------------------------------------------------


CLASSIFIERS = [name for name in models.MODELS if "num_classes" in inspect.signature(models.MODELS[name]).parameters]


QUICK = {(name, "bfloat16") for name in CLASSIFIERS if name != "inception_v3"} | {("mlp", "float16")}


@pytest.mark.parametrize(  # the others are looked at where they are tested
    ("name", "dtype"), grid(CLASSIFIERS, ["float16", "bfloat16"], quick=QUICK)
)
def test_models_compute_in_their_dtype_and_keep_float32_parameters(name, dtype):
    shape = (75, 75, 3) if name == "inception_v3" else (8, 8, 3)
    model = models.make(name, sizes={"num_classes": 3}, dtype=dtype)
    task = tasks.make("classification", model=model, **inputs.images(shape, num_classes=3))
    params, state = jax.eval_shape(task.init, jax.random.key(0))
    assert dtypes_of((params, state)) == {"float32"}
    image = jnp.zeros((2, *shape))
    assert jax.eval_shape(model.apply, {"params": params, **state}, image).dtype == dtype
    jaxpr = str(jax.make_jaxpr(lambda p, s: model.apply({"params": p, **s}, image))(params, state))
    short = {"float16": "f16", "bfloat16": "bf16"}[dtype]
    products = [line for line in jaxpr.splitlines() if "dot_general[" in line or "conv_general_dilated[" in line]
    assert products and all(f":{short}[" in line for line in products)
    batch = {"image": image, "label": jnp.array([0, 1])}
    loss, (sums, _) = jax.eval_shape(task.loss, params, state, batch, jax.random.key(2))
    assert loss.dtype == sums["loss"].dtype == jnp.float32


# ---- the rule ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["coordinate_median", "geometric_median", "krum", "multi_krum", "trimmed_mean"])
def test_a_scale_that_is_too_large_for_some_is_an_overflow_whatever_the_rule_leaves_out(name):
    """Otherwise a rule that outvotes infinities follows the smallest gradients, as the scale grows and grows."""
    half = reducers.in_half_precision(
        reducers.make(name, axis_name="worker"), axis_name="worker", initial_scale=2.0**18, growth_interval=1
    )
    step = jax.jit(jax.vmap(lambda g, s: half.update(g, s), axis_name="worker"))
    gradients = jnp.array([1e-4, 1.0, 1.0, 1.0, 1.0])[:, None] * jnp.ones((5, 4))
    states, found = jax.vmap(half.init)(gradients), []
    for _ in range(8):
        results, states = step(gradients, states)
        found += [] if reducers.report(states).overflowed[0] else [np.asarray(results)]
    assert len(found) > 2 and all(np.ptp(each) < 1e-3 and each.min() > 0.7 for each in found)
    broken = (0.1 * gradients).at[2].set(1e30)  # which no scale could help: it is left to the rule
    results, states = step(broken, jax.vmap(half.init)(gradients))
    assert not reducers.report(states).overflowed[0] and np.ptp(results) < 1e-3 and results.min() > 0.07


def test_telemetry_is_of_the_gradients_and_not_of_what_was_sent():
    gradients = 0.01 * jax.random.normal(jax.random.key(0), (4, 50))
    full = reducers.krum("worker", telemetry="on")
    half = reducers.in_half_precision(full, axis_name="worker")
    found = [
        reducers.report(jax.vmap(lambda g, r=r: r.update(g, r.init(g))[1], axis_name="worker")(gradients)).metrics
        for r in (full, half)
    ]
    assert "squared_gradient" in found[0] and "covariance_trace" in found[0]
    for name, value in found[0].items():
        np.testing.assert_allclose(found[1][name], value, rtol=0.02, atol=1e-6, err_msg=name)


OF_THE_FIRST = {"name": "backup_workers", "num_required": 2}


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("adaptive_batch", {}),
        ("dynamic_backup_workers", {}),
        ("elastic_averaging", {}),
        ("gossip", {}),
        ("local_sgd", {}),
        ("stale", {}),
        ("krum", {"telemetry": "on"}),
        ("local_sgd", {"combine": OF_THE_FIRST}),
    ],
)
@pytest.mark.parametrize("x64", [False, True])
def test_states_keep_their_types(name, more, x64):
    with jax.enable_x64(x64):
        reducer = cases.FIRST[name].make("worker", **more)
        gradients = jnp.ones((8, 3), jnp.float32)
        given = cases.TIMES if reducer.needs_arrivals else {}
        states = jax.vmap(reducer.init)(gradients)
        _, after = jax.vmap(lambda g, s: reducer.update(g, s, g, **given), axis_name="worker")(gradients, states)
        for before, now in zip(jax.tree.leaves(states), jax.tree.leaves(after), strict=True):
            assert now.dtype == jnp.asarray(before).dtype
            assert now.weak_type == jnp.asarray(before).weak_type


def test_a_scale_stays_a_normal_finite_number():
    rule = reducers.DynamicScale(initial_scale=2.0**120, growth_interval=1, growth_factor=16.0)
    scale = rule.init()
    for _ in range(5):
        scale = rule.update(scale, True)
    assert scale.value == 2.0**125
    for _ in range(300):
        scale = rule.update(scale, False)
    assert scale.value == jnp.finfo(jnp.float32).tiny


def test_no_scale_makes_all_updates_zero():
    """XLA multiplies with the inverse of a scale, which must not be subnormal."""
    half = reducers.in_half_precision(
        reducers.mean("worker"), axis_name="worker", dtype="bfloat16", initial_scale=2.0**124, growth_interval=1
    )
    step = jax.jit(jax.vmap(half.update, axis_name="worker"))
    gradients = jnp.full((2, 3), 1e-3)
    states = jax.vmap(half.init)(gradients)
    for _ in range(4):
        results, states = step(gradients, states)
        np.testing.assert_allclose(results, gradients, rtol=0.01)
    assert (states.scale.value == 2.0**125).all()


def test_a_late_worker_s_overflow_voids_nothing():
    """The third of three arrives late; a rule that leaves out others inside of those is refused, as it hides who is.

    A step that is skipped takes its time, too.
    """
    gradients = jnp.array([1.0, 3.0, 200.0])
    seconds = jnp.array([1.0, 2.0, 9.0])

    def reduce(combine):
        backup = reducers.backup_workers("worker", num_required=2, combine=combine)
        half = reducers.in_half_precision(backup, axis_name="worker", initial_scale=1024.0)
        one = lambda g, seconds: half.update(g, half.init(g), arrival_seconds=seconds)  # noqa: E731
        return jax.jit(jax.vmap(one, axis_name="worker", in_axes=(0, None)))

    results, state = (combined := reduce(None))(gradients, seconds)
    assert (results == 2).all() and not reducers.report(state).overflowed.any()
    results, state = combined(gradients, seconds[::-1])
    report = reducers.report(state)
    assert (results == 0).all() and report.overflowed.all()
    assert report.metrics["step_seconds"].tolist() == [2.0] * 3 and report.counted.tolist() == [0, 1, 1]
    with refused(ValueError, "leaves workers out itself; have half precision inside: combine=in_half"):
        reduce(reducers.krum("worker", num_byzantine=0))(gradients, seconds)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("initial_scale", 0.0),
        ("initial_scale", 2.0**126),
        ("initial_scale", 1e-40),
        ("growth_interval", 0),
        ("growth_factor", 1.0),
        ("backoff_factor", 1.0),
    ],
)
def test_rules_that_make_no_sense(key, value):
    with pytest.raises(ValueError, match=key):
        reducers.DynamicScale(**{"initial_scale": 1.0, key: value})


# ---- the loss scale: a worker alone -----------------------------------------------------------------------------


def one_step(scaling, reducer):
    """A step of each worker on the loss x . theta, whose gradient is its row x of X; everything that it has come to."""
    own = optax.with_extra_args_support(optax.sgd(1.0, momentum=0.5))
    own = own if scaling is None else skip_worker_overflow(own, scaling)
    gradient = functools.partial(
        value_and_grad, loss_fn=lambda params, state, x, key: ((x * params).sum(), ({}, state + x.sum()))
    )
    gradient = through_worker_optimizer(gradient if scaling is None else scale_loss(gradient), own)
    params, reduction = jnp.ones(3), reducer("worker")

    def worker(x):
        before = WorkerState(jnp.zeros(()), own.init(params))
        state = TrainState(jnp.zeros((), jnp.int32), None, None, params, None, None, None, before, None, None)
        updates, after, _ = gradient(state, before, x, jax.random.key(0))
        reduced, _ = reduction.update(updates, reduction.init(params), params)
        return updates, after.opt_state, after.model_state, reduced

    return jax.vmap(worker, axis_name="worker")(jnp.asarray(X, jnp.float32))


X = np.array([[1, 2, 3], [-2, 5, 0.5], [3, np.inf, 1], [0.25, 1, -1]])
OTHERS = [0, 1, 3]


def check_overflow_is_nobody_elses(scaling, reducer, oracle):
    updates, opt_state, model_state, reduced = one_step(scaling, reducer)
    np.testing.assert_array_equal(updates[2], 0)
    np.testing.assert_array_equal(updates[np.array(OTHERS)], -X[OTHERS])
    momentum = opt_state.inner[0].trace
    np.testing.assert_array_equal(momentum[2], 0)
    np.testing.assert_array_equal(momentum[np.array(OTHERS)], X[OTHERS])
    np.testing.assert_array_equal(opt_state.scale.value, [1024, 1024, 512, 1024])
    np.testing.assert_array_equal(opt_state.num_applied, [1, 1, 0, 1])
    np.testing.assert_array_equal(model_state, [6, 3.5, 0, 0.25])
    contribution = np.where(np.isfinite(X).all(1, keepdims=True), -X, 0)
    np.testing.assert_allclose(reduced, np.broadcast_to(oracle(contribution), (4, 3)), rtol=1e-6)


@pytest.mark.parametrize(
    ("reducer", "oracle"),
    [
        (reducers.mean, lambda g: g.mean(0)),
        (reducers.sum, lambda g: g.sum(0)),
        (reducers.adasum, cases.adasum),
        # a zero is neutral to Adasum: the same as the tree without that worker
        (reducers.adasum, lambda g: cases.adasum([cases.adasum(g[:2]), g[3]])),
    ],
)
def test_a_worker_that_overflows_gives_zero_and_keeps_its_state(reducer, oracle):
    check_overflow_is_nobody_elses(dynamic_loss_scaling(initial_scale=1024.0), reducer, oracle)


def test_that_check_rejects_no_loss_scaling():
    with pytest.raises(AssertionError):
        check_overflow_is_nobody_elses(None, reducers.mean, lambda g: g.mean(0))


def alone(gradient, params, own):
    """One worker's updates by a gradient function, of no batch."""
    worker = WorkerState((), own.init(params))
    state = TrainState(jnp.zeros((), jnp.int32), None, None, params, None, None, None, worker, None, None)
    return gradient(state, worker, {}, jax.random.key(0))[0]


def test_small_gradients_survive_float16_under_a_scale_alone():
    weight = jnp.full(4, 1e-5, jnp.float16)

    def loss(params, state, batch, key):
        return (params.astype(jnp.float16) * weight * jnp.float16(1e-3)).astype(jnp.float32).sum(), ({}, state)

    params = jnp.ones(4)
    identity = optax.with_extra_args_support(optax.identity())
    plain = functools.partial(value_and_grad, loss_fn=loss)
    scaled = skip_worker_overflow(identity, dynamic_loss_scaling())
    np.testing.assert_allclose(alone(scale_loss(plain), params, scaled), 1e-8, rtol=2e-2)
    assert (alone(plain, params, identity) == 0).all()


def test_gradients_in_float16_are_divided_by_scales_that_float16_has_not():
    params = jnp.ones(4, jnp.float16)
    identity = optax.with_extra_args_support(optax.identity())
    plain = functools.partial(
        value_and_grad, loss_fn=lambda params, state, *_: (1e-3 * params.astype(jnp.float32).sum(), ({}, state))
    )
    own = skip_worker_overflow(identity, dynamic_loss_scaling(initial_scale=2.0**17))
    np.testing.assert_allclose(alone(scale_loss(plain), params, own), 1e-3, rtol=2e-3)


# ---- the communication scale: all workers -----------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(reducers.REDUCERS))
def test_half_precision_is_the_reducer_up_to_rounding(name):
    """Only of a homogeneous reducer: divided by the scale, a sign would be next to nothing."""
    case = next(case for case in cases.CASES if case.name == name)
    if not case.homogeneous or case.local_workers != "never":
        said = "needs a homogeneous reducer" if case.local_workers == "never" else "reducer: must emit every update"
        with pytest.raises(ValueError, match=f"dtype='float16': {said}"):
            reducers.in_half_precision(case.make(axis_name="worker"), axis_name="worker")
        return

    def half(axis_name):
        return reducers.in_half_precision(case.make(axis_name=axis_name), axis_name=axis_name)

    grads, extra = tree_of(4, scale=0.01), extras(case, 4)
    full = reduce(case.make, grads, extra=extra)
    found = reduce(half, grads, extra=extra)
    for leaf, wanted, given in zip(*map(jax.tree.leaves, (found, full, grads)), strict=True):
        assert leaf.dtype == wanted.dtype
        assert np.abs(leaf - wanted).max(initial=0) <= 1e-3 * np.linalg.norm(given)
    check_replication(half, extra=extras(case))


def params_and_server(run):
    shared = run.host()
    return shared.params, shared.opt_state, shared.ema


def check_skipped_step(*overrides):
    """Three good steps, then one whose reduction overflows, then a good one."""
    patient = "--config.communication.growth_interval=1000"
    run = Stepper(setup_of(*SOFTMAX, *HALF, patient, *overrides), num_devices=4)
    run.steps(0, 3)
    assert run.metrics["skipped"] == 0 and run.metrics["communication_scale"] == 64
    before, host = params_and_server(run), run.host()
    too_large = host.reducer_state.scale._replace(value=np.full(8, 2.0**100, np.float32))
    reducer_state = run.layout.put_per_worker(host.reducer_state._replace(scale=too_large))
    run.state = run.state._replace(reducer_state=reducer_state)
    run.steps(3, 4)
    assert run.metrics["skipped"] == 1 and run.metrics["update_norm"] == 0
    assert run.metrics["communication_scale"] == 2.0**99
    assert same_bits(before, params_and_server(run))
    assert run.host().step == 4
    run.steps(4, 5)
    assert run.metrics["skipped"] == 1  # one halving is not enough


@pytest.mark.parametrize("reducer_on", ["gradients", "updates"])
def test_an_overflow_after_the_reduction_skips_the_step_on_all(reducer_on):
    check_skipped_step(f"--config.reducer_on={reducer_on}")


def test_that_check_rejects_a_step_that_goes_on_with_zeros(monkeypatch):
    """What the reducer returns is zero either way; momentum and moving average would move."""
    report = reducers.report
    monkeypatch.setattr(reducers, "report", lambda state: report(state)._replace(overflowed=jnp.array(False)))
    with pytest.raises(AssertionError):
        check_skipped_step()


def test_a_step_on_which_every_worker_overflows_is_skipped():
    overrides = keys("loss_scaling.name=dynamic loss_scaling.initial_scale=1e36 model.dtype=float16")
    run = Stepper(setup_of(*SOFTMAX, *overrides))
    before = params_and_server(run)
    run.steps(0, 1)
    assert run.metrics["skipped"] == 1 and run.metrics["loss_scale"] == pytest.approx(5e35)
    assert largest_difference(before, params_and_server(run)) == 0


@pytest.mark.parametrize(
    "overrides",
    [
        "communication.name=half communication.initial_scale=1e30 communication.backoff_factor=1e-28",
        "loss_scaling.name=dynamic loss_scaling.initial_scale=1e36 loss_scaling.backoff_factor=1e-33",
    ],
    ids=["half", "dynamic"],
)
def test_a_late_gradient_that_overflowed_is_skipped_when_it_is_due(overrides):
    """The first step's overflows, and no other; it is due in the third."""
    stale = keys(f"reducer.name=stale reducer.delay_steps=2 model.dtype=float16 {overrides}")
    run = Stepper(setup_of(*SOFTMAX, *stale), num_devices=4)
    skipped, moved = [], []
    for number in range(5):
        before = params_and_server(run)
        skipped.append(run.steps(number, number + 1).metrics["skipped"])
        moved.append(largest_difference(before, params_and_server(run)) > 0)
    # The optimizer counts updates by zero, those before any gradient is due.
    assert skipped == [0, 0, 1, 0, 0] and moved == [True, True, False, True, True]


def test_the_learning_rate_is_that_of_the_step_after_a_skipped_one():
    overrides = keys("""
        schedule.name=warmup_linear schedule.warmup_steps=8 ema_decay=None optimizer.momentum=0
        communication.name=half communication.initial_scale=1e30
    """)
    run = Stepper(setup_of(*SOFTMAX, *overrides))
    skipped, number = 1.0, 0
    while skipped:
        skipped = run.steps(number, number + 1).metrics["skipped"]
        number += 1
    assert number > 5
    rate = run.metrics["update_norm"] / run.metrics["reduced_norm"]
    assert rate == pytest.approx(run.metrics["learning_rate"], rel=1e-5)


def test_scales_grow_after_their_interval():
    overrides = keys("loss_scaling.growth_interval=2 communication.growth_interval=3")
    run = Stepper(setup_of(*SOFTMAX, *DYNAMIC, *HALF, *overrides))
    found = [run.steps(number, number + 1).metrics for number in range(6)]
    assert [m["loss_scale"] for m in found] == [1024, 2048, 2048, 4096, 4096, 8192]
    assert [m["communication_scale"] for m in found] == [64, 64, 128, 128, 128, 256]


# ---- whole runs -------------------------------------------------------------------------------------------------


def test_without_an_overflow_powers_of_two_change_no_bit():
    def ten_steps(initial_scale):
        scaling = keys(f"loss_scaling.growth_interval=2 loss_scaling.initial_scale={initial_scale}")
        return Stepper(setup_of(*SOFTMAX, *DYNAMIC, *scaling)).steps(0, 10)

    # Of one program: another one, without scales, may round otherwise.
    unscaled = ten_steps(1.0)
    scaled = ten_steps(1024.0)
    odd = ten_steps(1000.3)
    assert unscaled.metrics["loss_scale"] == 2.0**5 and unscaled.metrics["skipped"] == 0
    assert scaled.metrics["loss_scale"] == 2.0**15 and scaled.metrics["skipped"] == 0
    assert largest_difference(params_and_server(unscaled), params_and_server(scaled)) == 0
    assert largest_difference(params_and_server(unscaled), params_and_server(odd)) > 0
    plain = Stepper(setup_of(*SOFTMAX)).steps(0, 10)
    assert largest_difference(params_and_server(plain), params_and_server(scaled)) < 1e-6


def test_dry_run_knows_of_half_precision():
    setup = setup_of(*SOFTMAX, *DYNAMIC, *HALF)
    count = sum(leaf.size for leaf in jax.tree.leaves(setup.worker_shapes.params))
    assert setup.traffic.bytes_per_worker == (2 * count + 4) * 2 * 7 / 8  # half, and one scalar
    said = dry_run.describe(setup)
    assert f"{setup.traffic.bytes_per_worker:,.0f}  and receives" in said


# ---- what a reducer reports --------------------------------------------------------------------------------------


class Reported(NamedTuple):
    metrics: dict[str, Any]


def reporting(name):
    """A mean that reports the index of the worker, and so of the mean over workers."""

    def make(axis_name):
        mean = reducers.mean(axis_name)

        def update(updates, state, params=None, **extra):
            del state
            value = jax.lax.axis_index(axis_name).astype(jnp.float32)
            return mean.update(updates, optax.EmptyState(), params, **extra)[0], Reported({name: value})

        return mean.like(lambda params: Reported({name: jnp.zeros(())}), update)

    return make


def test_what_a_reducer_tells_is_in_the_steps_metrics(monkeypatch):
    monkeypatch.setitem(reducers.REDUCERS, "mean", reporting("orthogonality"))
    run = Stepper(setup_of(*SOFTMAX, *HALF), num_devices=4).steps(0, 1)
    assert run.metrics["orthogonality"] == 3.5 and run.metrics["communication_scale"] == 64


def test_a_reducer_of_ones_own_that_needs_arrival_times_is_refused_without_a_model_of_them(monkeypatch):
    def slowest(axis_name):
        """The mean, scaled by the time of the slowest worker."""

        def update(updates, state, params=None, *, arrival_seconds, **extra):
            del params, extra
            return jax.tree.map(lambda g: jax.lax.pmean(g, axis_name) * arrival_seconds.max(), updates), state

        return reducers.Reducer(lambda params: optax.EmptyState(), update, needs_arrivals=True)

    monkeypatch.setitem(reducers.REDUCERS, "slowest", slowest)
    softmax = keys("model.name=softmax reducer.name=slowest")
    with pytest.raises(ConfigError, match="name='slowest' needs arrival times"):
        setup_of(*softmax)
    run = Stepper(setup_of(*softmax, "--config.arrivals.name=lognormal"), num_devices=4).steps(0, 1)
    assert run.metrics["reduced_norm"] > 0


def test_names_must_not_clash(monkeypatch):
    monkeypatch.setitem(reducers.REDUCERS, "mean", reporting("loss"))
    with pytest.raises(ValueError, match="metrics: the reducer reports loss"):
        dry_run.describe(setup_of(*SOFTMAX))
    with pytest.raises(ValueError, match="two reducers report loss"):
        reducers.report((Reported({"loss": 1.0}), Reported({"loss": 2.0})))
