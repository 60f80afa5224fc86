"""The metrics of a reducer's last update, which its state holds."""

from typing import Any

import jax


def metrics(state: Any) -> dict[str, jax.Array]:
    """Returns the metrics of a reducer's state and of all states nested in it.

    A reducer reports by a field ``metrics`` of its state: a dict from name to scalar, with the same names after every
    update. Wrappers and chains nest states; they need to do nothing.

    One name has a meaning of its own: "bytes_per_worker" is the number of bytes that a worker would have sent on a wire
    in this update. A reducer reports it if its program sends something else than it simulates, such as quantized or
    sparse updates in float32. It takes the place of the number that ``traffic`` counts in the program.

    Args:
      state: of a reducer, or of a chain of transformations.

    Returns:
      name -> scalar; empty for a reducer that reports nothing.

    Raises:
      ValueError: if two states have metrics of the same name.

    >>> import optax
    >>> from typing import NamedTuple
    >>> class State(NamedTuple):
    ...   metrics: dict
    >>> metrics((optax.EmptyState(), (State({"orthogonality": 0.5}), optax.TraceState({"w": 0.0}))))
    {'orthogonality': 0.5}
    """
    own = getattr(state, "metrics", None)
    found = dict(own) if isinstance(own, dict) else {}
    for child in jax.tree.leaves(state, is_leaf=lambda node: node is not state):
        if child is own or child is state:  # seen already; an array
            continue
        nested = metrics(child)
        if clash := sorted(found.keys() & nested.keys()):
            raise ValueError(f"metrics: two reducers report {', '.join(clash)}")
        found |= nested
    return found
