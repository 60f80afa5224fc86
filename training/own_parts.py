"""Components from outside of this repository, tried on shapes before anything is compiled.

An exception of theirs, or a result that the trainer cannot use, is refused in one line.
"""

import contextlib
import sys
import traceback
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import optax
from jax import numpy as jnp

import reducers
from data.examples import kind_of
from models.tasks import Task
from parallel import DEVICE_AXIS, LANE_AXIS
from reducers.registry import components
from runs.errors import ConfigError, place_outside


@contextlib.contextmanager
def refusing(config: Mapping[str, Any], *, of: str | None = None) -> Iterator[None]:
    """Turns an exception of the user's code into a ConfigError that names the block, the exception, its file and line.

    Args:
      config: the config, complete and valid.
      of: the block to name if the traceback does not show whose code failed; None passes on such an exception.
    """
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:
        found = _origin(error, config)
        if found is None and of is not None:
            found = next(((of, name) for name in components.names_in(config[of])), None)
        if found is None:
            raise
        block, name = found
        line = f"config.{block}.name={name!r}: {explain(error)}{place_outside(error)}"
        raise ConfigError(line) from None


@contextlib.contextmanager
def naming(names: Sequence[str]) -> Iterator[None]:
    """Puts the first of the names, if any, before the message of a ValueError."""
    try:
        yield
    except ConfigError:
        raise
    except ValueError as error:
        if not names:
            raise
        raise ValueError(f"name={names[0]!r}: {error}").with_traceback(error.__traceback__) from None


def explain(error: BaseException) -> str:
    """Returns an exception as one line; for an unbound axis, the line says what to write instead."""
    text = str(error).strip().split("\n")[0]
    if isinstance(error, NameError) and "axis name" in text:
        return (
            f"names a worker axis ({text.split('.')[0]}); each worker computes its gradient alone, and only a reducer "
            "has axes: leave the axis out, as in nn.BatchNorm(axis_name=None)"
        )
    return f"{type(error).__name__}: {text}"


def _origin(error: BaseException, config: Mapping[str, Any]) -> tuple[str, str] | None:
    """Returns the block and the name of the component whose code raised an error; None if none did."""
    own = [(block, name) for block in config for name in components.names_in(config[block])]
    files = {name: getattr(sys.modules.get(components.module_of(name)), "__file__", None) for _, name in own}
    nearest = None  # of those whose file the traceback shows
    for frame, _ in reversed([*traceback.walk_tb(error.__traceback__)]):
        code = frame.f_code
        for block, name in own:
            if files[name] == code.co_filename:
                nearest = nearest or (block, name)
                if code.co_qualname.split(".")[0] == name.partition(":")[2]:
                    return block, name
    if nearest is None and own and place_outside(error):
        return own[0]
    return nearest


# ---- a model and its task ----------------------------------------------------------------------------------------


def check_task(task: Task, batch: Mapping[str, jax.ShapeDtypeStruct], *, batch_size: int) -> None:
    """Raises ValueError, one line, if the training step or an evaluation cannot use what a task returns.

    Args:
      task: the model joined with its loss.
      batch: shapes of a batch as it reaches the task.
      batch_size: B.
    """
    key = jax.eval_shape(lambda: jax.random.key(0))
    begun = jax.eval_shape(task.init, key)
    if not _is_pair(begun):
        raise ValueError(f"init returns {_kind(begun)}, must return (params, model_state)")
    params, model_state = begun
    sums: dict[str, Any] = {}

    def loss(params, model_state, batch, key):
        returned = task.loss(params, model_state, batch, key)
        if not (_is_pair(returned) and _is_pair(returned[1])):
            raise ValueError(f"loss returns {_kind(returned)}, must return (mean loss, (sums, model_state))")
        value, (sums_of_batch, state) = returned
        if not (_is_number(value) and jnp.issubdtype(jnp.result_type(value), jnp.floating)):
            raise ValueError(f"loss returns {_kind(value)} as the mean loss, must be a float of shape ()")
        _check_scalars("loss returns sums that", sums_of_batch, needed=("loss", "count"))
        check_like("loss returns a model_state that", state, model_state)
        sums["loss"] = sums_of_batch
        return value, None

    jax.eval_shape(jax.grad(loss, has_aux=True), params, model_state, batch, key)
    weight = jax.ShapeDtypeStruct((batch_size,), jnp.float32)
    evaluated = jax.eval_shape(task.evaluate, params, model_state, batch, weight)
    _check_scalars("evaluate returns sums that", evaluated, needed=("loss", "count"))
    shapes = {name: jax.ShapeDtypeStruct((), jnp.result_type(x)) for name, x in sums["loss"].items()}
    for found in (shapes, evaluated):
        metrics = jax.eval_shape(task.metrics, found)
        _check_scalars("metrics returns what", metrics, needed=("loss", task.best[0]))


def _check_scalars(what: str, found: Any, *, needed: tuple[str, ...]) -> None:
    if not isinstance(found, Mapping):
        raise ValueError(f"{what} is {_kind(found)}, must be a dict of numbers")
    if missing := [name for name in needed if name not in found]:
        raise ValueError(f"{what} lacks {missing[0]!r}; has {', '.join(map(repr, found)) or 'nothing'}")
    for name, value in found.items():
        if not _is_number(value):
            raise ValueError(f"{what} has {_kind(value)} as {name!r}, must be a number of shape ()")


