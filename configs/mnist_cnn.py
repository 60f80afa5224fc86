"""MNIST with the small CNN of a study of staleness in synchronous SGD; this is its baseline, without staleness.

    TFDS_DATA_DIR=... make train ARGS="--config=configs/mnist_cnn.py"      # some minutes on 2 cores

One worker x 128 examples, SGD with momentum and a constant rate, and a moving average of the parameters. Expected, from
the paper: a test error of 0.36 % without staleness (recalled, unverified).

Reference: Chen et al., "Revisiting Distributed Synchronous SGD", arXiv 1604.00981. Differs in: we do not know its
optimizer, rate, batch size and epochs; these are ours.
"""

from ml_collections import ConfigDict

from configs.schema import experiment
from configs.variants import sized


def get_config(variant: str = "") -> ConfigDict:
    config = experiment(
        model={"name": "mnist_cnn"},
        data={"name": "mnist"},
        optimizer={"name": "sgd", "learning_rate": 0.05, "momentum": 0.9},
        num_workers=1,
        batch_size_per_worker=128,
        train_epochs=4,
        log_every_steps=20,
        eval_every_epochs=1,
        checkpoint_every_epochs=1,
        ema_decay=0.999,
    )
    return sized(config, variant)
