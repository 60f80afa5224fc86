"""AdaBatchGrad: softmax regression on MNIST, with steps and batches that adapt to the gradients.

    TFDS_DATA_DIR=... make train ARGS="--config=configs/adabatchgrad.py"
    make train ARGS="--config=configs/adabatchgrad.py:smoke"

    --config.reducer.rule="{'name': 'norm_test', 'theta': 0.5}"

8 workers x 4 examples at first. The batch grows to the smallest of five proposals of the inner product test, with
theta = 0.5: at 0.9, the rule's default, it does not grow here. The step size is that of AdaGrad with one norm for all
parameters. 91.3 % on the test set after 2 epochs, when an update has 64 examples (seed 0).

Reference: Ostroukhov et al., "AdaBatchGrad: Combining Adaptive Batch Size and Adaptive Step Size", arXiv 2402.05264
(abstract; READ: a third party's port, whose tests have these defaults).
"""

from ml_collections import ConfigDict

from configs.schema import experiment
from configs.variants import sized


def get_config(variant: str = "") -> ConfigDict:
    config = experiment(
        model={"name": "softmax"},
        data={"name": "mnist"},
        optimizer={"name": "adagrad_norm", "learning_rate": 1.0},
        reducer={
            "name": "adaptive_batch",
            "rule": {"name": "inner_product_test", "theta": 0.5, "nu": 5.84},
            "max_steps": 256,
        },
        num_workers=8,
        batch_size_per_worker=4,
        train_epochs=5,
        log_every_steps=100,
        eval_every_epochs=0.5,
        checkpoint_every_epochs=1,
    )
    return sized(config, variant)
