"""Waves against one gradient at a time, over layouts, rules and options; each with something wrong that is rejected."""

import functools

import jax
import numpy as np
import optax
import pytest
from jax import numpy as jnp

import asynchronous
from parallel import Layout
from reducers.dtypes import mixing_dtypes
from tests import async_toy as toy
from tests.stepper import largest_difference, same_bits

NUM_EVENTS = 60
MOMENTUM = toy.MOMENTUM


@functools.cache
def trace():
    """Seconds[task, worker]: one worker takes ten times as long as the others."""
    seconds = np.random.default_rng(5).lognormal(0.0, 0.4, (120, 8))
    seconds[:, 2] *= 10
    return toy.from_table(seconds)


def ordered(num_events=NUM_EVENTS, **options):
    """The waves of a run, and its only piece."""
    order = functools.partial(asynchronous.order, trace(), num_workers=8, num_events=num_events, **options)
    return list(asynchronous.waves(order(), num_workers=8)), next(order())


def both(rule=toy.PLAIN, gradients_per_update=1, **options):
    """The same run in waves and one at a time."""
    waves, (events, reads) = ordered(gradients_per_update=gradients_per_update, **options)
    given = {"rule": rule, "optimizer": MOMENTUM, "gradients_per_update": gradients_per_update}
    layout = Layout.of(8, num_devices=2)
    return toy.run_waves(waves, layout=layout, **given), toy.simulate(events, reads, num_workers=8, **given)


# ---- waves equal one at a time -----------------------------------------------------------------------------------


@functools.cache
def plain():
    """With momentum and nothing else, on 2 devices with vmapped lanes."""
    return both()


@pytest.mark.parametrize(
    ("num_devices", "lanes", "mapping"),
    [
        (4, "vmap", "pmap"),
        (1, "dispatched", "shard_map"),
        (2, 1, "shard_map"),
        (2, 3, "pmap"),
        (8, "vmap", "pmap"),
        (4, "vmap", "shard_map"),
        (1, "vmap", "pmap"),
    ],
)
def test_waves_equal_one_at_a_time_on_every_layout(num_devices, lanes, mapping):
    """Also lane after lane, and in groups of three: idle workers have a gradient of NaN, which reaches nothing."""
    waves, (events, reads) = ordered()
    expected = toy.simulate(events, reads, num_workers=8, optimizer=MOMENTUM)
    layout = Layout.of(8, num_devices=num_devices)
    found = toy.run_waves(waves, layout=layout, optimizer=MOMENTUM, mapping=mapping, lanes=lanes)
    assert largest_difference(found, expected) < 1e-6
    assert found[1] == NUM_EVENTS


@pytest.mark.parametrize("mapping", ["pmap", "shard_map"])
def test_a_process_whose_workers_are_all_idle_in_its_first_wave(mapping):
    """It is idle in a wave in which another process has work; here a wave without any work stands for its part."""
    waves, _ = ordered(num_events=12)
    nothing = waves[0].slots._replace(position=np.full(8, -1, np.int32), reads_after=np.zeros(8, np.int32))
    idle = waves[0]._replace(events=jax.tree.map(lambda column: column[:0], waves[0].events), slots=nothing)
    options = {"layout": Layout.of(8, num_devices=2), "mapping": mapping, "lanes": "dispatched"}
    expected = toy.run_waves(waves, **options)
    toy.compiled.cache_clear()  # the step makes its zeros once
    assert same_bits(toy.run_waves([idle, *waves], **options), expected)


@pytest.mark.parametrize("wrong", ["order", "snapshot", "read late"])
def test_one_at_a_time_rejects(wrong):
    """The gradients of a wave in another order, at the present parameters, and snapshots of the wave's end."""
    waves, (events, reads) = ordered()
    expected = toy.simulate(events, reads, num_workers=8, optimizer=MOMENTUM)

    def spoil(slots):
        active = slots.position >= 0
        if wrong == "order":
            return slots._replace(position=np.where(active, active.sum() - 1 - slots.position, -1).astype(np.int32))
        if wrong == "read late":
            return slots._replace(reads_after=np.where(slots.reads_after, active.sum(), 0).astype(np.int32))
        return slots._replace(reads_after=np.full(8, active.sum(), np.int32))

    waves = [wave._replace(slots=spoil(wave.slots)) for wave in waves]
    found = toy.run_waves(waves, layout=Layout.of(8, num_devices=2), optimizer=MOMENTUM)
    assert largest_difference(found[0], expected[0]) > 1e-5


# ---- options and rules -------------------------------------------------------------------------------------------


RULES = {
    "adaptive_delay_compensation": {"strength": 0.5},
    "delay_adaptive": {"bound": 2.0},
    "delay_compensation": {"strength": 0.5},
    "inverse": {},
    "inverse_sqrt": {},
    "none": {},
    "threshold": {"max_staleness": 7},
}


