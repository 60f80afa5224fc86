"""The step of a setup's mode: synchronous, or asynchronous with a server or without one."""

from collections.abc import Callable

import asynchronous
import parallel
from parallel import Layout
from training.async_train_step import make_async_train_step
from training.decentralised_train_step import make_decentralised_train_step
from training.setup import TrainSetup
from training.train_step import make_train_step


def make_step_of_mode(setup: TrainSetup, layout: Layout, *, map_workers: Callable[..., parallel.Step]) -> parallel.Step:
    """Returns the step of the setup's mode; the steps of all modes take the same arguments."""
    if setup.async_mode is None:
        return make_train_step(setup, layout, map_workers=map_workers)
    if isinstance(setup.async_mode, asynchronous.Decentralised):
        return make_decentralised_train_step(setup, layout, map_workers=map_workers)
    return make_async_train_step(setup, layout, map_workers=map_workers)
