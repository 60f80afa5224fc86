"""Measures how close one update of several workers comes to their sequential steps."""

import statistics
from collections.abc import Callable, Sequence
from typing import Any

import jax
import optax
from jax import numpy as jnp
from jax.flatten_util import ravel_pytree

import models
import reducers
from data import sources
from data.augment import as_inputs
from data.example_order import ExampleOrder
from experiments.study.datasets import LENET_RATE as RATE

Gradient = Callable[[jax.Array, Any], jax.Array]  # parameters [P], batch -> [P]
Combine = Callable[[jax.Array], jax.Array]  # [n, P] -> [P]

STEP_SIZES = {
    "lenet5": [RATE * 2**k for k in range(-6, 5)],
    "softmax": [RATE * 2**k for k in range(-6, 5)],
    "toy": [0.1, 0.5, 1.0, 2.0, 4.0, 8.0],
}
METHODS = ("sum", "mean", "adasum", "second_order")
BATCH_SIZE = 32
DIMENSION = 20  # dimension of the toy problem


def orders(n: int) -> list[tuple[int, ...]]:
    """Returns the rotations of an order and of its reverse: any two batches come in either order equally often.

    For two batches they are all orders; for more, their mean is that over all orders to second order in the step size.

    >>> orders(3)
    [(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)]
    """
    first = tuple(range(n))
    return sorted({both[i:] + both[:i] for both in (first, first[::-1]) for i in range(n)})


def errors(
    gradient: Gradient,
    combine: dict[str, Combine],
    params: jax.Array,
    batches: Sequence[Any],
    *,
    step_sizes: Sequence[float],
) -> list[dict[str, float]]:
    r"""Returns :math:`|u - s| / |s|` of each method's update u for each step size; s is the update of sequential SGD.

    All updates are divided by the step size a, so that small steps lose no digits: s is a sum of gradients, averaged
    over orders. The exact second order is :math:`\sum_i g_i - \frac{a}{2} \sum_j H_j \sum_{i \ne j} g_i`.

    Args:
      gradient: (parameters, batch) -> gradient of the batch's loss.
      combine: method -> the update of the batches' gradients.
      params: parameters at which all start, [P].
      batches: one batch per worker.
      step_sizes: the values of a.
    """
    start = jnp.stack([gradient(params, batch) for batch in batches])  # (n, P)

    def sequential(order: Sequence[int], step: float) -> jax.Array:
        total = start[order[0]]
        for i in order[1:]:
            total = total + gradient(params - step * total, batches[i])
        return total

    whole = start.sum(0)
    curved = [
        jax.jvp(lambda w, batch=batch: gradient(w, batch), (params,), (whole - own,))[1]
        for batch, own in zip(batches, start, strict=True)
    ]
    updates = {name: made(start) for name, made in combine.items()}
    found = []
    for step in step_sizes:
        exact = jnp.stack([sequential(order, step) for order in orders(len(batches))]).mean(0)
        updates["second_order"] = whole - step / 2 * jnp.stack(curved).sum(0)
        length = jnp.linalg.norm(exact)
        found.append({name: float(jnp.linalg.norm(update - exact) / length) for name, update in updates.items()})
    return found


def combiners(unravel: Callable) -> dict[str, Combine]:
    """Returns method -> the library's reducer, layer by layer, as a function of flat gradients [n, P]."""

    def combiner(name: str) -> Combine:
        reducer = reducers.make(name, axis_name="worker")

        def one(flat):
            tree = unravel(flat)
            update, _ = reducer.update(tree, reducer.init(tree))
            return ravel_pytree(update)[0]

        return jax.jit(lambda gradients: jax.vmap(one, axis_name="worker")(gradients)[0])

    return {name: combiner(name) for name in METHODS if name != "second_order"}


def measure(*, setting: str, data: str, num_workers: int, steps: int, tuples: int, seed: int) -> dict[str, Any]:
    """Returns the error of each method at each step size, averaged over places and batches.

    Args:
      setting: "lenet5" or "softmax", on images; or "toy".
      data: name of the images.
      num_workers: number of workers.
      steps: length of the run along which errors are measured.
      tuples: number of draws of the workers' batches at each place of a net.
      seed: seed of parameters and batches.
    """
    if setting == "toy":
        measured = _toy(num_workers, steps=steps, seed=seed)
    else:
        measured = _net(setting, data=data, num_workers=num_workers, steps=steps, tuples=tuples, seed=seed)
    row = {name: [statistics.fmean(each[name] for each in at) for at in measured] for name in METHODS}
    return row | {"step_sizes": STEP_SIZES[setting]}


def _toy(num_workers: int, *, steps: int, seed: int) -> list[list[dict[str, float]]]:
    """Measures on random features with random linear labels, along a sequential run with each step size."""

    def loss(w, batch):
        return jax.nn.softplus(-batch["sign"] * (batch["x"] @ w)).mean()

    truth = jax.random.normal(jax.random.key(seed), (DIMENSION,))
    gradient = jax.jit(jax.grad(loss))

    def batch(draw: int):
        keys = jax.random.split(jax.random.fold_in(jax.random.key(seed + 1), draw))
        x = jax.random.normal(keys[0], (BATCH_SIZE, DIMENSION))
        is_positive = jax.random.uniform(keys[1], (BATCH_SIZE,)) < jax.nn.sigmoid(x @ truth)
        return {"x": x, "sign": jnp.where(is_positive, 1, -1)}

    combine = combiners(lambda flat: flat)
    measured = []
    for a in STEP_SIZES["toy"]:
        w = jnp.zeros(DIMENSION)
        at = []
        for step in range(steps):
            batches = [batch(num_workers * step + i) for i in range(num_workers)]
            at += errors(gradient, combine, w, batches, step_sizes=[a])
            for part in batches:
                w = w - a * gradient(w, part)
        measured.append(at)
    return measured


def _net(
    setting: str, *, data: str, num_workers: int, steps: int, tuples: int, seed: int
) -> list[list[dict[str, float]]]:
    """Measures along plain SGD on batches of one worker at the authors' rate, without dropout."""
    source = sources.make(data)
    model = models.make(setting, sizes=source.info.sizes)
    dataset = source.load(seed)
    order = ExampleOrder(num_examples=dataset.train.num_examples, batch_size=BATCH_SIZE, seed=seed)
    constants = jax.tree.map(jnp.asarray, dataset.constants)

    def batch(batch_index: int):
        index = order.indices(batch_index, num_batches=1)
        columns = dataset.train.gather(index, index[:, 0])
        whole = {name: jnp.asarray(column[0]) for name, column in columns.items()}
        return as_inputs(whole, constants)

    start = model.init(jax.random.key(seed), batch(0)["image"])
    params, unravel = ravel_pytree(start)

    def loss(w, part):
        logits = model.apply(unravel(w), part["image"])
        return optax.softmax_cross_entropy_with_integer_labels(logits, part["label"]).mean()

    gradient = jax.jit(jax.grad(loss))
    combine = combiners(unravel)
    measured: list[list[dict[str, float]]] = [[] for _ in STEP_SIZES[setting]]
    later = steps  # batches after those of the run
    for step in range(steps + 1):
        if step in (0, steps // 10, steps // 3, steps):
            for _ in range(tuples):
                batches = [batch(later + i) for i in range(num_workers)]
                later += num_workers
                found = errors(gradient, combine, params, batches, step_sizes=STEP_SIZES[setting])
                for at, error in zip(measured, found, strict=True):
                    at.append(error)
        params = params - RATE * gradient(params, batch(step))
    return measured
