"""The median, the trimmed mean and the vote, beyond the laws: a minority of workers cannot move them far."""

import dataclasses
import functools
import pathlib

import jax
import numpy as np
import pytest
from jax import numpy as jnp

import reducers
from parallel import AXES, Layout, map_devices
from reducers.gram import Products
from tests import gram_oracles
from tests.cases import CASES, FIRST
from tests.test_reducers import WORKER, made, over_steps, reduce, stateless, updated

INF, NAN = np.inf, np.nan


def reduced(name: str, *values: float, dtype=np.float32, **kwargs):
    """One coordinate of the result, which all workers hold."""
    result = reduce(made(name, **kwargs), np.array(values, dtype))
    assert all(np.array_equal(r, result[0], equal_nan=True) for r in result)
    return float(result[0])


@pytest.mark.parametrize("name", ["coordinate_median", "trimmed_mean"])
def test_a_majority_of_nan_is_seen(name):
    assert np.isnan(reduced(name, 1.0, NAN, NAN, NAN))


@pytest.mark.parametrize("name", ["coordinate_median", "trimmed_mean"])
@pytest.mark.parametrize("dtype", [jnp.float16, np.float32])
def test_large_and_tiny_numbers_of_a_narrow_type(name, dtype):
    largest = float(jnp.finfo(dtype).max) * 0.6
    tiny = float(jnp.finfo(jnp.float16).smallest_subnormal)
    if dtype == jnp.float16:  # the sum of two exceeds the type, their mean does not
        assert reduced(name, *[largest] * 4, dtype=dtype) == pytest.approx(largest, rel=1e-3)
    assert reduced(name, *[tiny] * 4, dtype=dtype) == tiny


def by_sorting(name: str, values):
    """What NumPy sorts and averages, [W, ...] -> [...], in float32."""
    ordered, n = np.sort(values, axis=0), len(values)
    k = (n - 1) // 2 if name == "coordinate_median" else 1
    return np.mean(ordered[k : n - k], axis=0, dtype=np.float32)


def with_wild_values(num_workers: int, num_coordinates: int):
    values = np.random.default_rng(0).standard_normal((num_workers, num_coordinates)).astype(np.float32)
    values[values > 2], values[values < -2] = NAN, -INF
    return np.where(np.abs(values) < 0.1, np.float32(0.1), values)  # ties


@pytest.mark.parametrize("name", ["coordinate_median", "trimmed_mean"])
@pytest.mark.parametrize("num_workers", [3, 5, 8, 13, 16, 31, 32, 33, 40])
def test_any_number_of_workers_is_sorted(name, num_workers):
    values = with_wild_values(num_workers, 500)
    result = reduce(made(name), values)
    np.testing.assert_allclose(result[0], by_sorting(name, values), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["coordinate_median", "trimmed_mean"])
@pytest.mark.parametrize("num_devices", [8, 4, 2, 1])
@pytest.mark.parametrize("kept", [None, np.arange(8) != 5, np.arange(8) < 2], ids=["all", "seven", "two"])
def test_slices_are_sorted_as_the_whole(name, num_devices, kept):
    """1003 elements are not a multiple of the devices; those of the small leaf are gathered."""
    layout = Layout.of(8, num_devices=num_devices)
    reducer = reducers.make(name, axis_name=AXES)

    def update(grads, contributes):
        extra = {} if kept is None else {"contributes": contributes}
        return reducer.update(grads, reducer.init(grads), **extra)[0]

    grads = {"large": with_wild_values(8, 1003).reshape(8, 17, 59), "small": with_wild_values(8, 3)}
    lanes = jax.vmap(update, axis_name=AXES[1])
    given = jax.tree.map(layout.split, (grads, np.ones(8, bool) if kept is None else kept))
    result = map_devices(lanes, layout=layout, mapping="shard_map")(*given)
    for leaf, values in grads.items():
        counted = values if kept is None else values[kept]
        expected = by_sorting("coordinate_median" if len(counted) == 2 else name, counted)
        for replica in np.asarray(result[leaf]).reshape(8, *expected.shape):
            np.testing.assert_allclose(replica, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["coordinate_median", "trimmed_mean"])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("num_workers", [8, 64])
