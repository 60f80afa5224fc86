"""Steps a setup on a layout by hand, for tests of the step."""

import contextlib
import functools
import itertools
import pathlib
import signal

import jax
import numpy as np
import pytest
from flax import linen as nn

import parallel
import runs
import train
from configs import flags
from data import sources
from data.feeds import Feeds
from parallel import Layout, StepsInFlight
from tests.in_process import DIGITS, train_py
from training.checkpoints import abstract
from training.evaluate import make_evaluation
from training.setup import make_setup
from training.steps.async_train_step import make_step as make_train_step
from training.steps.worker_mapping import worker_mapping
from training.train_state import shared_part, to_host

SMALL = ("--config.num_workers=8", "--config.batch_size_per_worker=4", "--config.optimizer.learning_rate=0.02")
DATASET = sources.make("digits").load(0)


def digits_setup(*overrides):
    """The setup of the digits config."""
    return make_setup(flags.load(DIGITS, overrides))


def setup_of(*overrides, train_steps=20):
    """The digits config, small."""
    return digits_setup(*SMALL, f"--config.train_steps={train_steps}", *overrides)


class Normalised(nn.Module):
    """A model with state: BatchNorm statistics of each worker's own batches."""

    num_classes: int

    @nn.compact
    def __call__(self, image, *, deterministic=True):
        x = nn.BatchNorm(use_running_average=deterministic, momentum=0.5)(image.reshape(image.shape[0], -1))
        return nn.Dense(self.num_classes)(x)


class Stepper:
    """A setup's state on the devices, and the step.

    ``lanes`` overrides the config's; ``wrap`` changes ``compute``, for faults that a test injects.
    """

    def __init__(self, setup, *, num_devices=8, lanes=None, steps_per_call=1, wrap=lambda compute: compute):
        self.setup = setup
        each = setup.config.devices_per_worker
        self.layout = Layout.of(setup.config.num_workers, num_devices=num_devices, devices_per_worker=each)
        self.step = make_step(setup, self.layout, lanes=lanes, steps_per_call=steps_per_call, wrap=wrap)
        self.state = setup.init_state(self.layout)
        order = setup.example_order(DATASET)
        self.feeds = Feeds(DATASET.train, order, layout=self.layout.own_places, placement=setup.source.placement)
        self.resident = self.layout.put_shared({"train": self.feeds.resident, "constants": DATASET.constants})
        self._plans = setup.plans(0, steps_per_call=steps_per_call)

    def steps(self, first, last):
        """Takes the steps from ``first`` to before ``last``; keeps the metrics of the last one as numbers."""
        in_flight = StepsInFlight()
        for number in range(first, last):
            self.state, metrics = self.step(self.state, self.batch(number), self.resident, {})
            in_flight.push(number, metrics)
        in_flight.drain()
        metrics = jax.tree.map(lambda x: x[0], self.layout.get_shared(metrics))
        self.report = metrics.pop("nonfinite", None)
        self.metrics = {key: float(value) for key, value in metrics.items()}
        return self

    def calls(self, count):
        """Takes the next calls of the setup's plan; returns each wave's metrics, on the host."""
        return [part for plan in itertools.islice(self._plans, count) for part in self.call(plan)]

    def call(self, plan):
        """Takes one call; returns each wave's metrics, on the host."""
        inputs = {name: self.layout.split_steps(column) for name, column in plan.inputs.items()}
        self.state, metrics = self.step(self.state, self.fed(plan.batch_index), self.resident, inputs)
        return [part for _, part in plan.split(self.layout.get_shared(metrics))]

    def batch_index(self, step):
        return step * self.layout.num_workers + np.arange(self.layout.num_workers)[None]

    def batch(self, step):
        return self.fed(self.batch_index(step))

    def fed(self, batch_index):
        return self.layout.for_devices(self.feeds.at(batch_index))

    def shapes(self):
        """The shapes of the step's arguments."""
        arguments = (self.state, self.batch(0), self.resident, {})
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), arguments)

    def host(self):
        """The state in canonical form."""
        return to_host(self.state, self.layout, self.setup.state_axes)

    def params(self):
        return self.host().params

    @property
    def shared(self):
        """The shared fields of the state on the devices."""
        return shared_part(self.state)

    def evaluate(self, examples=DATASET.test):
        return make_evaluation(self.setup, self.layout, examples)(self.state, self.resident)


