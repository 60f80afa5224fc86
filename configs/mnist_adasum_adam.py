"""MNIST with LeNet-5 and Adasum, which combines the Adam updates of 32 workers.

    TFDS_DATA_DIR=... make train ARGS="--config=configs/mnist_adasum_adam.py"      # minutes on 2 cores

This is `configs/mnist_adasum.py`, which lists the options, with another optimizer. The learning rate is Adam's usual
0.001, not tuned. Expected (seed 0), on the test set: 99.08 % (`sum` 98.82 %); on gradients 98.64 % (`sum` 98.17 %).
"""

from ml_collections import ConfigDict

from configs.mnist_adasum import recipe


def get_config(variant: str = "") -> ConfigDict:
    return recipe(variant, optimizer={"name": "adam", "learning_rate": 0.001})
