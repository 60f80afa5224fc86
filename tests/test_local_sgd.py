"""Local SGD, with a delay and with an outer optimizer: limits to the bit, loops in float64, wrong variants."""

import functools

import jax
import numpy as np
import optax
import pytest
from jax import lax
from jax import numpy as jnp

import reducers
from reducers import REDUCERS
from tests.cases import adasum
from tests.softmax_digits import RATE, Digits, own_params, stepper_of, vector
from tests.stepper import Stepper, largest_difference, same_bits, setup_of
from training.checkpoints import initial_counters
from training.steps import train_step

WORKER = "worker"
STEPS = 50
LOCAL = "--config.reducer.name=local_sgd"
NESTEROV = (
    *("--config.outer.name=sgd", "--config.outer.learning_rate=0.7"),
    *("--config.outer.momentum=0.9", "--config.outer.nesterov=True"),
)


def options(**values):
    return (LOCAL, *(f"--config.reducer.{key}={value}" for key, value in values.items()))


# ---- limits, to the bit ------------------------------------------------------------------------------------------


def test_one_step_without_delay_is_the_reducer_itself():
    adasum = reducers.adasum(WORKER)
    same = reducers.local_sgd(WORKER, every_steps=1, combine=adasum)
    assert same.init(1.0) == adasum.init(1.0) and same.local_workers == "never"
    one, given = (lambda reducer: lambda g: reducer.update(g, reducer.init(g))[0]), jnp.ones((2, 3))
    programs = [str(jax.make_jaxpr(jax.vmap(one(r), axis_name=WORKER))(given)) for r in (same, adasum)]
    assert programs[0] == programs[1]
    ours = stepper_of(*options(every_steps=1)).steps(0, 5)
    mean = stepper_of().steps(0, 5)
    assert same_bits(ours.state, mean.state)


def test_without_a_delay_nothing_is_launched():
    state = stepper_of(*options(every_steps=3)).setup.worker_shapes.reducer_state
    assert state.launched is None
    copies = [x.shape for x in jax.tree.leaves(state) if x.shape]
    assert sorted(copies) == sorted(x.shape for x in jax.tree.leaves(state.report.drift))  # one copy of the parameters
    late = stepper_of(*options(every_steps=3, delay_steps=1)).setup.worker_shapes.reducer_state
    assert len([x for x in jax.tree.leaves(late) if x.shape]) == 2 * len(copies)


def test_other_runs_have_the_state_and_the_counters_of_before():
    setup = stepper_of().setup
    assert jax.tree.leaves(setup.worker_shapes.reducer_state) == []
    assert sorted(initial_counters(setup).state()) == ["num_counted", "num_dropped", "simulated_seconds"]


# ---- loops in float64 --------------------------------------------------------------------------------------------


def local_sgd(digits, *, every, from_step=0, outer=lambda progress: progress):
    """The shared parameters after each round is over, and all workers' own, as local SGD is written in papers."""
    z = digits.start
    xs = np.tile(z, (8, 1))
    for step in range(1, STEPS + 1):
        xs += digits.updates(xs, step - 1)
        if step <= from_step or step % every == 0:
            z = z + outer((xs - z).mean(0))
            xs = np.tile(z, (8, 1))
    return xs


def delayed(digits, *, every, delay):
    """DaSGD: what is averaged is taken d steps before; progress made meanwhile is kept."""
    xs, taken = np.tile(digits.start, (8, 1)), None
    for step in range(1, STEPS + 1):
        xs += digits.updates(xs, step - 1)
        if taken is not None and step % every == delay % every:
            xs += taken.mean(0) - taken
        if step % every == 0:
            taken = xs.copy()
    return xs


def cocod(digits, *, every):
    """CoCoD-SGD as its code has it: at the end of a round, the average of the anchors, and the progress since."""
    xs = np.tile(digits.start, (8, 1))
    anchors = xs.copy()
    for step in range(1, STEPS + 1):
        xs += digits.updates(xs, step - 1)
        if step % every == 0:
            xs = anchors.mean(0) + (xs - anchors)
            anchors = xs.copy()
    return xs


def nesterov(rate, momentum):
    """DiLoCo's outer step: v <- mu v + D, theta <- theta - lr (mu v + D), of D = -progress."""
    velocity = 0.0

    def outer(progress):
        nonlocal velocity
        velocity = momentum * velocity - progress
        return -rate * (momentum * velocity - progress)

    return outer


