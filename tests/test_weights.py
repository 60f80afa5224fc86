"""Workers that weigh more or less: the laws of ``weights=``, and runs that weigh workers by what they count."""

import functools

import jax
import numpy as np
import pytest
from jax import numpy as jnp

import reducers
from data.feeds import Feeds
from models.tasks import TASKS
from reducers import Mask
from reducers.collectives import weigh
from runs.errors import ConfigError
from tests.cases import CASES
from tests.in_process import DIGITS, train_py
from tests.refused import refused
from tests.softmax_digits import Digits, stepper_of, vector
from tests.stepper import DATASET, Stepper, largest_difference, setup_of
from tests.test_local_sgd import NESTEROV, nesterov
from tests.test_reducers import WORKER, absent, every_case, extras, over_steps, reduce, tree_of, updated

WEIGHTS = np.array([1.0, 3.0, 0.5, 2.0, 1.0, 7.0, 0.25, 1.0], np.float32)


def weighed(case, grads, weights, **more):
    return reduce(case.make, grads, extra={**extras(case), "weights": weights, **more})


def close(found, expected, tolerance):
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * np.abs(b).max(initial=1e-30))


@every_case
def test_weights_are_taken_or_refused(case):
    """Equal weights are none, their scale changes nothing, and a weight of 0 is absence, whatever the gradient is.

    One that is no weight is in every number of the result, and if all are 0 the result is, too.
    """
    if not case.make(axis_name=WORKER).takes_weights:
        with refused(ValueError, r"weights: this reducer takes none .*; mean, coordinate_median"):
            weighed(case, tree_of(8), WEIGHTS)
        return
    grads = tree_of(8)
    found = weighed(case, grads, WEIGHTS)
    plain = reduce(case.make, grads, extra=extras(case))
    close(weighed(case, grads, np.full(8, 3.0, np.float32)), plain, 1e-6)
    for scaled in (1e3 * WEIGHTS, *(np.ldexp(WEIGHTS, power) for power in (-147, -130, 125))):  # subnormal, and huge
        close(weighed(case, grads, scaled), found, 1e-6)
    nothing = weighed(case, absent(grads, np.zeros(8, bool), np.nan), np.zeros(8, np.float32))
    assert not any(x.any() for x in jax.tree.leaves(nothing))
    is_zero = found["large"] == 0  # as that of a reducer that emits nothing yet
    for value in (-1.0, -1e-45, np.nan, np.inf):
        wrong = np.where(np.arange(8) == 1, np.float32(value), WEIGHTS)  # the first to arrive
        assert (np.isnan(weighed(case, grads, wrong)["large"]) | is_zero).all(), value
    if case.name not in ("local_sgd", "stale"):  # whose first update is zero
        assert np.abs(found["large"] - plain["large"]).max() > 1e-3
    if case.takes_mask:
        kept = np.arange(8) % 3 > 0
        alone = weighed(case, absent(grads, kept, np.nan), WEIGHTS * kept)
        close(alone, weighed(case, grads, WEIGHTS, contributes=kept), 0)


def test_who_takes_weights():
    takers = {case.name for case in CASES if case.make(axis_name=WORKER).takes_weights}
    waiting = {"backup_workers", "deadline", "dynamic_backup_workers", "quorum"}
    rules = {"mean", "coordinate_median", "trimmed_mean", "radial_directional", "dualproj", "upgrad"}
    assert takers == rules | {"corrupt", "local_sgd", "stale"} | waiting - {"dynamic_backup_workers"}
    with pytest.raises(ValueError) as refusal:
        jax.vmap(lambda g: reducers.sum(WORKER).update(g, (), weights=1.0), axis_name=WORKER)(jnp.ones(2))
    assert all(name in str(refusal.value) for name in (takers | {"apply_if_finite"}) - waiting)


@pytest.mark.parametrize("weights", [np.float32, np.int32, np.float64])
@pytest.mark.parametrize("name", ["mean", "coordinate_median", "radial_directional", "dualproj", "upgrad"])
def test_a_worker_of_weight_two_is_two_workers(name, weights):
    """In float64, too, with weights of whatever dtype."""
    with jax.enable_x64(weights is not np.float32):
        grads = tree_of(5, dtype=np.float32 if weights is np.float32 else np.float64)
        twice = [0, 1, 1, 2, 3, 3, 3, 4, 4]
        make = functools.partial(reducers.make, name)
        found = reduce(make, grads, extra={"weights": np.array([1, 2, 1, 3, 2], weights)})
        expected = reduce(make, jax.tree.map(lambda g: g[twice], grads))
        tolerance = 3e-6 if weights is np.float32 else 1e-13
        close(jax.tree.map(lambda x: x[:1], found), jax.tree.map(lambda x: x[:1], expected), tolerance)


