import itertools

import numpy as np
import pytest

from data.example_order import ExampleOrder, shuffled_pass

SIZES = [(1, 1), (1, 5), (7, 1), (7, 3), (7, 7), (7, 20), (64, 16), (100, 33)]


def assert_order(indices, *, num_examples, batch_size):
    """The law: whole passes one after another, each example once in each, no pass like the one before."""
    num_batches = 3 * num_examples  # exactly 3 * batch_size passes
    stream = indices(0, num_batches=num_batches)
    assert stream.shape == (num_batches, batch_size) and stream.dtype == np.int32
    passes = stream.reshape(-1, num_examples)
    np.testing.assert_array_equal(np.sort(passes, axis=1), np.tile(np.arange(num_examples), (3 * batch_size, 1)))
    if num_examples > 50:
        assert all((a != b).any() for a, b in itertools.pairwise(passes))


@pytest.mark.parametrize(("num_examples", "batch_size"), SIZES)
def test_every_example_once_per_pass(num_examples, batch_size):
    order = ExampleOrder(num_examples=num_examples, batch_size=batch_size, seed=3)
    assert_order(order.indices, num_examples=num_examples, batch_size=batch_size)


def with_replacement(first_batch_index, *, num_batches):
    return np.random.default_rng(first_batch_index).integers(0, 64, (num_batches, 16), dtype=np.int32)


def same_pass_again(first_batch_index, *, num_batches):
    return np.resize(shuffled_pass(0, num_examples=64, seed=0), (num_batches, 16))


def drops_the_rest(first_batch_index, *, num_batches):
    passes = [shuffled_pass(p, num_examples=64, seed=0)[: 64 // 15 * 15] for p in range(num_batches)]
    return np.resize(np.concatenate(passes), (num_batches, 15))


@pytest.mark.parametrize(("wrong", "batch_size"), [(with_replacement, 16), (same_pass_again, 16), (drops_the_rest, 15)])
def test_the_law_rejects(wrong, batch_size):
    with pytest.raises(AssertionError):
        assert_order(wrong, num_examples=64, batch_size=batch_size)


@pytest.mark.parametrize(("num_examples", "batch_size"), SIZES)
def test_batches_do_not_depend_on_how_they_are_asked_for(num_examples, batch_size):
    rng = np.random.default_rng(0)
    whole = ExampleOrder(num_examples=num_examples, batch_size=batch_size, seed=1).indices(0, num_batches=60)
    order = ExampleOrder(num_examples=num_examples, batch_size=batch_size, seed=1)
    for first, count in zip(rng.integers(0, 50, 20), rng.integers(1, 11, 20), strict=True):  # in any order
        np.testing.assert_array_equal(order.indices(first, num_batches=count), whole[first : first + count])


def test_what_is_handed_out_may_be_changed():
    order = ExampleOrder(num_examples=8, batch_size=4, seed=0)
    before = order.indices(0, num_batches=1).copy()
    order.indices(0, num_batches=1)[:] = 0
    np.testing.assert_array_equal(order.indices(0, num_batches=1), before)


@pytest.mark.parametrize("first_batch_index", [2**31, 2**40, np.int64(2**60), 2**63])
def test_batch_indices_of_any_size(first_batch_index):
    order = ExampleOrder(num_examples=7, batch_size=3, seed=0)
    number, start = divmod(int(first_batch_index) * 3, 7)
    stream = np.concatenate([shuffled_pass(p, num_examples=7, seed=0) for p in (number, number + 1)])
    np.testing.assert_array_equal(order.indices(first_batch_index, num_batches=2).ravel(), stream[start : start + 6])


def test_seeds_and_passes_have_orders_of_their_own():
    orders = {tuple(shuffled_pass(p, num_examples=20, seed=s)) for p in range(5) for s in (0, 1, 2, 2**64 - 1)}
    assert len(orders) == 20


def test_places_are_uniform():
    passes = np.stack([shuffled_pass(p, num_examples=8, seed=0) for p in range(2000)])
    counts = np.stack([np.bincount(column, minlength=8) for column in passes.T])  # expected 250, sigma 15
    assert abs(counts - 250).max() < 75


def test_golden():
    """The order that published runs rest on: the same under every NumPy, Python and machine."""
    assert shuffled_pass(0, num_examples=10, seed=0).tolist() == [0, 2, 9, 1, 8, 5, 4, 3, 6, 7]
    assert shuffled_pass(1, num_examples=10, seed=42).tolist() == [4, 9, 5, 3, 0, 2, 7, 1, 6, 8]


def test_examples_that_32_bits_do_not_number_are_refused():
    with pytest.raises(ValueError, match="num_examples=2147483648: must be below"):
        ExampleOrder(num_examples=2**31, batch_size=2, seed=0)
