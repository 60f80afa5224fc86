"""Local workers: what a step costs in which they communicate, and one in which they do not, over the mean's.

    python -m benchmarks.apart

A reduction of 10 million floats in ResNet-50's leaves by 8 devices of one process, with the update of the parameters,
in turns with the mean's; then whole steps of LeNet-5 by local SGD that communicates in every 16th; and the copies of
the parameters that each worker keeps.
"""

import contextlib
import functools
import sys
import time
from collections.abc import Sequence
from typing import Any

if __name__ == "__main__":  # the imports below take seconds
    import launch.command

    launch.command.begin()

import jax
import numpy as np
import optax
from jax import lax

import reducers
from benchmarks.kit import command, leaves, step_loop, taking_turns
from benchmarks.kit.command import Found, Log
from benchmarks.kit.process_groups import group
from benchmarks.kit.reducer_times import random_gradients
from benchmarks.kit.result import Measured, Target
from parallel import AXES, Layout, configure_cpu_devices, keep_freed_memory, map_devices

WORKERS, FLOATS, NEVER = 8, 10_000_000, 1_000_000
MEAN = "mean"
QUIET, ALL = Target("<=", 1.0), Target("<=", 2.0)

# Name -> the reducer of a step, the number of steps of its turn, of which the last one counts, and a target.
CASES: dict[str, tuple[Any, int, Target | None]] = {
    "local_sgd, nothing is due": (functools.partial(reducers.local_sgd, every_steps=NEVER), 1, QUIET),
    "local_sgd, all is due": (functools.partial(reducers.local_sgd, every_steps=2), 2, ALL),
    "local_sgd with a delay, nothing is due": (
        functools.partial(reducers.local_sgd, every_steps=NEVER, delay_steps=1),
        1,
        QUIET,
    ),
    "local_sgd with a delay, all is due": (functools.partial(reducers.local_sgd, every_steps=2, delay_steps=2), 2, ALL),
    "elastic_averaging, nothing is due": (
        functools.partial(reducers.elastic_averaging, every_steps=NEVER, strength=0.1),
        1,
        QUIET,
    ),
    "elastic_averaging, all is due": (
        functools.partial(reducers.elastic_averaging, every_steps=1, strength=0.1),
        1,
        ALL,
    ),
    "gossip, ring": (functools.partial(reducers.gossip, topology="ring"), 1, None),
    "gossip, one peer": (functools.partial(reducers.gossip, topology="one_peer_exponential"), 1, None),
}
STEPS = 16  # of LeNet-5 in a turn; local SGD communicates in the last one
RECIPE = "mnist num_workers=8 reducer_on=updates"
WHOLE = {
    "mean of updates": f"{RECIPE}",
    "local_sgd every 16 steps": f"{RECIPE} reducer.name=local_sgd reducer.every_steps={STEPS}",
}


class Reduction:
    """A contender that reduces and updates; a turn is its last step.

    Args:
      reducer: along ``AXES``.
      updates: of all workers, on the devices.
      layout: one worker on each device.
      num_steps: of a turn.
    """

    def __init__(self, reducer: reducers.Reducer, updates: list[jax.Array], *, layout: Layout, num_steps: int = 1):
        params = [np.zeros(x.shape[2:], x.dtype) for x in updates]

        def step(params, state, updates):
            reduced, state = reducer.update(updates, state, params)
            emitted = reducers.report(state).emitted
            if emitted is None:
                return optax.apply_updates(params, reduced), state
            return lax.cond(
                reducers.same_on_all(emitted, AXES), lambda: optax.apply_updates(params, reduced), lambda: params
            ), state

        lanes = jax.vmap(step, in_axes=(None, 0, 0), out_axes=(None, 0), axis_name=AXES[1])
        self._step = map_devices(lanes, layout=layout, donate_argnums=(0, 1))
        state = jax.device_get(reducer.init(params))
        self._params = layout.put_shared(params)
        self._state = layout.put_per_worker(jax.tree.map(lambda x: np.broadcast_to(x, (WORKERS, *np.shape(x))), state))
        self._updates, self._num_steps = updates, num_steps
        self.copies = sum(x.size for x in jax.tree.leaves(state)) / sum(x.size for x in params)

    @property
    def is_due(self) -> bool:
        """Whether progress was due in the last step."""
        emitted = reducers.report(self._state).emitted
        return emitted is None or bool(np.any(emitted))

    def __call__(self) -> float:
        for _ in range(self._num_steps):
            began = time.perf_counter()
            self._params, self._state = self._step(self._params, self._state, self._updates)
            jax.block_until_ready((self._params, self._state))
        return time.perf_counter() - began


def benchmark(
    *,
    repeats: int,
    log: Log,
    leaves_like: str = "resnet50_like",
    num_floats: int = FLOATS,
    whole: Sequence[str] = tuple(WHOLE),
) -> Found:
    """Measures reductions with their updates in turns, then whole steps.

    Args:
      repeats: the number of counted rounds.
      log: called with lines of progress.
      leaves_like: one of ``leaves.SIZED``.
      num_floats: the number of floats of a gradient.
      whole: the whole steps to measure.
    """
    keep_freed_memory()
    configure_cpu_devices(WORKERS, num_devices=WORKERS)
    layout = Layout.of(WORKERS, num_devices=WORKERS)
    ((_, shapes),) = leaves.sets([leaves_like], sizes=[num_floats])
    updates = random_gradients(shapes, layout)
    contenders = {MEAN: Reduction(reducers.mean(AXES), updates, layout=layout)}
    for name, (make, num_steps, _) in CASES.items():
        contenders[name] = Reduction(make(AXES), updates, layout=layout, num_steps=num_steps)
    seconds = taking_turns.in_turns(contenders, repeats=repeats, log=log)
    for name, contender in contenders.items():
        if name.endswith("is due") and contender.is_due is name.endswith("nothing is due"):
            raise RuntimeError(f"{name}: is not what its counted step did")
    where = f"{WORKERS} devices, {num_floats / 1e6:g} M floats"
    found = [
        Measured(f"{name}, over mean with its update, {where}", taking_turns.ratios(seconds, name, MEAN), target=target)
        for name, (_, _, target) in CASES.items()
    ]
    found.append(Measured(f"mean with its update, {where}", seconds[MEAN], unit="s"))
    found += [
        Measured(f"{name.partition(',')[0]} keeps, for each worker", [contenders[name].copies], unit="parameters")
        for name in CASES
        if "nothing" in name or "ring" in name
    ]
    contenders.clear()
    with contextlib.ExitStack() as stack:
        turn_of = stack.enter_context(group(num_devices=2))
        steps = {}
        for name in whole:
            config, *overrides = WHOLE[name].split()
            steps[name] = turn_of(f"step {' '.join((config, str(STEPS), *overrides))}")
        seconds = taking_turns.in_turns(steps, repeats=repeats, log=log) if steps else {}
    if seconds:
        mean, local = WHOLE
        name = f"LeNet-5, 8 workers x 32, a step of {local}, over one of {mean}"
        found.append(Measured(name, taking_turns.ratios(seconds, local, mean), target=Target("<=", 1.05)))
        found.append(Measured(f"LeNet-5, 8 workers x 32, a step of {mean}", seconds[mean], unit="s"))
    return Found(found, step_loop.devices(layout.num_devices))


if __name__ == "__main__":
    launch.command.run(command.run, benchmark, name="apart", doc=__doc__, argv=sys.argv[1:], repeats=15)
