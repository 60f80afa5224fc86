"""Wrong calls of the package, each answered by one line that names the key, the value, and what to do."""

import re

import jax
import numpy as np
import optax
import pytest
from jax import numpy as jnp
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import reducers
from reducers.dtypes import mixing_dtypes
from tests.cases import FIRST
from tests.refused import refused
from tests.test_reducers import WORKER, every_case

SECONDS = {"arrival_seconds": jnp.arange(8.0)}


def refusal_of(kind, call) -> str:
    with pytest.raises(kind) as refusal:
        call()
    (line,) = str(refusal.value).splitlines()
    return line


def update(reducer, *, lift=lambda one: one, **needs):
    """Calls a reducer's update where the axis may be bound or not."""
    return lift(lambda g: reducer.update(g, reducer.init(g), **needs)[0])


def vmapped(one, *, axis_name=WORKER):
    return jax.vmap(one, axis_name=axis_name)


# ---- axes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", FIRST.values(), ids=lambda case: case.name)
def test_no_axis(case):
    reducer = case.make(axis_name=WORKER)
    for call in (update(reducer, **case.shared), jax.jit(update(reducer, **case.shared))):
        line = refusal_of(NameError, lambda call=call: call(jnp.ones(3)))
        assert line.startswith("axis_name='worker': ")
        assert all(cure in line for cure in ("jax.pmap", "jax.shard_map", "jax.vmap"))


@pytest.mark.parametrize("lift", ["pmap", "shard_map", "vmap"])
def test_another_axis(lift):
    reducer = reducers.mean("wroker")
    mesh = jax.make_mesh((8,), (WORKER,), axis_types=(AxisType.Auto,))
    mapped = {
        "pmap": jax.pmap(update(reducer), axis_name=WORKER),
        "shard_map": jax.shard_map(update(reducer), mesh=mesh, in_specs=P(WORKER), out_specs=P()),
        "vmap": update(reducer, lift=vmapped),
    }[lift]
    line = refusal_of(NameError, lambda: mapped(jnp.ones(8)))
    assert "axis_name='wroker'" in line
    assert ("'worker'" in line) == (lift != "vmap")  # JAX names the axes that are bound only under a mesh


def test_one_of_two_axes():
    reducer = reducers.mean(("device", "lane"))
    assert "axis_name='device'" in refusal_of(
        NameError, lambda: update(reducer, lift=lambda f: vmapped(f, axis_name="lane"))(jnp.ones(8))
    )


# ---- arrivals ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name, case in FIRST.items() if case.needs_arrivals])
def test_forgotten_arrival_seconds(name):
    reducer = FIRST[name].make(axis_name=WORKER)
    for transformation in (reducer, optax.chain(reducer, optax.sgd(0.1)), reducers.apply_if_finite(reducer, WORKER, 1)):
        for needs in ({}, {"arrival_seconds": None}):
            call = update(transformation, lift=vmapped, **needs)
            assert "arrival_seconds: missing" in refusal_of(TypeError, lambda call=call: call(jnp.ones(8)))


# Reducers inside others; each makes one over the workers.
AROUND = {
    "apply_if_finite": lambda: reducers.apply_if_finite(reducers.mean(WORKER), WORKER, 1),
    "chain": lambda: reducers.chain(optax.clip(1.0), reducers.sum(WORKER)),
    "half": lambda: reducers.in_half_precision(reducers.mean(WORKER), axis_name=WORKER),
    "encoded": lambda: reducers.encoded(reducers.krum(WORKER), reducers.encodings.sign(), axis_name=WORKER),
    "optax": lambda: optax.chain(reducers.mean(WORKER), optax.sgd(1.0)),
    "own_rule": lambda: reducers.from_gram(WORKER, lambda products: products.scales),
    "stale": lambda: reducers.stale(WORKER, delay_steps=1, combine=reducers.adasum(WORKER)),
}
MADE = {name: (lambda case=case: case.make(axis_name=WORKER)) for name, case in FIRST.items()} | AROUND
NO_MASK = [10, 0, 1.0, np.int32(1), jnp.float32(1), jnp.ones(8), np.ones(8, bool), np.ones(1, bool), [True], "yes"]