def test_slices_send_what_an_all_reduce_sends(name, dtype, num_workers):
    reducer = reducers.make(name, axis_name=WORKER)
    gradient = jax.ShapeDtypeStruct((64, 100), dtype)
    share = 2 * (num_workers - 1) / num_workers
    for extra, of_mask in (({}, 0), ({"contributes": np.True_}, 4)):
        moved = reducers.traffic(reducer, gradient, axis_sizes={WORKER: num_workers}, **extra)
        assert moved.bytes_per_worker == pytest.approx(share * (gradient.size * dtype.dtype.itemsize + of_mask))


def test_what_trimming_refuses():
    with pytest.raises(ValueError, match=r"^num_trimmed=2: at both ends, leaves none of 4 workers"):
        reduced("trimmed_mean", 1, 2, 3, 4, num_trimmed=2)
    assert reduced("trimmed_mean", 1, 2, 3, 4, 5, num_trimmed=2) == 3


@pytest.mark.parametrize(
    ("values", "vote"), [((1, -2), 0), ((0, 0, -3), -1), ((NAN, 1, 0), 1), ((NAN, NAN), 0), ((1, 1, -9), 1)]
)
def test_ties_and_abstentions(values, vote):
    assert reduced("sign_majority", *values) == vote


def one_vote_ahead(make, num_workers: int):
    """257 against 256, say, in bfloat16, which cannot count so far."""
    ballots = jnp.where(jnp.arange(num_workers) % 2 == 0, 1, -1).astype(jnp.bfloat16)
    return np.asarray(reduce(make, ballots).astype(jnp.float32))


@pytest.mark.parametrize("num_workers", [127, 129, 513])
def test_votes_are_counted_exactly(num_workers):
    assert (one_vote_ahead(lambda axis_name: reducers.sign_majority(axis_name), num_workers) == 1).all()
    unanimous = reduce(lambda axis_name: reducers.sign_majority(axis_name), jnp.ones(num_workers))
    assert (np.asarray(unanimous) == 1).all()  # 8 bits would turn over at 128


def test_a_count_of_8_bits_turns_over():
    wrong = stateless(lambda axis, g: jnp.sign(jax.lax.psum(jnp.sign(g).astype(jnp.int8), axis)).astype(g.dtype))
    assert (np.asarray(reduce(wrong, jnp.ones(129))) != 1).all()


def test_a_vote_sends_a_byte_a_coordinate():
    gradient = jax.ShapeDtypeStruct((1000,), jnp.float32)
    moved = [
        reducers.traffic(reducers.sign_majority(WORKER), gradient, axis_sizes={WORKER: n}).bytes_per_worker
        for n in (8, 128)
    ]
    assert moved == [pytest.approx(2 * 7 / 8 * 1000), pytest.approx(2 * 127 / 128 * 4000)]


# ---- centred clipping, and what ByzFL documents ---------------------------------------------------------------------


def test_clipping_goes_on_from_the_last_result():
    """Five updates of gradients that lie far closer than they are long; a worker sends NaN once, and once is late."""
    rng = np.random.default_rng(0)
    mean = 1e3 * rng.standard_normal(50)
    rows = (mean + rng.standard_normal((5, 6, 50))).astype(np.float32)
    rows[2, 1, 3] = NAN
    counted = np.ones((5, 6), bool)
    counted[3, 4] = False
    kept = counted.copy()
    kept[2, 1] = False
    reducer = reducers.centred_clipping(WORKER, radius=2000.0, num_steps=2)
    results, states = over_steps(reducer, rows, contributes=counted)
    centre = np.zeros(50)
    for result, g, here in zip(results[:, 0], rows.astype(np.float64), kept, strict=True):
        centre = gram_oracles.centred_clipping(g[here], radius=2000.0, steps=2, start=centre)
        np.testing.assert_allclose(result, centre, rtol=0, atol=2e-6 * np.linalg.norm(mean))
    np.testing.assert_array_equal(states.centre[-1, 0], results[-1, 0])
    poisoned = over_steps(reducer, np.stack([rows[0], np.full_like(rows[0], NAN), rows[1]]))
    assert np.isnan(poisoned[0][1]).all() and np.isfinite(poisoned[0][2]).all()


