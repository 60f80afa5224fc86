"""Workers that weigh more or less: the laws of ``weights=``, and runs that weigh workers by what they count."""

import functools

import jax
import numpy as np
import pytest
from jax import numpy as jnp

import reducers
from models.tasks import TASKS
from reducers import Mask
from reducers.collectives import weigh
from runs.errors import ConfigError
from tests.cases import CASES
from tests.stepper import Stepper, largest_difference, setup_of
from tests.test_reducers import WORKER, absent, every_case, extras, maker, reduce, tree_of

WEIGHTS = np.array([1.0, 3.0, 0.5, 2.0, 1.0, 7.0, 0.25, 1.0], np.float32)


def weighed(case, grads, weights, **more):
    return reduce(maker(case), grads, extra={**extras(case), "weights": weights, **more})


def close(found, expected, tolerance):
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * np.abs(b).max(initial=1e-30))


@pytest.mark.slow_cases(
    "corrupt-copy", "deadline-2.5", "local_sgd-2-1-adasum", "quorum-3-1.0", "stale-3", "trimmed_mean-0"
)
@every_case
def test_weights_are_taken_or_refused(case):
    """Equal weights are none, their scale changes nothing, and a weight of 0 is absence, whatever the gradient is."""
    if not maker(case)(axis_name=WORKER).takes_weights:
        with pytest.raises(
            ValueError, match=r"weights: this reducer takes none .*; mean, coordinate_median"
        ) as refusal:
            weighed(case, tree_of(8), WEIGHTS)
        assert "\n" not in str(refusal.value)
        return
    grads = tree_of(8)
    found, plain = weighed(case, grads, WEIGHTS), reduce(maker(case), grads, extra=extras(case))
    close(weighed(case, grads, np.full(8, 3.0, np.float32)), plain, 1e-6)
    close(weighed(case, grads, 1e3 * WEIGHTS), found, 1e-6)
    assert (
        case.name in ("local_sgd", "stale") or np.abs(found["large"] - plain["large"]).max() > 1e-3
    )  # its first update is zero
    if case.takes_mask:
        kept = np.arange(8) % 3 > 0
        close(
            weighed(case, absent(grads, kept, np.nan), WEIGHTS * kept),
            weighed(case, grads, WEIGHTS, contributes=kept),
            0,
        )


def test_who_takes_weights():
    takers = {case.name for case in CASES if maker(case)(axis_name=WORKER).takes_weights}
    waiting = {"backup_workers", "deadline", "dynamic_backup_workers", "quorum"}
    rules = {"mean", "coordinate_median", "trimmed_mean", "radial_directional", "upgrad"}
    assert takers == rules | {"corrupt", "local_sgd", "stale"} | waiting - {"dynamic_backup_workers"}
    with pytest.raises(ValueError) as refusal:
        jax.vmap(lambda g: reducers.sum(WORKER).update(g, (), weights=1.0), axis_name=WORKER)(jnp.ones(2))
    assert all(name in str(refusal.value) for name in (takers | {"apply_if_finite"}) - waiting)


@pytest.mark.parametrize("name", ["mean", "coordinate_median", "radial_directional", "upgrad"])
def test_a_worker_of_weight_two_is_two_workers(name):
    grads, twice = tree_of(5), [0, 1, 1, 2, 3, 3, 3, 4]
    make = functools.partial(reducers.make, name)
    found = reduce(make, grads, extra={"weights": np.float32([1, 2, 1, 3, 1])})
    expected = reduce(make, jax.tree.map(lambda g: g[twice], grads))
    close(jax.tree.map(lambda x: x[:1], found), jax.tree.map(lambda x: x[:1], expected), 1e-6)


def test_a_weighted_trimmed_mean_is_the_mean_of_what_lies_between():
    """Weights 1, 2, 1 of the values 0, 3, 10, over their mean: the value in the middle takes up all from 3/4 to 9/4."""
    make = functools.partial(reducers.make, "trimmed_mean", num_trimmed=1)
    found = reduce(make, np.float32([[10.0], [0.0], [3.0]]), extra={"weights": np.float32([1, 1, 2])})
    np.testing.assert_allclose(found, 3.0, rtol=1e-6)
    found = reduce(make, np.float32([[10.0], [0.0], [3.0]]), extra={"weights": np.float32([2, 1, 1])})
    np.testing.assert_allclose(
        found, (0.5 * 3 + 0.5 * 10) / 1.0, rtol=1e-6
    )  # 0 to 3/4, 3 to 3/2, 10 to 3; 1 to 2 is left


