"""Building blocks of BERT and the causal transformer."""

from collections.abc import Callable, Sequence
from typing import Any, Literal, cast

import jax
from flax import linen as nn
from jax import lax
from jax import numpy as jnp

from models.fields import AttentionKernel, Dtype, ScaleInvariant
from models.layers import block_parts, lean
from models.layers.dropout import Dropout
from reducers import targets
from reducers.dtypes import mixing_dtypes

PAD = 0  # the token of padding in all text data
INVARIANT_LEAVES = r"block_\d+/.*kernel"  # the scale-invariant leaves of a scale-invariant model


class SelfAttention(nn.Module):
    r"""Scaled dot-product attention with several heads.

    .. math:: y = W_o \, \text{concat}_h \, \text{softmax}(Q_h K_h^T / \sqrt{D / H}) V_h

    Query, key and value have separate kernels, so that per-layer reducers see three layers.

    Args:
      num_heads: Number of heads H, which must divide D.
      dropout_rate: Share of attention weights dropped in training.
      kernel: "xla", or "cudnn" for the kernel of cuDNN, which keeps no weights [B, H, T, T] and has no dropout.
      dtype: Data type of activations; the softmax is in float32.
      kernel_init: Initializer of the query, key and value kernels.
      output_init: Initializer of the output kernel.
      scale_invariant: "on" uses no biases, and ``relu_weights`` instead of the softmax.

    Reference: Vaswani et al., "Attention is all you need", arXiv 1706.03762, equation 1.
    """

    num_heads: int
    dropout_rate: float
    kernel: AttentionKernel
    dtype: Dtype
    kernel_init: Callable
    output_init: Callable
    scale_invariant: ScaleInvariant = "off"

    @nn.compact
    def __call__(self, x: jax.Array, mask: jax.Array, *, deterministic: bool) -> jax.Array:
        """Returns [B, T, D] for x [B, T, D]; mask [B or 1, 1, T or 1, T] is True where a query sees a key."""
        batch, time, width = x.shape
        if width % self.num_heads:
            raise ValueError(f"num_heads={self.num_heads}: must divide width={width}")
        heads = (batch, time, self.num_heads, width // self.num_heads)
        is_plain = self.scale_invariant == "off"
        leaves = [
            DenseWeights(width, kernel_init=self.kernel_init, use_bias=is_plain, name=name)(width)
            for name in ("query", "key", "value")
        ]
        projected = dense_layers(x, leaves, dtype=self.dtype)
        query, key, value = (y.reshape(heads).swapaxes(1, 2) for y in projected)  # (B, H, T, D / H)
        check_kernel(self.kernel, dtype=self.dtype, dropout_rate=self.dropout_rate)
        if self.kernel != "xla" and not is_plain:
            raise ValueError(f"attention_kernel={self.kernel!r}: has a softmax; scale_invariant='on' needs 'xla'")
        drop = Dropout(self.dropout_rate, deterministic=deterministic)
        if self.kernel == "cudnn":
            query, key, value = (y.swapaxes(1, 2) for y in (query, key, value))
            attend = mixing_dtypes(jax.nn.dot_product_attention)
            y = attend(query, key, value, mask=mask, implementation="cudnn").swapaxes(1, 2)
        elif is_plain:
            y = lean.attend(query, key, value, mask, drop.keeps((batch, self.num_heads, time, time)), drop.factor)
        else:
            scores = jnp.einsum("bhqd,bhkd->bhqk", query, key, preferred_element_type=jnp.float32)
            scores = jnp.where(mask, scores * heads[-1] ** -0.5, jnp.finfo(jnp.float32).min)
            weights = drop(relu_weights(scores).astype(value.dtype))  # (B, H, T, T)
            y = jnp.einsum("bhqk,bhkd->bhqd", weights, value)
        y = y.swapaxes(1, 2).reshape(x.shape)
        output = nn.Dense(width, use_bias=is_plain, dtype=self.dtype, kernel_init=self.output_init, name="output")
        return output(y)  # (B, T, D)


class DenseWeights(nn.Module):
    """The parameters of ``nn.Dense``.

    Args:
      features: Width of the output.
      kernel_init: Initializer of the kernel.
      use_bias: Whether there is a bias.
    """

    features: int
    kernel_init: Callable
    use_bias: bool

    @nn.compact
    def __call__(self, width: int) -> tuple[jax.Array, ...]:
        """Returns the kernel [D, F] for inputs of ``width`` D, and the bias [F]."""
        kernel = self.param("kernel", self.kernel_init, (width, self.features))
        return (kernel, self.param("bias", nn.initializers.zeros, (self.features,))) if self.use_bias else (kernel,)


def dense_layers(x: jax.Array, weights: Sequence[tuple[jax.Array, ...]], *, dtype: Dtype) -> list[jax.Array]:
    """Returns the outputs [..., F] of dense layers of x [..., D], by one product of all ``DenseWeights``."""
    kernel, *bias = (jnp.concatenate(leaves, -1).astype(dtype) for leaves in zip(*weights, strict=True))
    y = x.astype(dtype) @ kernel
    for b in bias:
        y += jnp.expand_dims(b, range(y.ndim - 1))
    return jnp.split(y, len(weights), -1)


def relu_weights(scores: jax.Array) -> jax.Array:
    """Returns ReLU of scores [..., T] divided by its sum; a query with only negative scores has zero weights.

    >>> print(relu_weights(jnp.array([[1.0, -2.0, 3.0], [-1.0, -1.0, -1.0]])))
    [[0.25 0.   0.75]
     [0.   0.   0.  ]]
    """
    positive = jax.nn.relu(scores)
    total = positive.sum(-1, keepdims=True)
    return positive / jnp.where(total == 0, 1.0, total)


def check_kernel(kernel: AttentionKernel, *, dtype: Dtype, dropout_rate: float) -> None:
    """Raises ValueError, one line, if the kernel is "cudnn" and cuDNN cannot compute the attention."""
    if kernel == "xla":
        return
    if dtype == "float32":
        raise ValueError(f"attention_kernel={kernel!r}: needs dtype='bfloat16' or 'float16', not {dtype!r}")
    if dropout_rate:
        raise ValueError(f"attention_kernel={kernel!r}: has no dropout of attention weights; its rate must be 0")
    kind = targets.device_kind()
    if not kind.startswith("NVIDIA"):
        raise ValueError(f"attention_kernel={kernel!r}: needs an NVIDIA GPU, this machine has {kind}")


class FeedForward(nn.Module):
    """A dense layer of width 4 D, GELU, and a dense layer of width D.

    Args:
      gelu: "exact" uses the error function, "tanh" its approximation.
      dtype: Data type of activations.
      kernel_init: Initializer of the first kernel.
      output_init: Initializer of the second kernel.
      scale_invariant: "on" uses no biases, and ReLU instead of GELU.
    """

    gelu: Literal["exact", "tanh"]
    dtype: Dtype
    kernel_init: Callable
    output_init: Callable
    scale_invariant: ScaleInvariant = "off"

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns [B, T, D] for x [B, T, D]."""
        width = x.shape[-1]
        is_plain = self.scale_invariant == "off"
        inner = DenseWeights(4 * width, kernel_init=self.kernel_init, use_bias=is_plain, name="inner")(width)
        output = DenseWeights(width, kernel_init=self.output_init, use_bias=is_plain, name="output")(4 * width)
        if not is_plain:
            hidden = nn.relu(dense_layers(x, [inner], dtype=self.dtype)[0])  # (B, T, 4 D)
            return dense_layers(hidden, [output], dtype=self.dtype)[0]
        x, kernel, out_kernel, out_bias = (leaf.astype(self.dtype) for leaf in (x, inner[0], *output))
        y = lean.gelu_product(x @ kernel, inner[1], out_kernel, self.gelu == "tanh")
        return y + jnp.expand_dims(out_bias, (0, 1))


class Block(nn.Module):
    """Attention and feed-forward layers, each with dropout, a residual sum and a layer norm.

    Args:
      norms: "before" each layer, or "after" its residual sum.
      epsilon: Added to the variance in every layer norm.
      dropout_rate: Dropout of each layer's output.
      attention_dropout_rate: Dropout of attention weights.
      attention_kernel: As the ``kernel`` of ``SelfAttention``.
      num_heads: As for ``SelfAttention``.
      gelu: As for ``FeedForward``.
      dtype: Data type of activations.
      kernel_init: As for both layers.
      output_init: As for both layers.
      scale_invariant: "on" also normalises the output of each layer, without parameters; it needs norms="before".
    """

    norms: Literal["before", "after"]
    epsilon: float
    dropout_rate: float
    attention_dropout_rate: float
    attention_kernel: AttentionKernel
    num_heads: int
    gelu: Literal["exact", "tanh"]
    dtype: Dtype
    kernel_init: Callable
    output_init: Callable
    scale_invariant: ScaleInvariant = "off"

    @nn.compact
    def __call__(self, x: jax.Array, mask: jax.Array, *, deterministic: bool) -> jax.Array:
        """Returns [B, T, D] for x [B, T, D]; the mask is that of ``SelfAttention``."""
        layers: dict[str, Any] = {
            "dtype": self.dtype,
            "kernel_init": self.kernel_init,
            "output_init": self.output_init,
            "scale_invariant": self.scale_invariant,
        }

        def joined(x, layer, name):
            drop = Dropout(self.dropout_rate, deterministic=deterministic)

            def norm(x):
                return LayerNorm(self.epsilon, self.dtype, name=f"{name}_norm")(x)

            if self.norms == "after":
                return norm(x + drop(layer(x)))
            change = layer(norm(x))
            if self.scale_invariant == "on":
                change = plain_norm(change, dtype=self.dtype, name=f"{name}_branch_norm")
            return x + drop(change)

        attend = SelfAttention(
            self.num_heads, self.attention_dropout_rate, self.attention_kernel, name="attention", **layers
        )
        x = joined(x, lambda x: attend(x, mask, deterministic=deterministic), "attention")
        return joined(x, FeedForward(self.gelu, name="feed_forward", **layers), "feed_forward")


class LayerNorm(nn.Module):
    """Normalises [..., D] by float32 statistics; the variance is the mean of squared deviations.

    Args:
      epsilon: Added to the variance.
      dtype: Data type of the result.
    """

    epsilon: float
    dtype: Dtype

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns [..., D] for x [..., D]."""
        scale = self.param("scale", nn.initializers.ones, x.shape[-1:])
        bias = self.param("bias", nn.initializers.zeros, x.shape[-1:])
        return lean.layer_norm(x, scale, bias, self.epsilon, self.dtype)


def plain_norm(x: jax.Array, *, dtype: Dtype, name: str) -> jax.Array:
    """Returns x [..., D] normalised without parameters, so that the result does not depend on the scale of x.

    The epsilon is tiny, so that outputs of tiny kernels are normalised like those of large ones; with a smaller one,
    the gradient of the root would overflow where x is 0.
    """
    norm = nn.LayerNorm(epsilon=1e-24, dtype=dtype, use_fast_variance=False, use_scale=False, use_bias=False, name=name)
    return mixing_dtypes(norm)(x)


def embed_positions(
    owner: nn.Module, time: int, *, max_length: int, width: int, init: Callable, dtype: Dtype
) -> jax.Array:
    """Returns the learned embedding of positions 0 to T - 1, [1, T, D], as a parameter of ``owner``.

    Raises:
      ValueError: If the data have more positions than the model.
    """
    if time > max_length:
        raise ValueError(f"max_length={max_length}: must be at least the data's {time} tokens")
    return owner.param("positions", init, (max_length, width))[None, :time].astype(dtype)


def unembed(x: jax.Array, embedding: nn.Embed) -> jax.Array:
    """Returns the logits x E^T [..., V] of x [..., D] with the embedding's table E, summed in float32."""
    table = embedding.embedding.astype(x.dtype)  # (V, D)
    # In rows: in another layout, XLA transposes x inside of the product, and for BERT's lanes finds no tiles for that.
    return jnp.einsum("...d,vd->...v", lean.in_rows(x), table, preferred_element_type=jnp.float32)


def run_blocks(owner: Any, x: jax.Array, mask: jax.Array, *, deterministic: bool, **fields: Any) -> jax.Array:
    """Applies the equal blocks of a model one after another, in a loop whose body is one block, or unrolled.

    A loop compiles only one block. Each block keeps its own parameters, so that the trust ratios of LAMB and per-layer
    reducers see separate layers; the loop stacks them.

    Args:
      owner: The module that is called. If its field ``remat`` is "blocks", the backward pass keeps only the blocks'
        inputs and recomputes the rest. If its field ``scan_blocks`` is "auto", the blocks are in a loop where they are
        recomputed, and on TPUs. On a CPU or a GPU, copying activations into the loop's arrays and back takes a quarter
        of a step or more.
      x: [B, T, D], the input of the first block.
      mask: As for ``SelfAttention``.
      deterministic: False applies dropout, with a separate key for each block.
      **fields: Those of ``Block`` that the owner does not have as its own.
    """
    own = ("num_heads", "dropout_rate", "attention_kernel", "dtype", "scale_invariant")
    fields |= {name: getattr(owner, name) for name in own}
    blocks = [Block(**fields, name=block_parts.NAME.format(i)) for i in range(owner.num_layers)]
    if owner.is_initializing():
        for block in blocks:
            x = block(x, mask, deterministic=True)
        return x
    keys = [None] * len(blocks) if deterministic else list(jax.random.split(owner.make_rng("dropout"), len(blocks)))
    layers = [(block.variables["params"], key) for block, key in zip(blocks, keys, strict=True)]
    is_loop = owner.scan_blocks == "on"
    if owner.scan_blocks == "auto":
        is_loop = owner.remat == "blocks" or targets.platform() == "tpu"
    block = blocks[0].clone(parent=None)

    def apply(x, layer):
        params, key = layer
        params = block_parts.whole(params)
        rngs = {} if key is None else {"dropout": key}
        x = cast(jax.Array, block.apply({"params": params}, x, mask, deterministic=deterministic, rngs=rngs))
        return x, None

    # XLA cannot merge the two forward passes of a loop, so prevent_cse is not needed.
    if owner.remat == "blocks":
        body = jax.checkpoint(apply, prevent_cse=not is_loop)
    else:
        body = block_parts.gathered_again(apply, prevent_cse=not is_loop)
    if is_loop:
        return lax.scan(body, x, jax.tree.map(lambda *leaves: jnp.stack(leaves), *layers))[0]
    for layer in layers:
        x, _ = body(x, layer)
    return x
