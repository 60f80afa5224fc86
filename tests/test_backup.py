"""Who is counted and who is dropped: exactly N, nothing leaks, and with all of them it is the plain mean."""

import jax
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp

import reducers
from reducers import arrivals
from reducers.arrivals import deadline_arrivals, first_arrivals
from tests.cases import SECONDS, TIMES
from tests.test_reducers import WORKER, absent, made, over_steps, reduce, stateless, tree_of, updated

DROPPED = ~np.isin(np.arange(8), np.argsort(SECONDS)[:5])  # with 5 of 8 required, or until 4 s


def tiled(**values):
    return {key: np.stack([value] * 8) for key, value in values.items()}


def compiled(name: str, **options):
    """run(grads, extra) -> what worker 0 holds; all others must hold the same."""
    reducer = reducers.make(name, axis_name=WORKER, **options)
    one = lambda g, extra: reducer.update(g, reducer.init(g), g, **extra)[0]  # noqa: E731
    program = jax.jit(jax.vmap(one, axis_name=WORKER))

    def run(grads, extra=None):
        result = program(grads, tiled(**TIMES) if extra is None else extra)
        for leaf in jax.tree.leaves(result):
            assert all(np.array_equal(replica, leaf[0], equal_nan=True) for replica in np.asarray(leaf))
        return jax.tree.map(lambda leaf: np.asarray(leaf[0]), result)

    return run


def reduced(name: str, grads, *, extra=None, **options):
    return compiled(name, **options)(grads, extra)


def assert_same_bits(one, other):
    jax.tree.map(np.testing.assert_array_equal, one, other)


# ---- order statistics ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_workers", [1, 2, 7, 100])
def test_first_arrivals_are_exactly_n_in_order(num_workers):
    rng = np.random.default_rng(num_workers)
    for seconds in (rng.uniform(1, 2, num_workers), rng.integers(1, 4, num_workers), np.ones(num_workers)):
        seconds = seconds.astype(np.float32)
        times = []
        for num_required in range(1, num_workers + 1):
            contributes, step_seconds = first_arrivals(jnp.asarray(seconds), num_required)
            by_hand = sorted(range(num_workers), key=lambda w: (seconds[w], w))[:num_required]
            assert set(np.flatnonzero(contributes)) == set(by_hand)
            times.append(float(step_seconds))
        np.testing.assert_array_equal(times, np.sort(seconds))  # so it never falls with N


def test_deadline_arrivals():
    seconds = jnp.array([3.0, 1.0, 2.0, 1.0])
    for deadline, contributes, step_seconds in [
        (0.5, [0, 1, 0, 0], 1.0),  # nobody: the first one, of two the lower index
        (1.0, [0, 1, 0, 1], 1.0),
        (2.5, [0, 1, 1, 1], 2.5),
        (7.0, [1, 1, 1, 1], 3.0),  # nobody left to wait for
    ]:
        arrived = deadline_arrivals(seconds, deadline)
        assert np.asarray(arrived.contributes).tolist() == [bool(c) for c in contributes]
        assert float(arrived.step_seconds) == step_seconds


# ---- TensorFlow's rule, by hand ------------------------------------------------------------------------------------

EVENTS = ((0, 0, 5.0), (1, 1, 0.5), (2, 1, 3.0), (3, 1, 0.75), (0, 2, 2.0), (1, 2, 2.0), (2, 2, 9.0), (3, 2, 8.0))


def check_by_hand(reducer):
    """First 2 of 4 workers whose gradients are 1, 10, 100, 1000; three steps of SGD with rate 1.

    Step 0: worker 0 takes 5 s, the others 1 s each: 1 and 2 by index, after 1 s.
    Step 1: 0.5 s (worker 1), 0.75 s (3), 1 s (0), 3 s (2): 1 and 3, after 0.75 s.
    Step 2: 2 s (0 and 1), 8 s (3), 9 s (2): 0 and 1, after 2 s. What was late before is never seen again.
    """
    model = arrivals.make("scripted", events=EVENTS)
    seconds = np.stack([np.tile(model(jax.random.key(0), step, 4), (4, 1)) for step in range(3)])
    gradients = np.tile(np.float32([1, 10, 100, 1000]), (3, 1))
    updates, states = over_steps(reducer, gradients, arrival_seconds=seconds)
    metrics = reducers.report(states).metrics
    assert (-np.cumsum(updates[:, 0])).tolist() == [-55.0, -560.0, -565.5]
    assert np.cumsum(metrics["step_seconds"][:, 0]).tolist() == [1.0, 1.75, 3.75]
    assert metrics["contributors"][:, 0].tolist() == [2.0] * 3


def test_first_n_and_drop_the_rest_by_hand():
    check_by_hand(reducers.backup_workers(WORKER, num_required=2))
    for wrong in (
        reducers.backup_workers(WORKER, num_required=3),
        reducers.backup_workers(WORKER, num_required=2, combine=reducers.sum(WORKER)),
        reducers.deadline(WORKER, deadline_seconds=1.0),
    ):
        with pytest.raises(AssertionError):
            check_by_hand(wrong)


