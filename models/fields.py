"""Types of fields that several models have."""

from typing import Literal

Dtype = Literal["float32", "bfloat16", "float16"]  # data type of activations
Remat = Literal["none", "blocks"]  # "blocks" recomputes the activations within blocks in the backward pass
ScanBlocks = Literal["auto", "on", "off"]  # "on" compiles one block and loops over it; "auto" does so on TPUs
AttentionKernel = Literal["xla", "cudnn"]  # "cudnn" needs an NVIDIA GPU
ScaleInvariant = Literal["off", "on"]  # "on": scaling the kernels of blocks changes no output
