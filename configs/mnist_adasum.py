"""MNIST with LeNet-5 and Adasum, which combines the momentum SGD updates of 32 workers.

    TFDS_DATA_DIR=... make train ARGS="--config=configs/mnist_adasum.py"      # minutes on 2 cores

This is the authors' recipe at their largest number of workers: 32 x 32 examples a step, and the learning rate of one
worker, since Adasum needs no other. `configs/mnist_adasum_adam.py` and `configs/mnist_adasum_lamb.py` differ in the
optimizer alone. Expected (seed 0): 98.3 % on the test set, and 99.1 % with Adasum on gradients. `sum` does not train at
this rate, on updates or gradients (11.35 %).

    --config.reducer_on=gradients            # one optimizer, after the reduction
    --config.reducer.name=sum                # the authors' baseline
    --config.reducer.granularity=model       # one vector, not layer by layer
    --config.reducer.telemetry=on            # how orthogonal the layers' updates are

Reference: olsaarik/aml-horovod-adasum-example, as in `configs/mnist.py`.
"""

from typing import Any

from ml_collections import ConfigDict

from configs.schema import experiment
from configs.variants import sized


def get_config(variant: str = "") -> ConfigDict:
    return recipe(variant, optimizer={"name": "sgd", "learning_rate": 0.03278, "momentum": 0.9})


def recipe(variant: str, *, optimizer: dict[str, Any]) -> ConfigDict:
    """Returns the experiment with an optimizer, whose deltas Adasum combines, on the authors' schedule."""
    config = experiment(
        model={"name": "lenet5"},
        data={"name": "mnist"},
        optimizer=optimizer,
        schedule={"name": "one_cycle", "warmup_fraction": 0.17886},
        reducer={"name": "adasum"},
        reducer_on="updates",
        num_workers=32,
        batch_size_per_worker=32,
        train_epochs=2,
        log_every_steps=10,
        eval_every_epochs=1,
        checkpoint_every_epochs=1,
    )
    return sized(config, variant)