# ---- nothing leaks -------------------------------------------------------------------------------------------------

OVER_FIVE = [
    ("backup_workers", {"num_required": 5}),
    ("backup_workers", {"num_required": 5, "combine": "adasum"}),
    ("deadline", {"deadline_seconds": 4.5}),
    ("stale", {"delay_steps": 0, "combine": {"name": "backup_workers", "num_required": 5}}),
]


def check_no_leak(run):
    clean = run(absent(tree_of(8), ~DROPPED, 0))
    assert all(np.isfinite(leaf).all() and (np.any(leaf) or not leaf.size) for leaf in jax.tree.leaves(clean))
    for value in (np.nan, np.inf, -np.inf, 1e30):
        assert_same_bits(run(absent(tree_of(8), ~DROPPED, value)), clean)


@pytest.mark.parametrize(("name", "options"), OVER_FIVE, ids=str)
def test_what_is_dropped_changes_nothing(name, options):
    check_no_leak(compiled(name, **options))


def test_the_check_of_leaks_rejects_a_product():
    keep = ~DROPPED
    wrong = stateless(lambda axis, g: lax.psum(g * jnp.float32(keep)[lax.axis_index(axis)], axis) / 5)
    with pytest.raises(AssertionError):
        check_no_leak(lambda grads: jax.tree.map(lambda x: np.asarray(x[0]), reduce(wrong, grads)))


# ---- all of them ---------------------------------------------------------------------------------------------------


def check_as_mean(name, num_workers: int, **options):
    grads = {"w": np.random.default_rng(num_workers).standard_normal((num_workers, 1000)).astype(np.float32)}
    seconds = {"arrival_seconds": np.stack([np.linspace(2, 1, num_workers, dtype=np.float32)] * num_workers)}
    contributes = {"contributes": np.ones(num_workers, bool)} if name == "mean" else {}
    plain = reduce(made("mean"), grads)
    assert_same_bits(reduce(made(name, **options), grads, extra={**seconds, **contributes}), plain)


def test_who_arrived_and_was_not_used_is_not_counted():
    """Five workers arrive, and Krum takes the gradient of one: the reports count that worker alone."""
    reducer = reducers.make("backup_workers", axis_name=WORKER, num_required=5, combine={"name": "krum"})
    grads = tree_of(8)
    found, state = updated(reducer, grads, shared=TIMES)
    counted = np.flatnonzero(reducers.report(state).counted)
    assert len(counted) == 1 and not DROPPED[counted[0]]
    np.testing.assert_array_equal(found["large"][0], grads["large"][counted[0]])


@pytest.mark.parametrize("num_workers", [5, 8, 1, 3, 7])
def test_with_all_of_them_it_is_the_mean_bit_for_bit(num_workers):
    for name, options in [
        ("mean", {}),
        ("backup_workers", {"num_required": num_workers}),
        ("deadline", {"deadline_seconds": 2.0}),
        ("dynamic_backup_workers", {}),
        ("stale", {"delay_steps": 0}),
    ]:
        check_as_mean(name, num_workers, **options)


def test_that_check_rejects_one_fewer():
    with pytest.raises(AssertionError):
        check_as_mean("backup_workers", 5, num_required=4)
    with pytest.raises(AssertionError):
        check_as_mean("sum", 5)


# ---- state and refusals --------------------------------------------------------------------------------------------


def test_metrics_and_the_state_of_the_combiner():
    for name, options, seconds, contributors in [
        ("backup_workers", {"num_required": 3}, 2.0, 3),
        ("deadline", {"deadline_seconds": 4.5}, 4.5, 5),
        ("stale", {"delay_steps": 0, "combine": {"name": "backup_workers", "num_required": 1}}, 1.0, 1),
    ]:
        reducer = reducers.make(name, axis_name=WORKER, **options)
        _, state = updated(reducer, tree_of(8), shared=TIMES)
        metrics = reducers.report(state).metrics
        assert set(metrics) >= {"step_seconds", "contributors"}
        assert (metrics["step_seconds"] == seconds).all()
        assert (metrics["contributors"] == contributors).all()
        assert all(x.dtype == jnp.float32 for x in jax.tree.leaves(metrics))
        assert reducers.report(state).counted.tolist() == (np.argsort(np.argsort(SECONDS)) < contributors).tolist()
    assert reducers.report(reducers.make("adasum", axis_name=WORKER, telemetry="on").init(0.0)).counted is None


def test_what_is_nested_is_checked_without_an_axis():
    reducers.REDUCERS.check(
        {"name": "stale", "delay_steps": 1, "combine": {"name": "backup_workers", "num_required": 2}}
    )
    with pytest.raises(ValueError, match=r"^combine.nmae: unknown"):
        reducers.REDUCERS.check({"name": "stale", "delay_steps": 1, "combine": {"name": "trimmed_mean", "nmae": 2}})
    with pytest.raises(ValueError, match=r"^name: missing; allowed: adacons, "):
        reducers.REDUCERS.check({"delay_steps": 1})