@pytest.mark.parametrize("dtype", [np.int32, jnp.bfloat16, np.float16, np.complex64])
def test_dtypes_are_kept(dtype):
    grads = jnp.asarray([[3.0], [9.0]], dtype)
    found = reduce(functools.partial(reducers.make, "mean"), grads, extra={"weights": np.float32([2, 1])})
    assert found.dtype == dtype and found[0, 0] == 5


def test_nobody_with_a_weight_is_zero():
    grads = {"w": np.full((4, 3), np.nan, np.float32)}
    found = reduce(functools.partial(reducers.make, "mean"), grads, extra={"weights": np.zeros(4, np.float32)})
    assert (found["w"] == 0).all()


def test_wrappers_leave_out_a_worker_of_weight_zero():
    """Whose NaN drops no update, whose finite gradient saves none that overflowed, and who is in no report."""
    grads, weights = np.float32([1, np.nan, 3]), np.float32([1, 0, 1])

    def updated(reducer, **more):
        one = lambda g, weight: reducer.update(g, reducer.init(g), weights=weight, **more)  # noqa: E731
        return jax.jit(jax.vmap(one, axis_name=WORKER))(grads, weights)

    found, _ = updated(reducers.apply_if_finite(reducers.mean(WORKER), WORKER, 5))
    assert found.tolist() == [2, 2, 2]
    backup = reducers.backup_workers(WORKER, num_required=2)
    found, state = updated(backup, arrival_seconds=jnp.array([1.0, 2.0, 9.0]))
    assert found.tolist() == [1, 1, 1] and reducers.report(state).counted.tolist() == [True, False, False]
    assert reducers.report(state).metrics["contributors"].tolist() == [1, 1, 1]

    stale = reducers.stale(WORKER, delay_steps=0)
    one = lambda weight, lost: stale.update(0.0, stale.init(0.0), weights=weight, overflowed=lost)[1]  # noqa: E731
    void = lambda *lost: reducers.report(jax.vmap(one, axis_name=WORKER)(weights, np.array(lost))).void  # noqa: E731
    assert void(True, False, True).all() and not void(True, False, False).any()


@pytest.mark.parametrize("scale", [2e-38, 1e-20, 1e20, 1.1e38])
def test_all_weights_times_a_number_are_the_same_weights(scale):
    """Also where their sum overflows, and down to the smallest normal number."""
    weights = np.float32(scale) * np.float32([1, 0, 2, 3])
    _, shares = jax.jit(jax.vmap(lambda weight: weigh(weight, None, (WORKER,)), axis_name=WORKER))(weights)
    expected = weights.astype(np.float64) * 3 / weights.astype(np.float64).sum()
    np.testing.assert_allclose(shares[0], expected, rtol=1e-6)


@pytest.mark.parametrize(
    "weights", [-1.0, float("nan"), float("inf"), np.ones(8), 1j, True, "2", jnp.float32(-1), [1.0] * 8]
)
def test_what_is_no_weight_of_one_worker_is_refused(weights):
    reducer = reducers.coordinate_median(WORKER)
    with pytest.raises(ValueError, match=r"weights=.*must be a number of this worker") as refusal:
        one = lambda g: reducer.update(g, reducer.init(g), weights=weights)  # noqa: E731
        jax.eval_shape(jax.vmap(one, axis_name=WORKER), jnp.ones((8, 3)))
    assert "\n" not in str(refusal.value)


def test_a_mask_that_is_known_whole_is_weighed_too():
    def one(worker, weight):
        mask = Mask(worker != 2, jnp.arange(4) != 2)
        return weigh(weight, mask, (WORKER,))

    mask, shares = jax.vmap(one, axis_name=WORKER)(np.arange(4), np.float32([1, 0, 5, 3]))
    assert mask.whole[0].tolist() == [True, False, False, True] and mask.own.tolist() == mask.whole[0].tolist()
    assert shares[0].tolist() == [0.5, 0, 0, 1.5]