def check_shape(what: str, found: Callable[..., Any], *arguments: Any, shape: tuple[int, ...]) -> None:
    """Raises ValueError (one line) unless a function returns an array of the given shape."""
    value = jax.eval_shape(found, *arguments)
    if not (_is_array(value) and jnp.shape(value) == shape):
        raise ValueError(f"{what} {_kind(value)}, must be an array of shape {shape}")


# ---- transformations ---------------------------------------------------------------------------------------------


def check_optimizers(optimizers: Iterable[optax.GradientTransformationExtraArgs], params: Any) -> None:
    """Raises ValueError, one line, if the trainer cannot use what an optimizer returns."""
    for optimizer in optimizers:
        state = jax.eval_shape(optimizer.init, params)
        jax.eval_shape(_checked(optimizer, dtypes="any"), params, state, params)


def check_reducer(reducer: reducers.Reducer, params: Any, *, num_workers: int, **extra_args: Any) -> None:
    """Raises ValueError, one line, if the trainer cannot use what a reducer returns, or workers get different updates.

    The reducer is traced for all workers on one device. ``training.steps.replicas`` compares the devices of a run.

    Args:
      reducer: reduces along ``parallel.AXES``.
      params: shapes of the parameters.
      num_workers: W.
      **extra_args: further arguments of the reducer's update.
    """
    state = jax.eval_shape(reducer.init, params)
    for name, value in reducers.report(state).metrics.items():
        if not _is_number(value):
            raise ValueError(f"your reducer reports {_kind(value)} as the metric {name!r}, must be of shape ()")
    update = _checked(reducer, dtypes="same", extra_args=extra_args, who="your reducer's ")

    def of_all_workers(x: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((1, num_workers, *x.shape), x.dtype)

    def trace(*, out_axes: int | None) -> None:
        lanes = jax.vmap(update, in_axes=(0, 0, None), out_axes=out_axes, axis_name=LANE_AXIS)
        devices = jax.vmap(lanes, in_axes=(0, 0, None), axis_name=DEVICE_AXIS)
        jax.eval_shape(devices, *jax.tree.map(of_all_workers, (params, state)), params)

    trace(out_axes=0)
    if reducer.local_workers != "never" or num_workers == 1:
        return
    try:
        trace(out_axes=None)  # raises if the updates differ between lanes
    except ValueError:  # vmap's, since the trace above succeeded
        raise ValueError(
            "your reducer leaves its updates different on the workers of a device; they must be the same on all "
            f"workers: reduce along all of axis_name, {(DEVICE_AXIS, LANE_AXIS)}"
        ) from None


def _checked(
    transformation: optax.GradientTransformationExtraArgs,
    *,
    dtypes: str,
    extra_args: Mapping[str, Any] = types.MappingProxyType({}),
    who: str = "",
) -> Callable[[Any, Any, Any], Any]:
    """Returns two updates in a row as one function, which checks what each returns."""

    def update(updates, state, params):
        for _ in range(2):
            returned = transformation.update(updates, state, params, **extra_args)
            if not _is_pair(returned):
                raise ValueError(f"{who}update returns {_kind(returned)}, must return (updates, state)")
            check_like(f"{who}update returns updates that", returned[0], updates, dtypes=dtypes)
            check_like(f"{who}update returns a state that", returned[1], state)
            _, state = returned
        return returned[0]

    return update


def check_like(what: str, found: Any, expected: Any, *, dtypes: str = "same") -> None:
    """Raises ValueError, naming the first wrong leaf, unless a tree has the structure, shapes and dtypes of another.

    Args:
      what: the tree, in words; the message begins with it.
      found: the tree.
      expected: the other tree, or its shapes.
      dtypes: "same" compares dtypes; "any" does not.
    """
    have = _leaves_by_path(found)
    want = _leaves_by_path(expected)
    structure: Any = jax.tree.structure(found)
    if structure != jax.tree.structure(expected):
        differ = f"are {_kind(found)}"
        if found is not None:
            lacking = [f"lack {path}" for path in want if path not in have]
            extra = [f"have {path} too" for path in have if path not in want]
            differ = [*lacking, *extra, differ][0]
        raise ValueError(f"{what} {differ}; must have the structure of what goes in")
    for path, leaf in have.items():
        if not _is_array(leaf):
            raise ValueError(f"{what} have {_kind(leaf)} at {path}, must be an array")
        if jnp.shape(leaf) != (shape := jnp.shape(want[path])):
            raise ValueError(f"{what} have shape {jnp.shape(leaf)} at {path}, must be {shape}")
        if dtypes == "same" and jnp.result_type(leaf) != (dtype := jnp.result_type(want[path])):
            raise ValueError(f"{what} have dtype {jnp.result_type(leaf)} at {path}, must be {dtype}")


def _leaves_by_path(tree: Any) -> dict[str, Any]:
    return {jax.tree_util.keystr(path) or "the leaf": leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def _is_pair(value: Any) -> bool:
    return isinstance(value, tuple | list) and len(value) == 2


def _is_array(value: Any) -> bool:
    try:
        return jnp.result_type(value) is not None
    except (TypeError, ValueError):
        return False


def _is_number(value: Any) -> bool:
    return len(jax.tree.leaves(value)) == 1 and _is_array(value) and jnp.shape(value) == ()


def _kind(value: Any) -> str:
    """Describes a value: None, an array of a shape, or its type and length."""
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"an array of shape {tuple(value.shape)}"
    if isinstance(value, tuple | list):
        return f"{kind_of(value)} of {len(value)}"
    return kind_of(value)
