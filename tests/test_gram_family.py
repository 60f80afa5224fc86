"""Rules on dot products, beyond the laws: what each promises of its result, robustness, NaN, state, layouts."""

import functools

import jax
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp

import reducers
from parallel import AXES, Layout, map_devices
from reducers.gram import Products
from tests import gram_oracles
from tests.cases import FIRST
from tests.gram_oracles import gaussian
from tests.test_reducers import LIKE_KRUM, WORKER, made, over_steps, reduce, stateless, updated

# With the options of the table, which make them deterministic.
OTHERS = {"adacons", "centred_clipping", "gradvac", "krum", "radial_directional"}
FAMILY = {name: FIRST[name].kwargs for name in sorted(LIKE_KRUM | OTHERS)}
every_rule = pytest.mark.parametrize("name", FAMILY)


def combined(name, grads, *, extra=(), **options):
    """Returns the result that all workers hold, [...], of gradients [W, ...]."""
    options = {**FAMILY.get(name, {}), **options}
    size = np.shape(grads)[1:]
    if name in FAMILY and len(grads) <= WORKERS and len(size) == 1 and size[0] <= ELEMENTS:
        grads, extra = among_others(grads, **dict(extra))
    result = reduce(made(name, **options), grads, extra=dict(extra))
    for leaf in jax.tree.leaves(result):
        np.testing.assert_array_equal(leaf, np.broadcast_to(leaf[:1], leaf.shape))
    return jax.tree.map(lambda leaf: np.asarray(leaf[0])[tuple(map(slice, size))], result)


WORKERS, ELEMENTS = 8, 400


def among_others(grads, *, contributes=True):
    """Gradients [W, m] and their mask, among workers that are absent and elements that are 0: one program for all."""
    held = np.full((WORKERS, ELEMENTS), np.nan, np.float32)
    present = np.zeros(WORKERS, bool)
    held[: len(grads)], present[: len(grads)] = 0, contributes
    held[: len(grads), : np.shape(grads)[1]] = grads
    return held, {"contributes": present}


def norm(x):
    return np.linalg.norm(x.astype(np.float64))


# ---- identities ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["workers", "random"])
def test_a_pair_after_surgery_has_no_conflict(order):
    for seed in range(5):
        grads = gaussian(2, 100, seed=seed)
        grads[1] -= grads[0] * np.float32(0.5)
        assert (grads @ combined("pcgrad", grads, order=order)).min() >= -1e-4
        np.testing.assert_allclose(combined("pcgrad", grads), combined("upgrad", grads), atol=1e-5)  # equal for two


def test_the_projected_mean_conflicts_with_nobody_and_nothing_that_conflicts_with_nobody_is_nearer():
    """A vector of the cone is at most as near, and the mean itself where it is in the cone."""
    for seed in range(5):
        grads = gaussian(6, 40, seed=seed) - 0.4 * gaussian(40)
        mean, found = grads.mean(0), combined("dualproj", grads)
        assert (grads @ found).min() >= -1e-4 and found @ (mean - found) == pytest.approx(0, abs=1e-4)
        assert norm(found - mean) <= norm(combined("upgrad", grads) - mean) + 1e-5
        agreeing = grads + 2 * gaussian(40)
        assert (agreeing @ agreeing.mean(0)).min() > 0
        np.testing.assert_allclose(combined("dualproj", agreeing), agreeing.mean(0), rtol=1e-5, atol=1e-6)


def hard_programs(count):
    """Gradients [n, m] of up to 16 workers in up to 12 dimensions, and how close their result is, over the longest."""
    rng = np.random.default_rng(0)
    eps = np.finfo(np.float32).eps
    for number in range(count):
        square = rng.standard_normal((8, 8))
        yield square, 1e-5
        yield rng.standard_normal((16, 12)), 1e-5
        yield rng.standard_normal((16, 3)) @ rng.standard_normal((3, 12)), eps**0.5 * 8  # dependent: 0 but for rounding
        yield 3 + rng.standard_normal((12, 12)) * 0.3, 1e-5  # alike
        yield np.outer(rng.standard_normal(8), square[0]), 1e-5  # on a line
        yield square * 10.0 ** rng.uniform(-12, 12, (8, 1)), 1e-5
        equal = square.copy()
        opposite = square.copy()
        zero = square.copy()
        equal[3:6] = square[0]
        opposite[1] = -square[0]
        zero[number % 8] = 0
        yield from [(equal, 1e-5), (opposite, 1e-5), (zero, 1e-5)]
        # Nearly opposite: two alone are no problem; among others the angle is known from float32 to eps / angle^2.
        yield np.stack([square[0], -square[0] + 10.0 ** -(number % 5) * square[1]]), 1e-5
        yield np.vstack([square, 0.1 * rng.standard_normal(8) - square[:1]]), 1e-4


