"""The laws that every reducer and every encoding is held to, each with a wrong reducer that it rejects."""

import contextlib
import copy
import functools
from typing import NamedTuple

import cloudpickle
import jax
import numpy as np
import optax
import pytest
from jax import lax
from jax import numpy as jnp

import reducers
from parallel import AXES, PART_AXIS, Layout, Partition, map_devices
from tests import ROOT
from tests.cases import CASES, FIRST, NAMES, ROWS, SECONDS, Case
from tests.refused import refused

pytestmark = pytest.mark.usefixtures("three_widths")

WORKER = "worker"
every_case = pytest.mark.parametrize("case", CASES, ids=NAMES)
every_row = pytest.mark.parametrize("case", ROWS.values(), ids=ROWS)

# Rules that share the exchange of krum and have no state, as it has none.
LIKE_KRUM = {"agreement_scaled_mean", "aligned_mtl", "cagrad", "geometric_median", "imtl_g", "mgda", "multi_krum"}
LIKE_KRUM |= {"dualproj", "fairgrad", "nash_mtl", "pcgrad", "upgrad"}


def tree_of(num_workers: int, *, dtype=np.float32, scale: float = 1.0, seed: int = 0):
    """Gradients of all workers: a nested tree with a scalar, small and large leaves and an empty one."""
    rng = np.random.default_rng(seed)

    def draw(*shape):
        numbers = scale * rng.standard_normal((num_workers, *shape))
        is_complex = np.issubdtype(dtype, np.complexfloating)
        return (numbers + 1j * rng.standard_normal(numbers.shape) if is_complex else numbers).astype(dtype)

    return {
        "scalar": draw(),
        "nested": {"vector": draw(5), "matrix": draw(3, 2)},
        "empty": draw(0),
        "large": draw(9, 15),
    }


def absent(grads, mask, value):
    """Gradients with a value in the place of those of the workers that the mask leaves out."""
    keep = lambda g: np.where(mask.reshape(-1, *[1] * (g.ndim - 1)), g, np.float32(value))  # noqa: E731
    return jax.tree.map(keep, grads)


def over_workers(make):
    """One update of all workers, (grads, extra) -> results, [W, ...] each, under one vmapped axis."""
    reducer = make(axis_name=WORKER)

    def one(grads, extra):
        return reducer.update(grads, reducer.init(grads), grads, **extra)[0]

    return jax.vmap(one, axis_name=WORKER)


@functools.cache
def compiled(make):
    """The program of one update; one for each maker and shape, however many laws call it."""
    return jax.jit(over_workers(make))


def reduce(make, grads, *, extra=()):
    """All workers' results, [W, ...]."""
    return compiled(make)(grads, dict(extra))


def updated(reducer, grads, *, shared=None, **each):
    """All workers' results and states, [W, ...], of one compiled update; ``each`` has the workers' values, [W, ...]."""

    def one(g, each):
        return reducer.update(g, reducer.init(g), g, **each, **(shared or {}))

    return jax.jit(jax.vmap(one, axis_name=WORKER))(grads, each)


def over_steps(reducer, grads, *, shared=None, **each):
    """The results and the states of all updates, [T, W, ...], by gradients [T, W, ...]; ``each`` is as these are."""

    def one(grads, each):
        first = jax.tree.map(lambda g: g[0], grads)

        def step(state, given):
            g, more = given
            result, state = reducer.update(g, state, first, **more, **(shared or {}))
            return state, (result, state)

        return lax.scan(step, reducer.init(first), (grads, each))[1]

    return jax.jit(jax.vmap(one, in_axes=1, out_axes=1, axis_name=WORKER))(grads, each)


def traced(make, grads, *, extra=()):
    """The shapes of all workers' results; nothing is compiled."""
    return jax.eval_shape(over_workers(make), grads, dict(extra))


def extras(case: Case, num_workers: int = 8, *, order=None):
    """The keyword arguments that a row's update needs, for each worker [W, ...], in a given order of workers."""
    order = np.arange(num_workers) if order is None else order
    return {k: np.stack([v[:num_workers][order]] * num_workers) for k, v in case.shared.items()}


