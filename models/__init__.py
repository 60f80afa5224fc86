"""Models as Flax modules, without loss, data or optimizer; ``tasks`` joins a model with its loss.

>>> import jax
>>> model = make("mlp", sizes={"num_classes": 10}, hidden_sizes=(32,))
>>> model.apply(model.init(jax.random.key(0), jax.numpy.zeros((1, 8, 8, 1))), jax.numpy.zeros((5, 8, 8, 1))).shape
(5, 10)
"""

import functools
from collections.abc import Mapping
from typing import Any

from flax import linen as nn
from flax import nnx

from models import bert, convolutional, dense, inception, lstm, pixelcnn, resnet, transformer
from models.from_nnx import FromNnx
from reducers.registry import Registry, components

# Fields of a model whose values come from the data.
FROM_DATA = frozenset({"num_classes", "vocab_size"})

MODELS = Registry(
    {
        "bert_base": bert.BertBase,
        "bert_large": bert.BertLarge,
        "bert_mini": bert.BertMini,
        "bert_small": bert.BertSmall,
        "inception_v3": inception.InceptionV3,
        "lenet5": convolutional.LeNet5,
        "lstm": lstm.LSTM,
        "mlp": dense.MLP,
        "mnist_cnn": convolutional.MnistCNN,
        "pixelcnn": pixelcnn.PixelCNN,
        "resnet18": resnet.ResNet18,
        "resnet20": resnet.ResNet20,
        "resnet32": resnet.ResNet32,
        "resnet34": resnet.ResNet34,
        "resnet44": resnet.ResNet44,
        "resnet50": resnet.ResNet50,
        "resnet56": resnet.ResNet56,
        "softmax": dense.Softmax,
        "transformer": transformer.Transformer,
    },
    given=FROM_DATA | {"parent", "rngs"},  # flax supplies the last two
)


def make(name: str, *, sizes: Mapping[str, int], **kwargs) -> nn.Module:
    """Builds the model called ``name``: ``make(sizes=..., **config.model)``.

    Args:
      name: Name of the model.
      sizes: Sizes of the data, such as "num_classes"; the model gets those that it has fields for.
      **kwargs: The other keys of the config.

    Returns:
      The model; an ``nnx.Module``, whose constructor takes ``rngs``, as a linen module.

    Raises:
      ValueError: If the model needs a size that the data do not have, or is an ``nnx.Module`` that takes no ``rngs``.
    """
    parameters = components.signature(MODELS.find(name)).parameters
    needed = sorted(FROM_DATA & parameters.keys())
    if missing := [size for size in needed if size not in sizes]:
        raise ValueError(f"name={name!r}: needs data with {missing[0]}; these have {', '.join(sizes)}")
    construct = functools.partial(MODELS.make, name, **{size: sizes[size] for size in needed}, **kwargs)
    if "rngs" in parameters:
        return FromNnx(functools.partial(_nnx_module, construct))
    made = construct()
    if isinstance(made, nnx.Module):
        raise ValueError(f"name={name!r}: an nnx.Module needs a parameter rngs, from which it draws its parameters")
    return made


def _nnx_module(construct: functools.partial[Any], *, rngs: nnx.Rngs) -> nnx.Module:
    made = construct(rngs=rngs)
    if not isinstance(made, nnx.Module):
        raise ValueError(f"name={construct.args[0]!r}: must return an nnx.Module, not {type(made).__name__}")
    return made