@pytest.mark.parametrize("name", ["dualproj", "mgda", "upgrad"])
@pytest.mark.parametrize("count", [5, 100])
def test_programs_are_solved_as_nnls_does(name, count):
    failed = []
    for number, (rows, tolerance) in enumerate(hard_programs(count)):
        grads = np.full((16, 12), np.nan, np.float32)  # one program for all
        present = np.arange(16) < len(rows)
        grads[present] = 0
        grads[: len(rows), : rows.shape[1]] = rows
        expected = getattr(gram_oracles, name)(grads[present].astype(np.float64))
        found = combined(name, grads, extra={"contributes": present})
        drawn, kind = divmod(number, 11)
        if name == "dualproj" and kind == 9 and drawn % 5 == 4:
            tolerance = 1e-4  # the length of the mean of two gradients whose sum, and so its angles, are rounding
        if norm(found - expected) > tolerance * np.linalg.norm(grads[present], axis=1).max():
            failed.append((drawn, kind))
    assert len(failed) <= count // 50, failed  # of random ones a few depend on each other almost linearly


def test_workers_that_are_almost_opposite_do_not_blow_it_up():
    """Dot products in float32 do not know where they meet; the result is no longer than the mean of the lengths."""
    for digits in range(2, 8):
        grads = gaussian(8, 8, seed=digits)
        grads[1] = 10.0**-digits * grads[2] - grads[0]
        assert norm(combined("upgrad", grads)) <= np.linalg.norm(grads, axis=1).mean()
        assert norm(combined("mgda", grads)) <= np.linalg.norm(grads, axis=1).min()


@pytest.mark.parametrize("byzantine", [0, 1, 2])
@pytest.mark.parametrize(("name", "selected"), [("krum", 1), ("multi_krum", None), ("multi_krum", 2)])
def test_krum_is_what_brute_force_finds(name, selected, byzantine):
    options = {"num_selected": selected} if name == "multi_krum" else {}
    for count in range(3, 9):  # of the eight workers of one program, the others are absent
        grads = gaussian(8, 100, seed=count)
        present = np.random.default_rng(count).permutation(8) < count
        expected = gram_oracles.krum(grads[present].astype(np.float64), byzantine=byzantine, selected=selected)
        found = combined(name, grads, extra={"contributes": present}, num_byzantine=byzantine, **options)
        np.testing.assert_allclose(found, expected, atol=1e-6, err_msg=f"{count} present")


def test_equal_sums_go_to_the_first_worker():
    rows = np.array([[1, 1, 1], [1, 0, 1], [75, -666, 23], [1, 2, 3], [2, 0, 1]], np.float32)
    # Sums of squares by hand: f = 1: 3, 2, 898885, 13, 3; f = 2: 1, 1, 449369, 5, 1.
    np.testing.assert_array_equal(combined("krum", rows, num_byzantine=1), rows[1])
    np.testing.assert_array_equal(combined("krum", rows, num_byzantine=2), rows[0])
    chosen = combined("multi_krum", rows, num_byzantine=1, num_selected=2)
    np.testing.assert_allclose(chosen, rows[[0, 1]].mean(0))