@pytest.mark.parametrize("name", MADE)
def test_numbers_in_the_place_of_a_mask(name):
    shared = FIRST[name].shared if name in FIRST else {}
    reducer = MADE[name]()
    takes_mask = getattr(reducer, "takes_mask", True)  # a chain of optax knows nothing of the reducer in it
    says = r"contributes=.*must be a bool of this worker" if takes_mask else "^contributes: this reducer takes no mask"
    for wrong in NO_MASK:
        call = update(reducer, lift=vmapped, contributes=wrong, **shared)
        line = refusal_of(ValueError, lambda call=call: call(np.ones((8, 3), np.float32)))
        assert re.search(says, line), line


def test_a_weight_of_each_worker_is_no_mask_and_a_bool_is_whatever_it_is_made_of():
    gradients = jnp.array([1.0, 3.0, 5.0])
    mean = lambda g, mask: reducers.mean(WORKER).update(g, (), contributes=mask)[0]  # noqa: E731
    line = refusal_of(ValueError, lambda: jax.jit(vmapped(mean))(gradients, jnp.array([10, 10, 20])))
    assert "contributes=" in line and "int32" in line
    for mask in (None, True, np.True_, np.array(True), jnp.array(True)):
        np.testing.assert_allclose(vmapped(lambda g, mask=mask: mean(g, mask))(gradients), 3)
    np.testing.assert_allclose(vmapped(mean)(gradients, np.array([True, False, True])), 3)


TIMED = [*(name for name, case in FIRST.items() if case.needs_arrivals), "gossip", "local_sgd", "elastic_averaging"]
TIMES = [
    (np.arange(7.0), "of shape [7], must be of num_workers=8"),
    (np.arange(9), "of shape [9]"),
    (1.0, "of shape []"),
    (np.ones((2, 2, 8)), "of shape [2, 2, 8]"),
    (-np.arange(8.0), "must be seconds from 0 on"),
    (np.full(8, np.nan), "must be seconds from 0 on"),
    (np.ones(8, bool), "must be seconds, not bool"),
    (np.ones(8, complex), "must be seconds, not complex64"),
]


@pytest.mark.parametrize("name", [*TIMED, "adaptive_batch"])
def test_arrival_seconds_that_are_none(name):
    for wrong, told in TIMES:
        call = update(MADE[name](), lift=vmapped, arrival_seconds=wrong)
        line = refusal_of(ValueError, lambda call=call: call(np.ones((8, 3), np.float32)))
        assert line.startswith("arrival_seconds") and told in line


@pytest.mark.parametrize("name", TIMED)
def test_whole_seconds_and_those_of_a_worker_that_never_arrives(name):
    for right in (list(range(8)), np.arange(8, dtype=np.uint8), np.array([np.inf, *range(7)])):
        jax.eval_shape(update(MADE[name](), lift=vmapped, arrival_seconds=right), np.ones((8, 3), np.float32))


# ---- options -----------------------------------------------------------------------------------------------------

