"""The cost of an optimizer's update, over that of optax's Adam: of parameters on one device, without a gradient.

    python -m benchmarks.updates

An update takes a gradient, the optimizer's state and the parameters to new ones, in memory that is given away, in turns
with Adam's. Leaves are those of ResNet-50, 25.6 million floats.
"""

import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

if __name__ == "__main__":  # the imports below take seconds
    import launch.command

    launch.command.begin()

import jax
import numpy as np
import optax
from jax import numpy as jnp

from benchmarks.kit import command, leaves, step_loop, taking_turns
from benchmarks.kit.command import Found, Log
from benchmarks.kit.result import Measured, Target
from optim.optimizers import OPTIMIZERS
from parallel import keep_freed_memory

ADAM = "adam"


class Case(NamedTuple):
    """An optimizer to measure, with a bound for its time over that of Adam."""

    block: Mapping[str, Any]
    most: float | None = None


CASES: dict[str, Case] = {
    "madam": Case({"name": "madam"}, 2.0),
    "lamadam": Case({"name": "lamadam"}, 2.0),
    "relative_clip": Case({"name": "relative_clip"}, 0.8),
    "diffgrad": Case({"name": "diffgrad"}, 1.3),
    "dgrad": Case({"name": "dgrad"}),
    "adam_plain": Case({"name": "adam_plain"}),
    "adagrad_plain": Case({"name": "adagrad_plain"}),
    "accelerated_exponential": Case({"name": "accelerated_exponential"}),
}


def benchmark(
    *, repeats: int, log: Log, cases: Mapping[str, Case] = CASES, leaves_of: str = "resnet50", num_floats: int = 10**6
) -> Found:
    """Measures updates in turns.

    Args:
      repeats: the number of counted rounds.
      log: called with lines of progress.
      cases: name -> what is measured.
      leaves_of: one of ``leaves.FIXED``, or of ``leaves.SIZED``.
      num_floats: the number of floats, of leaves without a size of their own.
    """
    keep_freed_memory()
    ((_, shapes),) = leaves.sets([leaves_of], sizes=[num_floats])
    size = sum(leaf.size for leaf in shapes)
    where = f"{size / 1e6:.3g} M floats"
    rng = np.random.default_rng(0)
    gradient = [jnp.asarray(rng.normal(size=leaf.shape).astype(np.float32)) for leaf in shapes]
    turns = {}
    for name, block in {ADAM: {"name": ADAM}, **{name: case.block for name, case in cases.items()}}.items():
        log(f"{name}: compiling for {where}")
        turns[name] = Turn(block, gradient)
    seconds = taking_turns.in_turns(turns, repeats=repeats, log=log)
    found = [
        Measured(
            f"{name}, over optax's Adam, {where}",
            taking_turns.ratios(seconds, name, ADAM),
            target=None if case.most is None else Target("<=", case.most),
        )
        for name, case in cases.items()
    ]
    found.append(Measured(f"optax's Adam, {where}", seconds[ADAM], unit="s"))
    return Found(found, step_loop.devices())


class Turn:
    """An optimizer's update, which keeps its parameters and its state."""

    def __init__(self, block: Mapping[str, Any], gradient: list[jax.Array]):
        optimizer = OPTIMIZERS.make(**block, learning_rate=1e-3)
        self.params = [1 + jnp.zeros_like(leaf) for leaf in gradient]
        self.state = jax.jit(optimizer.init)(self.params)
        self.gradient = gradient

        def update(params, state, gradient):
            updates, state = optimizer.update(gradient, state, params)
            return optax.apply_updates(params, updates), state

        self.update = jax.jit(update, donate_argnums=(0, 1)).lower(self.params, self.state, gradient).compile()

    def __call__(self) -> float:
        """Returns the seconds of one update."""

        def work():
            self.params, self.state = jax.block_until_ready(self.update(self.params, self.state, self.gradient))

        return taking_turns.timed(work)


if __name__ == "__main__":
    launch.command.run(command.run, benchmark, name="updates", doc=__doc__, argv=sys.argv[1:], repeats=15)