def around_a_worker(seed):
    """Gradients of six workers whose geometric median is one of them, equal to others or not, or is close to one."""
    rng, kind = np.random.default_rng(seed), seed % 4
    grads = rng.standard_normal((6, 3))
    if kind == 0:  # two pull against each other, and three in a star
        angles = 2 * np.pi / 3 * np.arange(3) + rng.uniform(-0.2, 0.2, 3)
        star = np.stack([np.cos(angles), np.sin(angles)]).T @ np.linalg.qr(rng.standard_normal((3, 3)))[0][:2]
        grads[1:3] = grads[0] + np.outer([1, -2], grads[1])
        grads[3:] = grads[0] + rng.uniform(0.1, 9, (3, 1)) * star
    elif kind == 1:  # two of three pull at an angle of a little less than 120 degrees
        first, second, third = np.linalg.qr(rng.standard_normal((3, 3)))[0]
        angle = np.pi * (2 / 3 - rng.uniform(1e-3, 1e-1))
        grads[1] = grads[0] + first
        grads[2] = grads[0] + np.cos(angle) * first + np.sin(angle) * second
        grads[3:5] = grads[0] + np.outer([1, -1], third)
        grads[5] = grads[0] + np.cos(angle) * first - np.sin(angle) * second
    elif kind == 2:  # equal gradients
        grads[3:5] = grads[0]
    else:  # far away, with a wild one
        grads[1:] += 3
        grads[5] *= 1e6
    return grads.astype(np.float32)


def test_a_geometric_median_on_a_worker_or_close_to_one():
    for seed in range(24):
        grads = around_a_worker(seed)
        expected = gram_oracles.geometric_median(grads.astype(np.float64))
        error = norm(combined("geometric_median", grads) - expected)
        assert error <= 1e-5 * np.linalg.norm(grads[:5], axis=1).max(), seed


# ---- robustness ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["garbage", "nan", "copy", "flip", "little", "inner_product"])
def test_two_of_nine_send_something_else(how):
    grads = gaussian(9, 500)
    gather = stateless(lambda axis, g: lax.all_gather(g, axis))(WORKER)
    rows = reduce(functools.partial(reducers.corrupt, workers=(2, 5), how=how, combine=gather), grads)[0]
    np.testing.assert_array_equal(np.delete(rows, [2, 5], axis=0), np.delete(grads, [2, 5], axis=0))
    sent = np.asarray(rows)[[2, 5]]
    if how == "garbage":
        assert (np.abs(sent).mean(1) > 1e5).all() and np.abs(np.corrcoef(sent)[0, 1]) < 0.2
    else:
        honest = np.delete(grads, [2, 5], axis=0).astype(np.float64)
        expected = {
            "nan": np.full((2, 500), np.nan),
            "copy": grads[[0, 0]],
            "flip": -grads[[2, 5]],
            "little": [honest.mean(0) + 1.5 * honest.std(0, ddof=1)] * 2,
            "inner_product": [-2 * honest.mean(0)] * 2,
        }[how]
        np.testing.assert_allclose(sent, expected, rtol=0, atol=0 if how in ("nan", "copy", "flip") else 1e-6)


@functools.cache
def results_and_counts(name, **options):
    reducer = reducers.make(name, axis_name=WORKER, **options)

    def one(grads):
        updates, state = reducer.update(grads, reducer.init(grads))
        return updates, reducers.report(state).counted

    return jax.jit(jax.vmap(one, axis_name=WORKER))


@pytest.mark.parametrize("name", ["krum", "multi_krum", "geometric_median"])
@pytest.mark.parametrize("value", [np.nan, np.inf, 1e30])
def test_who_is_left_out_by_its_weight(name, value):
    """A worker of weight 0 does not count, and NaN of it is nowhere; one of weight 0 in some groups alone counts."""
    grads = {"w": gaussian(7, 100), "b": gaussian(7, 3)}
    grads["w"][4] = value
    results, counts = results_and_counts(name)(grads)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(results))
    chosen = {"krum": 1, "multi_krum": 6, "geometric_median": 7 if value == 1e30 else 6}[name]
    assert counts.sum() == chosen and counts[4] == (name == "geometric_median" and value == 1e30)


