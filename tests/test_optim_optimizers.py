"""Optimizers by name: the schema a config sees, the checks, and the arithmetic against NumPy."""

import inspect
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from ml_collections import ConfigDict

from optim import optimizers, schedules
from reducers import registry
from reducers.dtypes import mixing_dtypes
from tests.refused import refused


def constant(value):
    return lambda step: jnp.full_like(step, value, dtype=jnp.float32)


def tree(seed=0):
    rng = np.random.default_rng(seed)
    return {"kernel": rng.normal(size=(3, 2)).astype(np.float32), "bias": rng.normal(size=(2,)).astype(np.float32)}


def first_update(block, *, rate=None, params=None, grads=None):
    params, grads = params or tree(0), grads or tree(1)
    optimizer = optimizers.make(block, learning_rate=constant(block["learning_rate"] if rate is None else rate))
    return optimizer.update(grads, optimizer.init(params), params, an_unknown_extra=1)[0]


def second_update(block, *, rate):
    optimizer = optimizers.make(block, learning_rate=constant(rate))
    state = optimizer.update(tree(1), optimizer.init(tree(0)), tree(0))[1]
    return optimizer.update(tree(2), state, tree(0))[0]


def tf_rmsprop_reference(grads, *, rates, decay, momentum, eps, ms_start=1.0, rate_inside=True):
    """TensorFlow's formulas in float64; the keywords after eps are ways of getting them wrong."""
    ms = np.full(grads.shape[1:], ms_start)
    mom = np.zeros(grads.shape[1:])
    theta = np.zeros(grads.shape[1:])
    thetas = []
    for g, rate in zip(grads.astype(np.float64), rates, strict=True):
        ms = decay * ms + (1 - decay) * g**2
        if rate_inside:
            mom = momentum * mom + rate * g / np.sqrt(ms + eps)
            theta = theta - mom
        else:
            mom = momentum * mom + g / np.sqrt(ms + eps)
            theta = theta - rate * mom
        thetas.append(theta)
    return np.stack(thetas)


