"""Learning-rate schedules by name, as factors without a unit: the rate is the peak times `factor(step)`.

`step` counts updates from 0, so the first update uses factor(0). Besides the project's own, every optax schedule that
numbers can describe goes by its optax name; there `value`, `init_value` and `peak_value` default to 1, an `end_value`
that optax requires to 0, and the `init_value` of a warm-up to 0.

A number of steps may be given as `x_steps` or as `x_epochs`, not both; `x_epochs` means the first step at or after that
many epochs. Of optax's schedules, a `decay_steps` or `transition_steps` that is given as neither is the whole run, or
what a warm-up and `transition_begin` before it leave of the run.
"""

import functools
import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax

from optim import factors, signatures

GIVEN: frozenset[str] = frozenset({"total_steps", "steps_per_epoch"})
"""What the program supplies: the updates of the whole run, and (not always whole) the updates of an epoch."""

SCHEDULES: dict[str, Callable[..., optax.Schedule]] = {
    "constant": factors.constant,
    "one_cycle": factors.one_cycle,
    "polynomial_warmup": factors.polynomial_warmup,
    "staircase": factors.staircase,
    "steps": factors.steps,
    "warmup_cosine": factors.warmup_cosine,
    "warmup_linear": factors.warmup_linear,
}

UNFIT: dict[str, str] = {
    "join_schedules": "joins functions, which a config cannot hold",
    "piecewise_constant_schedule": "takes a dict of steps; use steps",
    "piecewise_interpolate_schedule": "takes a dict of steps; use one_cycle or steps",
    "sgdr_schedule": "takes a list of dicts, which a config cannot hold",
}
"""What optax has and a config cannot describe, with the reason."""

_ABOVE_0 = ("decay_rate", "power", "exponent", "degree", "div_factor", "final_div_factor", "decay_factor")
_LENGTHS = ("decay", "transition", "every")
RANGES: signatures.Ranges = {
    **dict.fromkeys((*_ABOVE_0, *GIVEN), signatures.ABOVE_0),
    **dict.fromkeys((f"{stem}_{unit}" for stem in _LENGTHS for unit in ("steps", "epochs")), signatures.ABOVE_0),
    **dict.fromkeys(("warmup_steps", "warmup_epochs", "transition_begin"), signatures.AT_LEAST_0),
    **dict.fromkeys(("transition_begin_epochs", "value", "init_value", "end_value"), signatures.AT_LEAST_0),
    **dict.fromkeys(("peak_value", "init_factor"), signatures.AT_LEAST_0),
    **dict.fromkeys(("warmup_fraction", "end_factor", "alpha", "pct_start", "pct_final"), signatures.UNIT),
}


def names() -> list[str]:
    """Returns the name of every schedule that a block may have."""
    return sorted({*SCHEDULES, *filter(_is_optax_schedule, vars(optax))})


def lookup(name: str) -> Callable[..., optax.Schedule]:
    """Returns the schedule of this name as a function of a config block's keys and of what GIVEN names.

    Its `inspect.signature` is the schema: keyword-only and plainly annotated. Called, it checks its arguments.

    Raises:
        ValueError: if there is no such schedule, or a config cannot describe it.

    >>> [key for key in inspect.signature(lookup("cosine_decay_schedule")).parameters if key not in GIVEN]
    ['init_value', 'decay_steps', 'decay_epochs', 'alpha', 'exponent']
    """
    if name in SCHEDULES:
        function, schema = SCHEDULES[name], inspect.signature(SCHEDULES[name])
    elif _is_optax_schedule(name):
        function, schema = functools.partial(_from_optax, vars(optax)[name]), _optax_schema(vars(optax)[name])
    else:
        reason = UNFIT.get(name) or f"not a known schedule; {signatures.suggest(name, names())}"
        raise ValueError(f"name={name!r}: {reason}")

    def build(**arguments: Any) -> optax.Schedule:
        factor = function(**signatures.check(arguments, signature=schema, ranges=RANGES))
        return lambda step: jnp.asarray(factor(step), jnp.float32)

    build.__name__, build.__doc__ = name, (SCHEDULES.get(name) or vars(optax)[name]).__doc__
    build.__signature__ = schema  # type: ignore[attr-defined]
    return build


