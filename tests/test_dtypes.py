"""Reducers and encodings on numbers that are no float32: right, passed on as they are, or refused by leaf and dtype."""

import jax
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp

import reducers
from reducers.wrappers import communication
from tests.cases import CASES, FIRST, ROWS, SENDINGS
from tests.refused import refused
from tests.test_reducers import WORKER, check_against_oracle, extras, reduce, tree_of

FLOAT0 = jax.dtypes.float0


every_row = pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)


# ---- refused -----------------------------------------------------------------------------------------------------


@every_row
def test_bools_and_floats_of_8_bits_are_refused_by_name(row):
    for dtype in ("bool", "float8_e4m3fn", "float8_e5m2", "int4"):
        gradients = {"fine": jnp.zeros((8, 3)), "wrong": jnp.zeros((8, 9, 15), dtype)}
        params = {"fine": jnp.zeros(3), "wrong": jnp.zeros((9, 15))}

        def one(g, params=params):
            reducer = row.make(WORKER)
            return reducer.update(g, reducer.init(params), params, **row.shared)[0]

        with refused(ValueError, rf"updates\['wrong'\]: of {dtype}, must be of "):
            jax.eval_shape(jax.vmap(one, axis_name=WORKER), gradients)


def test_parameters_of_a_dtype_that_is_refused_are_refused_before_their_gradients():
    half = reducers.in_half_precision(reducers.mean(WORKER), axis_name=WORKER)
    for reducer, wrong in [
        (half, jnp.ones(3, jnp.complex64)),
        (reducers.coordinate_median(WORKER), jnp.ones(3, jnp.complex64)),
        (reducers.local_sgd(WORKER, every_steps=2), jnp.ones(3, jnp.float8_e5m2)),
    ]:
        with pytest.raises(ValueError, match=rf"params\['w'\]: of {wrong.dtype}"):
            reducer.init({"w": wrong})


def test_what_a_reducer_inside_another_one_does_not_take_is_refused_there():
    reducer = reducers.make("stale", delay_steps=1, combine="coordinate_median", axis_name=WORKER)
    one = lambda g: reducer.update(g, reducer.init(1.0))[0]  # noqa: E731
    with pytest.raises(ValueError, match="updates: of complex64, must be of real"):
        jax.vmap(one, axis_name=WORKER)(jnp.ones(8, jnp.complex64))


# ---- strict promotion --------------------------------------------------------------------------------------------


def test_the_tests_run_under_strict_promotion():
    with pytest.raises(jax.dtypes.TypePromotionError):
        jnp.ones(2, jnp.bfloat16) + jnp.ones(2)


@every_row
@pytest.mark.parametrize("dtype", ["float64", "complex64", "int8"])
def test_other_dtypes_are_kept_or_refused(row, dtype):
    with jax.enable_x64(dtype == "float64"):
        reducer = row.make(WORKER)
        gradients = tree_of(8, dtype=dtype)
        mask = {"contributes": np.arange(8) % 3 > 0} if reducer.takes_mask else {}

        def one(g, mask):
            return reducer.update(g, reducer.init(g), g, **row.shared, **mask)[0]

        def result():
            return jax.eval_shape(jax.vmap(one, axis_name=WORKER), gradients, mask)

        if jnp.issubdtype(dtype, getattr(jnp, row.numbers)):
            given, found = (jax.tree.map(lambda x: (x.shape, x.dtype), tree) for tree in (gradients, result()))
            assert found == given
        else:
            with refused(ValueError, rf"(updates|params)\[.+: of {dtype}, must be of "):
                result()


# ---- complex numbers ---------------------------------------------------------------------------------------------

COMPLEX = [case for case in CASES if case.numbers != "floating"]


@pytest.mark.parametrize("case", COMPLEX, ids=[case.name for case in COMPLEX])
def test_complex_numbers_are_combined_as_pairs_of_real_ones(case):
    """The dot product of two gradients is then the real part of the complex one."""
    gradients = tree_of(8, dtype=np.complex64)
    result = reduce(case.make, gradients, extra=extras(case))
    pairs = lambda tree: jax.tree.map(lambda x: np.stack([np.real(x), np.imag(x)], axis=1), tree)  # noqa: E731
    check_against_oracle(case, pairs(result), pairs(gradients), tolerance=2e-6)


def test_norms_and_telemetry_of_complex_gradients_have_their_imaginary_parts():
    gradients = tree_of(8, dtype=np.complex64)["large"]
    pairs = np.stack([gradients.real, gradients.imag], axis=1)
    for make in (
        lambda: reducers.krum(WORKER, telemetry="on"),
        lambda: reducers.adaptive_batch(WORKER, rule={"name": "norm_test"}),
        lambda: reducers.dynamic_backup_workers(WORKER, warmup_steps=1),
        lambda: communication.make("sign", reducer=reducers.mean(WORKER), axis_name=WORKER),
    ):
        reducer = make()

        def states(g, reducer=reducer):
            return reducer.update(g, reducer.init(g), arrival_seconds=jnp.arange(8.0))[1]

        found, expected = (jax.jit(jax.vmap(states, axis_name=WORKER))(g) for g in (gradients, pairs))
        for name, value in reducers.report(expected).metrics.items():
            if name not in ("bits", "compression_error"):  # real numbers are encoded
                np.testing.assert_allclose(reducers.report(found).metrics[name], value, rtol=1e-4, err_msg=name)
        if isinstance(found, tuple) and hasattr(found, "estimates"):
            np.testing.assert_allclose(found.estimates.variance, expected.estimates.variance, rtol=1e-5)