@pytest.mark.parametrize(("momentum", "eps"), [(0.9, 1.0), (0.9, 1e-10), (0.0, 1.0)])
def test_tf_rmsprop_is_tensorflows(momentum, eps):
    rng = np.random.default_rng(0)
    grads = rng.normal(size=(20, 5)).astype(np.float32)
    rates = 0.045 * 0.94 ** (np.arange(20) // 3)  # changes, so that the place of the rate shows
    block = {"name": "tf_rmsprop", "learning_rate": 0.045, "decay": 0.9, "momentum": momentum, "eps": eps}
    optimizer = optimizers.make(block, learning_rate=lambda step: jnp.asarray(rates, jnp.float32)[step])
    theta = jnp.zeros(5)
    state, thetas = optimizer.init(theta), []
    for g in grads:
        updates, state = jax.jit(optimizer.update)(jnp.asarray(g), state, theta)
        theta = optax.apply_updates(theta, updates)
        thetas.append(theta)
    ours = np.stack(thetas)
    given = {"rates": rates, "decay": 0.9, "momentum": momentum, "eps": eps}
    np.testing.assert_allclose(ours, tf_rmsprop_reference(grads, **given), atol=1e-6)
    assert np.abs(ours - tf_rmsprop_reference(grads, **given, ms_start=0.0)).max() > 1e-4  # optax's default start
    if momentum:
        assert np.abs(ours - tf_rmsprop_reference(grads, **given, rate_inside=False)).max() > 1e-4


def test_tf_rmsprop_has_tensorflows_defaults():
    defaults = {k: p.default for k, p in optimizers.OPTIMIZERS.parameters("tf_rmsprop").items()}
    assert defaults == {"learning_rate": inspect.Parameter.empty, "decay": 0.9, "momentum": 0.0, "eps": 1e-10}


def test_every_optax_optimizer_is_reachable_or_refused_with_a_reason():
    with_rate = {
        name
        for name, f in (vars(optax.contrib) | vars(optax)).items()
        if inspect.isfunction(f) and "learning_rate" in inspect.signature(f).parameters
        if not name.startswith(("_", "scale_by_"))
    }
    names = set(optimizers.OPTIMIZERS)
    assert with_rate <= names | set(optimizers.UNFIT)
    assert {"sgd", "adam", "adamw", "lamb", "lars", "rmsprop", "lion", "adafactor"} <= names
    assert {"adagrad_norm", "chain", "sm3", "tf_rmsprop"} <= names
    assert {"muon", "prodigy", "schedule_free_sgd", "schedule_free_adamw", "dadapt_adamw", "dog"} <= names
    assert set(optimizers.UNFIT) <= {*vars(optax), *vars(optax.contrib), "armijo_conservative"}
    for name, reason in optimizers.UNFIT.items():
        with pytest.raises(ValueError, match=f"^name='{name}': {reason}"):
            optimizers.OPTIMIZERS.find(name)


@pytest.mark.parametrize("name", sorted(set(optimizers.OPTIMIZERS) - {"chain"}))
def test_block_equals_call(name):
    parameters = optimizers.OPTIMIZERS.parameters(name)
    assert [k for k, p in parameters.items() if p.default is p.empty] == ["learning_rate"]
    for parameter in parameters.values():
        assert parameter.kind is parameter.KEYWORD_ONLY
        assert registry.plain_type(parameter.annotation) in (int, float, bool, str, tuple)

    ours = first_update({"name": name, "learning_rate": 0.1})
    if name in ("sm3", "noisy_sgd"):  # optax's own take a fixed rate, or a random key
        extra = {} if name == "sm3" else {"key": 0}
        reference = getattr(optax, name)(0.1, **extra)
    else:
        own = getattr(optax.contrib, name, getattr(optimizers, name, None))
        reference = getattr(optax, name, own)(learning_rate=constant(0.1))
    theirs = mixing_dtypes(reference.update)(tree(1), reference.init(tree(0)), tree(0))[0]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), ours, theirs)
    if name == "cocob":  # its rate multiplies the gradient, and its step does not depend on the gradient's scale
        return
    # The schedule's rate, not the block's; of the second update, since adopt's first is zero.
    whole, half = (second_update({"name": name, "learning_rate": 0.1}, rate=rate) for rate in (0.1, 0.05))
    assert not np.allclose(half["kernel"], whole["kernel"], rtol=1e-3, atol=0)


@pytest.mark.parametrize("name", ["adamw", "lion", "lamb"])
def test_weights_mask_spares_vectors(name):
    block = {"name": name, "learning_rate": 0.1, "weight_decay": 0.5}
    none = first_update({**block, "weight_decay": 0.0})
    everywhere = first_update(block)
    masked = first_update({**block, "mask": "weights"})
    np.testing.assert_array_equal(masked["bias"], none["bias"])
    np.testing.assert_array_equal(masked["kernel"], everywhere["kernel"])
    assert not np.allclose(masked["kernel"], none["kernel"])
    assert not np.allclose(everywhere["bias"], none["bias"])  # "all", the default, is optax's


def test_lars_trust_ratio_mask():
    plain = first_update({"name": "lars", "learning_rate": 0.1, "trust_ratio_mask": "weights"})
    np.testing.assert_allclose(plain["bias"], -0.1 * tree(1)["bias"], rtol=1e-6)


def test_dtype_by_name():
    block = {"name": "adam", "learning_rate": 0.1, "mu_dtype": "bfloat16"}
    optimizer = optimizers.make(block, learning_rate=constant(0.1))
    assert {leaf.dtype for leaf in jax.tree.leaves(optimizer.init(tree())[0].mu)} == {jnp.dtype("bfloat16")}


def test_chain_is_in_order_and_passes_the_rate():
    transforms = (
        {"name": "clip_by_global_norm", "max_norm": 1.0},
        {"name": "add_decayed_weights", "weight_decay": 0.1, "mask": "weights"},
        {"name": "trace", "decay": 0.9},
        {"name": "scale_by_learning_rate"},
    )
    ours = first_update({"name": "chain", "learning_rate": 0.5, "transforms": transforms})
    norm = np.sqrt(sum(np.sum(np.square(leaf)) for leaf in tree(1).values()))
    assert norm > 1
    np.testing.assert_allclose(ours["bias"], -0.5 * tree(1)["bias"] / norm, rtol=1e-5)
    wanted = -0.5 * (tree(1)["kernel"] / norm + 0.1 * tree(0)["kernel"])
    np.testing.assert_allclose(ours["kernel"], wanted, rtol=1e-5)
    reverse = first_update({"name": "chain", "learning_rate": 0.5, "transforms": transforms[::-1]})
    assert not np.allclose(reverse["kernel"], ours["kernel"])


