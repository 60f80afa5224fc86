"""Streaming DiLoCo: fragments of a model with rounds of their own, mixtures, an outer optimizer of each; weights."""

import functools

import jax
import numpy as np
import pytest
from jax import numpy as jnp

import reducers
from optim import optimizers
from optim.outer import by_fragment
from reducers.leaves import joined
from reducers.local.fragments import Fragments
from tests.in_process import train_digits
from tests.softmax_digits import Digits, own_params, stepper_of
from tests.stepper import checkpoint_of, digits_setup, end_at, largest_difference, records, same_bits
from tests.test_local_sgd import NESTEROV, STEPS, nesterov, options
from tests.test_reducers import WORKER, over_steps, updated

LEAVES = slice(0, 640), slice(640, 650)  # the kernel, and the bias: two fragments


# ---- loops in float64 --------------------------------------------------------------------------------------------


def streaming(digits, *, every, delay=0, mix=None, outer=lambda: lambda progress: progress, fragments=LEAVES):
    """Streaming DiLoCo as its paper has it: a fragment is sent, arrives d steps later, and is merged with a worker's
    own; without a mixture what a worker did meanwhile is kept.
    """
    z = digits.start
    xs = np.tile(z, (8, 1))
    outers = [outer() for _ in fragments]
    sent = [None] * len(fragments)
    for step in range(1, STEPS + 1):
        xs += digits.updates(xs, step - 1)
        for p, part in enumerate(fragments):
            offset = p * every // len(fragments)
            arrives = step > delay and (step - delay - offset) % every == 0
            if arrives:
                progress = sent[p] if delay else xs[:, part] - z[part]
                before = z[part].copy()
                z[part] += outers[p](progress.mean(0))
                own = before + (xs[:, part] - before - progress) + (z[part] - before)
                xs[:, part] = own if mix is None else mix * xs[:, part] + (1 - mix) * z[part]
            if (step - offset) % every == 0:
                sent[p] = xs[:, part] - z[part]
    return xs


OUTER = functools.partial(nesterov, 0.7, 0.9)
CASES = {
    "in_turns": ({"every_steps": 6}, {}),
    "late": ({"every_steps": 6, "delay_steps": 2}, {}),
    "both_under_way": ({"every_steps": 5, "delay_steps": 4}, {}),
    "late_by_a_round": ({"every_steps": 4, "delay_steps": 4}, {}),
    "dropped": ({"every_steps": 6, "delay_steps": 2, "mix": 0.0}, {}),
    "mixed": ({"every_steps": 6, "delay_steps": 2, "mix": 0.5}, {}),
    "mixed_late_by_a_round": ({"every_steps": 4, "delay_steps": 4, "mix": 0.5}, {}),
    "mixed_late_with_outer": ({"every_steps": 2, "delay_steps": 2, "mix": 0.25}, {"outer": OUTER}),
    "mixed_at_once": ({"every_steps": 3, "mix": 0.25}, {}),
    "outer": ({"every_steps": 6, "delay_steps": 1, "mix": 0.5}, {"outer": OUTER}),
}


