"""Encodings of what workers send: fewer bytes, and the error is kept for the next update."""

from reducers.encodings.by_pattern import Rules, by_pattern
from reducers.encodings.cast import float8, half
from reducers.encodings.divided import as_it_is, divided
from reducers.encodings.dynamic_bits import dynamic_bits
from reducers.encodings.encoded import EncodedState, encoded, named_leaves
from reducers.encodings.encoding import Codec, Cost, Encoding, Kept, Reduction, Sent
from reducers.encodings.exchange import exchanged
from reducers.encodings.low_rank import low_rank
from reducers.encodings.packing import Codes
from reducers.encodings.quantised import quantised
from reducers.encodings.random_k import random_k
from reducers.encodings.sign import sign
from reducers.encodings.then import Then
from reducers.encodings.top_k import top_k
from reducers.registry import Registry

ENCODINGS = Registry(
    {
        "dynamic_bits": dynamic_bits,
        "float8": float8,
        "full": as_it_is,
        "half": half,
        "low_rank": low_rank,
        "quantised": quantised,
        "random_k": random_k,
        "sign": sign,
        "top_k": top_k,
    },
    makes=Encoding,
    holds={Then: "full"},
)
