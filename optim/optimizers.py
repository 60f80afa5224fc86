"""Optimizers by name: those of optax, TensorFlow's RMSProp, and chains.

Every optax function with a `learning_rate` is an optimizer here under its optax name and with its optax defaults, so
a config block reads like the call: `{"name": "adamw", "learning_rate": 1e-3, "weight_decay": 0.01}`. Three things
differ, for values that a config cannot hold:

* a mask is "all" (optax's default) or "weights": leaves with two or more dimensions, so no decay on biases and on the
  scales of norms. The dimensions are those of the leaf that the optimizer sees.
* a dtype is its name, "bfloat16";
* callables, trees of flags and random keys are left out; the key of the noise of `noisy_sgd` is an int.

`chain` composes transformations, in order, one of which takes the learning rate:

    {"name": "chain", "learning_rate": 0.1, "transforms": (
        {"name": "clip_by_global_norm", "max_norm": 1.0},
        {"name": "add_decayed_weights", "weight_decay": 1e-4, "mask": "weights"},
        {"name": "sgd", "momentum": 0.9})}
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax

from optim import signatures

GIVEN: frozenset[str] = frozenset()
"""Nothing: `learning_rate` is a key of the block, the peak; `make` hands the schedule to optax in its place."""


def tf_rmsprop(
    learning_rate: optax.ScalarOrSchedule, *, decay: float = 0.9, momentum: float = 0.0, eps: float = 1e-10
) -> optax.GradientTransformationExtraArgs:
    """TensorFlow's RMSProp: epsilon inside the root, mean square starting at one, learning rate inside the momentum.

    ms <- decay * ms + (1 - decay) * g^2,    mom <- momentum * mom + lr * g / sqrt(ms + eps),    theta <- theta - mom

    Args:
        learning_rate: rate or schedule; a change of it does not rescale the momentum gathered so far.
        decay: of the mean square.
        momentum: plain, not Nesterov.
        eps: with 1.0, as the Inception models were trained, the update is near to plain momentum SGD for small
            gradients, so it matters there whether workers' gradients are summed or averaged.

    Returns:
        The transformation.

    Reference: tf.train.RMSPropOptimizer, with its defaults; Chen et al. (2016) use decay=0.9, momentum=0.9, eps=1.0.
    """
    return optax.rmsprop(
        learning_rate, decay=decay, eps=eps, initial_scale=1.0, eps_in_sqrt=True, momentum=momentum or None
    )


def sm3(learning_rate: optax.ScalarOrSchedule, momentum: float = 0.9) -> optax.GradientTransformationExtraArgs:
    """optax.sm3, which takes a fixed rate alone, with a schedule."""
    return optax.chain(optax.scale_by_sm3(momentum), optax.scale_by_learning_rate(learning_rate))


def chain(
    learning_rate: optax.ScalarOrSchedule, *, transforms: tuple[Mapping[str, Any], ...]
) -> optax.GradientTransformationExtraArgs:
    """Transformations in order; the one that has a `learning_rate` gets it.

    Args:
        learning_rate: rate or schedule.
        transforms: blocks of a `name` and keyword arguments: optimizers or any optax transformation.

    Returns:
        The chain.

    Raises:
        ValueError: for an unknown name or argument, or unless exactly one takes the learning rate (with none it
            would be ignored; with two the updates would be scaled twice and their sign flipped back).
    """
    built, takers = [], []
    for position, block in enumerate(transforms):
        where = f"transforms[{position}]"
        if not hasattr(block, "keys") or not isinstance(block.get("name"), str):
            raise ValueError(f"{where}={block!r}: must be a mapping with a name")
        arguments = {key: block[key] for key in block if key != "name"}
        try:
            if "learning_rate" in arguments:
                raise ValueError("learning_rate: is given once, to the chain")
            factory = _transformation(block["name"])
            if "learning_rate" in inspect.signature(factory).parameters:
                takers.append(block["name"])
                arguments["learning_rate"] = learning_rate
            built.append(factory(**arguments))
        except ValueError as error:
            raise ValueError(f"{where}.{error}") from None
    if len(takers) != 1:
        found = ", ".join(takers) or "none"
        hint = "" if takers else "; end with scale_by_learning_rate"
        raise ValueError(f"transforms: exactly one must take the learning rate, found {found}{hint}")
    return optax.chain(*built)


OPTIMIZERS: dict[str, Callable[..., optax.GradientTransformation]] = {
    "chain": chain,
    "sm3": sm3,
    "tf_rmsprop": tf_rmsprop,
}

UNFIT: dict[str, str] = {
    "lbfgs": "its line search evaluates the loss, which an update of averaged gradients cannot",
    "optimistic_adam": "takes no schedule; use optimistic_adam_v2",
    "polyak_sgd": "needs the value of the loss in the update",
    "rprop": "takes no schedule, and is for full batches",
    "scale_by_backtracking_linesearch": "evaluates the loss, which an update of averaged gradients cannot",
    "scale_by_polyak": "needs the value of the loss in the update",
    "scale_by_rprop": "takes no schedule, and is for full batches",
    "scale_by_zoom_linesearch": "evaluates the loss, which an update of averaged gradients cannot",
}
"""What optax has and a synchronous step cannot drive, with the reason."""

RANGES: signatures.Ranges = {
    **dict.fromkeys(("learning_rate", "max_norm", "max_delta", "threshold"), signatures.ABOVE_0),
    **dict.fromkeys(
        ("clipping", "clipping_threshold", "k", "memory_size", "min_dim_size_to_factor"), signatures.ABOVE_0
    ),
    **dict.fromkeys(("b1", "b2", "b3", "beta", "decay", "decay_rate", "momentum", "rho"), signatures.UNIT_OPEN),
    **dict.fromkeys(("eps", "eps_root", "eta", "gamma", "initial_accumulator_value"), signatures.AT_LEAST_0),
    **dict.fromkeys(("initial_scale", "min_norm", "min_scale", "trust_coefficient"), signatures.AT_LEAST_0),
    **dict.fromkeys(("weight_decay", "weight_decay_rate"), signatures.AT_LEAST_0),
}


def names() -> list[str]:
    """Returns the name of every optimizer that a block may have."""
    return sorted(name for name in {*OPTIMIZERS, *vars(optax)} if name not in UNFIT and _is_optimizer(name))


def lookup(name: str) -> Callable[..., optax.GradientTransformationExtraArgs]:
    """Returns the optimizer of this name as a function of a config block's keys.

    Its `inspect.signature` is the schema: keyword-only, plainly annotated, `learning_rate` a required float. Called, it
    checks its arguments and takes a schedule for `learning_rate` too.

    Raises:
        ValueError: if there is no such optimizer, or it cannot be driven by a synchronous step.

    >>> inspect.signature(lookup("sgd")).parameters["momentum"]
    <Parameter "momentum: float | None = None">
    """
    if name not in UNFIT and _is_optimizer(name):
        return _factory(name)
    reason = UNFIT.get(name) or f"not a known optimizer; {signatures.suggest(name, names())}"
    raise ValueError(f"name={name!r}: {reason}")


def make(block: Mapping[str, Any], *, learning_rate: optax.Schedule) -> optax.GradientTransformationExtraArgs:
    """Builds the optimizer of a config block.

    Args:
        block: `name`, `learning_rate` (the peak, checked here and otherwise unused) and the optimizer's own keys.
        learning_rate: the rate of each update, counted from 0: what the schedule and the scaling made of the peak.

    Returns:
        The transformation.

    Raises:
        ValueError: one line: key, value, what is allowed.

    >>> sgd = make({"name": "sgd", "learning_rate": 0.5}, learning_rate=lambda step: 0.5 / (1 + step))
    >>> float(sgd.update(jnp.ones(()), sgd.init(jnp.ones(())))[0])
    -0.5
    """
    arguments = {key: block[key] for key in block if key != "name"}
    if "name" not in block:
        raise ValueError("name: missing; it has no default")
    factory = lookup(block["name"])
    signatures.check(arguments, signature=inspect.signature(factory), ranges=RANGES)
    return optax.with_extra_args_support(factory(**{**arguments, "learning_rate": learning_rate}))


def weights_mask(params: optax.Params) -> Any:
    """Returns True for the leaves with two or more dimensions: kernels and embeddings, not biases and norm scales."""
    return jax.tree.map(lambda leaf: jnp.ndim(leaf) >= 2, params)


def _function(name: str) -> Callable[..., Any] | None:
    function = OPTIMIZERS.get(name) or vars(optax).get(name)
    return function if inspect.isfunction(function) and not name.startswith("_") else None


def _signature(name: str) -> inspect.Signature | None:
    """Returns the schema of a transformation; None for what is none or needs more than a config can hold."""
    function = _function(name)
    if function is None or "GradientTransformation" not in str(inspect.signature(function).return_annotation):
        return None
    if function is chain:  # the only one whose schema is not numbers and words
        rate = inspect.Parameter("learning_rate", inspect.Parameter.KEYWORD_ONLY, annotation=float)
        return inspect.Signature([rate, inspect.signature(chain).parameters["transforms"]])
    if any(p.kind is p.VAR_POSITIONAL for p in inspect.signature(function).parameters.values()):
        return None
    schema = signatures.config_signature(function, leave_out={"key", "seed"})
    if schema is None:
        return None
    replaced = []
    for parameter in schema.parameters.values():
        if parameter.name == "learning_rate":  # also where optax would do without one
            parameter = parameter.replace(annotation=float, default=inspect.Parameter.empty)
        replaced.append(parameter)
    if "key" in inspect.signature(function).parameters:  # optax warns where the key of its noise is not given
        replaced.append(inspect.Parameter("key", inspect.Parameter.KEYWORD_ONLY, annotation=int, default=0))
    return inspect.Signature(replaced)


def _is_optimizer(name: str) -> bool:
    schema = None if name.startswith("scale_by_") else _signature(name)
    return schema is not None and "learning_rate" in schema.parameters


def _transformation(name: str) -> Callable[..., optax.GradientTransformation]:
    """Returns what a chain may hold under this name."""
    if name == "chain":
        raise ValueError(f"name={name!r}: chains do not nest")
    if name not in UNFIT and _signature(name) is not None:
        return _factory(name)
    known = [other for other in {*OPTIMIZERS, *vars(optax)} if other not in UNFIT and _signature(other) is not None]
    reason = UNFIT.get(name) or f"not a known transformation; {signatures.suggest(name, known)}"
    raise ValueError(f"name={name!r}: {reason}")


def _factory(name: str) -> Callable[..., optax.GradientTransformationExtraArgs]:
    function, schema = _function(name), _signature(name)
    assert function is not None and schema is not None

    @functools.wraps(function)
    def build(**arguments: Any) -> optax.GradientTransformationExtraArgs:
        schedule = arguments.get("learning_rate")
        checkable = {**arguments, "learning_rate": 1.0} if callable(schedule) else arguments
        checked = signatures.check(checkable, signature=schema, ranges=RANGES)
        if "key" in schema.parameters:
            checked.setdefault("key", schema.parameters["key"].default)
        if callable(schedule):
            checked["learning_rate"] = schedule
        for key in [key for key in checked if signatures.takes_mask(key)]:
            if checked.pop(key) == "weights":
                checked[key] = weights_mask
        return optax.with_extra_args_support(function(**checked))

    build.__signature__ = schema  # type: ignore[attr-defined]
    return build
