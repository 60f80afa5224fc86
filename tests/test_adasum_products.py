"""Dot products of all pairs of long vectors: slice by slice they are what they are at once, and nothing is copied."""

import jax
import numpy as np
import pytest
from jax import numpy as jnp

from reducers.adasum import Tree, adasum, fold, pair
from reducers.collectives import backend
from tests.gram_oracles import gaussian


def lowered(function, *args):
    """Lowers a new function: JAX keeps the trace of an old one, whatever the length of a slice was then."""
    return jax.jit(lambda *args: function(*args)).lower(*args)


def in_float64(rows):
    rows = np.asarray(rows, np.float64)
    return rows @ rows.transpose(0, 2, 1)


@pytest.mark.parametrize("length", [32, 33, 39, 40, 1000])  # 8 numbers of a vector in a slice: from 17 on in slices
@pytest.mark.parametrize(("num_layers", "num_vectors"), [(1, 2), (3, 2), (2, 5)])
def test_slices_add_up(num_layers, num_vectors, length, monkeypatch):
    monkeypatch.setattr(backend, "SLICE_BYTES", 32 * num_vectors)
    rows = gaussian(num_layers, num_vectors, length)
    multiply = lowered(backend.dot_products, rows)
    assert "while" in multiply.as_text()
    np.testing.assert_allclose(multiply.compile()(rows), in_float64(rows), rtol=1e-5, atol=1e-5 * np.sqrt(length))


def test_what_is_short_is_multiplied_at_once(monkeypatch):
    monkeypatch.setattr(backend, "SLICE_BYTES", 32 * 2)
    rows = gaussian(3, 2, 16)
    multiply = lowered(backend.dot_products, rows)
    assert "while" not in multiply.as_text()
    np.testing.assert_allclose(multiply.compile()(rows), in_float64(rows), rtol=1e-5)


def test_a_nan_stays_in_its_layer_and_vector(monkeypatch):
    monkeypatch.setattr(backend, "SLICE_BYTES", 32 * 2)
    rows = gaussian(2, 2, 100)
    rows[1, 0, 99] = np.nan
    isnan = np.isnan(lowered(backend.dot_products, rows).compile()(rows))
    np.testing.assert_array_equal(isnan, [[[False, False], [False, False]], [[True, True], [True, False]]])


def test_under_vmap(monkeypatch):
    monkeypatch.setattr(backend, "SLICE_BYTES", 32 * 2)
    rows = gaussian(3, 2, 2, 50)
    found = jax.vmap(lambda rows: backend.dot_products(rows))(rows)
    np.testing.assert_allclose(found, [in_float64(r) for r in rows], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("num_lanes", [8, 24])
def test_adasum_of_slices_is_adasum(num_lanes, monkeypatch):
    grads = gaussian(num_lanes, 5000)
    tree = fold(pair, jnp.asarray(grads), Tree(num_lanes))
    monkeypatch.setattr(backend, "SLICE_BYTES", 1000)
    reducer = adasum("lane")
    reduce = lowered(jax.vmap(lambda g: reducer.update(g, reducer.init(g))[0], axis_name="lane"), grads)
    assert "while" in reduce.as_text()
    np.testing.assert_allclose(reduce.compile()(grads), np.broadcast_to(tree, grads.shape), atol=1e-5)


def test_slices_are_not_copies_of_all():
    shape = jax.ShapeDtypeStruct((2, 8, 5 * backend.SLICE_BYTES // 32), jnp.float32)
    memory = lowered(backend.dot_products, shape).compile().memory_analysis()
    assert memory.argument_size_in_bytes == 10 * backend.SLICE_BYTES
    assert memory.temp_size_in_bytes < 3 * backend.SLICE_BYTES
