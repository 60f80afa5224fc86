"""ImageNet with ResNet-50 on 64 workers, Momentum-SGD on the sum of their gradients: what Adasum is compared with.

    TFDS_DATA_DIR=... make train ARGS="--config=configs/imagenet_resnet50_sum.py:16k"
    make train ARGS="--config=configs/imagenet_resnet50_sum.py:2k --dry_run_devices=64"  # without the data

As `configs/imagenet_resnet50.py`, where the variants stand, but for the reducer: one optimizer after it. 64K examples
are 4 micro-batches of 256. Paper: 74.9 % (top 1) after 62 epochs at 2K; at 16K it is not reached (unverified
recollections).
"""

from ml_collections import ConfigDict

from configs.imagenet_resnet50 import ACCUMULATED, SIZES, recipe


def get_config(variant: str = "") -> ConfigDict:
    return recipe(variant, reducer="sum", reducer_on="gradients", sizes={**SIZES, "64k": ACCUMULATED})
