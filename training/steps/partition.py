"""What of a state lies in parts on the devices of a node, and which transformations of updates allow it."""

import re
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optax
from jax import numpy as jnp

import optim
from models.layers import block_parts
from parallel import PART_AXIS, Cut, Partition, compile_quickly, part_shape
from reducers.leaves import kept, leaf_names
from training.train_state import STATE_AXES, TrainState

Init = Callable[[Any, TrainState], TrainState]  # parameters, a state -> the state with what begins from these


def shapes_in_parts(whole: TrainState, partition: Partition, *, params: Any, init: Init, longer: int = 0) -> TrainState:
    """Returns the shapes of one worker's state on a device.

    Args:
      whole: those of whole leaves.
      partition: what lies in parts.
      params: shapes of whole parameters.
      init: replaces the states of optimizers and of the reducer by those that begin from the given parameters.
      longer: a number by which every part of a parameter is longer than it is.
    """
    if not partition.axes:
        return whole

    def part(x: Any) -> jax.ShapeDtypeStruct:
        *ones, size = part_shape(x.shape, partition.count)
        return jax.ShapeDtypeStruct((*ones, size + longer), x.dtype)

    parts = jax.tree.map(part, params)
    state = jax.eval_shape(init, parts, whole)
    if partition.what == "parameters":
        state = state._replace(params=parts, ema=None if whole.ema is None else parts)
    return state


def axes_of_state(whole: TrainState, partition: Partition, *, params: Any, init: Init) -> TrainState:
    """Returns ``STATE_AXES`` with a ``Cut`` for each leaf that lies in parts; the arguments are ``shapes_in_parts``'s.

    A leaf does if it becomes longer where the parts of the parameters do.

    Raises:
      ValueError: names a leaf whose parts are no parts of the whole one, such as Adafactor's sums of rows.
    """
    if not partition.axes:
        return STATE_AXES
    part, longer = (
        shapes_in_parts(whole, partition, params=params, init=init, longer=more)._asdict() for more in (0, 1)
    )

    def axes(name: str, axis: int | None) -> Any:
        def of_leaf(path: Any, whole: Any, part: Any, longer: Any) -> Any:
            if whole.shape == part.shape == longer.shape:
                return axis
            try:
                return Cut.of(axis, whole=whole.shape, part=part.shape, count=partition.count)
            except ValueError as error:
                raise ValueError(f"{name}{jax.tree_util.keystr(path)} {error}") from None

        return jax.tree.map_with_path(of_leaf, getattr(whole, name), part[name], longer[name])

    return TrainState(**{name: axes(name, axis) for name, axis in STATE_AXES._asdict().items()})


def block_by_block(partition: Partition, params: Any, loss: Callable[..., Any]) -> tuple[Callable[[Any], Any], Any]:
    """Returns ``Partition.whole`` and a loss for a model whose blocks gather their own parameters.

    Args:
      partition: of parameters.
      params: shapes of whole parameters, those of equal blocks under ``block_parts.NAME``.
      loss: the loss of whole parameters.
    """
    prefix = block_parts.NAME.format("")
    of_block = params[block_parts.NAME.format(0)]

    def whole(parts: Any) -> Any:
        others = {name: part for name, part in parts.items() if not name.startswith(prefix)}
        return {**parts, **partition.whole(others, {name: params[name] for name in others})}

    return whole, block_parts.gathering(lambda part: partition.whole(part, of_block))(loss)


def works_in_parts(transformation: optax.GradientTransformationExtraArgs, params: Any, **extra_args: Any) -> bool:
    """Returns whether a transformation makes the same updates of parts of leaves as of whole leaves.

    It tries two updates. Their leaves have as many dimensions as the parameters, with 3 numbers along each at most; of
    leaves whose names differ in digits alone, such as those of blocks, it takes one.

    Args:
      transformation: before or after the reducer.
      params: shapes of the parameters.
      **extra_args: further arguments of its update.
    """
    partition = Partition("state", 2)
    rng = np.random.default_rng(0)

    def draw(x: Any) -> Any:
        return jnp.asarray(rng.standard_normal([min(size, 3) for size in x.shape]), x.dtype)

    kinds = [re.sub(r"\d+", "", name) for name in leaf_names(params)]
    few = kept(params, [kind not in kinds[:i] for i, kind in enumerate(kinds)])
    wholes, *gradients = (jax.tree.map(draw, few) for _ in range(3))

    def two_updates(params: Any, gradients: Any) -> Any:
        state = transformation.init(params)
        made = []
        for gradient in gradients:
            updates, state = transformation.update(gradient, state, params, **extra_args)
            made.append(updates)
        return made

    @optim.norms.cut_over(partition.axes)
    def in_parts(_: Any) -> Any:
        made = two_updates(partition.own(wholes), [partition.own(gradient) for gradient in gradients])
        return [partition.like_params(updates, wholes) for updates in made]

    found, expected = (
        jax.jit(jax.vmap(made, axis_name=PART_AXIS), compiler_options=compile_quickly())(jnp.zeros(count))
        for made, count in ((in_parts, partition.count), (lambda _: two_updates(wholes, gradients), 1))
    )
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
    return all(np.allclose(one[0], other[0], rtol=1e-3, atol=1e-6 * np.abs(other).max()) for one, other in pairs)