@functools.cache
def made(name: str, **options):
    """A maker, (axis_name) -> reducer: the same one for the same options, so that what is compiled of it is kept."""
    return functools.partial(reducers.make, name, **options)


def stateless(function):
    """A reducer made of a function of one leaf, for wrong variants."""
    return lambda axis_name: optax.GradientTransformationExtraArgs(
        lambda params: optax.EmptyState(),
        lambda updates, state, params=None, **extra: (
            jax.tree.map(functools.partial(function, axis_name), updates),
            state,
        ),
    )


def test_the_version_is_stated_once_for_the_package_and_its_citation():
    assert f"\nversion: {reducers.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert 'version.path = "reducers/__init__.py"' in (ROOT / "pyproject.toml").read_text()


def test_every_reducer_has_a_case():
    assert {case.name for case in CASES} == set(reducers.REDUCERS)


# ---- O: the oracle -----------------------------------------------------------------------------------------------


def check_oracle(case: Case, make, num_workers: int, *, scale: float = 1.0):
    grads = tree_of(num_workers, scale=scale)
    check_against_oracle(case, reduce(make, grads, extra=extras(case, num_workers)), grads)


def check_against_oracle(case: Case, result, grads, *, tolerance: float = 1e-6):
    for replicas, stacked in zip(vectors_of(case, result), vectors_of(case, grads), strict=True):
        expected = case.oracle(stacked)
        # A sum that cancels is only as good as what it is summed from; a result that knows no scale is its own measure.
        measure = stacked if case.homogeneous else expected.reshape(1, -1)
        most = tolerance * np.linalg.norm(measure, axis=1).max(initial=0)
        for replica in replicas:
            np.testing.assert_allclose(replica, expected, rtol=0, atol=most)


def vectors_of(case: Case, stacked_tree) -> list[np.ndarray]:
    """The oracle's arguments, in float64: each leaf as [W, size], or all as one."""
    rows = [np.asarray(x, np.float64).reshape(len(x), -1) for x in jax.tree.leaves(stacked_tree)]
    return rows if case.granularity == "layer" else [np.concatenate(rows, axis=1)]


@every_case
@pytest.mark.parametrize("num_workers", [1, 8, 2, 4])
def test_agrees_with_the_oracle(case, num_workers):
    if num_workers < case.min_workers:
        with pytest.raises(ValueError, match=rf"\b{num_workers} workers|num_workers={num_workers}\b"):
            check_oracle(case, case.make, num_workers)
    else:
        check_oracle(case, case.make, num_workers)


@every_case
@pytest.mark.parametrize("scale", [0.0, 1e-30, 1e30])
def test_zeros_and_extreme_scales(case, scale):
    check_oracle(case, case.make, 8, scale=scale)


@pytest.mark.parametrize("scale", [1.0, 1e30])
def test_the_oracle_rejects_a_mean_of_squares(scale):
    wrong = stateless(lambda axis, g: jnp.sqrt(lax.pmean(g * g, axis)))
    with pytest.raises(AssertionError):
        check_oracle(CASES[0], wrong, 4, scale=scale)


# ---- R, B: replicas ----------------------------------------------------------------------------------------------


def check_replication(make, *, extra=()):
    """Under nested vmap with out_axes=None, what is not the same on all workers is refused while tracing."""
    reducer = make(axis_name=AXES)
    reduce_one = lambda g, extra: reducer.update(g, reducer.init(g), g, **extra)[0]  # noqa: E731
    lanes = jax.vmap(reduce_one, axis_name=AXES[1], out_axes=None)
    devices = jax.vmap(lanes, axis_name=AXES[0], out_axes=None)
    split = lambda tree: jax.tree.map(lambda x: x.reshape(4, 2, *x.shape[1:]), tree)  # noqa: E731
    jax.eval_shape(devices, split(tree_of(8)), split(dict(extra)))


@every_row
def test_result_is_replicated(case):
    if not case.replicated_by_type:
        pytest.skip("ends in ppermute, which the type of a trace cannot see; the bitwise test holds it")
    check_replication(case.make, extra=extras(case))


