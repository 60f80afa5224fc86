"""ImageNet with ResNet-50 and momentum SGD on the sum of 64 workers' gradients: the baseline of Adasum.

    TFDS_DATA_DIR=... make train ARGS="--config=configs/imagenet_resnet50_sum.py:16k"    # 64 GPUs, or lanes
    make train ARGS="--config=configs/imagenet_resnet50_sum.py:2k --dry_run --num_devices=64"  # without the data

This is `configs/imagenet_resnet50.py`, which lists the variants, with another reducer and one optimizer after it. 64K
examples are 4 micro-batches of 256. Expected, from the paper: 74.9 % (top 1) after 62 epochs at 2K, which is not
reached at 16K (unverified recollections). We have not trained at this size.
"""

from ml_collections import ConfigDict

from configs.imagenet_resnet50 import ACCUMULATED, SIZES, recipe


def get_config(variant: str = "") -> ConfigDict:
    return recipe(variant, reducer="sum", reducer_on="gradients", sizes={**SIZES, "64k": ACCUMULATED})