def test_every_rule_is_tried():
    assert set(RULES) == set(asynchronous.RULES)


@functools.cache
def rule_of(name):
    return asynchronous.make(name, **RULES[name])


OPTIONS = {
    "staleness_bound": {"staleness_bound": 2},
    **{name: {"rule": rule_of(name)} for name in RULES},
    **{
        f"{name} of 3": {"rule": rule_of(name), "gradients_per_update": 3}
        for name in ("none", "threshold", "delay_compensation", "inverse")
    },
}


@pytest.mark.parametrize("name", OPTIONS)
def test_options_and_rules_equal_one_at_a_time(name):
    found, expected = both(**OPTIONS[name])
    assert largest_difference(found, expected) < 1e-6
    assert found[1] == NUM_EVENTS // OPTIONS[name].get("gradients_per_update", 1)
    assert name == "none" or largest_difference(found[0], plain()[0][0]) > 1e-5


@pytest.mark.parametrize("name", ["adaptive_delay_compensation", "delay_compensation"])
def test_compensation_of_strength_0_is_plain(name):
    found, _ = both(asynchronous.make(name, strength=0.0))
    some, _ = both(rule_of(name))
    assert same_bits(found, plain()[0])
    assert not same_bits(some, plain()[0])


@pytest.mark.parametrize("optimizer", [MOMENTUM, optax.adam(0.01)], ids=["momentum", "adam"])
def test_a_rate_is_of_the_step_and_a_dropped_gradient_leaves_no_trace(optimizer):
    params = {"w": jnp.array([1.0, -2.0])}
    update = mixing_dtypes(optimizer.update)
    state = update({"w": jnp.array([0.3, 0.1])}, optimizer.init(params), params)[1]
    gradient = {"w": jnp.array([0.5, -0.5])}

    def at_rate(rate, gradient=gradient):
        return asynchronous.at_rate(rate, *update(gradient, state, params), before=state)

    whole, _ = at_rate(None)
    half, _ = at_rate(jnp.array(0.5))
    np.testing.assert_allclose(half["w"], whole["w"] / 2, atol=1e-6)
    nan = {"w": jnp.full(2, jnp.nan)}
    dropped = at_rate(jnp.array(0.0), nan)
    assert same_bits(dropped, ({"w": jnp.zeros(2)}, state))
    assert not same_bits(at_rate(jnp.array(0.1))[1], state)


def rate(name, staleness, **options):
    rule = asynchronous.make(name, **options)
    _, rate, _ = rule.apply(1.0, rule.init(1.0), staleness=jnp.array(staleness), num_workers=8, params=None, read=None)
    return 1.0 if rate is None else float(rate)


@pytest.mark.parametrize(
    ("name", "options", "expected"),  # at staleness 0, 1, 4, 8, 9, 16
    [
        ("none", {}, [1, 1, 1, 1, 1, 1]),
        ("inverse", {}, [1, 1, 1 / 4, 1 / 8, 1 / 9, 1 / 16]),
        ("inverse_sqrt", {}, [1, 1, 1 / 2, 8**-0.5, 1 / 3, 1 / 4]),
        ("threshold", {"max_staleness": 4}, [1, 1, 1, 0, 0, 0]),
        ("delay_adaptive", {}, [1, 1, 1, 1, 1 / 9, 1 / 16]),
        ("delay_adaptive", {"bound": 8.0}, [1, 1, 1, 1, 8 / 9, 8 / 16]),
        ("delay_adaptive", {"bound": 0.0}, [1, 1, 1, 1, 0, 0]),
    ],
)
def test_rates_by_hand(name, options, expected):
    np.testing.assert_allclose([rate(name, staleness, **options) for staleness in (0, 1, 4, 8, 9, 16)], expected)


def test_adaptive_compensation_by_hand():
    rule = asynchronous.make("adaptive_delay_compensation", strength=2.0, decay=0.5, epsilon=1e-7)
    state = rule.init(jnp.zeros(()))
    gradient, _, state = rule.apply(jnp.array(2.0), state, params=jnp.array(3.0), read=lambda: jnp.array(2.5))
    assert float(state) == 2.0  # half of 2 x 2
    np.testing.assert_allclose(gradient, 2.0 + 2.0 / np.sqrt(2.0 + 1e-7) * 4.0 * 0.5, rtol=1e-6)


def test_a_rate_that_a_rule_does_not_declare_is_refused():
    rule = asynchronous.Rule(optax.init_empty_state, lambda gradient, state, **others: (gradient, 0.5, state))
    with pytest.raises(ValueError, match=r"rule: returned a rate.*rates='any'"):
        both(rule)