@pytest.mark.parametrize("row", SENDINGS, ids=[row.name for row in SENDINGS])
def test_encodings_send_complex_numbers_and_integers_as_they_are(row):
    if row.name == "half":
        pytest.skip("one scale for all leaves: refused")
    numbers = tree_of(8, dtype=np.complex64)["large"]
    gradients = {"complex": numbers, "count": np.full((8, 2000), 3, np.int32)}
    result = reduce(row.make, gradients)
    np.testing.assert_allclose(result["complex"], np.broadcast_to(numbers.mean(0), numbers.shape), atol=1e-6)
    np.testing.assert_array_equal(result["count"], 3)


# ---- integers ----------------------------------------------------------------------------------------------------


def test_the_mean_of_integers_is_exact_and_rounded_toward_zero():
    def one(g, contributes, weights):
        return reducers.mean(WORKER).update(g, (), contributes=contributes, weights=weights)[0]

    mean = jax.jit(jax.vmap(one, axis_name=WORKER))
    large = 2**24 + 1  # no float32
    lowest = -(2**31)
    highest = 2**31 - 1
    for dtype, numbers, weights, expected in [
        (np.int8, [100, 100, 100, 101], None, 100),
        (np.uint8, [255, 255, 255, 255], None, 255),
        (np.int8, [-1, -1, -1, 0], None, 0),
        (np.int16, [30000, 30000, 30000, 30001], None, 30000),
        (np.int32, [large, large, large, large], None, large),
        (np.uint32, [large, large, large, large], None, large),
        (np.uint32, [3_000_000_000, 1, 0, 0], None, 750_000_000),
        (np.int32, [5, 5, 5], [1, 11, 13], 5),
        (np.int32, [-7, -7, -7], [0.1, 0.7, 1e-7], -7),
        (np.int32, [large, large, large], [3, 1, 1.3], large),
        (np.int32, [lowest, lowest, 1], [11, 13, 0], lowest),
        (np.int32, [highest, highest, highest], [1e-40, 3e-40, 7e-40], highest),
        (np.int32, [1, 4, 7], [5, 5, 5], 4),
        (np.int32, [-1, -4, -2], [1, 1, 1], -2),  # -7 / 3
        (np.int32, [large, large + 2, 0], [1, 1, 0], large + 1),
        (np.int32, [1, 2, 3], [0, 0, 0], 0),
        (np.int32, [1, 2, 3], [1, -1, 1], highest),
        (np.int8, [100, 100, 127], [1, 11, 13], 114),  # 114.04
        (np.int8, [-128, 127, 127], [1, 11, 13], 116),  # 116.8
        (np.uint8, [255, 255, 255], [1, 11, 13], 255),
        (np.uint32, [4_000_000_000, 4_000_000_000, 4_000_000_003], [1, 1, 1], 4_000_000_001),
    ]:
        result = mean(np.array(numbers, dtype), None, None if weights is None else np.float32(weights))
        assert result.dtype == dtype and result.tolist() == [expected] * len(numbers), numbers
    masked = mean(np.array([large, 7, large, large], np.int32), np.array([True, False, True, True]), None)
    assert masked.tolist() == [large] * 4


# ---- gradients of integers ---------------------------------------------------------------------------------------

PARAMS = {"count": np.zeros(4, np.int32), "flag": np.array(True), "w": np.ones((9, 15), np.float32)}


def float0_of(gradient):
    return {"count": np.zeros(4, FLOAT0), "flag": np.zeros((), FLOAT0), "w": gradient}


@pytest.mark.parametrize("row", [*FIRST.values(), *SENDINGS[-2:]], ids=lambda row: row.name)
def test_gradients_of_integers_are_handed_on_as_they_are(row):
    reducer, found = row.make(WORKER), []

    def one(gradient):
        def step(state, _):
            result, state = reducer.update(float0_of(gradient), state, PARAMS, **row.shared)
            found.append(result)
            return state, result["w"]

        return lax.scan(step, reducer.init(PARAMS), None, length=2)

    gradients = np.ones((8, 9, 15), np.float32)
    state, result = jax.eval_shape(jax.vmap(one, axis_name=WORKER), gradients)
    assert result.shape == (8, 2, 9, 15) and result.dtype == np.float32
    assert found[0]["count"].dtype == found[0]["flag"].dtype == FLOAT0
    assert found[0]["count"].shape == (4,)
    drift = reducers.report(state).drift
    if drift is not None:
        own = lambda drift: reducers.own_params(PARAMS, reducers.Report(drift=drift))  # noqa: E731
        moved = jax.eval_shape(jax.vmap(own), drift)
        assert moved["count"].dtype == np.int32 and moved["w"].shape == (8, 9, 15)


def test_a_program_with_parameters_of_integers_trains():
    def loss(params, x):
        return jnp.sum((params["w"] - x) ** 2) * params["count"][0].astype(jnp.float32)

    reducer = reducers.trimmed_mean(WORKER)

    def one(x):
        params = {"count": jnp.full(4, 2), "w": jnp.zeros(3)}
        gradient = jax.grad(loss, allow_int=True)(params, x)
        result = reducer.update(gradient, reducer.init(params), params)[0]
        assert result["count"].dtype == FLOAT0
        return result["w"]

    x = np.ones((4, 3), np.float32)
    np.testing.assert_allclose(jax.vmap(one, axis_name=WORKER)(x), -4 * x, rtol=1e-6)


# ---- float64 -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", FIRST.values(), ids=FIRST)
def test_numbers_of_64_bits_keep_them(case):
    if case.name == "geometric_median" or case.local_workers != "never":
        pytest.skip("an iteration that ends within float32; nothing is due at first")
    with jax.enable_x64(True):
        gradients = tree_of(8, dtype=np.float64)
        check_against_oracle(case, reduce(case.make, gradients, extra=extras(case)), gradients, tolerance=1e-12)
