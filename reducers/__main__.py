"""``python -m reducers`` prints the table of reducers in Markdown, made of docstrings and of counted bytes."""

import inspect
import re
import signal
from typing import Any

import jax
from jax import numpy as jnp

import reducers

# A gradient so large that small exchanges, such as those of dot products, do not show.
_ELEMENTS = 1 << 24
_NUM_WORKERS = (8, 64)


def table() -> str:
    """Returns a row per reducer, with its options at their defaults, or at 1 where they have none.

    A row has the name, the first line of the docstring, the bytes that a worker sends over those of a float32 gradient,
    and the first paper of the reference.

    >>> print(table().splitlines()[0])
    | Reducer | What it does | Sends, 8 workers | Sends, 64 workers | Source |
    """
    sends = [f"Sends, {n} workers" for n in _NUM_WORKERS]
    rows = [["Reducer", "What it does", *sends, "Source"], ["---"] * (3 + len(sends))]
    for name in sorted(reducers.REDUCERS):
        docstring = inspect.getdoc(reducers.REDUCERS[name]) or ""
        multiples = [f"{_sent(name, num_workers=n):.2f} x" for n in _NUM_WORKERS]
        rows.append([f"`{name}`", docstring.partition("\n")[0], *multiples, _source(docstring)])
    lines = []
    for row in rows:
        cells = [cell.replace("|", r"\|") for cell in row]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _sent(name: str, *, num_workers: int) -> float:
    gradient = jax.ShapeDtypeStruct((_ELEMENTS,), jnp.float32)
    parameters = reducers.REDUCERS.parameters(name)
    options: dict[str, Any] = {key: 1 for key, p in parameters.items() if p.default is p.empty}
    reducer = reducers.make(name, axis_name="worker", **options)
    seconds = jnp.zeros(num_workers)
    moved = reducers.traffic(reducer, gradient, axis_sizes={"worker": num_workers}, arrival_seconds=seconds)
    return moved.bytes_per_worker / (4 * _ELEMENTS)


def _source(docstring: str) -> str:
    found = re.search(r"Reference:.*?arXiv (\d{4}\.\d{4,5})", docstring, re.DOTALL)
    return f"[arXiv {found[1]}](https://arxiv.org/abs/{found[1]})" if found else ""


if __name__ == "__main__":
    if hasattr(signal, "SIGPIPE"):  # Windows lacks it
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # no traceback if the reader stops, as in `| head`
    print(table())