@pytest.mark.parametrize("name", ["tf_rmsprop", "sm3", "lamb"])
def test_chain_of_one_is_that_one(name):
    alone = first_update({"name": name, "learning_rate": 0.5})
    chained = first_update({"name": "chain", "learning_rate": 0.5, "transforms": ({"name": name},)})
    jax.tree.map(np.testing.assert_array_equal, alone, chained)


def test_make_accepts_what_a_config_holds():
    block = ConfigDict({"name": "chain", "learning_rate": 1, "transforms": ({"name": "sgd", "momentum": 0},)})
    assert optimizers.make(block, learning_rate=constant(1.0)).init(tree()) is not None


SGD: dict[str, Any] = {"name": "sgd", "learning_rate": 0.1}
CHAIN: dict[str, Any] = {"name": "chain", "learning_rate": 0.1}
REFUSED = [
    ({**SGD, "name": "sdg"}, "name='sdg': unknown name; did you mean 'sgd'"),
    (
        {**SGD, "name": "qqqq"},
        "name='qqqq': unknown name; allowed: accelerated_exponential, .*chain, .*, and [0-9]+ more",
    ),
    ({**SGD, "name": "clip"}, "name='clip': unknown name"),  # a transformation without a rate
    ({**SGD, "name": "masked"}, "name='masked': unknown name"),
    ({"learning_rate": 0.1}, "name: missing"),
    ({"name": "sgd"}, "learning_rate: missing"),
    ({**SGD, "momentun": 0.9}, "momentun: unknown key; did you mean 'momentum'"),
    ({**SGD, "learning_rate": 0.0}, r"learning_rate=0.0: must be float in \(0, inf\)"),
    ({**SGD, "learning_rate": -0.1}, r"learning_rate=-0.1: must be float in \(0, inf\)"),
    ({**SGD, "learning_rate": float("nan")}, "learning_rate=nan: must be float in"),
    ({**SGD, "learning_rate": float("inf")}, "learning_rate=inf: must be float in"),
    ({**SGD, "learning_rate": "0.1"}, "learning_rate='0.1': must be float"),
    ({**SGD, "learning_rate": True}, "learning_rate=True: must be float"),
    ({**SGD, "momentum": -1.0}, r"momentum=-1.0: must be float in \[0, 1\) or None"),
    ({**SGD, "momentum": 1.0}, r"momentum=1.0: must be float in \[0, 1\)"),
    ({**SGD, "nesterov": 1}, "nesterov=1: must be bool"),
    ({**SGD, "accumulator_dtype": "int8"}, "accumulator_dtype='int8': must be one of 'bfloat16', 'float16'"),
    ({**SGD, "accumulator_dtype": "float64"}, "accumulator_dtype='float64': must be one of 'bfloat16', 'float16'"),
    ({**SGD, "accumulator_dtype": "bf16"}, "accumulator_dtype='bf16': must be one of 'bfloat16', 'float16'"),
    ({"name": "adam", "learning_rate": 0.1, "b2": 1.5}, r"b2=1.5: must be float in \[0, 1\)"),
    ({"name": "adam", "learning_rate": 0.1, "eps": -1e-8}, "eps=-1e-08: must be float in "),
    ({"name": "adamw", "learning_rate": 0.1, "weight_decay": -1.0}, "weight_decay=-1.0: must be float in "),
    ({"name": "adamw", "learning_rate": 0.1, "mask": "kernels"}, "mask='kernels': must be one of 'all', 'weights'"),
    ({"name": "adafactor", "learning_rate": 0.1, "min_dim_size_to_factor": 2.5}, "min_dim_size_to_factor=2.5: must be"),
    ({"name": "muon", "learning_rate": 0.1, "ns_steps": 0}, r"ns_steps=0: must be int in \[1, inf\)"),
    ({"name": "schedule_free_sgd", "learning_rate": 0.1, "b1": 0.0}, r"b1=0.0: must be float in \(0, 1\)"),
    ({"name": "schedule_free_sgd", "learning_rate": 0.1, "warmup_steps": 9}, "warmup_steps: unknown key"),
    ({"name": "adagrad_norm", "learning_rate": 0.1, "beta": 0.0}, r"beta=0.0: must be float in \(0, inf\)"),
    ({"name": "relative_clip", "learning_rate": 0.1, "sqrt_c": 0.5}, r"sqrt_c=0.5: must be float in \[1, inf\)"),
    ({"name": "relative_clip", "learning_rate": 0.1, "weight_decay": 0.0}, "weight_decay=0.0: must be float in "),
    ({"name": "relative_clip", "learning_rate": 0.1, "mask": 1}, "mask=1: must be str"),
    ({"name": "relative_clip", "learning_rate": 0.1, "rest": "adam"}, "rest='adam': must be one of 'sgd', 'lamb'"),
    ({"name": "madam", "learning_rate": 0.1, "high": 1.0}, r"high=1.0: must be float in \[0, 1\)"),
    ({"name": "madam", "learning_rate": 0.1, "low": 0.9, "high": 0.8}, "low=0.9: must be at most high=0.8"),
    ({"name": "accelerated_exponential", "learning_rate": 0.1, "mu": 2.0}, "mu=2.0: must be at most rho"),
    ({"name": "armijo_conservative", "learning_rate": 0.1}, "name='armijo_conservative': its line search evaluates"),
    ({"name": "momo", "learning_rate": 0.1}, "name='momo': needs the value of the loss"),
    ({"name": "sophia", "learning_rate": 0.1}, "name='sophia': evaluates the loss"),
    ({**CHAIN}, "transforms: missing"),
    ({**CHAIN, "transforms": 3}, "transforms=3: must be a tuple of a block"),
    ({**CHAIN, "transforms": (3,)}, r"transforms=\(3,\): must be a tuple of a block"),
    ({**CHAIN, "transforms": ({"max_norm": 1.0},)}, r"transforms\[0\].name: missing"),
    ({**CHAIN, "transforms": ()}, "transforms: exactly one .* found none; end with scale_by_learning_rate"),
    ({**CHAIN, "transforms": ({"name": "sgd"}, {"name": "adam"})}, "transforms: exactly one .* found sgd, adam"),
    ({**CHAIN, "transforms": ({"name": "sgd"}, {"name": "clipp"})}, r"transforms\[1\].name='clipp': .*'clip'"),
    (
        {**CHAIN, "transforms": ({"name": "chain", "transforms": ()},)},
        r"transforms\[0\].name='chain': .*chains do not nest",
    ),
    ({**CHAIN, "transforms": ({"name": "sgd", "momentum": 2.0},)}, r"transforms\[0\].momentum=2.0: must be float in"),
    ({**CHAIN, "transforms": ({"name": "clip"},)}, r"transforms\[0\].max_delta: missing"),
    (
        {**CHAIN, "transforms": ({"name": "clip", "max_delta": 0.0},)},
        r"transforms\[0\].max_delta=0.0: must be float in \(0, inf\)",
    ),
    ({**CHAIN, "transforms": ({**SGD},)}, r"transforms\[0\].learning_rate: is given once, to the chain"),
    ({**CHAIN, "transforms": ({"name": "polyak_sgd"},)}, r"transforms\[0\].name='polyak_sgd': needs the value"),
]


