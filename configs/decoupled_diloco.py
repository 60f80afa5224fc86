"""Decoupled DiLoCo: an outer step begins when a quorum of workers has ended its round, and merges by radial directions.

    TFDS_DATA_DIR=... make train ARGS="--config=configs/decoupled_diloco.py"
    make train ARGS="--config=configs/decoupled_diloco.py:smoke"

    --config.reducer.combine.combine=adasum --config.weigh=workers

The quorum is six of eight workers, and workers that come within half a second after the sixth count as well; a later
one begins the next round with all others. Outer updates of workers are nearly orthogonal, so that the mean of M of them
is shorter by the root of M: ``radial_directional`` takes the mean of their lengths, and of their directions, apart;
workers weigh as much as the tokens of their rounds. A round has 24 steps. No result is published for this config; the
claim ``outer_merge`` compares merges.

Reference: "Decoupled DiLoCo", arXiv 2604.21428 (second hand). Differs from the paper in: the time of grace is fixed;
embeddings are merged as all other parameters; workers that are left out lose their round.
"""

from ml_collections import ConfigDict

from configs.diloco import diloco


def get_config(variant: str = "") -> ConfigDict:
    merge = {"name": "radial_directional"}
    quorum = {"name": "quorum", "num_required": 6, "grace_seconds": 0.5, "combine": merge}
    return diloco(
        variant,
        reducer={"name": "local_sgd", "every_steps": 24, "combine": quorum},
        arrivals={"name": "lognormal", "median_seconds": 1.0, "sigma": 0.5},
        weigh="count",
    )
