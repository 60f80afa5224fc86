"""Asynchronous training of a small linear model, through the lifts and one gradient at a time in plain Python."""

import functools
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
from jax import numpy as jnp

import asynchronous
from parallel import AXES, Halves, Window, over_workers

NUM_FEATURES = 6
NOBODY = np.uint32(2**32 - 1)  # the batch_index of a worker that has no gradient
SGD = optax.sgd(0.05)
MOMENTUM = optax.sgd(0.005, momentum=0.9)
PLAIN = asynchronous.make("none")


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
    """One update of the server, as the program will have it: optimizer, and a count of updates."""

    def update(shared, gradient, rate):
        updates, opt_state = asynchronous.update_at(optimizer, gradient, shared.opt_state, shared.params, rate=rate)
        params = optax.apply_updates(shared.params, updates)
        return shared._replace(params=params, opt_state=opt_state, num_updates=shared.num_updates + 1)

    return update


def make_halves(optimizer, *, rule, gradients_per_update=1):
    """An asynchronous step, in which workers without a gradient send NaN."""
    update = make_update(optimizer)

    def gradient(shared, snapshot, feed, resident):
        del resident
        value, gradients = jax.value_and_grad(loss)(snapshot, feed["draw"])
        gradients = jax.tree.map(lambda g: jnp.where(feed["draw"] == NOBODY, jnp.nan, g), gradients)
        return gradients, value

    def reduce(shared, snapshot, computed, slots):
        gradients, value = computed
        state, server_state = shared._replace(server=None), shared.server
        state, server_state, snapshot = asynchronous.apply_in_order(
            state,
            server_state,
            snapshot,
            gradients,
            **slots,
            update=update,
            rule=rule,
            axis_name=AXES,
            gradients_per_update=gradients_per_update,
        )
        losses = asynchronous.values_in_order(value, slots["position"], AXES)
        return state._replace(server=server_state), snapshot, {"loss": losses}

    return Halves(gradient, reduce, idle=lambda slots: slots["position"] < 0)


def feed_of(wave, layout):
    plan = {name: layout.split(column) for name, column in wave.slots._asdict().items()}
    return {"draw": plan.pop("batch_index").astype(np.uint32), "plan": plan}


@functools.cache
def compiled(layout, optimizer, rule, gradients_per_update, lift, lanes):
    """A step, made once for all tests of the same one."""
    halves = make_halves(optimizer, rule=rule, gradients_per_update=gradients_per_update)
    return over_workers(halves, layout=layout, lift=lift, lanes=lanes)


def run_waves(waves, *, layout, optimizer=SGD, rule=PLAIN, gradients_per_update=1, lift="pmap", lanes="vmap"):
    """Returns the parameters, number of updates, the workers' snapshots and the losses in order."""
    train_step = compiled(layout, optimizer, rule, gradients_per_update, lift, lanes)
    params = initial_params()
    server_state = asynchronous.init_server(params, rule=rule, gradients_per_update=gradients_per_update)
    shared = layout.put_shared(Shared(params, optimizer.init(params), jnp.zeros((), jnp.int32), server_state))
    local = jax.tree.map(lambda x: np.broadcast_to(x, (layout.num_workers, *x.shape)), params)
    local = layout.put_local(local)
    window, losses = Window(), []
    for wave in waves:
        shared, local, metrics = train_step(shared, local, feed_of(wave, layout), {})
        window.push(None, metrics)
        losses.append(layout.get_shared(metrics)["loss"][: len(wave.events.worker)])
    window.drain()
    shared = layout.get_shared(shared)
    return shared.params, int(shared.num_updates), layout.get_local(local), np.concatenate(losses)


gradient_of = jax.jit(jax.value_and_grad(loss))


def simulate(events, reads, *, num_workers, optimizer=SGD, rule=PLAIN, gradients_per_update=1):
    """The same, one gradient at a time: a server, and a list of what each worker has read."""
    params = initial_params()
    opt_state, rule_state = optimizer.init(params), rule.init(params)
    snapshots, losses, group, num_updates = [params] * num_workers, [], [], 0
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


def largest_difference(one, other):
    return max(np.abs(a - b).max() for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True))


def same_bits(one, other):
    return all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True))