def check_agrees(overrides, oracle, **chosen):
    stepper = stepper_of(*overrides, **chosen)
    expected = oracle(Digits(stepper))
    np.testing.assert_allclose(own_params(stepper.steps(0, STEPS))[0], expected, atol=1e-6, rtol=0)


CASES = {
    "local": (options(every_steps=7), functools.partial(local_sgd, every=7)),
    "post_local": (options(every_steps=8, from_step=13), functools.partial(local_sgd, every=8, from_step=13)),
    "dasgd": (options(every_steps=6, delay_steps=2), functools.partial(delayed, every=6, delay=2)),
    "dasgd_late": (options(every_steps=3, delay_steps=2), functools.partial(delayed, every=3, delay=2)),
    "cocod": (options(every_steps=5, delay_steps=5), functools.partial(cocod, every=5)),
    "diloco": (
        (*options(every_steps=5), *NESTEROV),
        lambda digits: local_sgd(digits, every=5, outer=nesterov(0.7, 0.9)),
    ),
}
every_case = pytest.mark.parametrize("name", CASES)


@every_case
def test_agrees_with_a_loop_in_float64(name):
    check_agrees(*CASES[name])


def test_agrees_under_shard_map():
    overrides, oracle = CASES["cocod"]
    check_agrees((*overrides, "--config.mapping=shard_map"), oracle)


def test_the_whole_is_adasum_of_the_progress_of_those_who_came_first():
    overrides = (
        *options(every_steps=5),
        "--config.reducer.combine={'name': 'backup_workers', 'num_required': 6, 'combine': 'adasum'}",
        "--config.arrivals.name=lognormal",
    )

    def oracle(digits):
        seconds = [digits.setup.arrival_seconds(step) for step in range(STEPS)]
        z = digits.start
        for first in range(0, STEPS, 5):
            xs = np.tile(z, (8, 1))
            for step in range(first, first + 5):
                xs += digits.updates(xs, step)
            came = np.argsort(np.argsort(sum(seconds[first : first + 5]), kind="stable")) < 6
            kernel, bias = np.split(np.where(came[:, None], xs - z, 0), [640], axis=1)  # 0 is neutral
            z = z + np.concatenate([adasum(kernel), adasum(bias)])
        return np.tile(z, (8, 1))

    check_agrees(overrides, oracle)


def test_agrees_with_local_steps_of_one_call():
    """On the same examples: k parts of a batch in one step, or k steps."""
    in_one_call = stepper_of(
        "--config.accumulation.name=local_steps",
        *("--config.accumulation.count=4", "--config.batch_size_per_worker=16", "--config.data.name=digits"),
    )
    apart = stepper_of(*options(every_steps=4))
    given = np.asarray(in_one_call.batch(0)["index"])  # [D, 1, L, 16]
    params = apart.params()
    in_one_call.steps(0, 1)
    for part in range(4):
        batch = apart.batch(part)
        batch["index"] = given[..., 4 * part : 4 * part + 4]
        apart.state, _ = apart.step(apart.state, batch, apart.resident, {})
    assert largest_difference(apart.params(), in_one_call.params()) < 1e-6
    assert largest_difference(apart.params(), params) > 1e-3


# ---- where nothing is due ----------------------------------------------------------------------------------------

MOMENTUM = ("--config.outer.name=sgd", "--config.outer.learning_rate=0.7", "--config.outer.momentum=0.9")
AVERAGED = (*options(every_steps=4), *MOMENTUM, "--config.ema_decay=0.9")


def check_stays(overrides):
    """Between two rounds all that is shared keeps its bits, but for the step."""
    stepper = stepper_of(*overrides).steps(0, 4)
    before = stepper.host()
    after = stepper.steps(4, 7).host()
    for name in ("params", "opt_state", "ema"):
        assert same_bits(getattr(before, name), getattr(after, name)), name
    assert after.step == before.step + 3
    assert stepper.metrics["communications"] == 0
    assert stepper.metrics["learning_rate"] == pytest.approx(RATE)
    assert not same_bits(before.params, stepper.steps(7, 8).params())


def test_what_is_shared_stays_where_nothing_is_due():
    check_stays(AVERAGED)


