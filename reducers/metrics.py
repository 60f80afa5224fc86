"""What a reducer tells of its last update, read off its state."""

from typing import Any

import jax


def metrics(state: Any) -> dict[str, jax.Array]:
    """Returns the metrics of a reducer's state and of all states nested in it.

    A reducer that has something to tell gives its state a field (or property) ``metrics``: a dict from name to scalar,
    with the same names after every update. Wrappers and ``optax.chain`` nest states; they need do nothing.

    Args:
      state: of a reducer, or of any chain of transformations.

    Returns:
      name -> scalar; empty for a reducer that tells nothing.

    Raises:
      ValueError: if two states have metrics of the same name.

    >>> import optax
    >>> from typing import NamedTuple
    >>> class Told(NamedTuple):
    ...   metrics: dict
    >>> metrics((optax.EmptyState(), (Told({"orthogonality": 0.5}), optax.TraceState({"w": 0.0}))))
    {'orthogonality': 0.5}
    """
    own = getattr(state, "metrics", None)
    found = dict(own) if isinstance(own, dict) else {}
    for child in jax.tree.leaves(state, is_leaf=lambda node: node is not state):
        if child is own or child is state:  # told already; an array
            continue
        nested = metrics(child)
        if clash := sorted(found.keys() & nested.keys()):
            raise ValueError(f"metrics: two reducers tell of {', '.join(clash)}")
        found |= nested
    return found
