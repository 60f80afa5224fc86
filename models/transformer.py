"""A causal transformer with GPT-2's architecture."""

import jax
from flax import linen as nn
from jax import numpy as jnp

from models.fields import AttentionKernel, Dtype, Remat, ScaleInvariant, ScanBlocks
from models.layers import attention
from models.layers.dropout import Dropout
from reducers.options import Count, Fraction

EPSILON = 1e-5  # added to the variance in every layer norm


class Transformer(nn.Module):
    """Predicts each token from those before it: 5,785,088 parameters at a vocabulary of 10,000.

    It has GPT-2's architecture: layer norms before attention and feed-forward layers and after the last block, learned
    positions, and logits that use the embedding's table. With 12 layers, 12 heads, width 768, 1,024 positions and a
    vocabulary of 50,257 it is GPT-2 small, 124,439,808 parameters.

    Args:
      vocab_size: Vocabulary size, V.
      num_layers: Number of blocks.
      num_heads: Attention heads; must divide width.
      width: Width D; feed-forward layers are 4 D wide.
      dropout_rate: Dropout of embeddings, attention weights and each layer's output.
      max_length: Maximal number of tokens in a sequence.
      remat: "blocks" keeps only the blocks' inputs for the backward pass and recomputes the rest.
      scan_blocks: "on" loops over the blocks, so that one is compiled, "off" writes them out; "auto" loops on TPUs,
        and where blocks are recomputed.
      attention_kernel: "cudnn" uses cuDNN's kernel on an NVIDIA GPU: in 16 bits, without dropout.
      dtype: Data type of activations; parameters, softmax, layer norms and logits are float32.
      scale_invariant: "on" makes the kernels of the blocks (the leaves in ``invariant_leaves``) scale-invariant:
        multiplying one by a positive number changes no output. It uses ReLU, ReLU divided by its sum as attention
        weights, no biases, and norms without parameters after the embedding and after each branch.

    Reference: Radford et al., "Language models are unsupervised multitask learners", 2019; openai/gpt-2, model.py.
    Differs from the paper in: query, key and value have separate kernels. For ``scale_invariant`` see ``BertBase``.
    """

    vocab_size: int
    num_layers: Count = 4
    num_heads: Count = 4
    width: Count = 256
    dropout_rate: Fraction = 0.1
    max_length: Count = 256
    remat: Remat = "none"
    scan_blocks: ScanBlocks = "auto"
    attention_kernel: AttentionKernel = "xla"
    dtype: Dtype = "float32"
    scale_invariant: ScaleInvariant = "off"

    @property
    def invariant_leaves(self) -> str | None:
        """The pattern of the names of scale-invariant parameters, which ``relative_clip`` takes as its mask."""
        return attention.INVARIANT_LEAVES if self.scale_invariant == "on" else None

    @nn.compact
    def __call__(self, tokens: jax.Array, *, deterministic: bool = True) -> jax.Array:
        """Returns logits [B, T, V] float32 of the tokens that follow each of tokens [B, T]."""
        init = nn.initializers.normal(0.02)
        time = tokens.shape[1]
        embedding = nn.Embed(self.vocab_size, self.width, dtype=self.dtype, embedding_init=init, name="tokens")
        place = attention.embed_positions(
            self, time, max_length=self.max_length, width=self.width, init=init, dtype=self.dtype
        )
        x = embedding(tokens) + place
        if self.scale_invariant == "on":
            x = attention.plain_norm(x, dtype=self.dtype, name="embedding_norm")
        x = Dropout(self.dropout_rate, deterministic=deterministic)(x)  # (B, T, D)
        mask = jnp.tril(jnp.ones((time, time), bool))[None, None]
        x = attention.run_blocks(
            self,
            x,
            mask,
            deterministic=deterministic,
            norms="before",
            epsilon=EPSILON,
            attention_dropout_rate=self.dropout_rate,
            gelu="tanh",
            kernel_init=init,
            # The residual sum has 2 terms a block; smaller outputs keep its variance from growing with depth.
            output_init=nn.initializers.normal(0.02 * (2 * self.num_layers) ** -0.5),
        )
        normalised = attention.LayerNorm(EPSILON, self.dtype, name="norm")(x)
        return attention.unembed(normalised, embedding)
