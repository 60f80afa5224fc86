"""Things that a config names, for all rooms: what is registered, how options are checked, and parts of one's own."""

from reducers.registry.blocks import parse_block, split_blocks
from reducers.registry.registry import (
    Block,
    Parameters,
    Registry,
    below,
    check,
    describe,
    inside,
    is_optional,
    literal,
    matches,
    name_of,
    parameters,
    plain_type,
)
from reducers.registry.suggestions import suggest