@pytest.mark.parametrize(
    ("values", "weights", "num_trimmed", "right"),
    [
        ([0, 5, 9], [3, 2, 1], 3, 2.0),  # of two values none is trimmed
        ([0, 5, 9], [3, 2, 1], 7, 2.0),
        ([4, 5, 9], [1, 3, 0], 9, 4.75),
        ([0, 5, 3, 9], [2, 1, 1, 7], 4, 1.5),  # of three one: 0 to 3/2, 3 to 9/4, 5 to 3; 1 to 2 is left
        ([10, 0, 3, 9], [1, 1, 2, 7], 1, 3.0),  # 0 to 3/4, 3 to 9/4: all that is left
        ([10, 0, 3, 9], [2, 1, 1, 7], 1, 6.5),  # 0 to 3/4, 3 to 3/2, 10 to 3
    ],
)
def test_a_weighted_trimmed_mean_is_that_of_what_lies_between_among_those_that_are_counted(
    values, weights, num_trimmed, right
):
    make = functools.partial(reducers.make, "trimmed_mean", num_trimmed=num_trimmed)
    counted = np.arange(len(values)) < len(values) - 1
    extra = {"weights": np.float32(weights), "contributes": counted}
    np.testing.assert_allclose(reduce(make, np.float32(values)[:, None], extra=extra), right, rtol=1e-6)


@pytest.mark.parametrize("dtype", [np.int32, jnp.bfloat16, np.float16, np.complex64])
def test_dtypes_are_kept(dtype):
    grads = jnp.asarray([[3.0], [9.0]], dtype)
    found = reduce(functools.partial(reducers.make, "mean"), grads, extra={"weights": np.float32([2, 1])})
    assert found.dtype == dtype and found[0, 0] == 5


def test_wrappers_leave_out_a_worker_of_weight_zero():
    """Whose NaN drops no update, whose finite gradient saves none that overflowed, and who is in no report."""
    grads = np.float32([1, np.nan, 3])
    weights = np.float32([1, 0, 1])

    found, _ = updated(reducers.apply_if_finite(reducers.mean(WORKER), WORKER, 5), grads, weights=weights)
    assert found.tolist() == [2, 2, 2]
    backup = reducers.backup_workers(WORKER, num_required=2)
    times = {"arrival_seconds": jnp.array([1.0, 2.0, 9.0])}
    found, state = updated(backup, grads, weights=weights, shared=times)
    assert found.tolist() == [1, 1, 1]
    assert reducers.report(state).counted.tolist() == [True, False, False]
    assert reducers.report(state).metrics["contributors"].tolist() == [1, 1, 1]

    stale = reducers.stale(WORKER, delay_steps=0)
    one = lambda weight, lost: stale.update(0.0, stale.init(0.0), weights=weight, overflowed=lost)[1]  # noqa: E731
    overflowed = lambda *lost: reducers.report(jax.vmap(one, axis_name=WORKER)(weights, np.array(lost))).overflowed  # noqa: E731
    assert overflowed(True, False, True).all() and not overflowed(True, False, False).any()


@pytest.mark.parametrize(
    ("weight", "shares"),
    [
        ([2e-38, 1e-45, 0, 2e-38], [1.5, 0, 0, 1.5]),  # one so much smaller is counted, with the share 0
        ([1.1e38, 0, 2.2e38, 3.3e38], [0.5, 0, 1, 1.5]),  # whose sum overflows
        ([1e-40, -0.0, 2e-40, 3e-40], [0.5, 0, 1, 1.5]),
        ([3, 1, 2, 2], [1.5, 0.5, 1, 1]),
    ],
)
def test_shares_are_of_the_sum_of_all_weights(weight, shares):
    mask, found = jax.jit(jax.vmap(lambda weight: weigh(weight, None, (WORKER,)), axis_name=WORKER))(np.float32(weight))
    assert mask.own.tolist() == [w != 0 for w in weight]
    np.testing.assert_allclose(found[0], shares, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("first", "second", "right"),
    [
        (1.0, 3.0, True),
        (-1.0, 3.0, False),  # whose sum is a weight
        (np.nan, 1.0, False),
        (3e38, 3e38, False),  # whose sum overflows
        (1e-40, 1e-40, False),  # which a CPU adds as 0
    ],
)
def test_the_weights_of_a_round_are_added_up_or_seen(first, second, right):
    weights = np.float32([[weight, weight / 2] for weight in (first, second)])
    found, _ = over_steps(reducers.local_sgd(WORKER, every_steps=2), np.float32([[1, 4]] * 2), weights=weights)
    np.testing.assert_allclose(found[1], 4.0 if right else np.nan, rtol=1e-6)


