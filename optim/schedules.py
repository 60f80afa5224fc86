"""Learning-rate schedules by name, as factors without a unit: the rate is the peak times `factor(step)`.

`step` counts updates from 0, so the first update uses factor(0). `SCHEDULES` has the project's own schedules and, by
its optax name, every optax schedule that numbers can describe. Optax's `value`, `init_value` and `peak_value` default
to 1 here, an `end_value` that optax requires defaults to 0, and so does the `init_value` of a warm-up.

A number of steps is given as `x_steps` or as `x_epochs`, not both; `x_epochs` means the first step at or after that
many epochs. If optax's `decay_steps` or `transition_steps` is given as neither, it is the whole run, or the rest of the
run after a warm-up and `transition_begin`.
"""

import functools
import inspect
import math
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import optax

from optim import factors, signatures
from reducers.dtypes import mixing_dtypes
from reducers.registry import Registry

# Schedules of optax that a config cannot describe, with the reason.
UNFIT: dict[str, str] = {
    "join_schedules": "joins functions, which a config cannot hold",
    "piecewise_constant_schedule": "takes a dict of steps; use steps",
    "piecewise_interpolate_schedule": "takes a dict of steps; use one_cycle or steps",
    "sgdr_schedule": "takes a list of dicts, which a config cannot hold",
}

# Ranges of the parameters of optax's schedules, by name, except lengths.
INTERVALS: dict[str, str] = {
    **dict.fromkeys(("decay_rate", "power", "exponent", "div_factor", "final_div_factor"), "(0, inf)"),
    **dict.fromkeys(("value", "init_value", "peak_value", "end_value"), "[0, inf)"),
    **dict.fromkeys(("alpha", "pct_final"), "[0, 1]"),
    "pct_start": "[0, 1)",
}


def make(block: Mapping[str, Any], *, total_steps: int, steps_per_epoch: float) -> optax.Schedule:
    """Builds the schedule of a config block.

    Args:
        block: `name` and the schedule's own keys.
        total_steps: updates in the whole run.
        steps_per_epoch: updates in an epoch, not always a whole number.

    Returns:
        factor(step): the step, an int or an int32 array, to a float32 array of its shape; traceable.

    Raises:
        ValueError: one line: key, value, what is allowed.

    >>> factor = make({"name": "warmup_linear", "warmup_steps": 2}, total_steps=6, steps_per_epoch=3.0)
    >>> [float(factor(step)) for step in range(7)]
    [0.0, 0.5, 1.0, 0.75, 0.5, 0.25, 0.0]
    """
    factor = SCHEDULES.build(block, total_steps=int(total_steps), steps_per_epoch=float(steps_per_epoch))
    return mixing_dtypes(lambda step: jnp.asarray(factor(step), jnp.float32))


# The state of a decay by a schedule, which optax does not export. Nothing is computed, and JAX is not started.
_WeightDecayState = type(jax.eval_shape(optax.add_decayed_weights(optax.constant_schedule(0.0)).init, None))

# Where the states of optax count for a schedule, and what they count before the first update.
_COUNTS: dict[type, tuple[str, int]] = {
    optax.ScaleByScheduleState: ("count", 0),
    optax.contrib.DAdaptAdamWState: ("count", 0),
    optax.contrib.MadgradState: ("count", 0),
    optax.contrib.ProdigyState: ("count", 0),
    optax.contrib.ScheduleFreeState: ("step_count", 1),
    _WeightDecayState: ("count", 0),
}


# Those whose count also corrects a step, and does not only drive a schedule.
_CORRECT = (optax.contrib.DAdaptAdamWState, optax.contrib.MadgradState, optax.contrib.ProdigyState)


def corrects_by_step(opt_state: Any) -> bool:
    """Returns whether an optimizer corrects its updates by the count that ``at_step`` sets.

    >>> makers = (optax.contrib.dadapt_adamw, optax.contrib.madgrad, optax.contrib.prodigy, optax.adam)
    >>> [corrects_by_step(make(0.1).init(jnp.zeros(2))) for make in makers]
    [True, True, True, False]
    """
    leaves = jax.tree.leaves(opt_state, is_leaf=lambda node: isinstance(node, _CORRECT))
    return any(isinstance(node, _CORRECT) for node in leaves)


def at_step(opt_state: Any, step: jax.Array) -> Any:
    """Returns an optimizer's state with the counts of its schedules set to ``step``.

    A schedule in optax counts the updates of its optimizer. An optimizer that makes several updates a step, or skips an
    update that overflowed, gets the learning rate of the step by this.

    >>> sgd = optax.sgd(lambda step: 1.0 / (1.0 + step.astype(jnp.float32)))
    >>> state = at_step(sgd.init(jnp.ones(())), jnp.asarray(3))
    >>> float(sgd.update(jnp.ones(()), state)[0])
    -0.25
    """

    def is_counted(node):
        return type(node) in _COUNTS

    def set_count(node):
        if not is_counted(node):
            return node
        field, first = _COUNTS[type(node)]
        parts = type(node)(*(at_step(part, step) for part in node))  # another optimizer's state may be one of them
        return parts._replace(**{field: jnp.asarray(step, jnp.int32) + first})

    return jax.tree.map(set_count, opt_state, is_leaf=is_counted)