def make(block: Mapping[str, Any], *, total_steps: int, steps_per_epoch: float) -> optax.Schedule:
    """Builds the schedule of a config block.

    Args:
        block: `name` and the schedule's own keys.
        total_steps: updates in the whole run.
        steps_per_epoch: updates in an epoch.

    Returns:
        factor(step): the step, an int or an int32 array, to a float32 array of its shape; traceable.

    Raises:
        ValueError: one line: key, value, what is allowed.

    >>> factor = make({"name": "warmup_linear", "warmup_steps": 2}, total_steps=6, steps_per_epoch=3.0)
    >>> [float(factor(step)) for step in range(7)]
    [0.0, 0.5, 1.0, 0.75, 0.5, 0.25, 0.0]
    """
    if "name" not in block:
        raise ValueError("name: missing; it has no default")
    keys = {key: block[key] for key in block if key != "name"}
    for key in GIVEN & keys.keys():
        raise ValueError(f"{key}={keys[key]!r}: follows from the run and is not a key")
    return lookup(block["name"])(**keys, total_steps=int(total_steps), steps_per_epoch=float(steps_per_epoch))


def at_step(opt_state: Any, step: jax.Array) -> Any:
    """Returns an optimizer's state whose schedule stands at ``step``, with all else as it is.

    A schedule in optax counts the updates of its optimizer. Where that takes several a step, or skips one that
    overflowed, this keeps the learning rate that of the step.

    >>> sgd = optax.sgd(lambda step: 1.0 / (1 + step))
    >>> state = at_step(sgd.init(jnp.ones(())), jnp.asarray(3))
    >>> float(sgd.update(jnp.ones(()), state)[0])
    -0.25
    """

    def is_schedule(node: Any) -> bool:
        return isinstance(node, optax.ScaleByScheduleState)

    def stand(node: Any) -> Any:
        return node._replace(count=jnp.asarray(step, jnp.int32)) if is_schedule(node) else node

    return jax.tree.map(stand, opt_state, is_leaf=is_schedule)


def _is_optax_schedule(name: str) -> bool:
    return name not in UNFIT and (
        (name.endswith("_schedule") and not name.startswith("scale_by_")) or name == "exponential_decay"
    )


def _is_length(name: str) -> bool:
    return name.endswith("_steps") or name == "transition_begin"


def _optax_schema(function: Callable[..., optax.Schedule]) -> inspect.Signature:
    """Returns the config schema of an optax schedule: lengths in two units, factors with their defaults."""
    plain = signatures.config_signature(function)
    assert plain is not None, function
    wanted = [
        inspect.Parameter("total_steps", inspect.Parameter.KEYWORD_ONLY, annotation=int),
        inspect.Parameter("steps_per_epoch", inspect.Parameter.KEYWORD_ONLY, annotation=float),
    ]
    defaults = {"value": 1.0, "peak_value": 1.0, "end_value": 0.0}
    defaults["init_value"] = 0.0 if "warmup_steps" in plain.parameters else 1.0
    for name, parameter in plain.parameters.items():
        if _is_length(name):
            epochs = f"{name.removesuffix('_steps')}_epochs"
            wanted.append(parameter.replace(annotation=int | None, default=None))
            wanted.append(parameter.replace(name=epochs, annotation=float | None, default=None))
        elif parameter.default is inspect.Parameter.empty and name in defaults:
            wanted.append(parameter.replace(default=defaults[name]))
        else:
            wanted.append(parameter)
    return inspect.Signature(wanted)


def _from_optax(
    function: Callable[..., optax.Schedule], *, total_steps: int, steps_per_epoch: float, **keys: Any
) -> optax.Schedule:
    """Calls an optax schedule with the lengths in steps, those left out taken from the run."""
    names = inspect.signature(function).parameters
    arguments = {name: parameter.default for name, parameter in _optax_schema(function).parameters.items()}
    arguments = {name: keys.get(name, default) for name, default in arguments.items() if name in names}
    given = {}
    for name in filter(_is_length, names):
        stem = name.removesuffix("_steps")
        steps, epochs = keys.get(name), keys.get(f"{stem}_epochs")
        if steps is not None and epochs is not None:
            raise ValueError(f"{name}={steps}, {stem}_epochs={epochs}: give one")
        given[name] = steps if epochs is None else factors.first_step_at(epochs, steps_per_epoch=steps_per_epoch)
    if given.get("warmup_steps", 0) is None:
        raise ValueError("warmup_steps=None, warmup_epochs=None: give one (0 for no warm-up)")
    warmup, begin = given.get("warmup_steps") or 0, given.get("transition_begin") or 0
    whole = {"transition_begin": 0, "transition_steps": total_steps - warmup - begin, "decay_steps": total_steps}
    for name, length in given.items():
        arguments[name] = whole[name] if length is None else length
        if length is None and name == "transition_steps" and whole[name] <= 0:
            raise ValueError(f"{name}=None: nothing of the {total_steps} steps is left after {warmup + begin}")
    if warmup >= arguments.get("decay_steps", math.inf):  # optax counts the warm-up as part of the decay
        raise ValueError(f"warmup_steps={warmup}: must be below decay_steps={arguments['decay_steps']}, counted from 0")
    return function(**arguments)
