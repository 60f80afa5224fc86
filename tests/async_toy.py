"""Asynchronous training of a small model, on devices, and one gradient at a time in plain Python."""

import functools
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
from jax import numpy as jnp

import asynchronous
from asynchronous.events import BLOCK
from parallel import AXES, StepsInFlight, dispatch_lanes, map_workers

NUM_FEATURES = 6
NOBODY = np.uint32(2**32 - 1)  # the batch_index of a worker that has no gradient
SGD = optax.sgd(0.05)
MOMENTUM = optax.sgd(0.005, momentum=0.9)
PLAIN = asynchronous.make("none")


def from_table(seconds):
    """The durations in a table [tasks, workers]."""
    table = np.asarray(seconds, np.float64)
    return lambda block: table[block * BLOCK : (block + 1) * BLOCK]


class Shared(NamedTuple):
    params: Any
    opt_state: Any
    num_updates: Any
    server: Any = None


def loss(params, batch_index):
    """Least squares on the eight examples of a batch."""
    rows = jax.random.normal(jax.random.fold_in(jax.random.key(0), batch_index), (8, NUM_FEATURES))
    hidden = jnp.tanh(rows @ params["w"] + params["b"][None])
    return jnp.square(hidden.sum(-1) - 1.0).mean()


def initial_params():
    w = np.random.default_rng(1).standard_normal((NUM_FEATURES, 3)).astype(np.float32) / 3
    return {"w": jnp.asarray(w), "b": jnp.zeros(3, jnp.float32)}


def make_update(optimizer):
    """Returns one update of the server, as the trainer makes it: the optimizer, and a count of updates."""

    def update(shared, gradient, rate):
        updates, opt_state = optimizer.update(gradient, shared.opt_state, shared.params)
        updates, opt_state = asynchronous.at_rate(rate, updates, opt_state, before=shared.opt_state)
        params = optax.apply_updates(shared.params, updates)
        return shared._replace(params=params, opt_state=opt_state, num_updates=shared.num_updates + 1)

    return update


STATE_AXES = (None, 0)  # shared state, and the snapshot that each worker has read


def make_step(optimizer, *, rule, gradients_per_update=1):
    """An asynchronous step, in which workers without a gradient send NaN."""

    def compute(state, batch, resident):
        del resident
        value, gradients = jax.value_and_grad(loss)(state[1], batch["batch_index"])
        gradients = jax.tree.map(lambda g: jnp.where(batch["batch_index"] == NOBODY, jnp.nan, g), gradients)
        return gradients, value

    def update(state, mine, slots):
        (shared, snapshot), (gradients, value) = state, mine
        served, server, snapshot, _ = asynchronous.apply_in_order(
            shared._replace(server=None),
            shared.server,
            snapshot,
            gradients,
            slots,
            update=make_update(optimizer),
            settings=asynchronous.Server(rule, gradients_per_update, None),
            axis_name=AXES,
        )
        losses = asynchronous.values_in_order(value, slots["position"], AXES)
        return (served._replace(server=server), snapshot), {"loss": losses}

    return compute, update


def inputs_of(wave, layout):
    """A wave's batch and inputs, as the step takes them."""
    slots = {name: layout.split_steps(column[None]) for name, column in wave.slots._asdict().items()}
    return {"batch_index": slots.pop("batch_index").astype(np.uint32)}, slots


@functools.cache
def compiled(layout, optimizer, rule, gradients_per_update, mapping, lanes):
    """A step, made once for all tests of the same one."""
    compute, update = make_step(optimizer, rule=rule, gradients_per_update=gradients_per_update)
    options = {"layout": layout, "state_axes": STATE_AXES, "mapping": mapping}
    options["is_idle"] = lambda slots: slots["position"] < 0
    if lanes == "dispatched":
        return dispatch_lanes(compute, update, **options)
    return map_workers(compute, update, **options, lanes_at_once=None if lanes == "vmap" else lanes)


def run_waves(waves, *, layout, optimizer=SGD, rule=PLAIN, gradients_per_update=1, mapping="pmap", lanes="vmap"):
    """Returns the parameters, number of updates, the workers' snapshots and the losses in order.

    ``lanes`` is "vmap", "dispatched", or the number of lanes at once.
    """
    train_step = compiled(layout, optimizer, rule, gradients_per_update, mapping, lanes)
    params = initial_params()
    server = asynchronous.init_server(params, settings=asynchronous.Server(rule, gradients_per_update, None))
    shared = Shared(params, optimizer.init(params), jnp.zeros((), jnp.int32), server)
    snapshot = jax.tree.map(lambda x: np.broadcast_to(x, (layout.num_workers, *x.shape)), params)
    state = layout.put((shared, snapshot), STATE_AXES)
    in_flight, losses = StepsInFlight(), []
    for wave in waves:
        batch, slots = inputs_of(wave, layout)
        state, metrics = train_step(state, batch, {}, slots)
        in_flight.push(None, metrics)
        losses.append(layout.get_shared(metrics)["loss"][0, : len(wave.events.worker)])
    in_flight.drain()
    shared, snapshot = layout.get(state, STATE_AXES)
    return shared.params, int(shared.num_updates), snapshot, np.concatenate(losses)


gradient_of = jax.jit(jax.value_and_grad(loss))


def simulate(events, reads, *, num_workers, optimizer=SGD, rule=PLAIN, gradients_per_update=1):
    """Returns the same as ``run_waves``, one gradient at a time: a server, and a list of what each worker has read."""
    params = initial_params()
    opt_state = optimizer.init(params)
    rule_state = rule.init(params)
    snapshots = [params] * num_workers
    losses = []
    group = []
    num_updates = 0
    readers: dict[int, list[int]] = {}
    for worker, event in zip(reads.worker, reads.event, strict=True):
        readers.setdefault(int(event), []).append(int(worker))
    for number, (worker, batch_index, staleness) in enumerate(
        zip(events.worker, events.batch_index, events.staleness, strict=True)
    ):
        value, gradient = gradient_of(snapshots[worker], np.uint32(batch_index))
        losses.append(value)
        gradient, rate, rule_state = rule.apply(
            gradient,
            rule_state,
            params=params,
            read=lambda worker=worker: snapshots[worker],
            staleness=jnp.asarray(staleness, jnp.int32),
            num_workers=num_workers,
        )
        group.append((gradient, 1.0 if rate is None else float(rate)))
        if len(group) == gradients_per_update:
            total = sum(rate for _, rate in group)
            if total > 0:
                parts = [jax.tree.map(lambda g, r=rate: r * g, gradient) for gradient, rate in group if rate > 0]
                mean = jax.tree.map(lambda *g, total=total: sum(g) / total, *parts)
                updates, opt_state = optimizer.update(mean, opt_state, params)
                scale = total / len(group)
                params = jax.tree.map(lambda p, u, s=scale: p + s * u, params, updates)
            num_updates += 1
            group = []
        for reader in readers.get(number + 1, ()):
            snapshots[reader] = params
    stacked = jax.tree.map(lambda *rows: np.stack(rows), *snapshots)
    return jax.tree.map(np.asarray, params), num_updates, stacked, np.array(losses)
