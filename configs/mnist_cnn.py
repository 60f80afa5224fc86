"""MNIST with the small CNN of the staleness study of synchronous SGD, here without staleness: its baseline.

    TFDS_DATA_DIR=... make train ARGS="--config=configs/mnist_cnn.py"      # some minutes on 2 cores

One worker x 128, SGD with momentum and a constant rate, moving average of the parameters.

Reference: Chen et al., "Revisiting Distributed Synchronous SGD", arXiv 1604.00981: test error 0.36 % with no staleness
(recalled, unverified). Differs in: optimizer, rate, batch size and epochs are not known; these are ours.
"""

from ml_collections import ConfigDict

from configs.schema import experiment
from configs.variants import sized


def get_config(variant: str = "") -> ConfigDict:
    config = experiment(
        model={"name": "mnist_cnn"},
        data={"name": "mnist"},
        optimizer={"name": "sgd", "learning_rate": 0.05, "momentum": 0.9},
        schedule={"name": "constant"},
        num_workers=1,
        batch_size_per_worker=128,
        train_epochs=4,
        log_every_steps=20,
        eval_every_epochs=1,
        checkpoint_every_epochs=1,
        ema_decay=0.999,
    )
    return sized(config, variant)
