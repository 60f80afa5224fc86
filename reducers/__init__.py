"""Gradient aggregation as optax transformations.

A *reducer* combines one update per worker into one update for all of them. It is an ordinary
``optax.GradientTransformationExtraArgs`` that uses collectives over a named axis, so it runs wherever JAX has
named axes (``pmap``, ``shard_map``, ``vmap(axis_name=...)`` and any nesting of them), and its place in
``optax.chain`` is the algorithm: before the optimizer it reduces gradients, after it, optimizer deltas. Others learn
what they must know of a reducer from its attributes, see ``Reducer``.

>>> import jax, jax.numpy as jnp, optax, reducers
>>> tx = optax.chain(reducers.mean("worker"), optax.sgd(1.0))
>>> def step(gradient):
...   updates, _ = tx.update(gradient, tx.init(gradient))
...   return updates
>>> jax.vmap(step, axis_name="worker")(jnp.array([1.0, 3.0]))  # two workers
Array([-2., -2.], dtype=float32)

Reducers compose: ``backup_workers(axis, num_required=6, combine=adasum(axis))``.

Under ``shard_map`` pass ``check_vma=False``, or take gradients by ``lax.pcast(params, axis, to="varying")``: otherwise
JAX has summed them over the workers before a reducer sees them, and the mean of that is the sum.

This package imports jax, optax and numpy alone. The distribution ``syncsum`` (``pip install .`` in the repository)
installs this package, ``reducers``, and nothing else.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import optax

from reducers import blocks
from reducers.adacons import adacons
from reducers.adasum import adasum, adasum_algorithms
from reducers.arrived import Waited, waited
from reducers.backup_workers import backup_workers
from reducers.collectives import AxisName, num_workers, same_on_all
from reducers.communication import in_half_precision, overflowed
from reducers.coordinate_median import coordinate_median
from reducers.deadline import deadline
from reducers.dynamic_backup_workers import dynamic_backup_workers
from reducers.dynamic_scale import DynamicScale, all_finite
from reducers.k_batch import k_batch
from reducers.mean import mean
from reducers.metrics import metrics
from reducers.reducer import Combine, Reducer, as_reducer, chain
from reducers.sign_majority import sign_majority
from reducers.stale import stale
from reducers.sum import sum  # noqa: A004 - the field's name for it
from reducers.traffic import Traffic, traffic
from reducers.trimmed_mean import trimmed_mean

__version__ = "0.1.0"

__all__ = [
    "GIVEN",
    "REDUCERS",
    "AxisName",
    "DynamicScale",
    "Reducer",
    "Traffic",
    "Waited",
    "adacons",
    "adasum",
    "adasum_algorithms",
    "all_finite",
    "as_reducer",
    "backup_workers",
    "chain",
    "check",
    "coordinate_median",
    "deadline",
    "dynamic_backup_workers",
    "in_half_precision",
    "k_batch",
    "lookup",
    "make",
    "mean",
    "metrics",
    "num_workers",
    "overflowed",
    "same_on_all",
    "sign_majority",
    "stale",
    "sum",
    "traffic",
    "trimmed_mean",
    "waited",
]

REDUCERS: dict[str, Callable] = {
    "adacons": adacons,
    "adasum": adasum,
    "backup_workers": backup_workers,
    "coordinate_median": coordinate_median,
    "deadline": deadline,
    "dynamic_backup_workers": dynamic_backup_workers,
    "k_batch": k_batch,
    "mean": mean,
    "sign_majority": sign_majority,
    "stale": stale,
    "sum": sum,
    "trimmed_mean": trimmed_mean,
}

# The program supplies these; every other parameter of a reducer is a config key.
GIVEN = frozenset({"axis_name"})


def make(name: str, *, axis_name: AxisName, **options: Any) -> Reducer:
    """Builds the reducer called ``name``: ``make(axis_name=..., **config.reducer)``.

    Args:
      name: a key of ``REDUCERS``.
      axis_name: the worker axis, or a tuple of axes, outer first: ``("device", "lane")``.
      **options: the reducer's own options. A reducer inside it is given by name, as a block with options, or as an
        optax transformation.

    Returns:
      A ``Reducer`` to be used where ``axis_name`` is bound.

    Raises:
      ValueError: one line with the option's path, for a name, an option or a value that makes no sense.

    >>> make("mean", axis_name="worker").takes_mask
    True
    >>> make("stale", delay_steps=1, combine={"name": "trimmed_mean", "num_trimed": 2}, axis_name="worker")
    Traceback (most recent call last):
    ValueError: combine.num_trimed: unknown option; allowed: num_trimmed
    """
    check({"name": name, **options})
    return as_reducer(lookup(name)(axis_name, **options))


def check(block: Mapping | str) -> None:
    """Checks the name and the options of a reducer, and of all reducers inside it, without building one.

    Args:
      block: a name, or {"name": ..., option: value, ...}.

    Raises:
      ValueError: one line with the option's path, the value and what is allowed.

    >>> check({"name": "deadline", "deadline_seconds": 2.0, "combine": {"name": "adasm"}})
    Traceback (most recent call last):
    ValueError: combine.name='adasm': did you mean 'adasum'? allowed: adacons, adasum, ...
    """
    if not isinstance(block, str) and not hasattr(block, "keys"):
        raise ValueError(f"name={block!r}: must be the name of a reducer, or a block with a name")
    options = {"name": block} if isinstance(block, str) else {key: block[key] for key in block}
    if "name" not in options:
        raise ValueError("name: missing")
    name = options.pop("name")
    blocks.check(lookup(name), options, given=dict.fromkeys(GIVEN))
    for key in _nested(REDUCERS[name]):
        if _is_block(options.get(key)):
            try:
                check(options[key])
            except ValueError as error:
                raise ValueError(f"{key}.{error}") from None


def lookup(name: str) -> Callable:
    """Returns the function that a config's ``reducer`` block calls; its signature is the schema of the block.

    It is the reducer's constructor, except that reducers inside it are names or blocks, by default "mean".

    Raises:
      ValueError: if no reducer has that name; lists the names.
    """
    return _of_names(blocks.find(REDUCERS, name))


@functools.cache
def _of_names(constructor: Callable) -> Callable:
    """The constructor with names or blocks in the place of nested reducers."""
    nested = _nested(constructor)
    if not nested:
        return constructor

    def build(axis_name: AxisName, **options: Any) -> optax.GradientTransformation:
        for key in nested:
            if _is_block(options.get(key)):
                options[key] = blocks.build(options[key], lookup=lookup, key=key, axis_name=axis_name)
        return constructor(axis_name, **options)

    signature = inspect.signature(constructor, eval_str=True)
    parameters = [
        p.replace(annotation=Mapping | str, default="mean" if p.default is None else p.default)
        if p.name in nested
        else p
        for p in signature.parameters.values()
    ]
    build.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return functools.update_wrapper(build, constructor)


def _nested(constructor: Callable) -> list[str]:
    """The parameters that are reducers themselves."""
    parameters = inspect.signature(constructor, eval_str=True).parameters.values()
    return [p.name for p in parameters if p.annotation == Combine]


def _is_block(value: Any) -> bool:
    """Whether a nested reducer is given by name or as a block, not as a transformation or None."""
    return value is not None and not isinstance(value, optax.GradientTransformation)