@pytest.mark.parametrize(
    "wrong",
    [
        stateless(lambda axis, g: g),  # does not reduce
        stateless(lambda axis, g: lax.pmean(g, axis[1:])),  # over lanes only
        stateless(lambda axis, g: lax.pmean(g, axis) + 1e-9 * g),  # nearly
    ],
    ids=["identity", "lanes_only", "leak"],
)
def test_replication_rejects(wrong):
    with pytest.raises(ValueError, match="out_axes"):
        check_replication(wrong)


def twenty_steps(make, *, num_devices: int, lift: str, shared=()):
    """Momentum-SGD on 8 workers' quadratics; returns every replica's parameters, [D, ...]."""
    layout = Layout.of(8, num_devices=num_devices)
    reducer = make(axis_name=AXES)
    optimizer = optax.sgd(0.05, momentum=0.9)
    target = tree_of(8, seed=1)
    feed = jax.tree.map(layout.split, target)

    def worker(state, local, target):
        params, opt_state = state
        gradient = jax.tree.map(jnp.subtract, params, target)
        updates, local = reducer.update(gradient, local, params, **dict(shared))
        updates, opt_state = optimizer.update(updates, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), local

    over_lanes = jax.vmap(worker, in_axes=(None, 0, 0), out_axes=(None, 0), axis_name=AXES[1])
    lifted = map_devices(over_lanes, layout=layout, mapping=lift)
    params = jax.tree.map(lambda x: np.zeros(x.shape[1:], x.dtype), target)
    state = layout.put_shared((params, optimizer.init(params)))
    local = layout.put_per_worker(jax.tree.map(lambda x: np.broadcast_to(x, (8, *x.shape)), reducer.init(params)))
    for _ in range(20):
        state, local = jax.block_until_ready(lifted(state, local, feed))
    params, _ = state
    return jax.tree.map(np.asarray, params)


def by_lifts():
    """Every row on two layouts, by one mapping or the other; all rows on two others for `make test-all`.

    What is left out here is held to it in the quick suite, too: Adasum's other algorithms and its groups in
    tests/test_adasum_algorithms.py, rules like krum in tests/test_gram_family.py, one update of each on two layouts.
    """
    for number, (name, case) in enumerate(ROWS.items()):
        lifts = ("pmap", "shard_map")[:: -1 if number % 2 else 1]
        if FIRST.get(case.name, case) is case and case.name not in LIKE_KRUM:
            yield pytest.param(case, lifts[0], (8, 2), id=f"{name}-{lifts[0]}-8,2")
        yield pytest.param(case, lifts[1], (8, 4, 1), id=f"{name}-{lifts[1]}-8,4,1")


@pytest.mark.parametrize(("case", "lift", "devices"), list(by_lifts()))
def test_replicas_are_bit_equal_and_layouts_agree(case, lift, devices):
    check_layouts(case.make, lift=lift, devices=devices, shared=case.shared, largest_difference=case.largest_difference)


def check_layouts(make, *, lift, devices, shared=(), largest_difference=1e-6):
    reference = None
    for num_devices in devices:
        params = twenty_steps(make, num_devices=num_devices, lift=lift, shared=shared)
        for leaf in jax.tree.leaves(params):
            assert all(np.array_equal(replica, leaf[0]) for replica in leaf)
        first = jax.tree.map(lambda x: x[0], params)
        reference = reference or first
        difference = jax.tree.map(lambda a, b: np.abs(a - b).max(initial=0), first, reference)
        assert max(jax.tree.leaves(difference)) < largest_difference


def test_bitwise_rejects_replicas_that_drift():
    drifting = stateless(lambda axis, g: lax.pmean(g, axis) * (1 + 1e-6 * lax.axis_index(axis[0]).astype(g.dtype)))
    params = twenty_steps(drifting, num_devices=4, lift="pmap")
    assert any(not np.array_equal(leaf[0], leaf[-1]) for leaf in jax.tree.leaves(params) if leaf.size)


# ---- in parts: leaves that no device has whole --------------------------------------------------------------------

IN_PARTS = Partition("state", 3)  # some leaves end with zeros, some are smaller than their number of parts
ONE_PART = Partition("state", 1)


