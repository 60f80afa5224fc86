"""BERT with its two heads, in four sizes."""

from typing import Literal

import jax
from flax import linen as nn
from jax import numpy as jnp

from models.fields import AttentionKernel, Dtype, Remat, ScaleInvariant, ScanBlocks
from models.layers import attention, lean
from models.layers.dropout import Dropout
from reducers.options import Count, Fraction

EPSILON = 1e-12  # added to the variance in every layer norm


class BertBase(nn.Module):
    """BERT-Base, 12 layers of width 768: 110,106,428 parameters at a vocabulary of 30,522.

    Encoder and pooler have 109,482,240 of them, the number that papers give. The two heads have the other 624,188;
    the masked-LM head shares the token table with the embedding. A layer norm follows each residual sum (post-norm).

    Args:
      vocab_size: Vocabulary size, V.
      num_layers: Number of blocks.
      num_heads: Attention heads; must divide width.
      width: Width D; feed-forward layers are 4 D wide.
      dropout_rate: Dropout of embeddings and of each layer's output.
      attention_dropout_rate: Dropout of attention weights.
      max_length: Maximal number of tokens in a sequence.
      gelu: "exact" uses the error function, "tanh" its approximation, as the authors' code does.
      remat: "blocks" keeps only the blocks' inputs for the backward pass and recomputes the rest.
      scan_blocks: "on" loops over the blocks, so that one is compiled, "off" writes them out; "auto" loops on TPUs,
        and where blocks are recomputed.
      attention_kernel: "cudnn" uses cuDNN's kernel on an NVIDIA GPU: in 16 bits, without dropout of attention weights.
      dtype: Data type of activations; parameters, softmax, layer norms and logits are float32.
      scale_invariant: "on" makes it SIBERT: multiplying a kernel of the blocks (a leaf in ``invariant_leaves``) by a
        positive number changes no output. It has layer norms before the layers of a block and after the last block,
        ReLU instead of GELU, ReLU divided by its sum as attention weights, and no biases.

    Reference: Devlin et al., arXiv 1810.04805, sections 3 and 3.1; google-research/bert, modeling.py. SIBERT: Li et
    al., arXiv 2202.00980 (READ: norms before the layers, ReLU, row-normalised ReLU).
    Differs from the paper in: the next-sentence head's class 1 means "is next"; in the authors' code that is class 0.
    Our SIBERT also has norms without parameters after each layer of a block, which make each kernel invariant.
    """

    vocab_size: int
    num_layers: Count = 12
    num_heads: Count = 12
    width: Count = 768
    dropout_rate: Fraction = 0.1
    attention_dropout_rate: Fraction = 0.1
    max_length: Count = 512
    gelu: Literal["exact", "tanh"] = "exact"
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
    def __call__(
        self, tokens: jax.Array, segments: jax.Array, positions: jax.Array, *, deterministic: bool = True
    ) -> tuple[jax.Array, jax.Array]:
        """Predicts the tokens at the given positions, and whether the second segment follows the first.

        Args:
          tokens: [B, T] integers; attention ignores padding, token 0.
          segments: [B, T] integers, 0 or 1.
          positions: [B, P] integers, the positions to predict.
          deterministic: False applies dropout with the random key "dropout".

        Returns:
          Logits [B, P, V] of tokens and [B, 2] of "is next", float32.
        """
        init = nn.initializers.truncated_normal(0.02)
        embedding = nn.Embed(self.vocab_size, self.width, dtype=self.dtype, embedding_init=init, name="tokens")
        kind = nn.Embed(2, self.width, dtype=self.dtype, embedding_init=init, name="segments")
        place = attention.embed_positions(
            self, tokens.shape[1], max_length=self.max_length, width=self.width, init=init, dtype=self.dtype
        )
        x = lean.in_rows(embedding(tokens)) + kind(segments.astype(jnp.int32)) + place  # (B, T, D)
        x = attention.LayerNorm(EPSILON, self.dtype, name="embedding_norm")(x)
        x = Dropout(self.dropout_rate, deterministic=deterministic)(x)

        mask = (tokens != attention.PAD)[:, None, None]  # (B, 1, 1, T)
        is_plain = self.scale_invariant == "off"
        x = attention.run_blocks(
            self,
            x,
            mask,
            deterministic=deterministic,
            norms="after" if is_plain else "before",
            epsilon=EPSILON,
            attention_dropout_rate=self.attention_dropout_rate,
            gelu=self.gelu,
            kernel_init=init,
            output_init=init,
        )
        if not is_plain:
            x = attention.LayerNorm(EPSILON, self.dtype, name="norm")(x)

        def dense(features, name):
            return nn.Dense(features, dtype=self.dtype, kernel_init=init, name=name)

        chosen = jnp.take_along_axis(x, positions[..., None], axis=1)  # (B, P, D)
        chosen = dense(self.width, "masked_lm_dense")(chosen)
        chosen = lean.gelu(chosen, self.gelu == "tanh") if is_plain else nn.relu(chosen)
        chosen = attention.LayerNorm(EPSILON, self.dtype, name="masked_lm_norm")(chosen)
        bias = self.param("masked_lm_bias", nn.initializers.zeros, (self.vocab_size,))
        masked_lm = attention.unembed(chosen, embedding) + bias[None, None]

        pooled = jnp.tanh(dense(self.width, "pooler")(x[:, 0]))  # (B, D)
        return masked_lm, dense(2, "next_sentence")(pooled).astype(jnp.float32)


class BertMini(BertBase):
    """BERT-Mini, 4 layers of width 256: 11,267,900 parameters at a vocabulary of 30,522.

    Encoder and pooler have 11,170,560 of them. The arguments are those of ``BertBase``.

    Reference: Turc et al., "Well-read students learn better", arXiv 1908.08962.
    """

    num_layers: Count = 4
    num_heads: Count = 4
    width: Count = 256


class BertSmall(BertBase):
    """BERT-Small, 4 layers of width 512: 29,058,876 parameters at a vocabulary of 30,522.

    Encoder and pooler have 28,763,648 of them. The arguments are those of ``BertBase``.

    Reference: Turc et al., "Well-read students learn better", arXiv 1908.08962.
    """

    num_layers: Count = 4
    num_heads: Count = 8
    width: Count = 512


class BertLarge(BertBase):
    """BERT-Large, 24 layers of width 1,024: 336,226,108 parameters at a vocabulary of 30,522.

    Encoder and pooler have 335,141,888 of them. The arguments are those of ``BertBase``.

    Reference: Devlin et al., arXiv 1810.04805, section 3.
    """

    num_layers: Count = 24
    num_heads: Count = 16
    width: Count = 1024
