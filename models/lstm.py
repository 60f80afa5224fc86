"""A recurrent language model."""

from typing import Literal

import jax
from flax import linen as nn
from jax import lax
from jax import numpy as jnp

from models.fields import Dtype
from models.layers import attention
from models.layers.dropout import Dropout
from reducers.options import Count, Fraction


class LSTMLayer(nn.Module):
    r"""One layer of long short-term memory, from a state of zeros.

    .. math::

        (i, f, g, o) &= W x_t + U h_{t-1} + b \\
        c_t &= \sigma(f) c_{t-1} + \sigma(i) \tanh(g) \\
        h_t &= \sigma(o) \tanh(c_t)

    Args:
      width: Width of the state, D.
      dtype: Data type of products and outputs; gates and state are float32, since the state is a sum over time.
    """

    width: int
    dtype: Dtype

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns h [B, T, D] for x [B, T, any]."""
        orthogonal = nn.initializers.orthogonal()

        def four(key, shape):
            parts = [orthogonal(k, (shape[0], self.width)) for k in jax.random.split(key, 4)]
            return jnp.concatenate(parts, axis=1)

        def remember(key, shape, dtype):
            del key  # the forget gate starts open
            return jnp.zeros(shape, dtype).at[self.width : 2 * self.width].set(1)

        # The part that does not depend on the state is one product over all times.
        driven = nn.Dense(4 * self.width, dtype=self.dtype, bias_init=remember, name="input")(x)  # (B, T, 4 D)
        recurrent = self.param("recurrent", four, (self.width, 4 * self.width)).astype(self.dtype)

        def step(state, driven):
            cell, hidden = state  # (B, D) each
            both = driven.astype(jnp.float32) + jnp.matmul(hidden, recurrent, preferred_element_type=jnp.float32)
            keep, forget, new, show = jnp.split(both, 4, axis=-1)
            cell = nn.sigmoid(forget) * cell + nn.sigmoid(keep) * jnp.tanh(new)
            hidden = (nn.sigmoid(show) * jnp.tanh(cell)).astype(self.dtype)
            return (cell, hidden), hidden

        shape = (x.shape[0], self.width)
        begin = jnp.zeros(shape, jnp.float32), jnp.zeros(shape, self.dtype)
        _, hidden = lax.scan(step, begin, driven.swapaxes(0, 1))
        return hidden.swapaxes(0, 1)


class LSTM(nn.Module):
    """Stacked LSTM layers that predict each token from those before it: 3,620,624 parameters at 10,000 tokens.

    With 650 units and its own output table it is the medium model of Zaremba et al., with 19,775,200 parameters. The
    production model in Adasum's paper is an LSTM, too.

    Args:
      vocab_size: Vocabulary size, V.
      num_layers: Number of LSTM layers.
      width: Width D of embedding and state.
      dropout_rate: Dropout of the inputs of each layer and of the output, never of the recurrent state.
      output: "tied" computes logits with the embedding's table, "own" with a second table.
      dtype: Data type of activations; parameters, cell states and logits are float32.

    Reference: Zaremba et al., "Recurrent neural network regularization", arXiv 1409.2329; Press and Wolf, "Using the
    output embedding to improve language models", arXiv 1608.05859; Maleki et al., arXiv 2006.02924.
    Differs from the papers in: each sequence starts from a state of zeros, while Zaremba et al. carry the last state
    over; initialisation is flax's, with a forget bias of 1.
    """

    vocab_size: int
    num_layers: Count = 2
    width: Count = 256
    dropout_rate: Fraction = 0.1
    output: Literal["tied", "own"] = "tied"
    dtype: Dtype = "float32"

    @nn.compact
    def __call__(self, tokens: jax.Array, *, deterministic: bool = True) -> jax.Array:
        """Returns logits [B, T, V] float32 of the tokens that follow each of tokens [B, T]."""
        drop = Dropout(self.dropout_rate, deterministic=deterministic)
        embedding = nn.Embed(self.vocab_size, self.width, dtype=self.dtype, name="tokens")
        x = embedding(tokens)  # (B, T, D)
        for i in range(self.num_layers):
            x = LSTMLayer(self.width, self.dtype, name=f"layer_{i}")(drop(x))
        x = drop(x)
        if self.output == "own":
            return nn.Dense(self.vocab_size, dtype=self.dtype, name="output")(x).astype(jnp.float32)
        bias = self.param("bias", nn.initializers.zeros, (self.vocab_size,))
        return attention.unembed(x, embedding) + bias[None, None]