def rate_at(learning_rate: optax.ScalarOrSchedule, step: jax.typing.ArrayLike) -> jax.Array:
    """Returns the rate of an optimizer at a step, where it is a number or a schedule.

    >>> float(rate_at(0.5, 3)), float(rate_at(lambda step: 1 / (1 + step), 3))
    (0.5, 0.25)
    """
    return jnp.asarray(learning_rate(step) if callable(learning_rate) else learning_rate)


_MAY_BE_0 = ("warmup_steps", "transition_begin")  # lengths; all others are at least a step


def _is_length(name: str) -> bool:
    return name.endswith("_steps") or name == "transition_begin"


def _configurable(function: Callable[..., optax.Schedule]) -> Callable[..., optax.Schedule]:
    """Returns an optax schedule as a config calls it: lengths in two units, factors with their defaults."""
    lengths = [name for name in inspect.signature(function).parameters if _is_length(name)]
    plain = signatures.config_parameters(function, intervals=INTERVALS)
    assert plain is not None, function
    defaults = {"value": 1.0, "peak_value": 1.0, "end_value": 0.0}
    defaults["init_value"] = 0.0 if "warmup_steps" in lengths else 1.0
    schema = []
    for name, parameter in plain.items():
        if name in lengths:
            interval = "[0, inf)" if name in _MAY_BE_0 else "(0, inf)"
            steps = Annotated[int, interval] | None
            epochs = Annotated[float, interval] | None
            schema.append(parameter.replace(annotation=steps, default=None))
            schema.append(parameter.replace(name=factors.in_epochs(name), annotation=epochs, default=None))
        elif parameter.default is parameter.empty and name in defaults:
            schema.append(parameter.replace(default=defaults[name]))
        else:
            schema.append(parameter)

    @functools.wraps(function)
    def build(*, total_steps, steps_per_epoch, **keys):
        given = {}
        for name in lengths:
            epochs = keys.pop(factors.in_epochs(name))
            given[name] = factors.duration(name, steps=keys[name], epochs=epochs, steps_per_epoch=steps_per_epoch)
            if given[name] == 0 and name not in _MAY_BE_0:
                raise ValueError(f"{factors.in_epochs(name)}={epochs}: must be at least a step")
        if keys.get("pct_start", 0) >= keys.get("pct_final", 1):  # optax would leave the peak out
            raise ValueError(f"pct_start={keys['pct_start']}: must be below pct_final={keys['pct_final']}")
        return function(**keys | _lengths(given, total_steps=total_steps))

    given = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in ("total_steps", "steps_per_epoch")]
    build.__signature__ = inspect.Signature([*given, *schema])  # type: ignore[attr-defined]
    return build


def _lengths(given: Mapping[str, int | None], *, total_steps: int) -> dict[str, int]:
    """Returns all lengths in steps; the length of the run determines those that are not given."""
    if given.get("warmup_steps", 0) is None:
        raise ValueError("warmup_steps=None, warmup_epochs=None: give one (0 for no warm-up)")
    warmup = given.get("warmup_steps") or 0
    begin = given.get("transition_begin") or 0
    whole = {"transition_begin": 0, "transition_steps": total_steps - warmup - begin, "decay_steps": total_steps}
    lengths = {name: whole[name] if length is None else length for name, length in given.items()}
    if given.get("transition_steps", 0) is None and whole["transition_steps"] <= 0:
        raise ValueError(f"transition_steps=None: nothing of the {total_steps} steps is left after {warmup + begin}")
    if warmup >= lengths.get("decay_steps", math.inf):  # optax counts the warm-up as part of the decay
        raise ValueError(f"warmup_steps={warmup}: must be below decay_steps={lengths['decay_steps']}, counted from 0")
    return lengths


def _from_optax() -> dict[str, Callable[..., optax.Schedule]]:
    names = [name for name in vars(optax) if name.endswith("_schedule") and name not in {*UNFIT, "scale_by_schedule"}]
    return {name: _configurable(vars(optax)[name]) for name in (*names, "exponential_decay")}


SCHEDULES = Registry(
    {
        "constant": factors.constant,
        "exponential_to": factors.exponential_to,
        "one_cycle": factors.one_cycle,
        "polynomial_warmup": factors.polynomial_warmup,
        "staircase": factors.staircase,
        "steps": factors.steps,
        "warmup_cosine": factors.warmup_cosine,
        "warmup_linear": factors.warmup_linear,
        **_from_optax(),
    },
    given={"total_steps", "steps_per_epoch"},
    refused=UNFIT,
)
