"""MNIST with the small CNN on 106 workers: each step uses the first 100 gradients and drops those of 6 backups.

    TFDS_DATA_DIR=... make train ARGS="--config=configs/mnist_backup_106.py"      # not timed

This is `configs/mnist_backup_53.py`, which lists the options, with other numbers of workers. It processes as many
examples as that config, which takes 12 minutes on one core. We have no expected number for it.
"""

from ml_collections import ConfigDict

from configs.mnist_backup_53 import recipe


def get_config(variant: str = "") -> ConfigDict:
    return recipe(variant, num_required=100, num_backups=6)