def in_parts(make, partition, *, extra=()):
    """(grads, extra) -> results of five updates, [W, T, ...], by devices that have the parts of a partition."""
    reducer = make(axis_name=WORKER, sharded_over=partition.axes)

    def one(grads, extra):
        def step(state, scale):
            sent = jax.tree.map(lambda g: g * scale, partition.own(grads))
            result, state = reducer.update(sent, state, partition.own(grads), **extra)
            metrics = reducers.report(state).metrics
            return state, (partition.like_params(result, grads), metrics)

        return lax.scan(step, reducer.init(partition.own(grads)), jnp.arange(1.0, 6.0))[1]

    def of_device(_, grads, extra):
        return jax.vmap(one, axis_name=WORKER)(grads, extra)

    program = jax.jit(jax.vmap(of_device, in_axes=(0, None, None), axis_name=PART_AXIS))
    devices = jnp.zeros(partition.count)
    return lambda grads: jax.tree.map(np.asarray, program(devices, grads, dict(extra)))


def check_in_parts(case, make):
    grads = tree_of(8)
    (found, metrics), (expected, of_whole) = (
        in_parts(make, partition, extra=extras(case))(grads) for partition in (IN_PARTS, ONE_PART)
    )
    _close(found, expected, tolerance=1e-5)
    _close(metrics, of_whole, tolerance=1e-4)


def _close(found, expected, *, tolerance):
    for (path, a), b in zip(jax.tree.leaves_with_path(found), jax.tree.leaves(expected), strict=True):
        most = tolerance * max(np.abs(b).max(initial=0), 1e-30)
        np.testing.assert_allclose(
            a, np.broadcast_to(b, a.shape), rtol=0, atol=most, err_msg=jax.tree_util.keystr(path)
        )


@every_row
def test_parts_of_leaves_give_what_whole_leaves_do(case):
    if case.in_parts == "refused":
        with pytest.raises(ValueError, match="sharded_over"):
            case.make(axis_name=WORKER, sharded_over=IN_PARTS.axes)
    elif case.in_parts == "differs":
        _expect_failure(check_in_parts, case, case.make)
    else:
        check_in_parts(case, case.make)


def test_dot_products_of_parts_are_found():
    deaf = lambda axis_name, sharded_over: reducers.adasum(axis_name, sharded_over=())  # noqa: E731
    with pytest.raises(AssertionError):
        check_in_parts(FIRST["adasum"], deaf)


# ---- C, H, P: algebra --------------------------------------------------------------------------------------------


@every_case
def test_consensus(case):
    if not case.consensus:
        return _expect_failure(check_consensus, case, case.make)
    check_consensus(case, case.make)


def check_consensus(case, make):
    one = tree_of(1)
    same = jax.tree.map(lambda x: np.repeat(x, 8, axis=0), one)
    result = reduce(make, same, extra=extras(case))
    jax.tree.map(lambda r, g: np.testing.assert_allclose(r, np.repeat(g, 8, axis=0), rtol=1e-6), result, one)


@functools.cache
def compiled_updates(make):
    """The program of several updates, (grads, scales, extra) -> results, [W, T, ...]."""
    reducer = make(axis_name=WORKER)

    def one(grads, scales, extra):
        def step(state, scale):
            return reducer.update(jax.tree.map(lambda g: g * scale, grads), state, grads, **extra)[::-1]

        return lax.scan(step, reducer.init(grads), scales)[1]

    return jax.jit(jax.vmap(one, in_axes=(0, None, 0), axis_name=WORKER))


def updates_of(make, *, extra=()):
    """run(grads, scales) -> all workers' results, [W, T, ...], of updates with the gradients times a scale of each."""
    program = compiled_updates(make)
    return lambda grads, scales: jax.tree.map(np.asarray, program(grads, np.float32(scales), dict(extra)))


# Those that keep something from update to update, or disclaim it; for the others the oracle's scales say as much.
@every_row
def test_homogeneity(case):
    if not case.homogeneous:
        return _expect_failure(check_homogeneity, case, case.make)
    check_homogeneity(case, case.make)