WRONG = [
    (lambda: reducers.adacons(WORKER, momentum="x"), "momentum='x': must be float in [0, 1)"),
    (lambda: reducers.adacons(WORKER, momentum=1), "momentum=1: must be float in [0, 1)"),
    (lambda: reducers.adacons(WORKER, momentum=np.float32(1.5)), "momentum=np.float32(1.5): must be float"),
    (lambda: reducers.adacons(WORKER, momentum=jnp.float32(1.5)), "momentum=Array(1.5"),
    (lambda: reducers.adacons(WORKER, momentum=np.zeros((9, 9))), "momentum=array("),
    (lambda: reducers.adasum(WORKER, group_size=1.5), "group_size=1.5: must be int in [1, inf)"),
    (lambda: reducers.adasum(WORKER, granularity=3), "granularity=3: must be str"),
    (lambda: reducers.adasum(WORKER, within="median"), "within='median': must be one of 'mean', 'sum', 'adasum'"),
    (lambda: reducers.adasum(WORKER, telemetry=True), "telemetry=True: must be one of 'off', 'on'"),
    (lambda: reducers.backup_workers(WORKER, num_required=True), "num_required=True: must be int in [1, inf)"),
    (lambda: reducers.deadline(WORKER, deadline_seconds="2"), "deadline_seconds='2': must be float in (0, inf)"),
    (lambda: reducers.dynamic_backup_workers(WORKER, min_required=0), "min_required=0: must be int in [1, inf)"),
    (lambda: reducers.quorum(WORKER, num_required=1.0), "num_required=1.0: must be int in [1, inf)"),
    (lambda: reducers.stale(WORKER, delay_steps=[1]), "delay_steps=[1]: must be int in [0, 16777216]"),
    (lambda: reducers.stale(WORKER, delay_steps=1, law="normal"), "law='normal': must be one of 'fixed', "),
    (lambda: reducers.trimmed_mean(WORKER, num_trimmed="1"), "num_trimmed='1': must be int in [0, inf)"),
    (
        lambda: reducers.apply_if_finite(reducers.mean(WORKER), WORKER, -1),
        "max_consecutive_errors=-1: must be int in [",
    ),
    (
        lambda: reducers.in_half_precision(reducers.mean(WORKER), axis_name=WORKER, dtype="float8"),
        "dtype='float8': must be one of 'float16', 'bfloat16'",
    ),
    # a function in the place of what it returns
    (
        lambda: reducers.backup_workers(WORKER, num_required=6, combine=reducers.adasum),
        "combine=adasum: must be an optax",
    ),
    (lambda: reducers.deadline(WORKER, deadline_seconds=1, combine=reducers.mean), "call it: mean(...)"),
    (lambda: reducers.stale(WORKER, delay_steps=1, combine=lambda axis: axis), "combine=<lambda>: must be an optax"),
    (lambda: reducers.stale(WORKER, delay_steps=1, combine="mean"), "combine='mean': must be an optax transformation"),
    (lambda: reducers.apply_if_finite(reducers.mean, WORKER, 3), "inner=mean: must be an optax transformation"),
    (lambda: reducers.in_half_precision(reducers.mean, axis_name=WORKER), "reducer=mean: must be an optax"),
    (lambda: reducers.chain(reducers.mean(WORKER), optax.sgd), "transformations[1]=sgd: must be an optax"),
    (lambda: reducers.make("stale", axis_name=WORKER, delay_steps=1, combine=reducers.mean), "combine=<function mean"),
]


@pytest.mark.parametrize("number", range(len(WRONG)))
def test_wrong_options(number):
    call, message = WRONG[number]
    assert message in refusal_of(ValueError, call)


def in_half(reducer):
    return reducers.in_half_precision(reducer, axis_name=WORKER)


