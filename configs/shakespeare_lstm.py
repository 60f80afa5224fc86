"""Tiny Shakespeare, byte by byte, with an LSTM and AdamW: 8 workers x 8 sequences.

    TFDS_DATA_DIR=... make train ARGS="--config=configs/shakespeare_lstm.py"             # under 2 minutes on 2 cores

This is `configs/shakespeare.py` with a recurrent model. The Adasum paper's production case was an LSTM; we know no more
about it. Expected (seed 0): a perplexity of 10.44 a byte after 2 epochs, where bigrams have 12.18 and the transformer
has 9.92.
"""

from ml_collections import ConfigDict

from configs.shakespeare import recipe
from configs.variants import Sizes

SIZES: dict[str, Sizes] = {"smoke": {"model": {"name": "lstm", "num_layers": 1, "width": 16}}}


def get_config(variant: str = "") -> ConfigDict:
    return recipe(variant, model={"name": "lstm", "num_layers": 1, "width": 256}, sizes=SIZES)
