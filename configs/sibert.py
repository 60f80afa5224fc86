"""SIBERT: a scale-invariant BERT-Base, trained by SGD with decay and relative global clipping, without moments.

    make train ARGS="--config=configs/sibert.py --config.data.source=~/text/*.txt"           # 8 GPUs
    make train ARGS="--config=configs/sibert.py:gpu --config.data.source=~/text/*.txt"       # one GPU
    TFDS_DATA_DIR=... make train ARGS="--config=configs/sibert.py:laptop"                    # BERT-mini, on 2 cores
    make train ARGS="--config=configs/sibert.py:smoke"

    --config.optimizer.sqrt_c=1e30                                                           # without clipping
    --config.model.name=bert_large                                                           # the large one

The kernels of the blocks take SGD: rate 8e-4 without warm-up, a tenth of it from steps 600,000 and 900,000 of a million
on, decay 0.01. The other parameters take LAMB at 8e-4.

Expected, from the paper's first table (READ): fine-tuned on MNLI 82.6 with clipping and 81.1 without, where BERT with
Adam has 84.4. Fine-tuning is not part of this project, and we have not trained at this size.

Reference: Li et al., arXiv 2202.00980 (READ: rates, decay, drops, LAMB's rate). Differs from the paper in: LAMB follows
the drops of SGD's rate, where the paper's has a warm-up and a linear decay; the batch is that of BERT, 256 sequences of
512 tokens, as we do not know the paper's; text and vocabulary are our own; and the network, as `models.bert` says.
"""

from typing import Any

from ml_collections import ConfigDict

from configs import bert_lamb
from configs.variants import Sizes

CLIP = {"name": "relative_clip", "weight_decay": 0.01, "sqrt_c": 2.0, "mask": r"block_\d+/.*kernel", "rest": "lamb"}
DROPS = {"name": "steps", "at_steps": (600_000, 900_000)}


def get_config(variant: str = "") -> ConfigDict:
    return bert_lamb.recipe(
        variant,
        sizes=SIZES,
        model={"name": "bert_base", "remat": "blocks", "dtype": "bfloat16", "scale_invariant": "on"},
        optimizer={**CLIP, "learning_rate": 8e-4},
        schedule=DROPS,
        reducer={"name": "mean"},
        reducer_on="gradients",
        accumulation={"name": "micro_batches", "count": 1},
        num_workers=8,
        batch_size_per_worker=32,
        train_steps=1_000_000,
        task={"name": "masked_lm", "max_predictions": 80},
        data={
            "name": "text",
            "source": "text/*.txt",
            "form": "masked",
            "vocab_size": 30_528,
            "sequence_length": 512,
        },
    )


def _small(sizes: Sizes) -> dict[str, Any]:
    """Returns sizes of ``configs/bert_lamb.py`` with a scale-invariant model, and drops within the run."""
    return {**sizes, "model": {**sizes["model"], "scale_invariant": "on"}, "schedule.at_steps": (2, 3)}


SIZES: dict[str, Sizes] = {
    "gpu": {"num_workers": 1, "batch_size_per_worker": 256, "accumulation.count": 4},
    "laptop": {**_small(bert_lamb.SIZES["laptop"]), "schedule.at_steps": (180, 270)},
    "smoke": _small(bert_lamb.SIZES["smoke"]),
}