@pytest.mark.parametrize(("block", "message"), REFUSED)
def test_refused_in_one_line(block, message):
    with refused(ValueError, f"^{message}"):
        optimizers.make(block, learning_rate=constant(0.1))


# One of optax's mixes ranks, which tests do not allow.
TRANSFORMATIONS = sorted(
    set(optimizers.TRANSFORMATIONS) - set(optimizers.OPTIMIZERS) - {"scale_by_distance_over_gradients"}
)


@pytest.mark.parametrize("name", TRANSFORMATIONS)
def test_every_part_of_a_chain_needs_no_more_than_a_gradient(name):
    """A transformation that needs the loss or its value is refused by its name; the others run on a gradient."""
    required = {
        key: {int: 2, float: 0.5}[registry.plain_type(p.annotation)]
        for key, p in optimizers.TRANSFORMATIONS.parameters(name).items()
        if p.default is p.empty and key != "learning_rate"
    }
    end = () if name in ("scale_by_learning_rate", "scale_by_madgrad") else ({"name": "scale_by_learning_rate"},)
    updates = first_update({**CHAIN, "transforms": ({"name": name, **required}, *end)})
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(updates))


@pytest.mark.parametrize("name", sorted(set(optimizers.OPTIMIZERS) - {"chain"}))
def test_the_rate_of_an_update_is_that_of_the_given_step(name):
    """Also of an optimizer that makes several updates a step, or that skipped some."""
    asked = set()

    def rate(step):
        asked.add(int(step))
        return jnp.float32(0.1)

    optimizer = optimizers.make({"name": name, "learning_rate": 0.1}, learning_rate=rate)
    state = optimizer.init(tree(0))
    for _ in range(3):
        asked.clear()
        _, state = optimizer.update(tree(1), schedules.at_step(state, jnp.int32(7)), tree(0))
    # A schedule-free optimizer weighs the average by the rate of the step after, by which Nesterov's extrapolates.
    assert asked == ({7, 8} if name.startswith(("schedule_free", "accelerated")) else {7})