def check_homogeneity(case, make):
    """The scale changes from update to update, as that of half precision does."""
    run = updates_of(make, extra=extras(case))
    scales = [1, 1e3, 1e-3, 1e3, 1]
    for result, expected in zip(
        *map(jax.tree.leaves, (run(tree_of(8), scales), run(tree_of(8), np.ones(5)))), strict=True
    ):
        for step, scale in enumerate(scales):
            np.testing.assert_allclose(result[:, step], expected[:, step] * scale, rtol=1e-5, atol=1e-6 * scale)


@every_case
def test_permutation(case):
    if not case.permutation_invariant:
        return _expect_failure(check_permutation, case, case.make)
    check_permutation(case, case.make)


def check_permutation(case, make):
    order = np.array([3, 1, 7, 0, 5, 2, 6, 4])
    permuted = jax.tree.map(lambda x: x[order], tree_of(8))
    extra = extras(case, order=order)
    result = reduce(make, permuted, extra=extra)
    expected = reduce(make, tree_of(8), extra=extras(case))
    jax.tree.map(lambda r, e: np.testing.assert_allclose(r, e, rtol=1e-5, atol=1e-6), result, expected)


def _expect_failure(check, *arguments):
    """A law that a row disclaims must in fact fail, or the row is wrong."""
    with pytest.raises(AssertionError):
        check(*arguments)


def test_the_algebra_rejects():
    first = stateless(lambda axis, g: lax.all_gather(g, axis)[0])
    _expect_failure(check_permutation, CASES[0], first)
    _expect_failure(check_homogeneity, CASES[0], stateless(lambda axis, g: lax.pmean(g * g, axis)))
    _expect_failure(check_consensus, CASES[0], stateless(lambda axis, g: lax.psum(g, axis)))


# ---- F: facts ----------------------------------------------------------------------------------------------------

# The H law holds the third.
FACTS = ("needs_arrivals", "takes_mask", "homogeneous", "num_counted", "reduces", "local_workers", "numbers")


@every_row
def test_facts_are_those_of_the_row_and_survive_copies(case):
    reducer = case.make(axis_name=WORKER)
    copies = [copy.copy(reducer), copy.deepcopy(reducer), cloudpickle.loads(cloudpickle.dumps(reducer))]
    for same in (reducer, *copies, reducer.like(*reducer), reducers.as_reducer(reducer), reducers.chain(reducer)):
        facts = {fact: getattr(same, fact) for fact in FACTS}
        assert {**facts, "takes_mask": bool(same.takes_mask)} == {fact: getattr(case, fact) for fact in FACTS}
        assert [same.fewest_arrivals(step=step, num_workers=8) for step in (0, 99)] == [
            reducer.fewest_arrivals(step=step, num_workers=8) for step in (0, 99)
        ]


@every_row
def test_mask(case):
    check_mask(case, case.make)


def check_mask(case, make):
    """Workers left out by a mask change nothing; a reducer that takes no mask refuses it."""
    kept = np.arange(8) % 3 > 0
    grads = tree_of(8)
    five = np.ones(5)
    grads["large"][0] *= 0.1  # so that a rule that picks one gradient picks one that the mask leaves out
    if not case.takes_mask:
        try:
            traced(make, grads, extra={**extras(case), "contributes": kept})
        except ValueError as refusal:
            assert str(refusal).startswith("contributes: this reducer takes no mask")
            assert "\n" not in str(refusal)
            return
        raise AssertionError("a reducer that takes no mask does not refuse it")

    def masked(mask, value):
        return updates_of(make, extra={**extras(case), "contributes": mask})(absent(grads, mask, value), five)

    clean = masked(kept, 0)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(clean))
    for value in (np.nan, np.inf, -np.inf, 1e30):
        jax.tree.map(np.testing.assert_array_equal, masked(kept, value), clean)
    assert not np.array_equal(clean["large"], masked(np.ones(8, bool), 0)["large"])
    assert not any(leaf.any() for leaf in jax.tree.leaves(masked(np.zeros(8, bool), np.nan)))
    for count in (1, 2, 5, 6, 8) if case.left_out else ():
        few = np.argsort(np.argsort(SECONDS)) < count
        alone = absent(grads, few, 0) if case.left_out == "zeros" else jax.tree.map(lambda g: g[few], grads)  # noqa: B023
        check_against_oracle(case, jax.tree.map(lambda x: x[:, 0], masked(few, np.nan)), alone)


