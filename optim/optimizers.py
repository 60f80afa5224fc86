"""Optimizers by name: those of optax and optax.contrib, those of papers that optax lacks, and chains.

Every optax function with a `learning_rate` is an optimizer here under its optax name and with its optax defaults, so
a config block reads like the call: `{"name": "adamw", "learning_rate": 1e-3, "weight_decay": 0.01}`. Four things
differ, for values that a config cannot hold:

* a mask is "all" (optax's default) or "weights": leaves with two or more dimensions, as the optimizer sees them. So
  biases and the scales of norms do not decay.
* a dtype is its name, "bfloat16";
* callables, trees of flags and random keys are left out; the key of the noise of `noisy_sgd` is an int;
* parameters that `config.schedule` replaces are left out: an optimizer's own warm-up, and Muon's constant rate for
  other leaves.

`chain` composes transformations, in order, one of which takes the learning rate:

    {"name": "chain", "learning_rate": 0.1, "transforms": (
        {"name": "clip_by_global_norm", "max_norm": 1.0},
        {"name": "add_decayed_weights", "weight_decay": 1e-4, "mask": "weights"},
        {"name": "sgd", "momentum": 0.9})}
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from optim import signatures
from optim.precision import in_full_precision
from optim.rules.differences import dgrad, diffgrad
from optim.rules.global_norm import clip_by_global_norm
from optim.rules.maximal_variance import lamadam, madam, scale_by_madam
from optim.rules.noise_adaptive import accelerated_exponential
from optim.rules.plain import adagrad_plain, adam_plain
from optim.rules.relative_clip import relative_clip
from optim.rules.trust_ratio import lamb, lars, scale_by_trust_ratio
from reducers.dtypes import common_dtype, mixing_dtypes
from reducers.options import Positive
from reducers.registry import Registry


@in_full_precision
def tf_rmsprop(
    learning_rate: optax.ScalarOrSchedule, *, decay: float = 0.9, momentum: float = 0.0, eps: float = 1e-10
) -> optax.GradientTransformationExtraArgs:
    """Returns TensorFlow's RMSProp: epsilon inside the root, mean square from one, learning rate in the momentum.

    ms <- decay * ms + (1 - decay) * g^2,    mom <- momentum * mom + lr * g / sqrt(ms + eps),    theta <- theta - mom

    Args:
        learning_rate: rate or schedule; a change of it does not rescale the momentum gathered so far.
        decay: the decay of the mean square.
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


@in_full_precision
def adagrad_norm(
    learning_rate: optax.ScalarOrSchedule, *, beta: Positive = 1.0, eps: float = 0.0
) -> optax.GradientTransformationExtraArgs:
    """Returns AdaGrad with one step size for all parameters, from the norms of the gradients before this one.

    theta <- theta - lr * g_t / (beta + sum_{i < t} |g_i|^2)^(1/2 + eps)

    Args:
        learning_rate: rate or schedule.
        beta: the sum at the start.
        eps: by how much faster than the inverse root the steps fall.

    Returns:
        The transformation. The present gradient is not in the sum, which makes its step unbiased.

    Reference: AdaBatchGrad, Ostroukhov et al., arXiv 2402.05264 (READ: a third party's port).
    """

    def init_fn(params):
        return AdagradNormState(
            jnp.asarray(beta, common_dtype(jnp.float32, *map(jnp.result_type, jax.tree.leaves(params))))
        )

    def update_fn(updates, state, params=None, **extra_args):
        del params, extra_args
        size = state.total ** -(0.5 + eps)
        scaled = jax.tree.map(lambda g: (g * size).astype(g.dtype), updates)
        return scaled, AdagradNormState(state.total + optax.tree.norm(updates, squared=True))

    scale = optax.GradientTransformationExtraArgs(init_fn, update_fn)
    return optax.chain(scale, optax.scale_by_learning_rate(learning_rate))


class AdagradNormState(NamedTuple):
    """State of ``adagrad_norm``: beta, and the squared norms of all gradients so far."""

    total: jax.Array


@in_full_precision
def sm3(learning_rate: optax.ScalarOrSchedule, momentum: float = 0.9) -> optax.GradientTransformationExtraArgs:
    """Returns optax.sm3 with a schedule; optax's own function takes a fixed rate alone.

    Args:
        learning_rate: rate or schedule.
        momentum: decay of the average of the updates; 0 for none.
    """
    return optax.chain(optax.scale_by_sm3(momentum), optax.scale_by_learning_rate(learning_rate))


