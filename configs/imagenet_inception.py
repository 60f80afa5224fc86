"""ImageNet with Inception-v3 and backup workers: by default each step uses the first 50 of 53 gradients.

    TFDS_DATA_DIR=... make train ARGS="--config=configs/imagenet_inception.py:53"        # 50 + 3; 53 GPUs, or lanes
    TFDS_DATA_DIR=... make train ARGS="--config=configs/imagenet_inception.py:106"       # 100 + 6
    TFDS_DATA_DIR=... make train ARGS="--config=configs/imagenet_inception.py:212"       # 200 + 12
    TFDS_DATA_DIR=... make train ARGS="--config=configs/imagenet_inception.py:gpu"       # one GPU: 8 lanes, 7 + 1
    TFDS_DATA_DIR=... make train ARGS="--config=configs/imagenet_inception.py:laptop"    # ResNet-20 on CIFAR-10
    make train ARGS="--config=configs/imagenet_inception.py:212 --dry_run --num_devices=53"  # without the data

`configs/imagenet_inception_async.py` trains on the same machines asynchronously. The recipe is that of the trainer of
the paper's first author: batches of 32, TensorFlow's RMSProp (0.9, 0.9, epsilon 1), a rate of gamma_0 = 0.045 times N
that is multiplied by 0.94 every 2 epochs, a moving average of the parameters with decay 0.9999, label smoothing 0.1,
auxiliary loss 0.4, weight decay 4e-5 on convolutions and dense layers, BatchNorm momentum 0.9997, no clipping.
Expected: 78.8 % (top 1), published elsewhere for this trainer with 50 workers. We have not trained at this size.

Reference: Chen et al., "Revisiting Distributed Synchronous SGD", arXiv 1604.00981; tensorflow/models, inception.
Differs in: 1000 classes without a background class; BatchNorm's running statistics are averaged once, theirs twice.
"""

from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from configs.schema import experiment
from configs.variants import TINY_RESNET, Sizes, sized

SMALL: dict[str, Any] = {
    "model": {"name": "resnet20", "dtype": "float32"},
    "data": {"name": "cifar10", "augment": "crop_flip"},
    "optimizer.learning_rate": 0.003,
    "train_epochs": 2,
    "log_every_steps": 20,
    "eval_every_epochs": 0.5,
    "checkpoint_every_epochs": 0.5,
    "ema_decay": 0.99,
}
SIZES: dict[str, Sizes] = {
    "53": {},
    "106": {"num_workers": 106, "reducer.num_required": 100},
    "212": {"num_workers": 212, "reducer.num_required": 200},
    "gpu": {"num_workers": 8, "reducer.num_required": 7},
    "laptop": {**SMALL, "num_workers": 8, "reducer.num_required": 7, "batch_size_per_worker": 16},
    "smoke": TINY_RESNET,
}


def get_config(variant: str = "") -> ConfigDict:
    return recipe(variant, sizes=SIZES, reducer={"name": "backup_workers", "num_required": 50})


def recipe(variant: str, *, sizes: Mapping[str, Sizes], **overrides: Any) -> ConfigDict:
    """Returns the experiment; ``overrides`` are blocks and keys of the config, in the place of the common ones."""
    common: dict[str, Any] = {
        "model": {"name": "inception_v3", "norm_momentum": 0.9997, "dtype": "bfloat16"},
        "task": {"name": "classification", "label_smoothing": 0.1, "auxiliary_weight": 0.4},
        "data": {"name": "imagenet2012", "image_size": 299, "normalise": "symmetric"},
        "optimizer": {
            "name": "chain",
            "learning_rate": 0.045,
            "transforms": (
                {"name": "add_decayed_weights", "weight_decay": 4e-5, "mask": "weights"},
                {"name": "tf_rmsprop", "decay": 0.9, "momentum": 0.9, "eps": 1.0},
            ),
        },
        "schedule": {"name": "staircase", "decay_factor": 0.94, "every_epochs": 2},
        "learning_rate_scaling": "linear",
        "arrivals": {"name": "paper_cluster"},
        "num_workers": 53,
        "batch_size_per_worker": 32,
        "train_epochs": 100,
        "log_every_steps": 20,
        "eval_every_epochs": 1,
        "checkpoint_every_epochs": 1,
        "ema_decay": 0.9999,
    }
    return sized(experiment(**{**common, **overrides}), variant, sizes=sizes)
