"""DiLoCo: workers train a byte transformer on their own, by AdamW; every 50 steps an outer optimizer takes the mean.

    TFDS_DATA_DIR=... make train ARGS="--config=configs/diloco.py"   # 8 workers x 8 sequences of Tiny Shakespeare
    make train ARGS="--config=configs/diloco.py:smoke"               # seconds, on built-in text

    --config.reducer.every_steps=10 --config.num_workers=1

Inner optimizer AdamW, outer optimizer SGD with Nesterov momentum 0.9 and rate 0.7: those of an open implementation for
language models of 150 M parameters (READ), which has 500 steps, an inner rate of 4e-4 and betas of 0.9 and 0.95. Here
the network and the inner rate are those of ``configs/shakespeare.py``. No result is published for this config; the
claim ``diloco`` has smaller runs.

Reference: Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models", arXiv 2311.08105;
OpenDiloco (READ: code).
"""

import types
from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from configs.shakespeare import MODEL, SIZES, recipe

# A round is two steps where a run has four.
SMOKE = {**SIZES["smoke"], "reducer.every_steps": 2}


def get_config(variant: str = "") -> ConfigDict:
    return diloco(variant, reducer={"name": "local_sgd", "every_steps": 50, "delay_steps": 0, "from_step": 0})


def diloco(variant: str, *, smoke: Mapping[str, Any] = types.MappingProxyType({}), **blocks) -> ConfigDict:
    """Returns the experiment, with blocks in place of those of ``configs/shakespeare.py``.

    Args:
      variant: "" or "smoke".
      smoke: further settings of the smallest size.
      **blocks: blocks of the config.
    """
    outer = {"name": "sgd", "learning_rate": 0.7, "momentum": 0.9, "nesterov": True}
    return recipe(
        variant, model=MODEL, sizes={"smoke": {**SMOKE, **smoke}}, reducer_on="updates", outer=outer, **blocks
    )