RATES_OF_0 = {"at the start": (0.0, 0.0, 0.1), "at the end": (0.1, 0.1, 0.0), "between": (0.1, 0.0, 0.1)}


@pytest.mark.parametrize("when", RATES_OF_0)
@pytest.mark.parametrize("name", sorted(set(optimizers.OPTIMIZERS) - {"chain"}))
def test_a_rate_of_0_leaves_finite_numbers(name, when):
    """Schedules warm up from 0 and fall to 0, whose last step nobody wants to lose a run to."""
    if when == "at the start" and name in optimizers.DIVIDE_BY_RATES:
        when = "between"  # the first is refused, as the next test shows
    rates = jnp.asarray(RATES_OF_0[when])
    optimizer = optimizers.make({"name": name, "learning_rate": 0.1}, learning_rate=lambda step: rates[step])
    params, state = tree(0), optimizer.init(tree(0))
    for seed in (1, 2, 3):
        updates, state = optimizer.update(tree(seed), state, params)
        params = optax.apply_updates(params, updates)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(params))


DIVIDES = {"name": "dadapt_adamw", "learning_rate": 1.0}


@pytest.mark.parametrize(
    ("block", "message"),
    [
        (DIVIDES, "name='dadapt_adamw': needs a config.schedule that begins above 0, as polynomial_warmup$"),
        ({**DIVIDES, "name": "prodigy"}, "name='prodigy': needs .* above 0, .*, or safeguard_warmup=True$"),
        ({**CHAIN, "transforms": ({"name": "prodigy"},)}, r"transforms\[0\].name='prodigy': needs a config.schedule"),
    ],
)
def test_a_first_rate_of_0_is_refused_where_the_estimate_divides_by_it(block, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        optimizers.make(block, learning_rate=lambda step: jnp.float32(step))
    optimizers.make(block, learning_rate=lambda step: jnp.float32(step + 1))
    optimizers.make({**DIVIDES, "name": "prodigy", "safeguard_warmup": True}, learning_rate=lambda step: 0.0 * step)


def test_betas_are_a_tuple_in_their_range():
    prodigy = {"name": "prodigy", "learning_rate": 1.0}
    whole, other = (second_update({**prodigy, **betas}, rate=1.0) for betas in ({}, {"betas": [0.0, 0.5]}))
    assert not np.allclose(whole["kernel"], other["kernel"], rtol=1e-3, atol=0)
    with pytest.raises(ValueError, match=r"^betas=\(0.9, 1.0\): must be a tuple of float in \[0, 1\)"):
        optimizers.OPTIMIZERS.check({**prodigy, "betas": (0.9, 1.0)})


def test_default_outside_its_range_is_allowed():
    block = {"name": "scale_by_sm3", "b2": 1.0}
    made = optimizers.make({**CHAIN, "transforms": (block, {"name": "sgd"})}, learning_rate=constant(0.1))
    assert made.init({"w": jnp.zeros(2)})