def test_the_last_result_is_kept_where_the_attack_moves_it_from_zero():
    """A worker that is always wrong moves the result by its share of the radius, once the others have been reached."""
    rows = 10 + 0.1 * np.random.default_rng(1).standard_normal((40, 8, 30)).astype(np.float32)
    rows[:, 5] = -1e6
    results, _ = over_steps(reducers.centred_clipping(WORKER, radius=4.0), rows)
    assert np.linalg.norm(results[0, 0] - 10) > 20
    assert np.linalg.norm(results[-1, 0] - 10) <= 4.0 / 7 + 0.3


OF_BYZFL = np.array([[1, 2, 3], [4, 5, 6], [7, 8, 9]], np.float32)  # what the examples in its documentation are given


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("meamed", {"num_byzantine": 1}, [2.5, 3.5, 4.5]),
        ("centred_clipping", {"radius": 100.0}, [4, 5, 6]),
    ],
)
def test_the_examples_of_byzfl(name, options, expected):
    np.testing.assert_allclose(reduce(made(name, **options), OF_BYZFL)[0], expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("how", "strength", "expected"), [("little", 1.5, [8.5, 9.5, 10.5]), ("inner_product", 2.0, [-8, -10, -12])]
)
@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_the_attacks_are_those_of_byzfl(how, strength, expected, scale):
    """The attackers know the honest workers alone that are counted: neither one another, nor who is absent."""
    rows = np.vstack([scale * OF_BYZFL, np.full((3, 3), NAN)]).astype(np.float32)
    counted = np.arange(6) != 4
    attack = reducers.corrupt(WORKER, workers=(3, 5), how=how, strength=strength, combine=as_masked(EVERY_ROW(WORKER)))
    results, _ = updated(attack, rows, contributes=counted)
    np.testing.assert_allclose(np.asarray(results[0])[[3, 5]], scale * np.array([expected] * 2), rtol=1e-6)
    np.testing.assert_array_equal(results[0][:3], rows[:3])


# ---- means before a rule ---------------------------------------------------------------------------------------------

EVERY_ROW = stateless(lambda axis, g: jax.lax.all_gather(g, axis))


def means_of(make, rows, **extra):
    """The means that the reducer inside takes, [n, m], and whom it counts."""
    reducer = make(EVERY_ROW(WORKER))
    results, states = updated(reducer, rows, **extra)
    return np.asarray(results[0]), np.asarray(reducers.report(states).counted)


def test_mixing_gives_what_byzfl_documents():
    found, counted = means_of(lambda combine: reducers.nearest_neighbour_mixing(WORKER, combine=combine), OF_BYZFL)
    np.testing.assert_allclose(found, [[2.5, 3.5, 4.5], [2.5, 3.5, 4.5], [5.5, 6.5, 7.5]], rtol=1e-6)
    assert counted.all()


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_nearest_gradients_are_mixed_and_others_are_in_no_mean(scale):
    rows = np.random.default_rng(0).standard_normal((8, 40)) * scale
    make = lambda combine: reducers.nearest_neighbour_mixing(WORKER, num_byzantine=3, combine=combine)  # noqa: E731
    found, _ = means_of(make, rows.astype(np.float32))
    np.testing.assert_allclose(found, gram_oracles.neighbours(rows, byzantine=3), rtol=0, atol=1e-6 * scale)
    rows[2], rows[5, 7] = NAN, INF
    found, counted = means_of(make, rows.astype(np.float32))
    finite = ~np.isin(np.arange(8), (2, 5))
    expected = gram_oracles.neighbours(rows[finite], byzantine=1)
    np.testing.assert_allclose(found[finite], expected, rtol=0, atol=1e-6 * scale)
    np.testing.assert_allclose(found[2], rows[finite][:5].mean(0), rtol=0, atol=1e-6 * scale)
    assert (counted == finite).all()


def test_the_report_counts_who_is_in_the_mean_that_a_rule_chooses():
    rows = np.array([[0.0], [0.1], [0.3], [7.0], [7.1], [9.0]], np.float32)
    reducer = reducers.nearest_neighbour_mixing(WORKER, num_byzantine=3, combine=reducers.krum(WORKER))
    results, states = updated(reducer, rows)
    np.testing.assert_allclose(results, np.full((6, 1), rows[:3].mean()), rtol=1e-6)
    assert reducers.report(states).counted.tolist() == [True] * 3 + [False] * 3


