"""ImageNet with Inception-v3: asynchronous SGD on 53, 106 or 212 workers.

    TFDS_DATA_DIR=... make train ARGS="--config=configs/imagenet_inception_async.py:53"       # 53 GPUs, or lanes
    TFDS_DATA_DIR=... make train ARGS="--config=configs/imagenet_inception_async.py:106"
    TFDS_DATA_DIR=... make train ARGS="--config=configs/imagenet_inception_async.py:212"
    TFDS_DATA_DIR=... make train ARGS="--config=configs/imagenet_inception_async.py:laptop"   # ResNet-20 on CIFAR-10
    make train ARGS="--config=configs/imagenet_inception_async.py:53 --dry_run --num_devices=53"    # without the data

This is `configs/imagenet_inception.py` with a server that waits for nobody: the rate is that of one gradient, not
scaled by the number of workers, and gradients are clipped to norm 1. The paper tuned its rate and clipped too, to
values that we do not know. We know no expected number, and have not trained at this size.
"""

from ml_collections import ConfigDict

from configs.imagenet_inception import SMALL, recipe
from configs.variants import TINY_RESNET, Sizes

SIZES: dict[str, Sizes] = {
    "53": {},
    "106": {"num_workers": 106},
    "212": {"num_workers": 212},
    "gpu": {"num_workers": 8},
    "laptop": {**SMALL, "num_workers": 8, "batch_size_per_worker": 16},
    "smoke": TINY_RESNET,
}


def get_config(variant: str = "") -> ConfigDict:
    return recipe(variant, sizes=SIZES, server={"name": "asynchronous"}, learning_rate_scaling="none", clip_norm=1.0)
