"""Models without convolutions."""

import jax
from flax import linen as nn

from models.fields import Dtype
from reducers.options import Count, Fraction


class Softmax(nn.Module):
    """Softmax regression, ``logits = W x + b``: convex, so all methods converge to one solution.

    7,850 parameters on MNIST, 650 on digits.

    Args:
      num_classes: Number of classes, C.
      dtype: Data type of activations; parameters stay float32.
    """

    num_classes: int
    dtype: Dtype = "float32"

    @nn.compact
    def __call__(self, image: jax.Array, *, deterministic: bool = True) -> jax.Array:
        del deterministic
        return nn.Dense(self.num_classes, dtype=self.dtype)(image.reshape(image.shape[0], -1))  # (B, H, W, D) -> (B, C)


class MLP(nn.Module):
    """Dense layers with ReLU and dropout between them.

    9,610 parameters on digits with the default sizes.

    Args:
      num_classes: Number of classes, C.
      hidden_sizes: Width of each hidden layer.
      dropout_rate: Share of hidden units dropped in training.
      dtype: Data type of activations; parameters stay float32.
    """

    num_classes: int
    hidden_sizes: tuple[Count, ...] = (128,)
    dropout_rate: Fraction = 0.0
    dtype: Dtype = "float32"

    @nn.compact
    def __call__(self, image: jax.Array, *, deterministic: bool = True) -> jax.Array:
        x = image.reshape(image.shape[0], -1)  # (B, H * W * D)
        for size in self.hidden_sizes:
            x = nn.relu(nn.Dense(size, dtype=self.dtype)(x))
            x = nn.Dropout(self.dropout_rate, deterministic=deterministic)(x)
        return nn.Dense(self.num_classes, dtype=self.dtype)(x)  # (B, C)