def test_buckets_are_drawn_anew_from_those_who_are_counted():
    rows = np.eye(7, dtype=np.float32)
    rows[3] = NAN
    counted = np.arange(7) != 3
    reducer = reducers.bucketing(WORKER, bucket_size=4, combine=as_masked(EVERY_ROW(WORKER)))
    results, _ = over_steps(reducer, np.stack([rows] * 5), contributes=np.stack([counted] * 5))
    found = np.asarray(results[:, 0])
    assert (np.sort(found[:, 0], axis=1) == [0, 0, 0, 0.25, 0.25, 0.25, 0.25]).all()
    assert (np.sort(found[:, 1], axis=1) == [0, 0, 0, 0, 0, 0.5, 0.5]).all()
    assert not found[:, 2:].any() and not found[:, :, 3].any()
    assert len(np.unique(found, axis=0)) > 1


def as_masked(transformation):
    return reducers.Reducer(*transformation, takes_mask=True)


def test_a_rule_of_buckets_takes_a_mask():
    with pytest.raises(ValueError, match=r"^combine: must be a reducer that takes a mask"):
        reducers.bucketing(WORKER, combine=EVERY_ROW(WORKER))


def moved_by(reducer, num_elements=1 << 20):
    return reducers.traffic(reducer, jax.ShapeDtypeStruct((num_elements,), jnp.float32), axis_sizes={WORKER: 8})


@pytest.mark.parametrize("combine", ["coordinate_median", "adasum", {"name": "krum", "granularity": "layer"}])
@pytest.mark.parametrize("name", ["bucketing", "nearest_neighbour_mixing"])
def test_means_that_are_sent_are_as_much_again_as_an_all_reduce(name, combine):
    moved = moved_by(reducers.make(name, combine=combine, axis_name=WORKER))
    assert moved.bytes_per_worker == pytest.approx(2 * moved_by(reducers.mean(WORKER)).bytes_per_worker, rel=1e-3)


WEIGHING = {  # the mean, and rules on dot products
    "mean": {},
    "krum": {"num_byzantine": 2},
    "multi_krum": {"num_byzantine": 2},
    "geometric_median": {},
    "centred_clipping": {"radius": 5.0, "start": "zero"},
    "gradvac": {"order": "workers"},
    "mgda": {},
    "upgrad": {},
}


@pytest.mark.parametrize("combine", WEIGHING)
def test_dot_products_of_means_cost_no_exchange_of_their_own(combine):
    """Buckets are drawn by the number of updates, which is sent as the states of rules are: 4 bytes to each worker."""
    make = functools.partial(reducers.make, axis_name=WORKER, combine={"name": combine, **WEIGHING[combine]})
    alone = moved_by(reducers.make("krum" if combine == "mean" else combine, axis_name=WORKER, **WEIGHING[combine]))
    nearest, buckets = moved_by(make("nearest_neighbour_mixing")), moved_by(make("bucketing"))
    assert nearest == alone
    assert buckets.bytes_per_worker == alone.bytes_per_worker + 7 * 4
    gathers = alone.collectives["all_gather"]
    assert buckets.collectives == alone.collectives | {"all_gather": gathers + 1}


@pytest.mark.parametrize(
    ("combine", "scale"), [*((name, 1.0) for name in WEIGHING), ("geometric_median", 1e-25), ("mgda", 1e25)]
)
@pytest.mark.parametrize("name", ["bucketing", "nearest_neighbour_mixing"])
def test_means_are_weighed_as_they_would_be_combined(name, combine, scale):
    """Three updates of 9 workers, of whom one is absent once and one sends much; a wrapped rule is given the means."""
    inside = reducers.make(combine, axis_name=WORKER, **WEIGHING[combine])
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((3, 9, 50)) + 0.5 * rng.standard_normal(50)
    rows[:, 6] *= 30
    rows = (scale * rows).astype(np.float32)
    counted = np.ones((3, 9), bool)
    counted[1, 4] = False
    rows[1, 4] = NAN
    one, two = (
        over_steps(reducers.make(name, combine=each, axis_name=WORKER), rows, contributes=counted)
        for each in (inside, as_masked(inside))
    )
    longest = np.linalg.norm(rows[counted] / scale, axis=1).max()
    np.testing.assert_allclose(one[0] / scale, two[0] / scale, rtol=0, atol=2e-6 * longest)
    reports = [reducers.report(states).counted for _, states in (one, two)]
    np.testing.assert_array_equal(*reports)