def test_the_mask_rejects():
    for name, wrong in [
        ("mean", stateless(lambda axis, g: lax.pmean(g, axis))),  # ignores it
        ("mean", lambda axis_name: reducers.sum(axis_name)),  # is another rule for those who are left
        ("gossip", lambda axis_name: reducers.mean(axis_name)),  # obeys it
    ]:
        _expect_failure(check_mask, FIRST[name], wrong)


@every_case
def test_as_many_are_counted_as_it_says(case):
    reducer = case.make(axis_name=WORKER)
    assert ("contributors" in reducers.report(reducer.init(np.ones(3))).metrics) == case.needs_arrivals
    if case.num_counted is not None:
        _, state = updated(reducer, np.ones((8, 3), np.float32), shared=case.shared)
        assert reducers.report(state).counted.sum() == case.num_counted


@every_case
def test_it_waits_for_as_many_as_it_says(case):
    """The first update ends if so many workers arrive, and never does if there is one fewer."""
    reducer = case.make(axis_name=WORKER)
    fewest = reducer.fewest_arrivals(step=0, num_workers=8)
    if not case.needs_arrivals:
        assert fewest == 8
        return
    one = lambda g, seconds: reducers.report(reducer.update(g, reducer.init(g), arrival_seconds=seconds)[1]).metrics  # noqa: E731
    program = jax.jit(jax.vmap(one, axis_name=WORKER, in_axes=(0, None)))
    seconds = extras(case)["arrival_seconds"][0]
    for count in range(1, 9):
        arrived = np.where(seconds <= np.sort(seconds)[count - 1], seconds, np.inf)
        took = program(np.ones((8, 3), np.float32), arrived)["step_seconds"]
        assert np.isfinite(took).all() == (count >= fewest), (count, took)


def test_facts_of_chains():
    clip = optax.clip(1.0)
    backup = reducers.backup_workers(WORKER, num_required=3)
    chain = reducers.chain(clip, backup)
    assert (chain.needs_arrivals, chain.takes_mask, chain.homogeneous, chain.num_counted) == (True, False, False, 3)
    assert reducers.chain(clip, reducers.sum(WORKER)).takes_mask
    assert not reducers.chain(reducers.mean(WORKER), backup).takes_mask
    assert reducers.chain(reducers.mean(WORKER), reducers.sum(WORKER)).homogeneous
    assert not reducers.as_reducer(optax.chain(backup)).needs_arrivals  # optax's combinators lose them
    late = reducers.chain(backup, reducers.quorum(WORKER, num_required=5, grace_seconds=1.0), reducers.mean(WORKER))
    assert late.fewest_arrivals(step=0, num_workers=8) == 5
    over_chain = reducers.backup_workers(WORKER, num_required=3, combine=reducers.chain(clip, reducers.mean(WORKER)))
    assert over_chain.fewest_arrivals(step=0, num_workers=8) == 3


def test_facts_cannot_be_lost_by_replacing_a_function():
    with pytest.raises(TypeError, match=r"_replace\(init\): would lose the reducer's facts; use like\(init, update\)"):
        reducers.mean(WORKER)._replace(init=None)


class Sent(NamedTuple):
    metrics: dict[str, jax.Array]


def counting_mean(axis_name):
    """A mean that would send less than its program does: one float for each of its updates so far."""
    inner = reducers.mean(axis_name)

    def update(updates, state, params=None, **extra_args):
        sent = Sent({"bytes_per_worker": state.metrics["bytes_per_worker"] + 4})
        return inner.update(updates, inner.init(updates), params, **extra_args)[0], sent

    return inner.like(lambda params: Sent({"bytes_per_worker": jnp.zeros(())}), update)


