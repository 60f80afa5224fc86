"""ImageNet with ResNet-50 and LARS on the mean of 64 workers' gradients, the usual method for such batches.

    TFDS_DATA_DIR=... make train ARGS="--config=configs/imagenet_resnet50_lars.py:16k"       # 64 GPUs, or lanes
    make train ARGS="--config=configs/imagenet_resnet50_lars.py --dry_run --num_devices=64"  # without the data

This is `configs/imagenet_resnet50.py`, which lists the variants, with another reducer and optimizer: rate 10 at 16K
examples, trust coefficient 0.001, weight decay 2e-4, the latter two not for biases and norms. The paper gives no number
for it.

Reference: You et al., "Large Batch Training of Convolutional Networks", arXiv 1708.03888. Differs in: the schedule's
steps are those of Adasum's authors, theirs is polynomial.
"""

from ml_collections import ConfigDict

from configs.imagenet_resnet50 import ACCUMULATED, SIZES, recipe

LARS = {"name": "lars", "weight_decay": 2e-4, "weight_decay_mask": "weights", "trust_ratio_mask": "weights"}


def get_config(variant: str = "") -> ConfigDict:
    sizes = {**SIZES, "64k": ACCUMULATED}
    return recipe(variant, optimizer=LARS, learning_rate=10.0, reducer="mean", reducer_on="gradients", sizes=sizes)
