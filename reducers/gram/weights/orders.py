"""The order in which a gradient meets the others."""

from typing import Any

import jax
from jax import numpy as jnp


def orders_of(order: str, seed: int, step: Any, num_workers: int) -> jax.Array:
    """Returns the order in which each gradient meets the others, [n, n]; random orders depend on ``step``, [n]."""
    if order == "workers":
        return jnp.broadcast_to(jnp.arange(num_workers), (num_workers, num_workers))
    keys = jax.random.split(jax.random.fold_in(jax.random.key(seed), step[0]), num_workers)
    return jax.vmap(lambda key: jax.random.permutation(key, num_workers))(keys)