@pytest.mark.parametrize(
    "weights", [-1.0, float("nan"), float("inf"), 1e39, 1e-50, np.ones(8), 1j, True, "2", jnp.float32(-1), [1.0] * 8]
)
def test_what_is_no_weight_of_one_worker_is_refused(weights):
    reducer = reducers.coordinate_median(WORKER)
    with refused(ValueError, r"weights=.*must be a number of this worker"):
        one = lambda g: reducer.update(g, reducer.init(g), weights=weights)  # noqa: E731
        jax.eval_shape(jax.vmap(one, axis_name=WORKER), jnp.ones((8, 3)))


def test_a_mask_that_is_known_whole_is_weighed_too():
    def one(worker, weight):
        mask = Mask(worker != 2, jnp.arange(4) != 2)
        return weigh(weight, mask, (WORKER,))

    mask, shares = jax.vmap(one, axis_name=WORKER)(np.arange(4), np.float32([1, 0, 5, 3]))
    assert mask.whole[0].tolist() == [True, False, False, True]
    assert mask.own.tolist() == mask.whole[0].tolist()
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
    assert set(setup_of().config.accumulation) == {"name", "count", "combine"}
    assert setup_of().config.weigh == "workers"


def test_a_step_that_overflows_for_all_who_have_examples_is_skipped():
    """A worker without one has a gradient of 0, which is finite, and no say."""
    scaled = ("--config.loss_scaling.name=dynamic", "--config.loss_scaling.initial_scale=1e36")
    shape = ("--config.num_workers=8", "--config.batch_size_per_worker=1", "--config.model.dtype=float16")
    run = Stepper(setup_of(*SAME, *shape, *scaled, "--config.weigh=count"), num_devices=1).steps(0, 1)
    assert run.metrics["skipped"] == 1


# ---- FedAvg: workers that weigh as much as they have examples --------------------------------------------------------

SHARES = ("--config.split.name=dirichlet", "--config.weigh=share")
ROUNDS = ("--config.reducer.name=local_sgd", "--config.reducer.every_steps=5")
ARRIVING = ("--config.arrivals.name=lognormal", "--config.arrivals.sigma=0.8", "--config.late_workers=interrupt")
FIRST = "'backup_workers', 'num_required': 5"
NUM_STEPS = 20


def everyone(digits, first, every):
    return np.ones(8, bool)


def first_five(digits, first, every):
    """Those whose steps of the round took the least time together."""
    seconds = sum(np.asarray(digits.setup.arrival_seconds(step)) for step in range(first, first + every))
    return np.argsort(np.argsort(seconds, kind="stable")) < 5


def fed_avg(digits, *, every=1, present=everyone, outer=lambda progress: progress, weighs=lambda n: n):
    """w <- sum of n_k / n w_k over those workers that are present, as in the paper's algorithm 1."""
    num_examples = np.array([len(share) for share in digits.setup.shares(DATASET)], np.float64)
    z = digits.start
    for first in range(0, NUM_STEPS, every):
        xs = np.tile(z, (8, 1))
        for step in range(first, first + every):
            xs += digits.updates(xs, step)
        n = weighs(num_examples) * present(digits, first, every)
        z = z + outer(n @ (xs - z) / n.sum())
    return z


def check_fed_avg(overrides, oracle, **options):
    stepper = stepper_of(*SHARES, *overrides, train_steps=NUM_STEPS, **options)
    expected = oracle(Digits(stepper))
    np.testing.assert_allclose(vector(stepper.steps(0, NUM_STEPS).params()), expected, atol=2e-6, rtol=0)