@pytest.mark.parametrize("name", CASES)
def test_agrees_with_a_loop_in_float64(name):
    given, more = CASES[name]
    stepper = stepper_of(*options(**given, fragments=2), *(NESTEROV if more else ()))
    renamed = {"every_steps": "every", "delay_steps": "delay", "mix": "mix"}
    expected = streaming(Digits(stepper), **{renamed[key]: value for key, value in given.items()}, **more)
    np.testing.assert_allclose(own_params(stepper.steps(0, STEPS))[0], expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("wrong", [{"mix": 0.25}, {"every": 7}, {"delay": 3}, {"fragments": (slice(0, 650),)}])
def test_the_loop_rejects_another_method(wrong):
    stepper = stepper_of(*options(every_steps=6, delay_steps=2, mix=0.5, fragments=2))
    expected = streaming(Digits(stepper), **{"every": 6, "delay": 2, "mix": 0.5, **wrong})
    assert np.abs(own_params(stepper.steps(0, STEPS))[0] - expected).max() > 1e-4


def test_one_fragment_without_a_mixture_is_local_sgd_to_the_bit():
    plain, same = (stepper_of(*options(every_steps=3, **more)).steps(0, 7) for more in ({}, {"mix": 0.0}))
    assert same_bits(plain.state, same.state)
    once = stepper_of(*options(every_steps=3, fragments=2, from_step=7)).steps(0, 7)
    assert same_bits(once.params(), stepper_of(*options(every_steps=1)).steps(0, 7).params())


@pytest.mark.parametrize("chosen", [{"num_devices": 8}, {"num_devices": 1}, {"num_devices": 4, "lanes": "dispatched"}])
def test_layouts_agree(chosen):
    overrides = (*options(every_steps=4, delay_steps=1, mix=0.5, fragments=2), *NESTEROV)
    ours, theirs = (own_params(stepper_of(*overrides, **where).steps(0, 9))[0] for where in (chosen, {}))
    np.testing.assert_allclose(ours, theirs, atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    "given",
    [
        {"every_steps": 1, "delay_steps": 1},
        {"every_steps": 2, "delay_steps": 2, "from_step": 3, "combine": reducers.coordinate_median(WORKER)},
        {"every_steps": 2, "delay_steps": 2, "fragments": 2, "combine": reducers.adasum(WORKER)},
    ],
    ids=["of_one_step", "after_a_warm_up", "in_fragments"],
)
def test_workers_without_progress_stay_where_they_are(given):
    """A worker launches its progress as a mixture begins, never the parameters that the mixture is of."""
    reducer = reducers.local_sgd(WORKER, mix=0.5, **given)
    params = [jnp.full(2, 10.0), jnp.full(1, -4.0)]
    states = jax.vmap(reducer.init, in_axes=None, axis_size=2)(params)
    step = jax.jit(jax.vmap(reducer.update, in_axes=(0, 0, None), axis_name=WORKER))
    for _ in range(6):
        updates, states = step([jnp.zeros((2, 2)), jnp.zeros((2, 1))], states, params)
        params = jax.tree.map(lambda p, u: p + u[0], params, updates)
    assert [x.tolist() for x in params] == [[10.0, 10.0], [-4.0]]


# ---- what is sent ------------------------------------------------------------------------------------------------


def test_fragments_have_about_the_same_size_and_every_leaf_is_in_one():
    rng = np.random.default_rng(0)
    for count in (1, 2, 3, 7):
        tree = {f"{i}": np.zeros(size) for i, size in enumerate(rng.integers(0, 1000, 20))}
        parts = Fragments(count).split(tree)
        sizes = [sum(x.size for x in jax.tree.leaves(part)) for part in parts]
        assert Fragments(count).shares(tree) == [size / sum(sizes) for size in sizes]
        assert max(sizes) - min(sizes) <= max(x.size for x in tree.values())
        assert len(jax.tree.leaves(parts)) == 20
        assert jax.tree.structure(joined(*parts)) == jax.tree.structure(tree)


def test_an_update_sends_a_fragment_and_no_more():
    given = {name: jnp.ones((8, 2, size)) for name, size in (("a", 100), ("b", 60), ("c", 40))}
    results, states = over_steps(reducers.local_sgd(WORKER, every_steps=4, fragments=2), given)
    sent = [{name for name, x in results.items() if np.any(x[step])} for step in range(8)]
    assert sent == [set(), {"b", "c"}, set(), {"a"}] * 2
    assert states.report.metrics["communications"][:, 0].tolist() == [0.0, 0.5, 0.0, 0.5] * 2


def test_who_is_left_out_of_a_fragment_loses_its_part():
    combine = reducers.backup_workers(WORKER, num_required=1)
    reducer = reducers.local_sgd(WORKER, every_steps=2, fragments=2, combine=combine)
    times = {"arrival_seconds": jnp.array([1.0, 2.0])}
    first, states = updated(reducer, [jnp.array([[1.0], [5.0]])] * 2, shared=times)
    assert [float(x[0, 0]) for x in first] == [0.0, 1.0]
    assert states.report.counted.tolist() == [True, False]
    assert [u.tolist() for u in states.report.drift] == [[[1.0], [5.0]], [[0.0], [0.0]]]
    assert states.report.metrics["step_seconds"].tolist() == [1.0, 1.0]


def test_an_outer_optimizer_counts_the_steps_of_its_fragment():
    """Adam's bias is corrected by the steps of a fragment, not by those of all."""
    outer = by_fragment(optimizers.OPTIMIZERS.make(name="adam", learning_rate=0.1), Fragments(2))
    params = [jnp.zeros(1), jnp.zeros(1)]
    state = outer.init(params)
    for emitted in ([True, False], [True, False], [False, True]):
        updates, state = outer.update([jnp.ones(1), jnp.ones(1)], state, params, emitted=jnp.array(emitted))
    np.testing.assert_allclose(updates[1], -0.1, rtol=1e-5)


# ---- weights -----------------------------------------------------------------------------------------------------


def weighed(reducer, updates, weights):
    """The results of updates [T, W] with weights [T, W], and the last drift."""
    results, states = over_steps(reducer, np.float32(updates), weights=np.float32(weights))
    return results[:, 0].tolist(), states.report.drift[-1].tolist()


def test_progress_weighs_as_much_as_its_steps():
    reducer = reducers.local_sgd(WORKER, every_steps=2)
    assert reducer.takes_weights
    found, _ = weighed(reducer, [[1, 0], [1, 4]] * 2, [[1, 2], [2, 3], [5, 0], [5, 0]])
    assert found == pytest.approx([0, (3 * 2 + 5 * 4) / 8, 0, 2])


def test_late_progress_weighs_as_much_as_the_steps_before_it():
    reducer = reducers.local_sgd(WORKER, every_steps=2, delay_steps=1)
    weights = [[1, 2], [2, 3], [7, 1], [0, 1], [9, 9]]
    found, drift = weighed(reducer, [[1, 0], [1, 4], [1, 1], [1, 1], [0, 0]], weights)
    assert found == pytest.approx([0, 0, (3 * 2 + 5 * 4) / 8, 0, (7 * 2 + 2 * 2) / 9])
    assert drift == [0, 0]


def test_a_reducer_without_weights_refuses_them():
    reducer = reducers.local_sgd(WORKER, every_steps=2, combine=reducers.adasum(WORKER))
    with pytest.raises(ValueError, match=r"^weights: this reducer takes none"):
        weighed(reducer, [[1, 0]], [[1, 2]])


# ---- runs --------------------------------------------------------------------------------------------------------

RUN = (
    *options(every_steps=6, delay_steps=2, mix=0.5, fragments=3),
    *("--config.reducer_on=updates", "--config.ema_decay=None", "--config.arrivals.name=lognormal"),
    *("--config.communication.name=quantised", "--config.communication.bits=4", *NESTEROV),
    *("--config.model.hidden_sizes=(16,)", "--config.batch_size_per_worker=4", "--config.train_steps=20"),
    *("--config.log_every_steps=1", "--config.eval_every_steps=10", "--config.checkpoint_every_steps=5"),
)


def run(workdir, num_devices=2):
    """Trains; returns the exit code."""
    return train_digits(workdir, *RUN, f"--num_devices={num_devices}")


def end_of(workdir):
    return checkpoint_of(workdir, digits_setup(*RUN))[1]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("streaming")
    assert run(workdir) == 0
    return workdir


@pytest.mark.parametrize("num_devices", [2, 8])
def test_stopped_within_a_delay_and_gone_on(num_devices, finished, tmp_path):
    """Step 9 is between what a fragment sends and gets; on the same layout all bits are the same."""
    end_at(9, lambda: run(tmp_path))
    assert run(tmp_path, num_devices=num_devices) == 0
    ours, theirs = end_of(tmp_path), end_of(finished)
    if num_devices == 2:
        assert same_bits(ours, theirs) and records(tmp_path) == records(finished)
    assert largest_difference(ours["mean_params"], theirs["mean_params"]) < 1e-5
    assert ours["counters"]["sent_bytes"] == pytest.approx(theirs["counters"]["sent_bytes"], rel=1e-6)


def test_records_say_what_each_step_sends(finished):
    """Of steps 1 to 20: rounds of 6 steps that begin at 0, 2 and 4, and arrive 2 steps late."""
    found = records(finished)
    assert [r["step"] for r in found if r["communications"]] == [4, 6, 8, 10, 12, 14, 16, 18, 20]
    sent = np.cumsum([r["bytes_per_worker"] * r["communications"] for r in found])
    np.testing.assert_allclose([r["sent_bytes"] for r in found], sent, atol=2)  # rounded to whole bytes
    assert all(isinstance(r[name], int) for r in found for name in ("sent_bytes", "peak_bytes", "bytes_per_worker"))
    largest = max(r["bytes_per_worker"] * r["communications"] for r in found)
    assert found[-1]["peak_bytes"] == pytest.approx(largest, abs=1)
    assert largest < 0.9 * found[-1]["bytes_per_worker"]


def test_fragments_that_are_combined_at_once_arrive_together_or_not_at_all():
    """Of two, in the first steps, one overflows: the step would be undone, and with it the progress of the other."""
    half = reducers.in_half_precision(reducers.mean(WORKER), axis_name=WORKER, initial_scale=1.0)
    reducer = reducers.local_sgd(WORKER, every_steps=4, fragments=2, from_step=3, combine=half)
    params = {"a": jnp.zeros(2), "b": jnp.zeros(1)}
    states = jax.vmap(reducer.init, in_axes=None, axis_size=2)(params)
    step = jax.jit(jax.vmap(reducer.update, axis_name=WORKER))
    total = params
    given = {"a": jnp.full((2, 2), 80000.0), "b": jnp.ones((2, 1))}  # 80000 is no float16
    for lost in (True, False):
        result, states = step(given, states)
        assert states.report.overflowed[0] == lost
        assert (states.report.drift["b"] == (1.0 if lost else 0.0)).all()
        total = jax.tree.map(lambda z, u: z + u[0], total, result)
        assert all((z == 0).all() == lost for z in jax.tree.leaves(total))
        given = {"a": jnp.full((2, 2), -79000.0), "b": jnp.ones((2, 1))}
    assert total["a"].tolist() == [1000.0] * 2 and total["b"].tolist() == [2.0]


# ---- refusals ----------------------------------------------------------------------------------------------------


def test_a_model_has_as_many_leaves_as_fragments():
    with pytest.raises(ValueError, match=r"^fragments=3: the model has 2 leaves$"):
        reducers.local_sgd(WORKER, every_steps=3, fragments=3).init([jnp.zeros(1)] * 2)


def test_a_mixture_needs_the_shared_parameters():
    reducer = reducers.local_sgd(WORKER, every_steps=2, mix=0.5)
    states = jax.vmap(reducer.init, in_axes=None, axis_size=2)(jnp.zeros(1))
    with pytest.raises(TypeError, match=r"^params: missing; with mix=0\.5 update needs the shared parameters"):
        jax.vmap(reducer.update, axis_name=WORKER)(jnp.ones((2, 1)), states)