def test_reducers_compose_as_objects_as_they_do_by_name():
    grads = tree_of(8)
    by_name = {"num_required": 5, "combine": {"name": "adasum", "granularity": "model"}}
    model = reducers.adasum(WORKER, granularity="model")
    assert_same_bits(
        reduced("backup_workers", grads, num_required=5, combine=model), reduced("backup_workers", grads, **by_name)
    )
    assert_same_bits(
        reduced("backup_workers", grads, num_required=5, combine=None),
        reduced("backup_workers", grads, num_required=5, combine="mean"),
    )


def test_refused_when_traced():
    for name, options, extra, message in [
        ("backup_workers", {"num_required": 9}, TIMES, "num_required=9: exceeds num_workers=8"),
        ("dynamic_backup_workers", {"max_workers": 7}, TIMES, "num_workers=8: exceeds max_workers=7"),
        (
            "deadline",
            {"deadline_seconds": 1},
            {"arrival_seconds": SECONDS[:7]},
            r"of shape \[7\], must be of num_workers=8",
        ),
    ]:
        with pytest.raises(ValueError, match=message):
            reduced(name, tree_of(8), extra=tiled(**extra), **options)


def test_what_is_refused_when_traced_has_the_path_of_its_option():
    """Once for each block that it is in, whichever of the two functions refuses it."""
    nine = {"name": "backup_workers", "num_required": 9}
    for combine, path in [
        (nine, "combine."),
        ({"name": "corrupt", "combine": nine}, "combine.combine."),
        ({"name": "corrupt", "combine": {"name": "corrupt", "combine": nine}}, "combine.combine.combine."),
    ]:
        with pytest.raises(ValueError, match=f"^{path}num_required=9: exceeds num_workers=8"):
            reduced("stale", tree_of(8), extra=tiled(**TIMES), delay_steps=1, combine=combine)
    grouped = reducers.make(
        "stale", axis_name=WORKER, delay_steps=1, combine={"name": "adasum", "granularity": "Conv", "telemetry": "on"}
    )
    with pytest.raises(ValueError, match=r"^combine\.granularity='Conv': matches no leaf"):
        grouped.init(tree_of(8))


def test_how_many_are_waited_for_at_least():
    """By a quorum also where it counts more; by ``dynamic_backup_workers`` all in its first steps."""

    def fewest(name, *, step=0, num_workers=8, **options):
        reducer = reducers.make(name, axis_name=WORKER, **options)
        return reducer.fewest_arrivals(step=step, num_workers=num_workers)

    assert [fewest("quorum", num_required=3, grace_seconds=grace) for grace in (0.0, 1.0, None)] == [3, 3, 8]
    dynamic = {"min_required": 3, "warmup_steps": 5}
    assert [fewest("dynamic_backup_workers", step=step, **dynamic) for step in (0, 4, 5)] == [8, 8, 3]
    assert fewest("dynamic_backup_workers", step=5, num_workers=2, **dynamic) == 2
    assert fewest("deadline", deadline_seconds=1.0) == 1 and fewest("mean") == 8
    inner = {"name": "quorum", "num_required": 3, "grace_seconds": None}
    assert fewest("stale", delay_steps=1, combine=inner) == fewest("local_sgd", every_steps=2, combine=inner) == 8
    unknown = lambda count: reducers.quorum(WORKER, num_required=count, grace_seconds=1.0)  # noqa: E731
    assert unknown(jnp.int32(3)).fewest_arrivals(step=0, num_workers=8) == 8


@pytest.mark.parametrize("name", ["adasum", "coordinate_median", "krum", "mean"])
def test_leaving_workers_out_takes_no_collective(name):
    """All workers know the arrival times, and so the mask, whole: nobody is asked who is counted."""

    def collectives(reducer, **needs):
        program = jax.shard_map(
            lambda g, seconds: reducer.update(g, reducer.init(g), g, **{key: seconds for key in needs})[0],
            mesh=jax.make_mesh((8,), (WORKER,), axis_types=(jax.sharding.AxisType.Auto,)),
            in_specs=(jax.P(WORKER), jax.P()),
            out_specs=jax.P(),
            check_vma=False,
        )
        text = str(jax.make_jaxpr(program)(jnp.ones((8, 64)), jnp.asarray(SECONDS)))
        return {name: text.count(f" {name}[") for name in ("psum", "all_gather", "all_to_all", "ppermute")}

    alone = collectives(reducers.make(name, axis_name=WORKER))
    first_of_all = reducers.make("backup_workers", axis_name=WORKER, num_required=5, combine=name)
    assert collectives(first_of_all, arrival_seconds=SECONDS) == alone and sum(alone.values()) > 0
