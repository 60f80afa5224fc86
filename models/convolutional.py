"""Small convolutional networks of the two papers."""

import jax
from flax import linen as nn

from models.fields import Dtype
from models.layers import lane_convolution
from models.layers.pooling import max_pool_2x2
from reducers.options import Fraction


class LeNet5(nn.Module):
    """LeNet-5 as in the MNIST recipe of Adasum's authors: 1,663,370 parameters on MNIST.

    conv 5x5x32, ReLU, pool 2; conv 5x5x64, ReLU, pool 2; dense 512, ReLU, dropout 0.5; dense C.

    Args:
      num_classes: Number of classes, C.
      dropout_rate: Share of the 512 hidden units that are dropped in training.
      dtype: Data type of activations; parameters stay float32.

    Reference: olsaarik/aml-horovod-adasum-example; Maleki et al., arXiv 2006.02924, section on LeNet-5.
    Differs from the authors' code in: initialisation (flax's LeCun normal, theirs PyTorch's default uniform).
    """

    num_classes: int
    dropout_rate: Fraction = 0.5
    dtype: Dtype = "float32"

    @nn.compact
    def __call__(self, image: jax.Array, *, deterministic: bool = True) -> jax.Array:
        x = _pooled_twice(image, dtype=self.dtype)  # (B, H/4, W/4, 64)
        x = nn.relu(nn.Dense(512, dtype=self.dtype)(x.reshape(x.shape[0], -1)))  # (B, 512)
        x = nn.Dropout(self.dropout_rate, deterministic=deterministic)(x)
        return nn.Dense(self.num_classes, dtype=self.dtype)(x)  # (B, C)


class MnistCNN(nn.Module):
    """The small CNN of the staleness study: three convolutions and one dense layer; 120,394 parameters on MNIST.

    conv 5x5x32, ReLU, pool 2; conv 5x5x64, ReLU, pool 2; conv 3x3x64, ReLU; dense C.

    Args:
      num_classes: Number of classes, C.
      dtype: Data type of activations; parameters stay float32.

    Reference: Chen et al., "Revisiting Distributed Synchronous SGD", arXiv 1604.00981, MNIST with simulated staleness.
    Differs from the paper in: kernel sizes, widths and pooling are ours; only "three convolutions, one fully connected
    layer" is from the paper, from memory and unverified.
    """

    num_classes: int
    dtype: Dtype = "float32"

    @nn.compact
    def __call__(self, image: jax.Array, *, deterministic: bool = True) -> jax.Array:
        del deterministic
        x = _pooled_twice(image, dtype=self.dtype)  # (B, H/4, W/4, 64)
        x = nn.relu(lane_convolution.Conv(64, (3, 3), dtype=self.dtype)(x))  # (B, H/4, W/4, 64)
        return nn.Dense(self.num_classes, dtype=self.dtype)(x.reshape(x.shape[0], -1))  # (B, C)


def _pooled_twice(image: jax.Array, *, dtype: str) -> jax.Array:
    """Applies the first layers of both models: conv 5x5x32, ReLU, pool 2; conv 5x5x64, ReLU, pool 2."""
    height, width = image.shape[1:3]
    if min(height, width) < 4:
        raise ValueError(f"image={height}x{width}: two poolings need at least 4x4 pixels")
    x = max_pool_2x2(nn.relu(lane_convolution.Conv(32, (5, 5), dtype=dtype)(image)))  # (B, H/2, W/2, 32)
    return max_pool_2x2(nn.relu(lane_convolution.Conv(64, (5, 5), dtype=dtype)(x)))  # (B, H/4, W/4, 64)