def make_step(setup, layout, *, lanes=None, steps_per_call=1, wrap=lambda compute: compute):
    """Returns the step of a setup, with lanes and faults of a test's choice."""
    mapping = worker_mapping(setup, layout, steps_per_call=steps_per_call)
    if lanes == "dispatched":
        mapping = functools.partial(parallel.dispatch_lanes, mapping=setup.config.mapping)
    elif lanes is not None:
        mapping = functools.partial(parallel.map_workers, mapping=setup.config.mapping, steps_per_call=steps_per_call)
    return make_train_step(setup, layout, map_workers=wrapping(mapping, wrap))


def wrapping(mapping, wrap):
    """Returns a ``map_workers`` that maps ``wrap(compute)`` instead of ``compute``."""
    return lambda compute, update, **options: mapping(wrap(compute), update, **options)


def before_first_call(monkeypatch, target, name, act):
    """Has ``act`` happen before the first call of a function."""
    called, original = [], getattr(target, name)

    def first(*arguments, **options):
        if not called:
            called.append(name)
            act()
        return original(*arguments, **options)

    monkeypatch.setattr(target, name, first)


def after_each_call(monkeypatch, act):
    """Has train.py call ``act(state, num_steps)`` after each call of the devices."""
    worker_mapping = train.worker_mapping

    def hooked(*arguments, **options):
        mapping = worker_mapping(*arguments, **options)

        def map_workers(compute, update, **how):
            step = mapping(compute, update, **how)

            def step_and_act(state, batch, *given):
                state, metrics = step(state, batch, *given)
                act(state, batch["batch_index"].shape[1])
                return state, metrics

            return step_and_act

        return map_workers

    monkeypatch.setattr(train, "worker_mapping", hooked)


class Crash(Exception):
    """An error that no code of the project handles."""


def crash():
    """Ends a run as an unforeseen error does: nothing is saved."""
    raise Crash


def ask_to_stop(number=signal.SIGTERM):
    """Ends a run as a scheduler does: it saves, and stops."""
    signal.raise_signal(number)


def act_at(monkeypatch, step, act):
    """Has train.py call ``act()`` once, after the call of the devices that reaches a step."""
    acted = []

    def after(state, num_steps):
        if not acted and int(np.asarray(state.step)[0]) >= step:
            acted.append(step)
            act()

    after_each_call(monkeypatch, after)


def end_at(step, train, end=ask_to_stop):
    """Ends ``train()``, which runs train.py and returns its exit code, after a step: by a signal or an error."""
    with pytest.MonkeyPatch.context() as patch:
        act_at(patch, step, end)
        with pytest.raises(Crash) if end is crash else contextlib.nullcontext():
            assert train() == 128 + signal.SIGTERM


def end_and_go_on(step, train, end=ask_to_stop):
    """Ends a run after a step, and lets the same command go on to its end."""
    end_at(step, train, end)
    assert train() == 0


def train_whole_and_in_parts(arguments, folder, *, stop_after):
    """Runs train.py in ``folder / "whole"``, and in "parts", where it is stopped after a step and goes on."""

    def run(name):
        return train_py(*arguments, f"--workdir={folder / name}")

    assert run("whole") == 0
    end_and_go_on(stop_after, lambda: run("parts"))


def checkpoint_of(workdir, setup, which="latest"):
    """Returns the step of a run's checkpoint, and its {"state": TrainState, "counters": dict, ...}."""
    with runs.Checkpoints(pathlib.Path(workdir) / "checkpoints", access="read") as checkpoints:
        return checkpoints.restore(abstract(setup), which=which)


def without_clock(workdir):
    """Returns a run's records without the fields that differ from run to run."""
    found = runs.read(pathlib.Path(workdir) / "metrics.jsonl")
    return [{k: v for k, v in record.items() if not runs.is_of_host_clock(k)} for record in found]


def records(workdir, kind="train"):
    """Returns those of ``without_clock`` that are of one kind."""
    return [record for record in without_clock(workdir) if record["kind"] == kind]


def largest_difference(one, other):
    return max(np.abs(a - b).max() for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True))


def dtypes_of(tree):
    """The names of the dtypes of leaves."""
    return {leaf.dtype.name for leaf in jax.tree.leaves(tree)}


def same_bits(one, other):
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(np.array_equal(a, b) and np.asarray(a).dtype == np.asarray(b).dtype for a, b in pairs)
