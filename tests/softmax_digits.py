"""Softmax regression on digits in float64 NumPy, on the very batches of a stepper: what methods are checked against."""

import jax
import numpy as np

import reducers
from reducers.report import drift_from
from tests.stepper import DATASET, Stepper, setup_of

PLAIN = (
    *("--config.model.name=softmax", "--config.task.label_smoothing=0.0", "--config.ema_decay=None"),
    *("--config.schedule.name=constant", "--config.optimizer.momentum=None", "--config.optimizer.learning_rate=0.05"),
    "--config.reducer_on=updates",
)
RATE = 0.05


def stepper_of(*overrides, num_devices=2, train_steps=50, **options):
    """8 workers' softmax regression, by plain SGD of their own."""
    return Stepper(setup_of(*PLAIN, *overrides, train_steps=train_steps), num_devices=num_devices, **options)


class Digits:
    """The workers' gradients in float64: ``gradient(x, worker, step)``, at parameters x, [650]: kernel, then bias."""

    def __init__(self, stepper):
        self._stepper, self.setup = stepper, stepper.setup
        self.num_workers = stepper.layout.num_workers
        mean, std = (np.asarray(stepper.resident["constants"][name], np.float64)[0] for name in ("mean", "std"))
        columns = DATASET.train.columns
        self._images = ((columns["image"].astype(np.float64) - mean) / std).reshape(DATASET.train.num_examples, -1)
        self._labels = columns["label"]

    @property
    def start(self):
        return vector(self._stepper.host().params)

    def gradient(self, x, worker, step):
        index = np.asarray(self._stepper.batch(step)["index"]).reshape(self.num_workers, -1)[worker]
        images = self._images[index]
        labels = self._labels[index]
        logits = images @ x[:640].reshape(64, 10) + x[640:]
        chances = np.exp(logits - logits.max(1, keepdims=True))
        chances /= chances.sum(1, keepdims=True)
        error = (chances - np.eye(10)[labels]) / len(index)
        return np.concatenate([(images.T @ error).ravel(), error.sum(0)])

    def updates(self, xs, step):
        """All workers' SGD updates at their own parameters, [W, 650]."""
        return np.stack([-RATE * self.gradient(x, worker, step) for worker, x in enumerate(xs)])


def vector(params):
    """Parameters, or drifts [W, ...], as vectors in float64."""
    dense = params.get("Dense_0", params)
    kernel, bias = (np.asarray(dense[name], np.float64) for name in ("kernel", "bias"))
    lead = bias.shape[:-1]
    return np.concatenate([kernel.reshape(*lead, 640), bias], axis=-1)


def own_params(stepper):
    """Each worker's own parameters, [W, 650], and the shared ones."""
    host = stepper.host()
    report = reducers.report(host.reducer_state)
    apart = reducers.Report(drift=report.drift, mix=report.mix)
    shared = vector(host.params)
    drift = jax.vmap(drift_from, in_axes=(None, 0))(host.params, apart)
    return shared + vector(drift), shared
