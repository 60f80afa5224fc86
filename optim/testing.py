"""The laws that every optimizer keeps, whoever wrote it; ``check`` puts an optimizer through all of them."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
import optax
from jax import lax
from jax import numpy as jnp

from reducers import testing as of_reducers
from reducers.dtypes import mixing_dtypes
from reducers.leaves import kept

DTYPES = (jnp.bfloat16, jnp.float16, jnp.float32)
SCALES = (0.0, *(10.0**power for power in (-30, -20, -10, -2, 0, 2, 10, 20, 30)))
LEAST = float(jnp.finfo(jnp.float32).tiny)  # numbers below it are 0 on a CPU
NUM_STEPS = 4


@dataclasses.dataclass(frozen=True, eq=False)
class Subject(of_reducers.Subject):
    """An optimizer under test; to the laws of reducers it is a reducer that communicates nothing.

    Attributes:
      scales: the least and the largest scale of gradients at which steps are those of float64.
    """

    scales: tuple[float, float]

    def inputs(self, dtype: Any, scale: float) -> tuple[Any, Any]:
        """Returns parameters, and the gradients [T, ...] of some steps: their sizes differ, and some numbers are 0."""
        rng = np.random.default_rng(1)

        def draw(*shape):
            return rng.standard_normal(shape) * (rng.random(shape) > 0.1)

        params = jax.tree.map(lambda p: draw(*p.shape), self.params)
        grads = jax.tree.map(lambda p: scale * draw(NUM_STEPS, *p.shape), self.params)
        return cast(params, dtype), cast(grads, dtype)

    @functools.cached_property
    def updates(self) -> Callable[[Any, Any], Any]:
        """The compiled program (parameters, gradients [T, ...]) -> updates [T, ...], at parameters that stay."""
        return jax.jit(functools.partial(updates_of, self.reducer, extra_args=self.extra_args))


def updates_of(
    optimizer: optax.GradientTransformationExtraArgs, params: Any, grads: Any, *, extra_args: Mapping[str, Any]
) -> Any:
    """Returns the updates of some steps."""

    def step(state, g):
        return optimizer.update(g, state, params, **extra_args)[::-1]

    return lax.scan(step, optimizer.init(params), grads)[1]


def cast(tree: Any, dtype: Any) -> Any:
    """Returns a tree of NumPy arrays in a dtype."""
    return jax.tree.map(lambda x: np.asarray(x, dtype), tree)


def check(
    make: Callable[[], optax.GradientTransformation],
    *,
    params: Any = of_reducers.PARAMS,
    extra_args: Mapping[str, Any] | None = None,
    scales: tuple[float, float] = (1e-10, 1e10),
) -> None:
    """Raises AssertionError, which names the law, unless an optimizer keeps all laws that hold for any optimizer.

    The laws are those of ``LAWS``: structure, shapes and dtypes are kept, whatever parameters have; JAX's promotion of
    dtypes may be "strict"; the state can be donated, made of shapes, and carried by ``jax.lax.scan``, also in float64;
    frozen leaves change nothing, even if they are NaN; and for gradients of any dtype and any scale, steps are those of
    float64, or are at least finite. It takes some seconds.

    Args:
      make: makes the optimizer.
      params: a tree of ``jax.ShapeDtypeStruct``, for an optimizer that is not for any tree.
      extra_args: keyword arguments that ``update`` needs.
      scales: the least and the largest scale of gradients, such as (1e-30, 1e30), at which steps have to be those of
        float64. The default is for optimizers that keep squares of gradients.

    >>> import optim
    >>> check(lambda: optim.in_full_precision(optax.adam)(0.1))
    >>> check(lambda: optax.adam(0.1))
    Traceback (most recent call last):
    AssertionError: precision: of float16 gradients of scale 0e+00, update['large'] is not finite...
    """
    subject = Subject(lambda _: make(), params, 2, extra_args or {}, scales)
    mixing_dtypes(of_reducers.check_laws)(LAWS, subject)  # one of the laws is that of strict promotion


def scan(subject: Subject) -> None:
    """``jax.lax.scan`` can carry the state, in float32 and in float64."""
    for dtype in (jnp.float32, jnp.float64):
        with jax.enable_x64(dtype == jnp.float64):
            params, grads = subject.inputs(dtype, 1.0)
            jax.eval_shape(subject.updates, params, grads)


def precision(subject: Subject) -> None:
    """In every dtype and at every scale updates are those of float64, up to rounding, or at least finite."""
    for dtype in DTYPES:
        info = jnp.finfo(dtype)
        scales = [scale for scale in SCALES if not scale or 64 * float(info.tiny) <= scale <= float(info.max) / 64]
        for scale in scales:
            params, grads = subject.inputs(dtype, scale)
            found = subject.updates(params, grads)
            with jax.enable_x64(True):
                expected = subject.updates(cast(params, np.float64), cast(grads, np.float64))
            where = f"of {info.dtype.name} gradients of scale {scale:.0e}"
            for path, leaf in jax.tree.leaves_with_path(found):
                name = f"update{jax.tree_util.keystr(path)}"
                assert np.isfinite(np.asarray(leaf, np.float64)).all(), f"{where}, {name} is not finite"
            if not scale or subject.scales[0] <= scale <= subject.scales[1]:
                _check_close(found, expected, tolerance=max(4 * float(info.eps), 1e-4), where=where)


def _check_close(found: Any, expected: Any, *, tolerance: float, where: str) -> None:
    for (path, ours), theirs in zip(jax.tree.leaves_with_path(found), jax.tree.leaves(expected), strict=True):
        ours, theirs = (np.asarray(x, np.float64) for x in (ours, theirs))
        error = np.abs(ours - theirs).max(initial=0)
        largest = np.abs(theirs).max(initial=0)
        allowed = tolerance * largest + LEAST
        assert error <= allowed, f"{where}, update{jax.tree_util.keystr(path)} of {largest:.0e} is {error:.0e} off"


def freeze(subject: Subject) -> None:
    """Frozen leaves, None or the part of ``optax.set_to_zero``, do not change the others, NaN or not."""
    params, grads = subject.inputs(np.float32, 1.0)
    structure = jax.tree.structure(params)
    size = len(jax.tree.leaves(params))
    is_trained = [i % 2 == 0 for i in range(size)]
    labels = jax.tree.unflatten(structure, ["trained" if one else "frozen" for one in is_trained])
    nan = lambda x, label: x if label == "trained" else np.full_like(x, np.nan)  # noqa: E731
    with_nan = [jax.tree.map(nan, tree, labels) for tree in (params, grads)]
    parted = optax.partition({"trained": subject.reducer, "frozen": optax.set_to_zero()}, labels)
    found = updates_of(parted, *with_nan, extra_args=subject.extra_args)
    alone = subject.updates(kept(params, is_trained), kept(grads, is_trained))
    frozen = [not one for one in is_trained]
    assert all(not np.any(x) for x in jax.tree.leaves(kept(found, frozen))), "leaves that are frozen move"
    _check_close(kept(found, is_trained), alone, tolerance=1e-6, where="beside leaves that optax.partition freezes")


LAWS: dict[str, Callable[[Subject], None]] = {
    "scan": scan,
    "freeze": freeze,
    "precision": precision,
    "dtypes": of_reducers.dtypes,
    "state_can_be_donated": of_reducers.state_can_be_donated,
    "abstract_init": of_reducers.abstract_init,
    "strict_promotion": of_reducers.strict_promotion,
}