@pytest.mark.parametrize("name", ["krum", "multi_krum", "geometric_median"])
@pytest.mark.parametrize("without", [range(7), [4], [2, 4]], ids=str)
def test_a_leaf_without_gradient_makes_nobody_count(name, without):
    """A worker of weight 0 in one layer is left out, if its gradient of the other is zero, too."""
    grads = {"w": gaussian(7, 100), "b": gaussian(7, 3)}
    grads["w"][4], grads["b"][list(without)] = np.nan, 0
    results, counts = results_and_counts(name, granularity="layer")(grads)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(results)) and not counts[4]
    least, most = {"krum": (1, 2), "multi_krum": (6, 6), "geometric_median": (6, 6)}[name]
    assert least <= counts.sum() <= most
    assert counts.sum() == least or len(without) < 7  # where one layer alone decides


def test_a_worker_whose_whole_gradient_is_zero_counts():
    """Krum takes none of it, but any weight of it gives the same."""
    grads = {"w": gaussian(7, 100) + 1, "b": gaussian(7, 3)}
    grads["w"][3], grads["b"][3], grads["w"][4] = 0, 0, np.nan
    for granularity in ("model", "layer"):
        counts = results_and_counts("krum", granularity=granularity)(grads)[1]
        assert counts[3] and not counts[4] and counts.sum() < 6, granularity


def test_nan_does_not_count_where_nobody_has_a_weight():
    """The gradients that are nearest to their neighbours are zero, each layer's of other workers."""
    grads = {"w": 90 + gaussian(7, 100), "b": 90 + gaussian(7, 3)}
    grads["w"][:3] = 0
    grads["b"][3:6] = 0
    grads["w"][6] = np.nan
    results, counts = results_and_counts("krum", granularity="layer", num_byzantine=3)(grads)
    assert all((leaf == 0).all() for leaf in jax.tree.leaves(results))
    np.testing.assert_array_equal(counts, np.arange(7) < 6)


def test_all_count_where_all_gradients_are_zero():
    grads = {"w": np.zeros((7, 100), np.float32), "b": np.zeros((7, 3), np.float32)}
    _, counts = results_and_counts("krum")(grads)
    assert counts.all()


# ---- the engine ------------------------------------------------------------------------------------------------------


@every_rule
@pytest.mark.parametrize("layout", [(4, 3), (1, 7)], ids=str)
def test_devices_with_lanes_and_absent_workers(name, layout):
    num_devices, lanes = layout
    n = num_devices * lanes
    present = np.arange(n) % 3 != 1
    grads = {"large": gaussian(n, 301, seed=1), "small": gaussian(n, 5, seed=2)}
    reducer = reducers.make(name, axis_name=AXES, **FAMILY[name])
    at = Layout.of(n, num_devices=num_devices)

    def device(grads, contributes):
        one = lambda g, c: reducer.update(g, reducer.init(g), contributes=c)[0]  # noqa: E731
        return jax.vmap(one, axis_name=AXES[1], out_axes=None)(grads, contributes)

    held = jax.tree.map(lambda g: np.where(present.reshape(-1, *[1] * (g.ndim - 1)), g, np.nan), grads)
    results = jax.device_get(map_devices(device, layout=at)(*at.put_per_worker((held, present))))
    expected = combined(name, jax.tree.map(lambda g: g[present], grads))
    for key, replicas in results.items():
        assert all(np.array_equal(replicas[0], replica) for replica in replicas)
        np.testing.assert_allclose(replicas[0], expected[key], atol=2e-5)


@pytest.mark.parametrize("num_workers", [12, 31])
@pytest.mark.parametrize("name", ["krum", "radial_directional", "agreement_scaled_mean"])
def test_many_workers(name, num_workers):
    grads = gaussian(num_workers, 700, seed=num_workers)
    np.testing.assert_allclose(combined(name, grads), FIRST[name].oracle(grads.astype(np.float64)), atol=1e-5)


LARGEST = {"bfloat16": 1e30, "float16": 1e3, "float32": 1e30}
SIGNS = {  # of the exponents of [W, m] elements
    "alike": np.zeros((5, 40)),
    "tiny": -np.ones((5, 40)),
    "huge": np.ones((5, 40)),
    "workers of any scale": np.broadcast_to([[1], [-1], [0], [1], [0]], (5, 40)),
    "elements of any scale": np.broadcast_to(np.arange(40) % 3 - 1, (5, 40)),
}
# These know their result relative to the longest gradient: the median smooths distances, and mgda compares the squares
# of lengths, which in float32 vanish beside the longest one's.
KNOWN_TO_THE_LONGEST = {"geometric_median": 1e-6}
# These invert the Gram matrix but for eigenvalues that are rounding beside the largest: with lengths that differ by
# more than a thousand, float32 knows another rank than the oracle.
OF_THE_RANK = {"aligned_mtl", "imtl_g"}
# The gain of a gradient is rounding beside those of one a million times as long or as short.
OF_THE_GAINS = {"fairgrad"}


