"""Parameters of blocks that lie in parts on several devices, and are whole while a block runs.

Inside of ``gathering``, ``attention.run_blocks`` gathers the parameters of one block after another, and once more in
the backward pass, so that a device has few blocks whole at a time.
"""

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax.ad_checkpoint import checkpoint_name

NAME = "block_{}"  # of a block's parameters
_GATHERED = "parameters of a block"

Gather = Callable[[Any], Any]

_gather: contextvars.ContextVar[Gather | None] = contextvars.ContextVar("gathers a block's parameters", default=None)


@contextlib.contextmanager
def gathering(gather: Gather) -> Iterator[None]:
    """Says, while a model is traced, how a block's parameters are gathered from their parts."""
    token = _gather.set(gather)
    try:
        yield
    finally:
        _gather.reset(token)


def whole(params: Any) -> Any:
    """Returns the whole parameters of a block, given what the model has of them."""
    gather = _gather.get()
    return params if gather is None else checkpoint_name(gather(params), _GATHERED)


def gathered_again(apply: Callable[..., Any], *, prevent_cse: bool) -> Callable[..., Any]:
    """Returns a block's function, whose backward pass gathers its parameters again where they are in parts."""
    if _gather.get() is None:
        return apply
    policy = jax.checkpoint_policies.save_anything_except_these_names(_GATHERED)
    return jax.checkpoint(apply, policy=policy, prevent_cse=prevent_cse)