FED_AVG = {
    "gradients": (("--config.reducer_on=gradients",), fed_avg),
    "updates": ((), fed_avg),
    "local_sgd": (ROUNDS, functools.partial(fed_avg, every=5)),
    "diloco": ((*ROUNDS, *NESTEROV), lambda digits: fed_avg(digits, every=5, outer=nesterov(0.7, 0.9))),
    "backup_workers": (
        (
            "--config.reducer.name=backup_workers",
            "--config.reducer.num_required=5",
            "--config.reducer_on=gradients",
            *ARRIVING,
        ),
        functools.partial(fed_avg, present=first_five),
    ),
    "rounds of those that come first": (
        (*ROUNDS, f"--config.reducer.combine={{'name': {FIRST}}}", *ARRIVING),
        functools.partial(fed_avg, every=5, present=first_five),
    ),
}


@pytest.mark.parametrize("name", FED_AVG)
def test_workers_weigh_as_much_as_they_have_examples(name):
    check_fed_avg(*FED_AVG[name])


@pytest.mark.parametrize(
    "options",
    [
        {"num_devices": 8},
        {"num_devices": 1},
        {"num_devices": 4, "lanes": "dispatched"},
        {"num_devices": 2, "overrides": ("--config.mapping=shard_map",)},
        {"num_devices": 8, "overrides": ("--config.mapping=shard_map", "--config.devices_per_worker=2")},
        {"num_devices": 2, "overrides": ("--config.lanes_at_once=2",)},
        {"num_devices": 2, "overrides": ("--config.accumulation.count=2",)},
    ],
    ids=str,
)
def test_they_do_wherever_they_are(options):
    given = dict(options)
    more = given.pop("overrides", ())
    two, found = (
        stepper_of(*SHARES, *ROUNDS, *overrides, **layout).steps(0, 10).params()
        for overrides, layout in (((), {"num_devices": 2}), (more, given))
    )
    assert largest_difference(found, two) < 1e-6


def test_the_check_rejects_equal_weights():
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        check_fed_avg(ROUNDS, functools.partial(fed_avg, every=5, weighs=np.ones_like))


def alike():
    """A split into shares of one size."""
    return lambda labels, num_workers, seed: list(
        np.arange(len(labels) // num_workers * num_workers).reshape(num_workers, -1)
    )


@pytest.mark.parametrize("more", [(), ROUNDS], ids=["every step", "rounds"])
def test_shares_of_one_size_weigh_nobody_more(more):
    """Up to the rounding of a product with 1 and of a sum."""
    split = "--config.split.name=tests.test_weights:alike"
    found, plain = (
        stepper_of(split, f"--config.weigh={weigh}", *more).steps(0, 10).params() for weigh in ("share", "workers")
    )
    assert largest_difference(found, plain) < 1e-7


@pytest.mark.parametrize("placement", ["device", "stream"])
def test_a_feed_says_what_its_workers_weigh(placement):
    order = setup_of(*SAME, *SHARES).example_order(DATASET)
    with Feeds(DATASET.train, order, layout=(2, 2), workers=slice(2, 6), placement=placement) as feeds:
        found = feeds.at(np.arange(24).reshape(3, 8))["share"]
    sizes = [len(share) for share in order.shares]
    assert len(set(sizes)) > 1 and found.tolist() == np.tile(np.reshape(sizes[2:6], (2, 1, 2)), (1, 3, 1)).tolist()


def test_a_dry_run_of_shares_traces_their_step(capsys):
    assert train_py(f"--config={DIGITS}", *SHARES, "--dry_run") == 0


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
    with refused(ConfigError, message):
        setup_of("--config.weigh=count", *(f"--config.{override}" for override in overrides))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("reducer.name=adasum",), "config.weigh='share': config.reducer.name='adasum' with .* takes no weights"),
        (("communication.name=sign",), "config.communication.name='sign' takes no weights"),
        (("server.name=asynchronous", "arrivals.name=lognormal"), "needs config.server.name='synchronous'"),
        (("split.name=shuffled",), "config.weigh='share': needs workers with shares, by config.split.name, not"),
    ],
)
def test_shares_that_cannot_weigh_are_refused(overrides, message):
    with refused(ConfigError, message):
        setup_of(*SHARES, *(f"--config.{override}" for override in overrides))