@every_rule
def test_every_dtype_and_scale(name):
    """One program combines a vector of each dtype by itself, for several inputs."""
    reducer = reducers.make(name, axis_name=WORKER, **FAMILY[name])
    combine = jax.vmap(lambda g: reducer.update(g, reducer.init(g))[0], axis_name=WORKER)
    program = jax.jit(functools.partial(jax.tree.map, combine))
    for scales, signs in SIGNS.items():
        if name in OF_THE_RANK | OF_THE_GAINS and scales == "workers of any scale":
            continue
        grads = {dtype: jnp.asarray(gaussian(5, 40) * e**signs, dtype) for dtype, e in LARGEST.items()}
        for dtype, result in program(grads).items():
            assert result.dtype == dtype
            wide = np.asarray(grads[dtype], np.float64)
            expected = FIRST[name].oracle(wide)
            error = np.linalg.norm(np.asarray(result, np.float64) - expected, axis=1)  # of each worker's copy
            allowed = (float(jnp.finfo(dtype).eps) / 2 + 1e-6) * norm(
                expected
            )  # rounding of the result, and of weights
            allowed = max(allowed, KNOWN_TO_THE_LONGEST.get(name, 0) * np.linalg.norm(wide, axis=-1).max())
            assert (error <= allowed).all(), (scales, dtype, error / norm(expected))


POWERS = {"adacons": 0, "nash_mtl": 0, "fairgrad": -1 / 3}  # of the gradients' scale, in that of the result


@pytest.mark.parametrize("name", sorted(FAMILY.keys() - {"centred_clipping", "geometric_median", "mgda"}))
@pytest.mark.parametrize("scale", [1e-36, 3e37])
def test_norms_beyond_the_range(name, scale):
    """The vector's elements are within the range of float32, and its norm, or the norms' sum, is not."""
    if (name, scale) == ("aligned_mtl", 1e-36):
        pytest.skip("the weights of some gradients are below the range")
    grads = (1 + 0.2 * gaussian(5, 400)) * np.float32(scale)
    expected = FIRST[name].oracle(grads.astype(np.float64) / scale)
    if name == "adacons" and scale > 1:  # its weights exceed the range, and then are equal
        expected = np.mean(grads / np.linalg.norm(grads.astype(np.float64), axis=1, keepdims=True), axis=0)
    found = combined(name, grads).astype(np.float64) / scale ** POWERS.get(name, 1.0)
    assert norm(found - expected) <= 1e-5 * norm(expected)


@every_rule
@pytest.mark.parametrize("num_workers", [8, 64])
@pytest.mark.parametrize("dtype", [jnp.float16, jnp.float32])
def test_bytes_are_those_of_an_all_reduce_of_the_dtype(name, num_workers, dtype):
    leaf = jax.ShapeDtypeStruct((1 << 20,), dtype)
    rule, mean = (
        reducers.traffic(
            made(each, **FAMILY.get(each, {}))(axis_name=WORKER), leaf, axis_sizes={WORKER: num_workers}
        ).bytes_per_worker
        for each in (name, "mean")
    )
    assert mean <= rule <= 1.02 * mean


def test_poison_stays_in_its_group():
    grads = {"a": gaussian(4, 100), "b": gaussian(4, 100, seed=1)}
    grads["a"][2, 7] = np.nan
    found = combined("upgrad", grads, granularity="layer")
    assert np.isnan(found["a"]).all() and np.isfinite(found["b"]).all()


def test_orders_are_drawn_anew_and_follow_the_seed():
    grads = gaussian(6, 100) - 0.3
    grads[::2] *= -1

    def two_steps(seed):
        return over_steps(reducers.pcgrad(WORKER, seed=seed), np.stack([grads] * 2))[0][:, 0]

    first, second = two_steps(0)
    again = two_steps(0)
    other = two_steps(1)
    np.testing.assert_array_equal(first, again[0])
    assert np.abs(first - second).max() > 1e-3 < np.abs(first - other[0]).max()


