"""How updates are sent: the place of an encoding, and what each encoding promises beyond the laws of reducers."""

import jax
import numpy as np
import pytest
from jax import numpy as jnp

import reducers
from reducers.encodings import ENCODINGS
from reducers.wrappers import communication
from tests.cases import NAMES, ROWS, SECONDS, SENDINGS
from tests.stepper import (
    SMALL,
    Stepper,
    checkpoint_of,
    largest_difference,
    records,
    same_bits,
    setup_of,
    train_whole_and_in_parts,
)
from tests.test_reducers import WORKER, check_replication, made, reduce, tree_of, updated

pytestmark = pytest.mark.usefixtures("three_widths")


# ---- the place: when(with whom(encoded(how))) ---------------------------------------------------------------------

WRAPPERS = {
    "adaptive_batch": {"rule": {"name": "fixed", "every_steps": 2}},
    "backup_workers": {"num_required": 3},
    "bucketing": {},
    "corrupt": {"how": "flip"},
    "deadline": {"deadline_seconds": 2.5},
    "local_sgd": {"every_steps": 2},
    "nearest_neighbour_mixing": {},
    "quorum": {"num_required": 3},
    "stale": {"delay_steps": 1},
}


def recording(found):
    """An encoding that keeps the reducer that it is given."""

    def encode(reducer):
        found.append(reducer)
        return reducers.in_half_precision(reducer, axis_name=WORKER, dtype="bfloat16", initial_scale=1.0)

    return encode


def test_every_reducer_that_takes_a_reducer_is_a_wrapper_here():
    assert {name for name in reducers.REDUCERS if "combine" in reducers.REDUCERS.parameters(name)} == set(WRAPPERS)


def own_sum(axis_name):
    """A reducer that a config names by its module."""
    return reducers.sum(axis_name)


@pytest.mark.parametrize("name", WRAPPERS)
@pytest.mark.parametrize(
    "combine",
    [None, "mean", {"name": "adasum", "granularity": "model"}, reducers.sum(WORKER), f"{__name__}:own_sum"],
    ids=["none", "name", "block", "object", "component"],
)
def test_the_innermost_reducer_is_encoded_once(name, combine):
    found = []
    reducer = reducers.make(name, **WRAPPERS[name], combine=combine, axis_name=WORKER, encode=recording(found))
    (inner,) = found
    assert isinstance(inner, reducers.Reducer) and not inner.needs_arrivals
    assert inner.is_mean == (combine in (None, "mean")) and not reducer.is_mean
    assert reducer.may_overflow


def test_the_innermost_of_three_is_encoded_and_one_without_another_inside_is_the_innermost():
    found = []
    combine = {"name": "backup_workers", "num_required": 2, "combine": {"name": "corrupt", "combine": "sum"}}
    reducer = reducers.make("stale", delay_steps=1, combine=combine, axis_name=WORKER, encode=recording(found))
    state = reducer.init(np.ones(3, np.float32))
    assert len(found) == 1 and isinstance(state.combine.combine.combine.scale, tuple)
    assert reducer.needs_arrivals and reducer.num_counted == 2
    reducers.make("coordinate_median", axis_name=WORKER, encode=recording(found))
    assert found[1].takes_mask and not found[1].needs_arrivals


def test_each_wrapper_is_outside_of_what_is_encoded():
    """What it makes of a value that bfloat16 rounds tells them apart."""
    fine = 1 + 2.0**-10  # 1 in bfloat16
    grads = jnp.full(8, fine)
    seconds = {"arrival_seconds": jnp.asarray(SECONDS)}
    for name, options in WRAPPERS.items():
        reducer = reducers.make(name, **options, axis_name=WORKER, encode=recording([]))
        updates, state = updated(reducer, grads, shared=seconds)
        if name == "stale":
            assert state.ring[0].tolist() == [1.0, 0.0] and state.ring.dtype == jnp.float32
        elif name == "corrupt":
            assert updates[0] == 6 / 8
        elif name in ("bucketing", "nearest_neighbour_mixing"):
            assert updates[0] == 1 and state.num_updates[0] == 1
        elif name in ("adaptive_batch", "local_sgd"):  # what a worker holds is exact until it is sent
            held = jax.tree.leaves(state.total if name == "adaptive_batch" else state.report.drift)
            assert updates[0] == 0 and held[0][0] == fine
            second = jax.vmap(lambda g, s, r=reducer: r.update(g, s)[0], axis_name=WORKER)
            assert jax.jit(second)(grads, state)[0] == (1 if name == "adaptive_batch" else 2)
        else:  # a worker that is late overflows nothing
            assert updates[0] == 1 and reducers.report(state).metrics["contributors"][0] == 3
            late = jnp.where(jnp.arange(8) == 5, jnp.inf, fine)
            updates, state = updated(reducer, late, shared=seconds)
            assert updates[0] == 1 and not reducers.report(state).overflowed.any()


