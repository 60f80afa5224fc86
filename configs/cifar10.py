"""CIFAR-10 with LeNet-5 and the standard augmentation: a small stand-in until the residual networks are here.

    TFDS_DATA_DIR=... make train ARGS="--config=configs/cifar10.py"      # tens of minutes on 2 cores

8 workers x 32, `mean`, Momentum-SGD with weight decay on weights only, warm-up and cosine. No published number to meet.
"""

from ml_collections import ConfigDict

from configs.schema import experiment
from configs.variants import sized


def get_config(variant: str = "") -> ConfigDict:
    config = experiment(
        model={"name": "lenet5"},
        data={"name": "cifar10", "augment": "crop_flip"},
        optimizer={
            "name": "chain",
            "learning_rate": 0.05,
            "transforms": (
                {"name": "add_decayed_weights", "weight_decay": 5e-4, "mask": "weights"},
                {"name": "sgd", "momentum": 0.9},
            ),
        },
        schedule={"name": "warmup_cosine", "warmup_epochs": 1},
        num_workers=8,
        batch_size_per_worker=32,
        train_epochs=10,
        log_every_steps=20,
        eval_every_epochs=1,
        checkpoint_every_epochs=1,
    )
    return sized(config, variant)
