"""Streaming DiLoCo: an update sends a part of the model in 4 bits, which arrives late and is mixed with a worker's own.

    TFDS_DATA_DIR=... make train ARGS="--config=configs/streaming_diloco.py"
    make train ARGS="--config=configs/streaming_diloco.py:smoke"

    --config.reducer.fragments=8 --config.reducer.mix=0 --config.communication.name=full

Rounds and optimizers of ``configs/diloco.py``. The leaves are in four fragments; every 12 or 13 steps one fragment is
sent, which arrives 5 steps later. The paper has 4 bits, a mixture of one half, and a delay of one or several steps
(MEM). No result is published for this config.

Reference: Douillard et al., "Streaming DiLoCo with overlapping communication", arXiv 2501.18512 (abstract; READ: code
of torchft and MaxText). Differs from the paper in: its 4 bits are those of a float, these are quantised at random to
integers of 4 bits; its fragments are whole layers.
"""

from ml_collections import ConfigDict

from configs.diloco import diloco

REDUCER = {"name": "local_sgd", "every_steps": 50, "delay_steps": 5, "from_step": 0, "fragments": 4, "mix": 0.5}


def get_config(variant: str = "") -> ConfigDict:
    smoke = {"reducer.every_steps": 2, "reducer.delay_steps": 1, "reducer.fragments": 2}
    communication = {"name": "quantised", "bits": 4}
    return diloco(variant, smoke=smoke, reducer=REDUCER, communication=communication)