@pytest.mark.parametrize("part", ["opt_state", "ema"])
def test_the_check_rejects_an_update_that_is_made_all_the_same(part, monkeypatch):
    """An outer momentum that decays, or a moving average that moves, where nothing is due."""
    when_emitted = train_step.when_emitted

    def wrong(update, **options):
        def updating(state, reduced):
            kept = when_emitted(update, **options)(state, reduced)
            made, _ = update(state, reduced)
            return kept[0]._replace(**{part: getattr(made, part)}), kept[1]

        return updating

    monkeypatch.setattr(train_step, "when_emitted", wrong)
    with pytest.raises(AssertionError, match=part):
        check_stays(AVERAGED)


# ---- wrong variants ----------------------------------------------------------------------------------------------


def not_reset(axis_name, *, every_steps: int):
    """Local SGD whose workers go on from their own progress after a round, too."""
    right = reducers.local_sgd(axis_name, every_steps=every_steps)

    def update(updates, state, params=None, **extra):
        result, after = right.update(updates, state, params, **extra)
        report = after.report
        drift = jax.tree.map(lambda u, r: jnp.where(report.emitted, u + r, u), report.drift, result)
        return result, after._replace(report=report._replace(drift=drift))

    return right.like(right.init, update)


def test_the_loops_reject_a_drift_that_is_not_reset(monkeypatch):
    monkeypatch.setitem(REDUCERS, "local_sgd", not_reset)
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        check_agrees(*CASES["local"])


def test_the_loops_reject_an_average_that_is_a_step_late():
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        check_agrees(options(every_steps=6, delay_steps=3), CASES["dasgd"][1])


def test_a_predicate_that_differs_between_lanes_is_no_condition():
    """The condition stays one in the program only because all lanes are known to agree about it."""
    reducer = reducers.local_sgd(WORKER, every_steps=3)

    def conditions(update):
        states = jax.eval_shape(jax.vmap(reducer.init), jnp.zeros((8, 5)))
        return str(jax.make_jaxpr(jax.vmap(update, axis_name=WORKER))(jnp.zeros((8, 5)), states)).count("cond[")

    def own(g, state):  # of a count of each worker's own
        return lax.cond(state.num_updates % 3 == 2, lambda g: lax.pmean(g, WORKER), jnp.zeros_like, g)

    assert conditions(reducer.update) == 2 and conditions(own) == 0


# ---- what else a run may have ------------------------------------------------------------------------------------


def test_batch_statistics_are_each_workers_own():
    stepper = Stepper(
        setup_of(*options(every_steps=3), "--config.reducer_on=updates", "--config.model.name=tests.stepper:Normalised")
    )
    means = stepper.steps(0, 3).host().worker.model_state["batch_stats"]["BatchNorm_0"]["mean"]
    assert len(np.unique(means[:, 20])) == 8


def test_loss_scaling_loses_no_progress():
    """A last step in which all workers overflow does not undo the steps before."""
    overrides = ("--config.loss_scaling.name=dynamic", "--config.loss_scaling.initial_scale=1.0")
    stepper = stepper_of(*options(every_steps=3), *overrides).steps(0, 2)
    drift = reducers.report(stepper.host().reducer_state).drift

    def overflow(state):
        inner = state.worker.opt_state
        huge = jax.tree.map(lambda x: jnp.full_like(x, 3e38), inner.scale.value)
        return state._replace(
            worker=state.worker._replace(opt_state=inner._replace(scale=inner.scale._replace(value=huge)))
        )

    before = vector(stepper.params())
    stepper.state = overflow(stepper.state)
    stepper.steps(2, 3)
    assert stepper.metrics["contributed"] == 0 if "contributed" in stepper.metrics else True
    moved = vector(stepper.params()) - before
    np.testing.assert_allclose(moved, vector(drift).mean(0), atol=1e-7)


def test_it_stands_after_an_optimizer_of_optax():
    """In a program of one's own: the parameters of a worker are the shared ones and its drift."""
    tx = reducers.chain(optax.sgd(0.5), reducers.local_sgd(WORKER, every_steps=2))
    target = jnp.arange(4.0)

    def step(z, state, target):
        gradient = reducers.own_params(z, state) - target
        updates, state = tx.update(gradient, state, z)
        return optax.apply_updates(z, updates), state

    z = jnp.zeros(())
    state = jax.vmap(tx.init, axis_size=4, in_axes=None)(jnp.zeros(()))
    over = jax.jit(jax.vmap(step, in_axes=(None, 0, 0), out_axes=(None, 0), axis_name=WORKER))
    for _ in range(20):
        z, state = over(z, state, target)
    assert float(z) == pytest.approx(1.5, abs=1e-5)
    assert tx.local_workers == "between_rounds"
    assert tx.reduces == "updates"