def test_wrappers_that_hold_gradients_back_or_encode_them_refuse():
    for reducer in (
        reducers.adaptive_batch(WORKER, rule="norm_test"),
        reducers.in_half_precision(reducers.mean(WORKER), axis_name=WORKER),
    ):
        with pytest.raises(ValueError, match="weights: this reducer takes none"):
            one = lambda g, r=reducer: r.update(g, r.init(g), g, weights=1.0)  # noqa: E731
            jax.eval_shape(jax.vmap(one, axis_name=WORKER), jnp.ones((8, 3)))


# ---- runs ------------------------------------------------------------------------------------------------------------


def masked(*, model, example, sizes):
    """Classification whose loss is the mean over the examples of an even class: a batch may have few, or none."""
    task = TASKS.build("classification", model=model, example=example, sizes=sizes)

    def loss(params, model_state, batch, key):
        counts = (batch["label"] % 2 == 0).astype(jnp.float32)
        sums = task.evaluate(params, model_state, batch, counts)
        return sums["loss"] / jnp.maximum(sums["count"], 1), (sums, model_state)

    return task._replace(loss=loss)


SAME = ("--config.task.name=tests.test_weights:masked", "--config.model.name=softmax", "--config.ema_decay=None")


def trained(num_workers, batch_size, *more, num_devices=1):
    shape = (f"--config.num_workers={num_workers}", f"--config.batch_size_per_worker={batch_size}")
    run = Stepper(setup_of(*SAME, *shape, *more), num_devices=num_devices).steps(0, 6)
    return run.params(), run.metrics["loss"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "layout",
    [
        {"num_workers": 8, "batch_size": 8, "num_devices": 4},
        {"num_workers": 64, "batch_size": 1, "num_devices": 8},
        {"num_workers": 1, "batch_size": 64, "more": 8},
        {"num_workers": 4, "batch_size": 16, "more": 16, "num_devices": 2},
    ],
    ids=str,
)
def test_it_does_not_matter_who_has_which_examples(layout):
    """The same 64 examples by 1, 4, 8 or 64 workers, and in micro-batches, where a mean of means would differ."""
    given = dict(layout)
    parts = (f"--config.accumulation.count={given.pop('more')}",) if "more" in given else ()
    expected, expected_loss = trained(1, 64, "--config.weigh=count")
    found, loss = trained(given.pop("num_workers"), given.pop("batch_size"), "--config.weigh=count", *parts, **given)
    assert largest_difference(found, expected) < 1e-5 and abs(loss - expected_loss) < 1e-5
    unweighed, _ = trained(layout["num_workers"], layout["batch_size"], *parts, **given)
    assert largest_difference(unweighed, expected) > 1e-3


def test_a_config_says_it_in_one_place():
    assert set(setup_of().config.accumulation) == {"name", "count", "combine"} and setup_of().config.weigh == "workers"


@pytest.mark.slow
def test_backup_workers_weigh_who_came_first():
    backup = (
        "--config.reducer.name=backup_workers",
        "--config.reducer.num_required=5",
        "--config.arrivals.name=lognormal",
    )
    found, _ = trained(8, 8, "--config.weigh=count", *backup)
    plain, _ = trained(8, 8, *backup)
    assert largest_difference(found, plain) > 1e-4


@pytest.mark.slow
def test_a_step_that_overflows_for_all_who_have_examples_is_skipped():
    """A worker without one has a gradient of 0, which is finite, and no say."""
    scaled = ("--config.loss_scaling.name=dynamic", "--config.loss_scaling.initial_scale=1e36")
    shape = ("--config.num_workers=8", "--config.batch_size_per_worker=1", "--config.model.dtype=float16")
    run = Stepper(setup_of(*SAME, *shape, *scaled, "--config.weigh=count"), num_devices=1).steps(0, 1)
    assert run.metrics["skipped"] == 1


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ("reducer.name=adasum",),
            "config.weigh='count': config.reducer.name='adasum' with .* takes no weights; mean, coo",
        ),
        (("communication.name=sign",), "config.communication.name='sign' takes no weights"),
        (("server.name=asynchronous", "arrivals.name=lognormal"), "needs config.server.name='synchronous'"),
        (
            ("accumulation.count=2", "accumulation.combine=sum"),
            "accumulation.combine='sum': needs config.weigh='workers'",
        ),
    ],
)
def test_what_weighs_nobody_is_refused(overrides, message):
    with pytest.raises(ConfigError, match=message) as refusal:
        setup_of("--config.weigh=count", *(f"--config.{override}" for override in overrides))
    assert "\n" not in str(refusal.value)
