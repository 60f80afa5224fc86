"""MNIST with the small CNN and asynchronous SGD: 53 workers and a server, on a simulation of the paper's cluster.

    TFDS_DATA_DIR=... make train ARGS="--config=configs/mnist_async_53.py --num_devices=1"      # 20 minutes on a core

Each worker reads the parameters and computes a gradient of 32 examples, which the server applies when it arrives;
`config.arrivals` models how long a gradient takes. On average 52 updates happen meanwhile. 53 is prime, so all lanes
are on one device. `configs/mnist_async_106.py` has twice as many workers. Expected (seed 0): 95.1 % on the test set
after 2 epochs and 115 simulated seconds, 98.62 % after all 10 and 578 (20 minutes on a busy core). At a rate of 0.01
the loss rises first.

    --config.server.rule=inverse                  # smaller steps for stale gradients; all rules: asynchronous/rules.py
    --config.server.staleness_bound=3             # nobody is more than 3 gradients ahead of the slowest
    --config.server.gradients_per_update=10       # soft synchronisation
    --config.arrivals.name=shifted_exponential

Reference: Chen et al., "Revisiting Distributed Synchronous SGD", arXiv 1604.00981, where 53 and 106 machines train
Inception, here a small network. Differs in: data and model; optimizer, rate, clipping and epochs are ours. We use no
momentum, since staleness acts as one.
"""

from ml_collections import ConfigDict

from configs.schema import experiment
from configs.variants import sized


def get_config(variant: str = "") -> ConfigDict:
    return recipe(variant, num_workers=53, learning_rate=0.005)


def recipe(variant: str, *, num_workers: int, learning_rate: float) -> ConfigDict:
    """Returns the experiment; the more workers, the staler the gradients, and the lower the rate should be."""
    config = experiment(
        model={"name": "mnist_cnn"},
        data={"name": "mnist"},
        optimizer={"name": "sgd", "learning_rate": learning_rate},
        server={"name": "asynchronous"},
        arrivals={"name": "paper_cluster"},
        num_workers=num_workers,
        batch_size_per_worker=32,
        train_epochs=10,
        log_every_steps=20,
        eval_every_epochs=0.5,
        checkpoint_every_epochs=0.5,
        clip_norm=1.0,
        ema_decay=0.999,
    )
    return sized(config, variant)