# ---- training ----------------------------------------------------------------------------------------------------

SOFTMAX = ("--config.model.name=softmax", "--config.ema_decay=None")
LOCAL = ("--config.reducer_on=updates", "--config.reducer.name=local_sgd", "--config.reducer.every_steps=10")


def sending(name, **options):
    given = {"min_elements": 1} | options if name in ("quantised", "top_k", "dynamic_bits") else options
    return (f"--config.communication.name={name}", *(f"--config.communication.{k}={v}" for k, v in given.items()))


def stepper(*overrides, num_devices=4):
    return Stepper(setup_of(*SOFTMAX, *overrides), num_devices=num_devices)


def test_encoded_progress_of_ten_local_steps():
    """Nothing is encoded before it is sent: four bits are those of ten steps' progress, and half precision is, too."""
    plain = stepper(*LOCAL).steps(0, 9)
    bits = stepper(*LOCAL, *sending("quantised", bits=4))
    half = stepper(*LOCAL, *sending("half", initial_scale=64))
    begun = plain.params()
    drift = reducers.report(plain.host().reducer_state).drift
    for encoded in (bits, half):
        assert encoded.steps(0, 9).metrics["communications"] == 0
        assert largest_difference(reducers.report(encoded.host().reducer_state).drift, drift) < 1e-6
        assert largest_difference(encoded.params(), begun) == 0
        encoded.steps(9, 10)
        assert encoded.metrics["communications"] == 1
        assert not any(x.any() for x in jax.tree.leaves(reducers.report(encoded.host().reducer_state).drift))
    expected = plain.steps(9, 10).params()
    most = max(np.abs(x).max() for x in jax.tree.leaves(drift))
    assert 0 < largest_difference(half.params(), expected) < 1e-3 * most
    assert 1e-3 * most < largest_difference(bits.params(), expected) < most  # steps of a seventh, rounded twice
    assert 4 <= bits.metrics["bits"] < 6  # of few numbers, padding included
    assert bits.setup.traffic.bytes_per_worker < plain.setup.traffic.bytes_per_worker / 5


def test_progress_that_overflows_half_precision_is_sent_a_round_later():
    run = stepper(*LOCAL, *sending("half", initial_scale=1e30)).steps(0, 9)
    begun = run.params()
    drift = reducers.report(run.host().reducer_state).drift
    run.steps(9, 10)
    assert run.metrics["skipped"] == 1 and largest_difference(run.params(), begun) == 0
    assert largest_difference(reducers.report(run.host().reducer_state).drift, drift) > 0  # the tenth step's is in it
    assert all(x.any() for x in jax.tree.leaves(reducers.report(run.host().reducer_state).drift))


BACKUP = (
    *("--config.arrivals.name=lognormal", "--config.reducer.name=backup_workers", "--config.reducer.num_required=5"),
    *sending("top_k", ratio=0.05),
)


def residuals_of(run):
    return run.host().reducer_state.combine.kept.residuals


def test_late_workers_keep_their_residuals_in_training():
    run = stepper(*BACKUP).steps(0, 3)
    before = residuals_of(run)
    run.steps(3, 4)
    after = residuals_of(run)
    counted = np.asarray(reducers.report(run.host().reducer_state).counted)
    assert counted.sum() == 5 == run.metrics["contributors"]
    assert sorted(after) == ["Dense_0/bias", "Dense_0/kernel"]
    for name, x in after.items():
        same = [np.array_equal(x[w], before[name][w]) for w in range(8)]
        assert same == (~counted).tolist()
    assert 0 < run.metrics["compression_error"] < 1


DRAWN = {"name": "quantised", "bits": 3, "error_feedback": "on"}
GO_ON = {
    "widths": sending("dynamic_bits", error_feedback="on"),
    "draws and bases": sending("by_pattern", rules=(("bias", DRAWN), ("", {"name": "low_rank", "rank": 2}))),
}