@pytest.mark.parametrize("name", ["bucketing", "nearest_neighbour_mixing"])
@pytest.mark.parametrize("outer", [None, "krum"])
def test_means_of_means_are_weighed_in_one_exchange(name, outer):
    nested = {"name": name, "combine": {"name": "nearest_neighbour_mixing", "combine": outer}}
    moved = moved_by(reducers.make("nearest_neighbour_mixing", combine=nested, axis_name=WORKER))
    assert moved.bytes_per_worker == pytest.approx(moved_by(reducers.mean(WORKER)).bytes_per_worker, rel=1e-3)


@pytest.mark.parametrize("sum_of_two", [0.0, 1e-2])
def test_means_that_cancel_out_are_zero(sum_of_two):
    """Two of three gradients cancel out: the third, and the mean of the two, are what is weighed."""
    first, second, third = np.random.default_rng(0).standard_normal((3, 40))
    rows = np.stack([first, sum_of_two * second - first, third]).astype(np.float32)
    shares = jnp.array([[0.5, 0.5, 0], [0, 0, 1.0], [0, 0, 0]])
    gram = rows.astype(np.float32) @ rows.T
    means, units = Products(jnp.asarray(gram), jnp.ones(3), jnp.ones(3, bool)).mixed(shares)
    expected = [sum_of_two * np.linalg.norm(second) / 2, np.linalg.norm(third), 0]
    np.testing.assert_allclose(means.norms, expected, rtol=2e-3)
    assert means.counted.tolist() == [True, True, False] and (means.scales[0] == 0) == (sum_of_two == 0)
    np.testing.assert_allclose(means.scales[:, None] * units, jnp.where(means.scales[:, None] > 0, shares, 0))


# ---- what ByzFL gave for the same rows -------------------------------------------------------------------------------

RECORDED = dict(np.load(pathlib.Path(__file__).parent / "golden" / "byzfl.npz"))
NUM_RECORDED = len({key.partition("|")[0] for key in RECORDED})


def recorded(name):
    """For each case what ByzFL gives, its rows [3, n, d] in float32, f, the radius, and the order of its buckets."""
    for case in range(NUM_RECORDED):
        rows, f, radius, order, expected = (RECORDED[f"{case}|{key}"] for key in ("rows", "f", "radius", "order", name))
        yield expected, rows.astype(np.float32), int(f), float(radius), order


def check_recorded(found, expected, rows):
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6 * np.abs(rows).max())


@pytest.mark.parametrize(
    ("name", "key"), [("coordinate_median", ""), ("trimmed_mean", "num_trimmed"), ("meamed", "num_byzantine")]
)
def test_rules_give_what_byzfl_gave(name, key):
    for expected, rows, f, _, _ in recorded(name):
        check_recorded(reduce(made(name, **{key: f} if key else {}), rows[0])[0], expected, rows)


def test_clipping_from_the_last_result_gives_what_byzfl_gave():
    for expected, rows, _, radius, _ in recorded("centred_clipping"):
        results, _ = over_steps(reducers.centred_clipping(WORKER, radius=radius, num_steps=2), rows)
        check_recorded(results[:, 0], expected, rows)


def test_mixing_gives_what_byzfl_gave():
    for expected, rows, f, _, _ in recorded("nearest_neighbour_mixing"):
        mix = lambda combine, f=f: reducers.nearest_neighbour_mixing(WORKER, num_byzantine=f, combine=combine)  # noqa: E731
        check_recorded(means_of(mix, rows[0])[0], expected, rows)