REFUSED = [
    (
        "backup_workers",
        {"num_required": 2, "combine": "maen"},
        "combine.name='maen': unknown name; did you mean 'mean'",
    ),
    ("backup_workers", {"num_required": 2, "combine": 3}, "combine=3: must be a block"),
    (
        "backup_workers",
        {"num_required": 2, "combine": optax.identity()},
        "combine: must be a reducer that takes a mask",
    ),
    ("backup_workers", {"num_required": 2, "combine": {"name": "mean", "nmae": 1}}, "combine.nmae: unknown key"),
    (
        "stale",
        {"delay_steps": 1, "combine": {"name": "deadline", "deadline_seconds": 1.0, "combine": "adasm"}},
        "combine.combine.name='adasm': unknown name; did you mean 'adasum'",
    ),
    ("backup_workers", {"num_required": 2, "combine": "quorum"}, "combine.num_required: missing"),
    ("backup_workers", {"num_required": 2, "combine": {"name": "quorum", "num_required": 2}}, "combine: must be"),
    ("backup_workers", {"num_required": 2, "combine": "k_batch"}, "combine.name='k_batch': is backup_workers now"),
    ("backup_workers", {"num_required": 2, "combine": {"num_trimmed": 2}}, "combine.name: missing"),
    (
        "deadline",
        {"deadline_seconds": 1.0, "combine": {"name": "trimmed_mean", "num_trimmed": -1}},
        r"combine.num_trimmed=-1: must be int in \[0, inf\)",
    ),
    ("deadline", {"deadline_seconds": 0.0}, "deadline_seconds=0.0"),
    ("dynamic_backup_workers", {"decay": 1.0}, r"decay=1.0: must be float in \[0, 1\)"),
    ("stale", {"delay_steps": 4, "max_delay_steps": 3}, "delay_steps=4: exceeds max_delay_steps=3"),
    ("maen", {}, "name='maen': unknown name; did you mean 'mean'"),
    ("mean", {"unheard_of": 1}, "unheard_of: unknown key; allowed: none"),
    ("adacons", {"momentum": float("nan")}, r"momentum=nan: must be float in \[0, 1\)$"),
    ("adasum", {"granularity": "Block_("}, r"granularity='Block_\('"),
    ("adasum", {"algorithm": "butterfly"}, "algorithm='butterfly': must be one of 'gram', 'halving', 'gather'"),
    (
        "adasum",
        {"algorithm": "halving", "telemetry": "on"},
        "algorithm='halving': must be one of 'gram', 'gather' with telemetry",
    ),
    ("elastic_averaging", {"every_steps": 1, "strength": 0.0}, r"strength=0.0: must be float in \(0, 1\] or None$"),
    ("local_sgd", {"every_steps": 0}, r"every_steps=0: must be int in \[1, inf\) or a tuple of int in \[1, inf\)$"),
    ("local_sgd", {"every_steps": 2, "delay_steps": 3}, "delay_steps=3: exceeds every_steps=2$"),
    ("local_sgd", {"every_steps": 2, "fragments": 3}, "fragments=3: exceeds every_steps=2$"),
    ("local_sgd", {"every_steps": 2, "fragments": 0}, r"fragments=0: must be int in \[1, inf\)$"),
    ("local_sgd", {"every_steps": 2, "mix": 1.0}, r"mix=1.0: must be float in \[0, 1\) or None$"),
    (
        "local_sgd",
        {"every_steps": 2, "delay_steps": 2, "mix": 0.0},
        "delay_steps=2: must be below every_steps=2 with mix=0, which would drop the progress of each round as it is "
        "launched$",
    ),
    (
        "local_sgd",
        {"every_steps": 2, "delay_steps": 1, "combine": {"name": "backup_workers", "num_required": 2}},
        "delay_steps=1: must be 0 where combine leaves workers out$",
    ),
    (
        "stale",
        {"delay_steps": 1, "combine": {"name": "local_sgd", "every_steps": 2}},
        "combine: must emit every update; a reducer of local workers has to be the outermost$",
    ),
    (
        "local_sgd",
        {"every_steps": 2, "combine": {"name": "stale", "delay_steps": 1}, "encode": in_half},
        "combine: both delays updates and may overflow, .* communication.name=full$",
    ),
    (
        "adaptive_batch",
        {
            "rule": {"name": "fixed", "every_steps": 2},
            "combine": {"name": "stale", "delay_steps": 1},
            "encode": in_half,
        },
        "combine: both delays updates and may overflow",
    ),
    (
        "adaptive_batch",
        {"rule": {"name": "fixed", "every_steps": 5}, "max_steps": 2},
        "max_steps=2: must be at least 5, with which the rule begins",
    ),
    (
        "adaptive_batch",
        {"rule": {"name": "norm_tset"}},
        "rule.name='norm_tset': unknown name; did you mean 'norm_test'?",
    ),
    ("adaptive_batch", {"rule": {"name": "norm_test", "theta": 0.0}}, r"rule.theta=0.0: must be float in \(0, inf\)"),
    (
        "adaptive_batch",
        {"rule": {"name": "two_scale", "mu": 1.0}},
        "rule.mu=1.0, smoothness=None: give both or neither",
    ),
    (
        "adaptive_batch",
        {"rule": {"name": "two_scale", "mu": 2.0, "smoothness": 1.0}},
        "rule.mu=2.0: must be below smoothness=1.0",
    ),
]


@pytest.mark.parametrize(("name", "options", "message"), REFUSED)
def test_wrong_options_of_a_block(name, options, message):
    with refused(ValueError, f"^{message}"):
        reducers.make(name, axis_name=WORKER, **options)


@every_case
def test_numbers_of_numpy_and_jax_are_numbers(case):
    """An option of a call may be a scalar array; those that shape the program are Python's or NumPy's."""
    numbers = {key: np.array(value)[()] for key, value in case.kwargs.items() if not isinstance(value, str)}
    inner = {key: reducers.make(case.kwargs[key], axis_name=WORKER) for key in case.kwargs.keys() & {"combine"}}
    reducer = reducers.REDUCERS[case.name](WORKER, **{**case.kwargs, **numbers, **inner})
    result = jax.eval_shape(update(reducer, lift=vmapped, **case.shared), jnp.ones((8, 3)))
    assert (result.shape, result.dtype) == ((8, 3), jnp.float32)


def test_a_transformation_that_is_no_named_tuple_will_do():
    steps = optax.MultiSteps(optax.sgd(1.0), every_k_schedule=1)
    reducer = reducers.chain(reducers.mean(WORKER), steps)
    assert mixing_dtypes(update(reducer, lift=vmapped))(jnp.arange(8.0)).tolist() == [-3.5] * 8