def chain(
    *, learning_rate: Positive, transforms: tuple[Mapping[str, Any], ...]
) -> optax.GradientTransformationExtraArgs:
    """Chains transformations in order; the one that has a `learning_rate` gets it.

    Args:
        learning_rate: rate or schedule.
        transforms: blocks of a `name` and keyword arguments: optimizers or any optax transformation.

    Returns:
        The chain.

    Raises:
        ValueError: for an unknown name or argument, or unless exactly one part takes the learning rate. None would
            ignore it; two would scale the updates twice and flip their sign back.
    """
    for position, block in enumerate(transforms):
        if "learning_rate" in block:
            raise ValueError(f"transforms[{position}].learning_rate: is given once, to the chain")
    built = [
        TRANSFORMATIONS.build(block, where=f"transforms[{position}]", learning_rate=learning_rate)
        for position, block in enumerate(transforms)
    ]
    takers = [block["name"] for block in transforms if _takes_rate(TRANSFORMATIONS.find(block["name"]))]
    if len(takers) != 1:
        found = ", ".join(takers) or "none"
        hint = "" if takers else "; end with scale_by_learning_rate"
        raise ValueError(f"transforms: exactly one must take the learning rate, found {found}{hint}")
    return optax.with_extra_args_support(optax.chain(*built))


def weights_mask(params: optax.Params) -> Any:
    """Returns True for the leaves with two or more dimensions: kernels and embeddings, not biases and norm scales."""
    return jax.tree.map(lambda leaf: jnp.ndim(leaf) >= 2, params)


# Ranges of parameters by name; a name means the same in all of optax.
_NAMES: dict[str, tuple[str, ...]] = {
    "(0, inf)": (
        *("max_norm", "max_delta", "threshold", "clipping", "clipping_threshold"),
        *("k", "memory_size", "min_dim_size_to_factor"),
        *("estim_lr0", "estim_lr_coef", "consistent_rms", "init_estim_sq_dist"),
    ),
    "[1, inf)": ("rank", "update_proj_gap", "ns_steps"),
    "[0, 1)": (
        *("b1", "b2", "b3", "beta", "decay", "decay_rate", "momentum", "rho"),
        *("adam_b1", "adam_b2", "beta3", "betas", "low", "high"),
    ),
    "[0, inf)": (
        *("adam_eps_root", "adam_weight_decay", "weight_lr_power"),
        *("eps", "eps_root", "eta", "gamma", "initial_accumulator_value"),
        *("initial_scale", "min_norm", "min_scale", "trust_coefficient"),
        *("weight_decay", "weight_decay_rate"),
    ),
}
INTERVALS = {name: interval for interval, names in _NAMES.items() for name in names}

# Where a function of optax has ranges of its own: a schedule-free optimizer divides by b1.
INTERVALS_OF: dict[str, dict[str, str]] = {
    "schedule_free_adamw": {"b1": "(0, 1)"},
    "schedule_free_sgd": {"b1": "(0, 1)"},
}

# Optimizers that divide by the sum of the rates so far, each with the flag by which it does without; "" for none.
DIVIDE_BY_RATES: dict[str, str] = {"dadapt_adamw": "", "prodigy": "safeguard_warmup"}

# Parameters that `config.schedule` takes care of, or the program; and trees whose annotations look like numbers.
LEFT_OUT = {
    *("adam_learning_rate", "key", "seed", "warmup_steps"),
    *("muon_weight_dimension_numbers", "weight_dimension_numbers"),
}

# Functions that a step cannot use, with the reason.
_EVALUATES = "evaluates the loss, which an update of averaged gradients cannot"
_NEEDS_VALUE = "needs the value of the loss in the update"
_WRAPS = "wraps another optimizer, which a block cannot hold"
UNFIT: dict[str, str] = {
    **dict.fromkeys(("armijo_conservative", "lbfgs"), f"its line search {_EVALUATES}"),
    **dict.fromkeys(("scale_by_backtracking_linesearch", "scale_by_zoom_linesearch"), _EVALUATES),
    **dict.fromkeys(("hutchinson_estimator_diag_hessian", "sophia"), _EVALUATES),
    **dict.fromkeys(("momo", "momo_adam", "polyak_sgd", "reduce_on_plateau", "scale_by_polyak"), _NEEDS_VALUE),
    **dict.fromkeys(("differentially_private_aggregate", "dpsgd"), "needs the gradient of each example"),
    **dict.fromkeys(("mechanize", "sam", "split_real_and_imaginary"), _WRAPS),
    **dict.fromkeys(("rprop", "scale_by_rprop"), "takes no schedule, and is for full batches"),
    "optimistic_adam": "takes no schedule; use optimistic_adam_v2",
    "scale_by_muon": "is for matrices alone; use muon",
    "schedule_free": "wraps another optimizer; use schedule_free_sgd or schedule_free_adamw",
}


def _takes_rate(function: Callable) -> bool:
    return "learning_rate" in inspect.signature(function).parameters


def _check_first_rate(name: str, *, learning_rate: optax.ScalarOrSchedule, **options: Any) -> None:
    """Raises ValueError if the first update has the rate 0, which makes such an optimizer's estimate NaN."""
    flag = DIVIDE_BY_RATES[name]
    if callable(learning_rate) and learning_rate(0) == 0 and not options.get(flag):
        remedy = f", or {flag}=True" if flag else ""
        raise ValueError(f"name={name!r}: needs a config.schedule that begins above 0, as polynomial_warmup{remedy}")