def test_a_rule_of_ones_own():
    """From dot products to weights: the gradient that is longest, alone."""

    def longest(products: Products):
        is_longest = jnp.arange(len(products.norms)) == products.norms.argmax()
        return products.of_units(is_longest.astype(jnp.float32))

    grads = gaussian(5, 100)
    grads[3] *= 4
    result = reduce(functools.partial(reducers.from_gram, rule=longest), grads)
    np.testing.assert_array_equal(result[0], grads[3])


@pytest.mark.parametrize("scale", [1, 1e-30, 1e37])
def test_telemetry_of_a_rule_whose_ratios_know_no_scale(scale):
    grads = np.float32(scale) * gaussian(4, 100)
    reducer = reducers.multi_krum(WORKER, num_byzantine=1, num_selected=2, telemetry="on")
    _, state = updated(reducer, grads)
    result = combined("multi_krum", grads, num_byzantine=1, num_selected=2).astype(np.float64)
    found = reducers.report(state).metrics
    wide = grads.astype(np.float64)
    assert found["orthogonality"][0] == pytest.approx(norm(result) / norm(wide), rel=1e-5)
    assert found["gain"][0] == pytest.approx(norm(result) / norm(wide.mean(0)), rel=1e-4)
    assert found["weight_spread"][0] == pytest.approx(2)  # weights 1/2, 1/2, 0, 0
    assert found["cosine"][0] == found["cosine/model"][0]
    assert reducers.report(reducer.init(grads[0])).metrics.keys() == found.keys()
    if scale == 1:
        assert found["covariance_trace"][0] == pytest.approx(wide.var(axis=0, ddof=1).sum(), rel=1e-4)


# ---- rules of multi-task learning ------------------------------------------------------------------------------------


def test_gradvac_remembers_cosines():
    """Three steps of a loop on the gradients themselves; a worker that is absent in the second keeps its cosines."""
    steps = gaussian(3, 4, 30, seed=2).astype(np.float64)
    beta = 0.25
    steps += np.array([1.0, -0.5, 2.0])[:, None, None] * gaussian(30)
    counted = np.array([[1, 1, 1, 1], [1, 0, 1, 1], [1, 1, 1, 1]], bool)
    reducer = reducers.gradvac(WORKER, order="workers", beta=beta, max_workers=5)
    found, _ = over_steps(reducer, steps.astype(np.float32), contributes=counted)
    usual = np.zeros((4, 4))
    for g, present, result in zip(steps, counted, found[:, 0], strict=True):
        turned = []
        for i in np.flatnonzero(present):
            p = g[i].copy()
            for j in np.flatnonzero(present):
                if j == i:
                    continue
                length = np.linalg.norm(p)
                other = np.linalg.norm(g[j])
                cosine = p @ g[j] / (length * other)
                target = usual[i, j]
                if cosine < target:
                    turn = target * np.sqrt(1 - cosine**2) - cosine * np.sqrt(1 - target**2)
                    p += length * turn / (other * np.sqrt(1 - target**2)) * g[j]
                usual[i, j] = (1 - beta) * target + beta * cosine
            turned.append(p)
        np.testing.assert_allclose(result, np.mean(turned, axis=0), rtol=0, atol=1e-5)
    with pytest.raises(ValueError, match="num_workers=8: exceeds max_workers=3"):
        combined("gradvac", gaussian(8, 9), max_workers=3)


@pytest.mark.parametrize("scale_mode", ["min", "median", "rmse"])
def test_aligned_gradients_are_equally_long_along_all_components(scale_mode):
    grads = gaussian(5, 60, seed=1) * np.float32([[1], [10], [0.1], [3], [1]])
    u, values, v = np.linalg.svd(grads.astype(np.float64), full_matrices=False)
    length = {"min": values[-1], "median": np.median(values), "rmse": np.sqrt(np.square(values).mean())}[scale_mode]
    np.testing.assert_allclose(
        combined("aligned_mtl", grads, scale_mode=scale_mode), length * (u @ v).mean(0), rtol=0, atol=1e-4 * length
    )