def test_buckets_give_what_byzfl_gave_in_the_same_order():
    for expected, rows, _, _, order in recorded("bucketing"):
        reducer = reducers.bucketing(WORKER, bucket_size=2, combine=as_masked(EVERY_ROW(WORKER)))
        members = np.asarray(updated(reducer, np.eye(len(order), dtype=np.float32))[0][0])
        own_order = np.concatenate([np.flatnonzero(bucket) for bucket in members])
        placed = np.empty_like(rows[0])
        placed[own_order] = rows[0][order]
        check_recorded(np.asarray(updated(reducer, placed)[0][0])[: len(expected)], expected, rows)


@pytest.mark.parametrize("how", ["little", "inner_product", "copy"])
def test_attackers_send_what_those_of_byzfl_sent(how):
    for expected, rows, _, _, order in recorded(how):
        attack = reducers.corrupt(WORKER, workers=(len(order),), how=how, combine=EVERY_ROW(WORKER))
        given = np.vstack([rows[0], np.full_like(rows[0][:1], NAN)])
        check_recorded(np.asarray(updated(attack, given)[0][0])[-1], expected, rows)


# ---- f arbitrary workers ---------------------------------------------------------------------------------------------

SCALES = (0.0, 1e-38, 1e-30, 1e-12, 1.0, 1e12, 1e30, 1e38, 3.4e38)  # of honest gradients
SPECIAL = (INF, -INF, NAN, -0.0, 3.4028235e38, -3.4028235e38, 2e38, 1e-45, -1e-40)


def anything(rng, *shape):
    """Values of all exponents, for each worker of one kind: any 32 bits, one special value, it in one element, both."""
    bits = rng.integers(0, 1 << 32, shape, dtype=np.uint32).view(np.float32)
    special = rng.choice(np.array(SPECIAL, np.float32), (shape[0], 1))
    first = np.arange(shape[1]) == 0
    kinds = [bits, special, np.where(first, special, 0), np.where(rng.random(shape) < 0.5, special, bits)]
    return np.choose(rng.integers(0, len(kinds), (shape[0], 1)), kinds)


def attacked(resists: int, seed: int):
    """Gradients of 8 workers [8, 20], of whom f send anything, who is honest, and who is counted."""
    rng = np.random.default_rng(seed)
    spread = (0.0, 0.1, 1.0)[seed % 3]
    honest = rng.choice([-1, 1], 20) * (1 - spread * rng.random((8, 20)))
    rows = (SCALES[seed // 3 % len(SCALES)] * honest).astype(np.float32)
    wild = rng.permutation(8)[:resists]
    absent = rng.permutation(8)[: seed % 2]
    everyone = np.arange(8)
    rows[wild] = anything(rng, resists, 20)
    rows[absent] = anything(rng, len(absent), 20)
    return rows, ~np.isin(everyone, [*wild, *absent]), ~np.isin(everyone, absent)


ROBUST = [case for case in CASES if case.resists]


def check_resistance(case, make, seeds):
    for seed in seeds:
        rows, honest, present = attacked(case.resists, seed)
        results = np.asarray(reduce(make, rows, extra={"contributes": present}))
        assert np.array_equal(results, np.broadcast_to(results[:1], results.shape)), seed
        assert np.isfinite(results).all() and case.stays(results[0].astype(float), rows[honest].astype(float)), seed


@pytest.mark.parametrize("case", ROBUST, ids=lambda case: case.name)
def test_arbitrary_workers_do_not_move_it_far(case):
    check_resistance(case, case.make, range(3 * len(SCALES)))


@pytest.mark.parametrize("case", ROBUST, ids=lambda case: case.name)
def test_arbitrary_workers_of_many_seeds(case):
    check_resistance(case, case.make, range(300))


def test_three_of_eight_do_not_move_the_mean_around_the_median_far():
    case = dataclasses.replace(FIRST["meamed"], kwargs={"num_byzantine": 3}, resists=3)
    check_resistance(case, case.make, range(3 * len(SCALES)))


@pytest.mark.parametrize("name", ["mean", "adasum", "mgda", "upgrad"])
def test_arbitrary_workers_move_a_rule_that_promises_nothing(name):
    case = dataclasses.replace(FIRST[name], resists=1, stays=FIRST["geometric_median"].stays)
    with pytest.raises(AssertionError):
        check_resistance(case, case.make, range(12))