def _configurable(function: Callable) -> Callable[..., optax.GradientTransformationExtraArgs] | None:
    """Returns the function as a config calls it; None if it makes no transformation, or takes more than a config holds.

    The result's signature is the schema: keyword-only, plainly annotated, `learning_rate` (if any) a required float.
    Called, it takes a schedule for `learning_rate` too.
    """
    makes_one = "GradientTransformation" in str(inspect.signature(function).return_annotation)
    if not makes_one and not _takes_rate(function):  # optax.contrib annotates not all of them
        return None
    intervals = INTERVALS | INTERVALS_OF.get(function.__name__, {})
    schema = signatures.config_parameters(function, intervals=intervals, leave_out=LEFT_OUT)
    if schema is None:
        return None
    if "learning_rate" in schema:  # required, also where optax would do without one
        schema["learning_rate"] = inspect.Parameter(
            "learning_rate", inspect.Parameter.KEYWORD_ONLY, annotation=Positive
        )
    if "key" in inspect.signature(function).parameters:  # optax warns where the key of its noise is not given
        schema["key"] = inspect.Parameter("key", inspect.Parameter.KEYWORD_ONLY, annotation=int, default=0)

    masks = [key for key, parameter in schema.items() if parameter.annotation == signatures.Masked]

    @functools.wraps(function)
    def build(**arguments):
        if function.__name__ in DIVIDE_BY_RATES:
            _check_first_rate(function.__name__, **arguments)
        for key in masks:
            if arguments.pop(key, "all") == "weights":
                arguments[key] = weights_mask
        return optax.with_extra_args_support(function(**arguments))

    build.__signature__ = inspect.Signature(list(schema.values()))  # type: ignore[attr-defined]
    return build


# This project's own optimizers, and parts of them.
OWN: tuple[Callable, ...] = (
    *(adagrad_norm, sm3, tf_rmsprop),
    *(relative_clip, accelerated_exponential, diffgrad, dgrad, adam_plain, adagrad_plain),
    *(madam, scale_by_madam, lamadam),
    *(lamb, lars, scale_by_trust_ratio, clip_by_global_norm),
)


def _all() -> dict[str, Callable]:
    functions = {
        **vars(optax.contrib),
        **vars(optax),
        **{function.__name__: function for function in OWN},
    }
    names = [name for name, f in functions.items() if inspect.isfunction(f) and not name.startswith("_")]
    found = {name: _configurable(functions[name]) for name in names if name not in UNFIT}
    return {name: function for name, function in found.items() if function is not None}


TRANSFORMATIONS = Registry(
    _all(),
    given={"learning_rate"},
    refused={**UNFIT, "chain": "is a chain, and chains do not nest"},
    makes=optax.GradientTransformation,
)
"""Parts of a chain."""


class Optimizers(Registry):
    """Constructors of optimizers by name."""

    def find(self, name: Any) -> Callable:
        """Returns the constructor; one of another module must take a learning rate, too."""
        found = super().find(name)
        if name not in self and not _takes_rate(found):
            raise ValueError(f"name={name!r}: must have a parameter learning_rate")
        return found

    def call(self, name: str, /, **arguments: Any) -> optax.GradientTransformationExtraArgs:
        """Calls the constructor; the optimizer may mix dtypes, as half of optax's do."""
        made = optax.with_extra_args_support(super().call(name, **arguments))
        return optax.GradientTransformationExtraArgs(mixing_dtypes(made.init), mixing_dtypes(made.update))


OPTIMIZERS = Optimizers(
    {
        "chain": chain,
        **{name: f for name, f in TRANSFORMATIONS.items() if _takes_rate(f) and not name.startswith("scale_by_")},
    },
    refused=UNFIT,
    makes=optax.GradientTransformation,
)
"""`learning_rate` is the peak, a key of the block; `make` hands the schedule to optax in its place."""


def make(block: Mapping[str, Any], *, learning_rate: optax.Schedule) -> optax.GradientTransformationExtraArgs:
    """Builds the optimizer of a config block.

    Args:
        block: `name`, `learning_rate` (the peak, which is checked and not used) and the optimizer's own keys.
        learning_rate: the rate of each update, counted from 0, which the schedule and the scaling made of the peak.

    Returns:
        The transformation.

    Raises:
        ValueError: one line: key, value, what is allowed.

    >>> sgd = make({"name": "sgd", "learning_rate": 0.5}, learning_rate=lambda step: 0.5 / (1 + step))
    >>> float(sgd.update(jnp.ones(()), sgd.init(jnp.ones(())))[0])
    -0.5
    """
    options = OPTIMIZERS.check(block)
    return OPTIMIZERS.call(block["name"], **{**options, "learning_rate": learning_rate})
