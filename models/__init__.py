"""Flax modules: architectures only, no loss, no data, no optimizer; ``tasks`` joins a model with its loss.

>>> import jax
>>> model = make("mlp", num_classes=10, hidden_sizes=(32,))
>>> model.apply(model.init(jax.random.key(0), jax.numpy.zeros((1, 8, 8, 1))), jax.numpy.zeros((5, 8, 8, 1))).shape
(5, 10)
"""

from collections.abc import Callable

from flax import linen as nn

from models import registry
from models.convolutional import LeNet5, MnistCNN
from models.dense import MLP, Softmax

__all__ = ["GIVEN", "MLP", "MODELS", "LeNet5", "MnistCNN", "Softmax", "lookup", "make"]

MODELS: dict[str, Callable[..., nn.Module]] = {
    "lenet5": LeNet5,
    "mlp": MLP,
    "mnist_cnn": MnistCNN,
    "softmax": Softmax,
}

# What the program supplies (the data set's classes) or flax adds; every other field of a model is a config key.
GIVEN = frozenset({"num_classes", "parent", "name"})


def lookup(name: str) -> Callable[..., nn.Module]:
    """Returns the model's constructor; its signature is the schema of a config's ``model`` block.

    Raises:
      ValueError: if no model has that name; says which there are.
    """
    return registry.find(MODELS, name)


def make(name: str, *, num_classes: int, **kwargs) -> nn.Module:
    """Builds the model called ``name``: ``make(num_classes=..., **config.model)``."""
    return lookup(name)(num_classes=num_classes, **kwargs)