@pytest.mark.parametrize("what", GO_ON)
def test_runs_go_on_with_the_same_residuals_and_tell_their_bytes(what, tmp_path):
    """A run that is stopped and goes on is that run, bit for bit; its records follow the bits of each step."""
    short = (*SOFTMAX, *SMALL, *GO_ON[what], "--config.log_every_steps=1", "--config.checkpoint_every_steps=3")
    given = ["--config=configs/digits.py", "--config.train_steps=8", *short, "--num_devices=2"]
    train_whole_and_in_parts(given, tmp_path, stop_after=4)
    setup = setup_of(*short, train_steps=8)
    whole, parts = (checkpoint_of(tmp_path / name, setup)[1] for name in ("whole", "parts"))
    residuals = jax.tree.leaves(whole["state"].reducer_state.kept.residuals)
    assert same_bits(whole, parts) and residuals and all(x.any() for x in residuals)
    steps = records(tmp_path / "parts")
    assert len(steps) == 8 and setup.sends_alike == (what != "widths")
    assert [r["sent_bytes"] for r in steps] == np.cumsum([r["bytes_per_worker"] for r in steps]).tolist()
    if what == "widths":
        sent = {round(r["bits"]): r["bytes_per_worker"] for r in steps}
        assert all(bytes_sent == pytest.approx(bits * 650 / 8 * 1.75, rel=0.2) for bits, bytes_sent in sent.items())


# ---- laws of encodings -------------------------------------------------------------------------------------------

OF_SENDINGS = {name: row for name, row in ROWS.items() if name not in NAMES}
every_row = pytest.mark.parametrize("row", OF_SENDINGS.values(), ids=OF_SENDINGS)


def test_every_encoding_has_a_row():
    assert {row.name for row in SENDINGS} == set(communication.COMMUNICATIONS) == {*ENCODINGS, "by_pattern"}


@every_row
def test_powers_of_two_change_no_bit_at_the_first_update_and_zeros_are_zeros(row):
    grads = tree_of(8)
    expected = reduce(row.make, grads)
    assert all(not leaf.any() for leaf in jax.tree.leaves(reduce(row.make, jax.tree.map(np.zeros_like, grads))))
    for scale in (2.0**-100, 2.0**100) if row.scales_exactly else ():
        found = reduce(row.make, jax.tree.map(lambda g: g * np.float32(scale), grads))  # noqa: B023
        jax.tree.map(lambda x, y: np.testing.assert_array_equal(x, y * np.float32(scale)), found, expected)  # noqa: B023


@every_row
def test_a_nan_stays_in_its_leaf(row):
    grads = tree_of(8)
    expected = reduce(row.make, grads)
    grads["large"][3] = np.nan
    found = reduce(row.make, grads)
    if row.name == "half":  # which drops all that is reduced
        assert not any(leaf.any() for leaf in jax.tree.leaves(found))
        return
    assert np.isnan(found.pop("large")).any() and expected.pop("large") is not None
    jax.tree.map(np.testing.assert_array_equal, found, expected)


@every_row
def test_residuals_are_kept_where_there_is_error_feedback(row):
    kept = getattr(row.make(WORKER).init(jax.tree.map(lambda x: x[0], tree_of(8))), "kept", None)
    assert sorted(kept.residuals if kept else ()) == sorted(row.keeps)


@every_row
def test_what_is_drawn_does_not_follow_jax_s_default_kind_of_keys(row):
    """Two updates, of the mean and of another rule, and their bytes: the same where keys have other words."""

    def two_updates(rule):
        reducer = row.make(WORKER, rule=rule)

        def one(g):
            first, state = reducer.update(g, reducer.init(g))
            return first, reducer.update(g, state)

        return jax.jit(jax.vmap(one, axis_name=WORKER))(tree_of(8))

    def found():
        shapes = jax.tree.map(lambda x: x[0], tree_of(8))
        moved = reducers.traffic(row.make(WORKER), shapes, axis_sizes={WORKER: 8})
        return [moved.bytes_per_worker, *(two_updates(rule) for rule in ("mean", "sum")[: 1 + row.any_rule])]

    expected = found()
    for kind in ("unsafe_rbg", "rbg"):
        with jax.default_prng_impl(kind):
            jax.tree.map(np.testing.assert_array_equal, found(), expected)


@every_row
def test_facts_and_other_rules(row):
    """Around a rule other than the mean, what is exchanged is what workers have decoded."""
    assert row.make(WORKER).is_mean == (row.name == "full")
    if not row.any_rule:
        with pytest.raises(ValueError, match="must be the mean, or one around it"):
            row.make(WORKER, rule="sum")
        return
    first_two = reducers.backup_workers(WORKER, num_required=2)
    late = communication.make(row.name, **row.kwargs, reducer=first_two, axis_name=WORKER)
    assert (late.needs_arrivals, late.takes_mask, late.num_counted, late.is_mean) == (True, False, 2, False)

    def median(axis_name):
        return row.make(axis_name, rule="coordinate_median")

    check_replication(median)
    shapes = jax.tree.map(lambda x: x[0], tree_of(8))
    sent = [
        reducers.traffic(make(axis_name=WORKER), shapes, axis_sizes={WORKER: 8}).bytes_per_worker
        for make in (median, made("coordinate_median"))
    ]
    assert sent[0] == sent[1] or row.name == "half"
