"""BERT and the causal transformer against transformers' BERT and GPT-2, on the same random weights.

Needs torch and transformers; nothing is downloaded.
"""

import jax
import numpy as np
import pytest
from jax import numpy as jnp

from models import bert, transformer

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = [pytest.mark.filterwarnings("ignore")]

TINY = {"vocab_size": 101, "num_layers": 3, "num_heads": 4, "width": 32, "max_length": 24, "batch": 5}
BASE = {"vocab_size": 30_522, "num_layers": 12, "num_heads": 12, "width": 768, "max_length": 512, "batch": 2}
GPT2 = {**BASE, "vocab_size": 50_257, "max_length": 256}


def randomised(model):
    """Every parameter random, layer norms and biases too, so that none could be left out unnoticed."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            is_scale = parameter.ndim == 1 and name.endswith("weight")
            parameter.copy_(1 + 0.1 * noise if is_scale else (0.1 if parameter.ndim == 1 else 0.05) * noise)
    return model.eval()


def arrays(named) -> dict:
    return {name: np.asarray(x.detach()) for name, x in named}


def dense(weights: dict, name: str) -> dict:
    return {"kernel": weights[f"{name}.weight"].T, "bias": weights[f"{name}.bias"]}


def norm(weights: dict, name: str) -> dict:
    return {"scale": weights[f"{name}.weight"], "bias": weights[f"{name}.bias"]}


def from_bert(weights: dict, *, num_layers: int) -> dict:
    params = {
        "tokens": {"embedding": weights["bert.embeddings.word_embeddings.weight"]},
        "segments": {"embedding": weights["bert.embeddings.token_type_embeddings.weight"]},
        "positions": weights["bert.embeddings.position_embeddings.weight"],
        "embedding_norm": norm(weights, "bert.embeddings.LayerNorm"),
        "pooler": dense(weights, "bert.pooler.dense"),
        "next_sentence": dense(weights, "cls.seq_relationship"),
        "masked_lm_dense": dense(weights, "cls.predictions.transform.dense"),
        "masked_lm_norm": norm(weights, "cls.predictions.transform.LayerNorm"),
        "masked_lm_bias": weights["cls.predictions.bias"],
    }
    for i in range(num_layers):
        layer = f"bert.encoder.layer.{i}"
        params[f"block_{i}"] = {
            "attention": {
                **{name: dense(weights, f"{layer}.attention.self.{name}") for name in ("query", "key", "value")},
                "output": dense(weights, f"{layer}.attention.output.dense"),
            },
            "attention_norm": norm(weights, f"{layer}.attention.output.LayerNorm"),
            "feed_forward": {
                "inner": dense(weights, f"{layer}.intermediate.dense"),
                "output": dense(weights, f"{layer}.output.dense"),
            },
            "feed_forward_norm": norm(weights, f"{layer}.output.LayerNorm"),
        }
    return params


def from_gpt2(weights: dict, *, num_layers: int) -> dict:
    def upright(name: str) -> dict:  # GPT-2 has kernels as flax has them
        return {"kernel": weights[f"{name}.weight"], "bias": weights[f"{name}.bias"]}

    params = {
        "tokens": {"embedding": weights["transformer.wte.weight"]},
        "positions": weights["transformer.wpe.weight"],
        "norm": norm(weights, "transformer.ln_f"),
    }
    for i in range(num_layers):
        layer = f"transformer.h.{i}"
        joint = upright(f"{layer}.attn.c_attn")
        parts = {name: np.split(x, 3, axis=-1) for name, x in joint.items()}
        params[f"block_{i}"] = {
            "attention_norm": norm(weights, f"{layer}.ln_1"),
            "attention": {
                **{name: {k: v[j] for k, v in parts.items()} for j, name in enumerate(("query", "key", "value"))},
                "output": upright(f"{layer}.attn.c_proj"),
            },
            "feed_forward_norm": norm(weights, f"{layer}.ln_2"),
            "feed_forward": {
                "inner": upright(f"{layer}.mlp.c_fc"),
                "output": upright(f"{layer}.mlp.c_proj"),
            },
        }
    return params


def shapes(params) -> dict:
    return jax.tree.map(jnp.shape, params)


def compare(ours, theirs, *, tolerance: float, name: str) -> None:
    ours = np.asarray(ours)
    theirs = np.asarray(theirs.detach() if hasattr(theirs, "detach") else theirs)
    scale = np.abs(theirs).max()
    difference = np.abs(ours - theirs).max()
    print(f"{name}: largest {scale:.3g}, max abs difference {difference:.3g}, of the largest {difference / scale:.3g}")
    assert scale > 0 and difference < tolerance * scale, name


def compare_gradients(ours: dict, theirs: dict) -> None:
    assert shapes(ours) == shapes(theirs)
    largest = max(np.abs(x).max() for x in jax.tree.leaves(theirs))
    worst = jax.tree.map(lambda x, y: np.abs(np.asarray(x) - y).max() / largest, ours, theirs)
    print(f"gradients: largest {largest:.3g}, worst difference of it {max(jax.tree.leaves(worst)):.3g}")
    assert max(jax.tree.leaves(worst)) < 2e-6, worst
    assert all(np.any(x) for x in jax.tree.leaves(theirs))


def their_gradients(model, loss) -> dict:
    loss.backward()
    return {name: x.grad.numpy() for name, x in model.named_parameters()}


@pytest.mark.parametrize(
    ("sizes", "gelu"), [(TINY, "exact"), (TINY, "tanh"), (BASE, "exact")], ids=["tiny", "tiny-tanh", "base"]
)
def test_bert(sizes, gelu):
    sizes = dict(sizes)
    batch, time = sizes.pop("batch"), sizes["max_length"]
    config = transformers.BertConfig(
        vocab_size=sizes["vocab_size"],
        hidden_size=sizes["width"],
        num_hidden_layers=sizes["num_layers"],
        num_attention_heads=sizes["num_heads"],
        intermediate_size=4 * sizes["width"],
        max_position_embeddings=time,
        hidden_act={"exact": "gelu", "tanh": "gelu_new"}[gelu],
        attn_implementation="eager",
    )
    theirs = randomised(transformers.BertForPreTraining(config))
    ours = bert.BertBase(**sizes, gelu=gelu)
    rng = np.random.default_rng(0)
    tokens = rng.integers(1, sizes["vocab_size"], (batch, time))
    tokens[1, time // 2 :] = 0
    segments = rng.integers(0, 2, (batch, time))
    positions = rng.integers(0, time // 2, (batch, 7))

    params = from_bert(arrays(theirs.named_parameters()), num_layers=sizes["num_layers"])
    init = jax.eval_shape(ours.init, jax.random.key(0), tokens, segments, positions)["params"]
    assert shapes(params) == shapes(init)
    masked_lm, next_sentence = jax.jit(ours.apply)({"params": params}, tokens, segments, positions)
    outputs = theirs(
        input_ids=torch.tensor(tokens),
        token_type_ids=torch.tensor(segments),
        attention_mask=torch.tensor((tokens != 0).astype(np.int64)),
    )
    chosen = torch.take_along_dim(outputs.prediction_logits, torch.tensor(positions)[..., None], dim=1)
    compare(masked_lm, chosen, tolerance=1e-5, name="masked-LM logits")
    compare(next_sentence, outputs.seq_relationship_logits, tolerance=1e-5, name="next-sentence logits")
    if sizes["num_layers"] > 3:
        return

    weight, other = (rng.normal(size=x.shape).astype(np.float32) for x in (masked_lm, next_sentence))

    def loss(params):
        masked_lm, next_sentence = ours.apply({"params": params}, tokens, segments, positions)
        return (masked_lm * weight).sum() + (next_sentence * other).sum()

    total = (chosen * torch.tensor(weight)).sum() + (outputs.seq_relationship_logits * torch.tensor(other)).sum()
    expected = from_bert(their_gradients(theirs, total), num_layers=sizes["num_layers"])
    gradient = jax.jit(jax.grad(loss))(params)
    compare_gradients(gradient, expected)


@pytest.mark.parametrize("sizes", [TINY, GPT2], ids=["tiny", "small"])
def test_causal_transformer(sizes):
    sizes = dict(sizes)
    batch, time = sizes.pop("batch"), sizes["max_length"]
    config = transformers.GPT2Config(
        vocab_size=sizes["vocab_size"],
        n_embd=sizes["width"],
        n_layer=sizes["num_layers"],
        n_head=sizes["num_heads"],
        n_positions=time,
        bos_token_id=1,
        eos_token_id=1,
        attn_implementation="eager",
    )
    theirs = randomised(transformers.GPT2LMHeadModel(config))
    ours = transformer.Transformer(**sizes)
    rng = np.random.default_rng(0)
    tokens = rng.integers(1, sizes["vocab_size"], (batch, time))
    params = from_gpt2(arrays(theirs.named_parameters()), num_layers=sizes["num_layers"])
    assert shapes(params) == shapes(jax.eval_shape(ours.init, jax.random.key(0), tokens)["params"])
    logits = jax.jit(ours.apply)({"params": params}, tokens)
    expected = theirs(torch.tensor(tokens)).logits
    compare(logits, expected, tolerance=1e-5, name="logits")
    if sizes["num_layers"] > 3:
        return

    weight = rng.normal(size=logits.shape).astype(np.float32)
    gradient = jax.jit(jax.grad(lambda params: (ours.apply({"params": params}, tokens) * weight).sum()))(params)
    wanted = their_gradients(theirs, (expected * torch.tensor(weight)).sum())
    compare_gradients(gradient, from_gpt2(wanted, num_layers=sizes["num_layers"]))
