"""Batches in parts: what micro-batches and local steps compute, and that one part is no accumulation at all."""

import functools
import types

import jax
import numpy as np
import optax
import pytest
from jax import numpy as jnp

import optim
from models import tasks
from reducers.report import Mix, Report
from tests import cases, inputs
from tests.in_process import keys
from tests.stepper import Normalised, Stepper, largest_difference, setup_of
from training.steps import gradient_wrappers
from training.steps.gradient_wrappers import split_batch
from training.steps.train_step import value_and_grad
from training.train_state import TrainState, WorkerState

B = 12


def work_of(loss, block, params, batch, *, optimizer=None, clip_norm=None, model_state=None, reducer_state=None):
    """One worker's updates, model state and sums of a batch: its work.

    Args:
      loss: (params, model_state, batch, key) -> (loss, (sums, model_state)).
    """
    own = optax.identity() if optimizer is None else optimizer
    if clip_norm is not None:
        own = optax.chain(optax.clip_by_global_norm(clip_norm), own)
    own = optax.with_extra_args_support(own)
    options = dict(block)
    name = options.pop("name")
    gradient = functools.partial(value_and_grad, loss_fn=loss)
    if name == "micro_batches":
        gradient = gradient_wrappers.micro_batches(gradient, **options)
    gradient = gradient_wrappers.through_worker_optimizer(gradient, own)
    if name == "local_steps":
        gradient = gradient_wrappers.local_steps(gradient, **options)
    worker = WorkerState(model_state, own.init(params))
    state = TrainState(jnp.zeros((), jnp.int32), None, None, params, None, None, None, worker, reducer_state, None)
    updates, worker, sums = jax.jit(lambda *given: gradient(*given))(state, worker, batch, jax.random.key(0))
    return types.SimpleNamespace(updates=updates, model_state=worker.model_state, sums=sums)


# ---- micro-batches: a linear model with a squared loss ----------------------------------------------------------


def regression(seed=0):
    rng = np.random.default_rng(seed)
    params = {"w": rng.standard_normal((3, 2)).astype(np.float32), "b": rng.standard_normal(2).astype(np.float32)}
    batch = {"x": rng.standard_normal((B, 3)).astype(np.float32), "y": rng.standard_normal((B, 2)).astype(np.float32)}
    return params, batch


def squared(params, model_state, batch, key):
    error = batch["x"] @ params["w"] + params["b"][None] - batch["y"]
    loss = (error**2).mean()
    return loss, ({"loss": loss * len(error), "count": jnp.float32(len(error))}, model_state)


