"""Tiny Shakespeare, byte by byte, with an LSTM and AdamW: 8 workers x 8 sequences.

    TFDS_DATA_DIR=... make train ARGS="--config=configs/shakespeare_lstm.py"             # minutes on 2 cores

As `configs/shakespeare.py`, with a recurrent model; the Adasum paper's production case was an LSTM, of which no more
is known to us. Its perplexity is not
measured yet.
"""

from ml_collections import ConfigDict

from configs.shakespeare import recipe
from configs.variants import Sizes

SIZES: dict[str, Sizes] = {"smoke": {"model": {"name": "lstm", "num_layers": 1, "width": 16}}}


def get_config(variant: str = "") -> ConfigDict:
    return recipe(variant, model={"name": "lstm", "num_layers": 1, "width": 256}, sizes=SIZES)
