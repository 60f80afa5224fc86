"""Types of fields that several models have."""

from typing import Literal

Dtype = Literal["float32", "bfloat16", "float16"]  # data type of activations
Remat = Literal["none", "blocks"]  # "blocks" recomputes the activations within blocks in the backward pass