def gradients_of_parts(params, batch, count):
    """In float64, by hand: [count, ...] of each leaf."""
    x, y = (batch[k].astype(np.float64).reshape(count, B // count, -1) for k in ("x", "y"))
    error = 2 * (x @ params["w"].astype(np.float64) + params["b"] - y) / (B // count * 2)
    return {"w": x.transpose(0, 2, 1) @ error, "b": error.sum(1)}


ORACLES = {"mean": lambda g: g.mean(0), "sum": lambda g: g.sum(0), "adasum": cases.adasum}


def check_combines(combine, oracle, count):
    params, batch = regression()
    work = work_of(squared, {"name": "micro_batches", "count": count, "combine": combine}, params, batch)
    expected = jax.tree.map(oracle, gradients_of_parts(params, batch, count))
    for leaf, wanted in zip(jax.tree.leaves(work.updates), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(leaf, wanted, rtol=0, atol=1e-6 * max(1, np.linalg.norm(wanted)))
    assert work.sums["count"] == B
    np.testing.assert_allclose(work.sums["loss"], B * squared(params, None, batch, None)[0], rtol=1e-6)
    norm = sum((g**2).sum() for g in jax.tree.leaves(expected))
    np.testing.assert_allclose(work.sums["squared_norm"], norm, rtol=1e-5)


@pytest.mark.parametrize("count", [1, 3, 4])
@pytest.mark.parametrize("combine", ORACLES)
def test_micro_batches_agree_with_numpy(combine, count):
    check_combines(combine, ORACLES[combine], count)


@pytest.mark.parametrize("combine", ORACLES)
def test_the_check_rejects_every_other_way_to_combine(combine):
    for other in ORACLES.keys() - {combine}:
        with pytest.raises(AssertionError):
            check_combines(other, ORACLES[combine], 4)


@pytest.mark.parametrize(
    ("dtype", "counts", "expected"),
    [
        (np.float16, [3000, 1000], 32.5),  # 40 * 3000 is no float16
        (np.float32, [0.375, 0.125], 32.5),  # parts of an example, such as weighted ones, that are less than one
        (np.float32, [0, 0], 0),
        (np.float32, [3, -1], np.nan),  # whose sum is a count
        (np.float32, [np.nan, 1], np.nan),
    ],
)
def test_micro_batches_are_weighed_by_any_count(dtype, counts, expected):
    def gradient(state, worker, batch, key):
        return batch["gradient"][0], worker, {"loss": jnp.zeros(()), "count": batch["count"][0]}

    combined = gradient_wrappers.micro_batches(gradient, count=2, weigh="count")
    batch = {"gradient": np.array([40, 10], dtype) * (np.any(counts)), "count": np.float32(counts)}
    found, _, _ = jax.jit(lambda batch: combined(None, WorkerState((), ()), batch, jax.random.key(0)))(batch)
    assert found.dtype == dtype
    np.testing.assert_allclose(found, expected, rtol=1e-3)


# ---- local steps: a quadratic that can be worked by hand --------------------------------------------------------


def quadratic(params, model_state, batch, key):
    """(theta - x)^2 / 2, whose gradient is theta - x."""
    loss = ((params - batch["x"]) ** 2).mean() / 2
    return loss, ({"loss": loss}, model_state)


def delta_on_quadratic(block, **kwargs):
    batch = {"x": np.array([2.0, 4.0, -1.0], np.float32)}
    return float(work_of(quadratic, block, jnp.zeros(()), batch, **kwargs).updates)


def test_local_sgd_steps_by_hand():
    """theta = 0 -> 1 -> 2.5 -> 0.75 at half the way to 2, 4 and -1."""
    block = {"name": "local_steps", "count": 3}
    sgd = optax.sgd(0.5)
    assert delta_on_quadratic(block, optimizer=sgd) == 0.75
    batch = {"x": np.array([2.0, 4.0, -1.0], np.float32)}
    sums = work_of(quadratic, block, jnp.zeros(()), batch, optimizer=sgd).sums
    np.testing.assert_allclose(sums["squared_norm"], np.mean([2.0**2, 3.0**2, 3.5**2]), rtol=1e-6)  # of a gradient
    for wrong in ("mean", "sum"):  # one step, at the shared parameters
        micro = {"name": "micro_batches", "count": 3, "combine": wrong}
        assert delta_on_quadratic(micro, optimizer=sgd) not in (0.75, 0)


@pytest.mark.parametrize(
    "report", [Report(drift=1.0), Report(drift=2.0, mix=Mix(0.5, True)), Report(drift=1.0, mix=Mix(0.5, False))]
)
def test_local_steps_begin_at_a_worker_s_own_parameters(report):
    """theta = 1 -> 1.5 -> 2.75 -> 0.875, whether the worker's drift is settled or waits for shared parameters, 0."""
    block = {"name": "local_steps", "count": 3}
    report = jax.tree.map(jnp.asarray, report)
    assert delta_on_quadratic(block, optimizer=optax.sgd(0.5), reducer_state=report) == 0.875 - 1


def test_local_steps_keep_their_optimizer_state():
    """Momentum 0.5: steps of 1, 0.5 + 1.5, 0.5 * 2 - 0.5 * (1 + 2 + 1)."""
    block = {"name": "local_steps", "count": 3}
    assert delta_on_quadratic(block, optimizer=optax.sgd(0.5, momentum=0.5)) == 1 + 2 + (1 - 2)


@pytest.mark.parametrize(("name", "expected"), [("local_steps", 3.0), ("micro_batches", 1.0)])
def test_clipping_is_of_what_the_optimizer_sees(name, expected):
    batch = {"x": np.full(3, 1e4, np.float32)}
    block = {"name": name, "count": 3}
    work = work_of(quadratic, block, jnp.zeros(()), batch, optimizer=optax.sgd(1.0), clip_norm=1.0)
    np.testing.assert_allclose(work.updates, expected, rtol=1e-6)


def update_norms(*overrides):
    tiny = keys("""
        model.name=softmax reducer_on=updates
        optimizer.learning_rate=1e-6 optimizer.momentum=0
        schedule.name=warmup_linear schedule.warmup_steps=4
    """)
    run = Stepper(setup_of(*tiny, *overrides, train_steps=6))
    found = [run.steps(step, step + 1).metrics for step in range(6)]
    return np.array([m["update_norm"] for m in found]), np.array([m["learning_rate"] for m in found])


def check_rates(plain, local):
    """Steps so small that no gradient changes on the way: k local steps are k times as long, at every step's rate."""
    assert plain[0] == local[0] == 0
    np.testing.assert_allclose(local[1:] / plain[1:], 4, rtol=1e-3)


def test_local_steps_have_the_learning_rate_of_the_step(monkeypatch):
    plain, rates = update_norms()
    four = keys("accumulation.name=local_steps accumulation.count=4")
    local, same_rates = update_norms(*four)
    assert np.array_equal(rates, same_rates) and len(set(rates)) > 3
    check_rates(plain, local)
    monkeypatch.setattr(optim.schedules, "at_step", lambda opt_state, step: opt_state)
    with pytest.raises(AssertionError):
        check_rates(plain, update_norms(*four)[0])


# ---- state and randomness flow through the parts ----------------------------------------------------------------


@pytest.mark.parametrize("name", gradient_wrappers.ACCUMULATIONS)
def test_model_state_flows_through_the_parts_in_order(name):
    task = tasks.make("classification", model=Normalised(num_classes=3), **inputs.images((2, 2, 1), num_classes=3))
    images = jax.random.normal(jax.random.key(1), (8, 2, 2, 1)) + jnp.arange(8.0)[:, None, None, None]
    params, state = task.init(jax.random.key(0))
    batch = {"image": images, "label": jnp.arange(8) % 3}

    block = {"name": name, "count": 2}
    work = work_of(task.loss, block, params, batch, optimizer=optax.sgd(0.1), model_state=state)
    flat = np.asarray(images, np.float64).reshape(2, 4, 4)
    expected = 0.5 * (0.5 * 0 + 0.5 * flat[0].mean(0)) + 0.5 * flat[1].mean(0)
    found = np.asarray(work.model_state["batch_stats"]["BatchNorm_0"]["mean"])
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    reverse = 0.5 * (0.5 * flat[1].mean(0)) + 0.5 * flat[0].mean(0)
    assert np.abs(found - reverse).max() > 0.1


def test_parts_have_keys_of_their_own():
    key = jax.random.key(3)
    batch = {"x": jnp.arange(4)}
    keys = [jax.random.key_data(k).tolist() for _, k in split_batch(batch, key=key, count=4)]
    assert len({tuple(k) for k in keys}) == 4


# ---- in the step ------------------------------------------------------------------------------------------------


def three_steps(*overrides, **kwargs):
    """With dropout, momentum and a moving average, as the digits config has them."""
    return Stepper(setup_of("--config.reducer_on=updates", *overrides), **kwargs).steps(0, 3)


@pytest.fixture(scope="module")
def plain():
    return three_steps()


@pytest.mark.parametrize(
    "overrides",
    [
        "accumulation.name=local_steps accumulation.count=1",
        "accumulation.combine=sum",
        "accumulation.combine=adasum",
    ],
    ids=["local_steps", "sum", "adasum"],
)
def test_one_part_is_no_accumulation_bit_for_bit(overrides, plain):
    run = three_steps(*keys(overrides))
    for one, other in zip(jax.tree.leaves(run.shared), jax.tree.leaves(plain.shared), strict=True):
        if overrides == "accumulation.combine=adasum":
            # Adasum goes through scale and unit, and comes back up to rounding
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
        else:
            np.testing.assert_array_equal(one, other)


def test_two_parts_are_not_one(plain):
    run = three_steps("--config.accumulation.count=2")
    assert largest_difference(run.params(), plain.params()) > 1e-6  # other dropout
    assert run.metrics["loss"] != plain.metrics["loss"]


SCANNED = {
    "mean": ({"name": "micro_batches"}, None),
    "sum": ({"name": "micro_batches", "combine": "sum"}, None),
    "local steps": ({"name": "local_steps"}, optax.sgd(0.1, momentum=0.9)),
}


@pytest.mark.parametrize("case", SCANNED)
def test_many_parts_are_scanned_to_the_same_result(case, monkeypatch):
    block, optimizer = SCANNED[case]
    params, batch = regression()
    batch = jax.tree.map(lambda x: np.resize(x, (12, x.shape[1])), batch)

    def work(params):
        return work_of(squared, {**block, "count": 12}, params, batch, optimizer=optimizer).updates

    def is_scanned():
        return "scan[" in str(jax.make_jaxpr(lambda p: work(p))(params))  # JAX remembers the trace of a function

    assert is_scanned()
    scanned = work(params)
    monkeypatch.setattr(gradient_wrappers, "MAX_UNROLLED", 12)
    assert not is_scanned()
    assert largest_difference(scanned, work(params)) < 1e-5
