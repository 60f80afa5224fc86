"""Elastic averaging: a loop in float64, its two limits, and the strength beyond which the centre overshoots."""

import numpy as np
import pytest
from jax import numpy as jnp

import reducers
from tests.softmax_digits import Digits, own_params, stepper_of
from tests.stepper import same_bits

STEPS = 50


def stepper_with(*, every_steps, strength, **chosen):
    block = (f"--config.reducer.every_steps={every_steps}", f"--config.reducer.strength={strength}")
    return stepper_of("--config.reducer.name=elastic_averaging", *block, **chosen)


def easgd(digits, *, every, strength):
    """The authors' order: the difference is taken before the local step, and subtracted after it."""
    z = digits.start
    xs = np.tile(z, (8, 1))
    for step in range(STEPS):
        pulled = strength * (xs - z) if step % every == 0 else np.zeros_like(xs)
        xs = xs + digits.updates(xs, step) - pulled
        z = z + pulled.sum(0)
    return xs, z


@pytest.mark.parametrize(("every", "strength", "num_devices"), [(1, 0.05, 2), (4, 0.125, 8), (3, 0.1, 1)])
def test_agrees_with_a_loop_in_float64(every, strength, num_devices):
    stepper = stepper_with(every_steps=every, strength=strength, num_devices=num_devices)
    expected = easgd(Digits(stepper), every=every, strength=strength)
    for found, wanted in zip(own_params(stepper.steps(0, STEPS)), expected, strict=True):
        np.testing.assert_allclose(found, wanted, atol=1e-6)


def test_between_meetings_the_centre_stays():
    stepper = stepper_with(every_steps=4, strength=0.1).steps(0, 5)
    before = stepper.params()
    assert same_bits(stepper.steps(5, 8).params(), before) and stepper.metrics["communications"] == 0
    assert not same_bits(stepper.steps(8, 9).params(), before) and stepper.metrics["communications"] == 1


def test_a_strength_with_which_the_centre_overshoots_is_refused():
    reducer = reducers.elastic_averaging("worker", every_steps=1, strength=0.2)
    with pytest.raises(ValueError, match=r"^strength=0.2: must be at most 1 / num_workers, 0.125 of 8 workers"):
        reducers.traffic(reducer, jnp.zeros(3), axis_sizes={"worker": 8})
