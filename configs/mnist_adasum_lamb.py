"""MNIST with LeNet-5 and Adasum, which combines the LAMB updates of 32 workers.

    TFDS_DATA_DIR=... make train ARGS="--config=configs/mnist_adasum_lamb.py"      # minutes on 2 cores

This is `configs/mnist_adasum.py`, which lists the options, with another optimizer. The learning rate is not tuned: with
0.01 the first steps change each layer by one per cent of its length. Expected (seed 0), on the test set: 98.49 % (`sum`
does not train, 11.35 %); on gradients 98.84 % (`sum` 98.86 %).
"""

from ml_collections import ConfigDict

from configs.mnist_adasum import recipe


def get_config(variant: str = "") -> ConfigDict:
    return recipe(variant, optimizer={"name": "lamb", "learning_rate": 0.01})
