"""A training loop as flax's examples write it: nothing is recorded, saved or checked."""

import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import optax
from flax import linen as nn
from jax import numpy as jnp

import reducers

AXIS = "worker"
LOG_EVERY = 10  # updates between readings of the loss


def batches(images: np.ndarray, labels: np.ndarray, shape: tuple[int, ...]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields images and labels of this shape, [K, W, B] examples, in random order, one pass after another."""
    rng = np.random.default_rng(0)
    order = np.arange(0)
    count, num_examples = math.prod(shape), len(labels)
    while True:
        if order.size < count:
            passes = math.ceil(count / num_examples)
            order = np.concatenate([rng.permutation(num_examples) for _ in range(passes)])
        index = order[:count].reshape(shape)
        order = order[count:]
        yield images[index], labels[index]


class Loop:
    """Trains a network for classes with the mean of all workers' gradients and momentum SGD.

    Args:
      network: maps images [B, H, W, D] float32 to logits [B, C].
      images: [N, H, W, D] uint8.
      labels: [N] int32.
      batch: (W, B), the number of workers and of examples for each.
      num_devices: W, or 1, with the workers as its lanes.
      num_updates: the updates in a turn.
      steps_per_call: the updates in one device call.

    Attributes:
      state: parameters, optimizer state and key; with several devices each has a copy.
    """

    def __init__(
        self,
        network: nn.Module,
        images: np.ndarray,
        labels: np.ndarray,
        *,
        batch: tuple[int, int],
        num_devices: int,
        num_updates: int,
        steps_per_call: int,
    ):
        self._num_updates, self._size = num_updates, steps_per_call
        self._batches = batches(images, labels, (steps_per_call, *batch))
        optimizer = optax.chain(reducers.mean(AXIS), optax.sgd(0.01, momentum=0.9))
        params = network.init(jax.random.key(0), jnp.zeros((1, *images.shape[1:])))["params"]
        devices = jax.devices()[:num_devices]
        self.state: Any = (params, optimizer.init(params), jax.random.key_data(jax.random.key(1)))
        steps = _steps(network, optimizer)
        if num_devices == 1:
            mapped = jax.vmap(steps, in_axes=(None, 1, 1), out_axes=None, axis_name=AXIS)
            self._step: Callable[..., Any] = jax.jit(mapped, donate_argnums=0)
        else:
            self._step = jax.pmap(steps, in_axes=(0, 1, 1), axis_name=AXIS, devices=devices, donate_argnums=0)
            self.state = jax.tree.map(lambda x: np.broadcast_to(x, (num_devices, *x.shape)), self.state)

    def __call__(self) -> float:
        """Returns the mean seconds of an update in this turn."""
        began = time.perf_counter()
        unread = []
        for done in range(0, self._num_updates, self._size):
            self.state, loss = self._step(self.state, *next(self._batches))
            unread.append(loss)
            if done % LOG_EVERY < self._size:
                np.mean(jax.device_get(unread))
                unread.clear()
        jax.block_until_ready(self.state)
        return (time.perf_counter() - began) / self._num_updates


def _steps(network: nn.Module, optimizer: optax.GradientTransformation) -> Callable[..., Any]:
    """Returns the K steps of one worker: ``(state, images [K, B, ...], labels [K, B]) -> (state, losses)``."""

    def loss_of(params, image, label, key):
        logits = network.apply({"params": params}, image, deterministic=False, rngs={"dropout": key})
        return optax.softmax_cross_entropy_with_integer_labels(logits, label).mean()

    def step(state, batch):
        params, optimizer_state, key = state
        image, label = batch
        now, then = jax.random.split(jax.random.wrap_key_data(key))
        mine = jax.random.fold_in(now, jax.lax.axis_index(AXIS))
        loss, gradient = jax.value_and_grad(loss_of)(params, image.astype(jnp.float32) / 255, label, mine)
        updates, optimizer_state = optimizer.update(gradient, optimizer_state, params)
        state = (optax.apply_updates(params, updates), optimizer_state, jax.random.key_data(then))
        return state, jax.lax.pmean(loss, AXIS)

    def steps(state, images, labels):
        if len(labels) > 1:
            return jax.lax.scan(step, state, (images, labels))
        # One step needs no loop, in which XLA computes the gradients of convolutions slowly on a CPU.
        return step(state, (images[0], labels[0]))

    return steps