def test_a_reducer_may_say_what_it_would_send():
    reducer = reducers.backup_workers(WORKER, num_required=8, combine=counting_mean(WORKER))
    half = reducers.in_half_precision(reducer, axis_name=WORKER, initial_scale=1.0)  # found in whatever it is nested

    times = {"arrival_seconds": np.ones(8, np.float32)}
    _, states = over_steps(half, np.ones((3, 8, 3), np.float32), shared=times)
    assert reducers.report(states).metrics["bytes_per_worker"][-1].tolist() == [12] * 8


# ---- N: NaN and infinity -----------------------------------------------------------------------------------------


@every_row
def test_a_nan_leaves_nothing_behind(case):
    with pytest.raises(AssertionError) if case.keeps_nan else contextlib.nullcontext():
        check_nothing_is_left(case.make, shared=case.shared)


def check_nothing_is_left(make, *, shared=None):
    """Neither a NaN nor an infinity is in the fourth update after it, or in the state."""
    grads = tree_of(8)

    def poisoned(value):
        large = grads["large"].copy()
        large[3, 4, 5] = value
        return {**grads, "large": large}

    order = [grads, poisoned(np.nan), *[grads] * 4, poisoned(np.inf), *[grads] * 4]
    given = jax.tree.map(lambda *g: np.stack(g), *order)
    results, states = over_steps(make(axis_name=WORKER), given, shared=shared)
    late = jax.tree.map(lambda x: x[np.array([0, 5, 10])], results)
    last = jax.tree.map(lambda x: x[-1], states)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves((late, last)))


def test_nothing_is_left_rejects_momentum():
    with pytest.raises(AssertionError):
        check_nothing_is_left(lambda axis_name: reducers.chain(reducers.mean(axis_name), optax.trace(0.9)))


# ---- axes, compilations and traffic ------------------------------------------------------------------------------


@every_case
def test_axes_in_a_list(case):
    traced(lambda axis_name: case.make([axis_name]), tree_of(8), extra=extras(case))
    with refused(ValueError, r'axis_name=3: must be a name or a tuple of names, such as \("device", "lane"\)'):
        case.make(3)


@every_row
def test_second_call_compiles_nothing(case, compilations):
    counts = []
    for seed in range(3):
        reduce(case.make, tree_of(8, seed=seed), extra=extras(case))
        counts.append((len(compilations), compiled(case.make)._cache_size()))
    assert counts[0] == counts[1] == counts[2]


@pytest.mark.parametrize("num_workers", [1, 2, 8, 100])
def test_traffic_of_an_all_reduce(num_workers):
    moved = reducers.traffic(
        reducers.mean(WORKER), {"w": jnp.zeros(300), "b": jnp.zeros(())}, axis_sizes={WORKER: num_workers}
    )
    assert moved.bytes_per_worker == pytest.approx(2 * 4 * 301 * (num_workers - 1) / num_workers)
    assert moved.collectives == ({} if num_workers == 1 else {"psum": 1})  # small leaves share one, if anything is sent


def test_traffic_of_every_collective():
    def all_kinds(axis, g):  # g: 80 floats, 320 bytes
        g = lax.all_to_all(g.reshape(8, 10), axis, 0, 0)  # 7/8 of 320
        g = lax.scan(lambda c, _: (lax.psum(c, axis), None), g, None, length=3)[0]  # 3 times 2 * 7/8 of 320
        g = jax.jit(lambda x: lax.all_gather(x, axis))(g).reshape(-1)  # 7 times 320
        g = lax.psum_scatter(g, axis, tiled=True)  # 7/8 of 8 * 320
        g = lax.ppermute(g, axis, [(i, (i + 1) % 8) for i in range(8)])  # 320
        g = lax.cond(g[0] > 0, lambda g: lax.psum(lax.psum(g, axis), axis), lambda g: lax.pmin(g, axis), g)  # 4 * 7/8
        return lax.pmax(g, axis)  # 2 * 7/8 of 320

    moved = reducers.traffic(stateless(all_kinds)(WORKER), jnp.zeros(80), axis_sizes={WORKER: 8})
    assert moved.bytes_per_worker == 280 + 3 * 560 + 2240 + 2240 + 320 + 2 * 560 + 560
    assert moved.collectives == dict(all_to_all=1, psum=5, all_gather=1, reduce_scatter=1, ppermute=1, pmax=1)
