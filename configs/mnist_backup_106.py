"""As `configs/mnist_backup_53.py`, with 106 workers, of whom the first 100 are waited for.

TFDS_DATA_DIR=... make train ARGS="--config=configs/mnist_backup_106.py"
"""

from ml_collections import ConfigDict

from configs.mnist_backup_53 import recipe


def get_config(variant: str = "") -> ConfigDict:
    return recipe(variant, num_required=100, num_backups=6)