def test_the_best_update_near_the_mean_is_near_it_and_better_for_the_worst():
    for c, grads in ((0.5, gaussian(6, 40)), (1.5, gaussian(6, 40, seed=1)), (0.9, gaussian(3, 2, seed=2))):
        mean = grads.mean(0)
        found = combined("cagrad", grads, c=c)
        assert norm(found - mean) == pytest.approx(c * norm(mean), rel=1e-4)
        worst = (grads @ found).min()
        for seed in range(100):
            other = gaussian(grads.shape[1], seed=seed)
            assert (grads @ (mean + c * norm(mean) * other / norm(other))).min() <= worst + 1e-5
    np.testing.assert_allclose(combined("cagrad", grads, c=0.0), grads.mean(0), rtol=1e-6)


@pytest.mark.parametrize("name", ["cagrad", "fairgrad", "nash_mtl"])
def test_where_no_update_helps_everybody_it_is_zero(name):
    one = gaussian(3, 20)
    options = {"c": 1.5} if name == "cagrad" else {}
    for grads in (np.concatenate([one, -one]), np.concatenate([one, -one.sum(0)[None]]), one * [[1], [0], [1]]):
        assert norm(combined(name, grads.astype(np.float32), **options)) < 1e-6


@pytest.mark.parametrize("alpha", [0.25, 1.0, 2.0, 8.0])
def test_gains_are_shared_fairly(alpha):
    """The weights are the gains to the power -alpha, and another update of the same length is worth less."""
    grads = np.exp(gaussian(5, 1)) * (gaussian(5, 60, seed=3) + 0.2 * gaussian(60))
    found = combined("fairgrad", grads, alpha=alpha).astype(np.float64)
    weights = np.linalg.lstsq(grads.T.astype(np.float64), found, rcond=None)[0]
    np.testing.assert_allclose(weights * (grads @ found) ** alpha, 1, rtol=1e-4)
    np.testing.assert_allclose(
        found, gram_oracles.fairgrad(grads.astype(np.float64), alpha=alpha), rtol=1e-4, atol=1e-5
    )

    def worth(update):
        gains = grads @ update
        return np.log(gains).sum() if alpha == 1 else (gains ** (1 - alpha)).sum() / (1 - alpha)

    for seed in range(20):
        other = found + 0.05 * norm(found) * (nudge := gaussian(60, seed=seed)) / norm(nudge)
        assert worth(other * norm(found) / norm(other)) < worth(found)


def test_a_fairness_of_one_is_the_bargain_and_one_near_zero_is_the_mean():
    grads = gaussian(5, 60, seed=3) + 0.2 * gaussian(60)
    bargain = combined("nash_mtl", grads, max_norm=None)
    np.testing.assert_allclose(combined("fairgrad", grads, alpha=1.0), bargain, rtol=0, atol=1e-5)
    agreeing = gaussian(5, 60, seed=3) + 2 * gaussian(60)
    found, mean = combined("fairgrad", agreeing, alpha=0.1), agreeing.mean(0)
    assert found @ mean > 0.999 * norm(found) * norm(mean)


def test_the_projected_mean_is_the_documented_one():
    """TorchJD documents DualProj's result, which its regularisation moves by up to 7e-4."""
    found = combined("dualproj", np.float32([[-4, 1, 1], [6, 1, 1]]))
    np.testing.assert_allclose(found, [0.5563, 1.1109, 1.1109], rtol=0, atol=8e-4)


def test_the_bargain_is_one_and_is_shortened():
    grads = gaussian(5, 60, seed=3) + 0.2 * gaussian(60)
    found = combined("nash_mtl", grads).astype(np.float64)
    alpha = np.linalg.lstsq(grads.T.astype(np.float64), found, rcond=None)[0]
    np.testing.assert_allclose(alpha * (grads @ found), 1, rtol=1e-4)
    assert norm(found) == pytest.approx(np.sqrt(5), rel=1e-4)
    short = combined("nash_mtl", grads, max_norm=0.5)
    np.testing.assert_allclose(short, found * 0.5 / norm(found), rtol=1e-4)
