"""Variables for tests of convolutional networks."""

import jax
import numpy as np
from jax import numpy as jnp


def variables_of(model, *, size=8):
    """Random kernels, without the seconds that compiling an initialisation takes; the rest as it is initialised."""
    rng = np.random.default_rng(0)

    def fill(path, leaf):
        if path[-1].key == "kernel":
            return (rng.standard_normal(leaf.shape) * np.sqrt(2 / np.prod(leaf.shape[:-1]))).astype(leaf.dtype)
        return (np.ones if path[-1].key in ("scale", "var") else np.zeros)(leaf.shape, leaf.dtype)

    shapes = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, size, size, 3)))
    return jax.tree_util.tree_map_with_path(fill, shapes)
