"""Models that are written with ``flax.nnx``, in the form that tasks call: a linen module."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
from flax import linen as nn
from flax import nnx, traverse_util
from jax import numpy as jnp

from models.layers import batch_parts


class FromNnx(nn.Module):
    """A linen module that does what an ``nnx.Module`` does.

    An ``nnx.Module`` holds its variables and changes them when it is called. Each call of this module makes it anew
    and gives it the variables of the call, so that nothing outlives a call, which vmap, remat and loops over steps
    need. The collection "params" holds its parameters, under their paths in the module, "batch_stats" the statistics of
    BatchNorm; variables of another type are a collection with the name of the type. Arrays that are no variables are
    constants.

    The keys and counters of random streams are no variables: at each call, every stream begins anew, at a key that
    follows from the key "dropout" and from the place of the stream in the module. In evaluation the streams begin at
    fixed keys.

    Args:
      construct: Returns the ``nnx.Module``, given ``rngs``.

    >>> linear = FromNnx(lambda rngs: nnx.Linear(3, 2, rngs=rngs))
    >>> variables = linear.init(jax.random.key(0), jnp.ones((1, 3)))
    >>> jax.tree.map(jnp.shape, variables)
    {'params': {'bias': (2,), 'kernel': (3, 2)}}
    >>> linear.apply(variables, jnp.ones((5, 3))).shape
    (5, 2)
    """

    construct: Callable[..., nnx.Module]

    @nn.compact
    def __call__(self, *inputs: Any, deterministic: bool = True) -> Any:
        """Returns the outputs for inputs [B, ...], after ``module.eval()``, or ``module.train()`` with dropout."""
        if self.is_initializing():
            module = self.construct(rngs=nnx.Rngs(self.make_rng("params")))
            self._keep(module)
        else:
            key = self.make_rng("dropout") if self.has_rng("dropout") else jax.random.key(0)
            module = self.construct(rngs=nnx.Rngs(0))  # XLA computes none of the initial values, which are replaced
            nnx.update(module, nnx.from_flat_state(_filled(nnx.state(module, nnx.Variable), self.variables, key)))
        if batch_parts.axis_name() is not None:
            _drop_as_in_the_whole(module)
        if deterministic:
            module.eval()
        else:
            module.train()
        outputs = module(*inputs)
        if not self.is_initializing():
            self._keep(module)
        return outputs

    def _keep(self, module: nnx.Module) -> None:
        """Stores the module's variables in those collections that may change."""
        found: dict[str, dict[tuple[str, ...], Any]] = {}
        for path, variable in nnx.to_flat_state(nnx.state(module, nnx.Variable)):
            if not isinstance(variable, nnx.RngState):
                found.setdefault(_collection(variable), {})[tuple(map(str, path))] = variable.get_value()
        for collection, flat in found.items():
            if self.is_mutable_collection(collection):
                for name, value in traverse_util.unflatten_dict(flat).items():
                    self.put_variable(collection, name, value)


def _collection(variable: nnx.Variable) -> str:
    """Returns the collection of a variable, as ``nnx.bridge`` names it; that of a parameter of any type is "params"."""
    kind = nnx.Param if isinstance(variable, nnx.Param) else type(variable)
    return nnx.variable_name_from_type(kind, allow_register=True)


def _filled(state: nnx.State, variables: Mapping[str, Any], key: jax.Array) -> Iterator[tuple[Any, nnx.Variable]]:
    """Yields the path and the variable of each leaf of a state: values from collections, streams from a key."""
    for place, (path, variable) in enumerate(nnx.to_flat_state(state)):
        value: Any = variables
        if isinstance(variable, nnx.RngKey):
            own, shape = jax.random.fold_in(key, place), variable.get_value().shape
            value = jax.random.split(own, shape) if shape else own
        elif isinstance(variable, nnx.RngState):
            value = jnp.zeros_like(variable.get_value())  # a counter
        else:
            for part in (_collection(variable), *path):
                value = value[str(part)]
        yield path, variable.copy(value)


class _DropoutOfWhole(nnx.Dropout):
    """Drops of a part of a batch what ``nnx.Dropout`` would drop of the whole batch."""

    def __call__(self, inputs: jax.Array, **options: Any) -> jax.Array:
        ones = jnp.ones_like(inputs, shape=(batch_parts.whole_size(len(inputs)), *inputs.shape[1:]))
        return inputs * batch_parts.own(super().__call__(ones, **options))


def _drop_as_in_the_whole(module: nnx.Module) -> None:
    for _, layer in nnx.iter_modules(module):
        if type(layer) is nnx.Dropout:
            object.__setattr__(layer, "__class__", _DropoutOfWhole)
