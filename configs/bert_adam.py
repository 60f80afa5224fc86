"""BERT-Large with Adam, whose updates Adasum combines: 64K sequences of 128 tokens a step, then 32K of 512.

    make train ARGS="--config=configs/bert_adam.py --config.data.source=~/text/*.txt"    # phase 1: 64 GPUs
    make train ARGS="--config=configs/bert_adam.py:phase2 --config.init_from=out/... --config.data.source=~/text/*.txt"
    make train ARGS="--config=configs/bert_adam.py:gpu --config.data.source=~/text/*.txt"
    TFDS_DATA_DIR=... make train ARGS="--config=configs/bert_adam.py:laptop"             # BERT-mini, minutes on 2 cores
    make train ARGS="--config=configs/bert_adam.py --dry_run --num_devices=64"           # without the text

    --config.reducer.name=mean --config.reducer_on=gradients                             # Adam without Adasum

This is `configs/bert_lamb.py` with the optimizer of Adasum's authors: Adam with betas 0.9 and 0.999 and epsilon 1e-6.
Each worker's gradient is clipped to norm 1, weight decay is 0.01 except for biases and layer norms, and the rate warms
up and decays linearly. The authors passed their rates for Adasum on the command line, so we do not know them; 1e-4 is
that of the BERT paper. Expected, from the paper: it converges at 64K in 7,039 + 1,563 steps (unverified recollection),
where Adam alone does not. We have not trained at this size.
"""

from ml_collections import ConfigDict

from configs.bert_lamb import SIZES, recipe
from configs.variants import Sizes

ADAM = {"name": "adamw", "learning_rate": 1e-4, "eps": 1e-6, "weight_decay": 0.01, "mask": "weights"}
OWN: dict[str, Sizes] = {
    **{name: SIZES[name] for name in ("gpu", "smoke")},
    "laptop": {**SIZES["laptop"], "optimizer.learning_rate": 1e-3},
    "phase2": {key: value for key, value in SIZES["phase2"].items() if key != "optimizer.learning_rate"},
}


def get_config(variant: str = "") -> ConfigDict:
    warmup = {"name": "polynomial_warmup", "warmup_fraction": 0.2843, "degree": 1.0}
    return recipe(variant, optimizer=ADAM, schedule=warmup, clip_norm=1.0, sizes=OWN)
