"""Asynchronous SGD, exactly simulated: one server, n workers that read, compute and push without waiting for others.

Who arrives when depends on how long tasks take and on nothing else, so ``order`` knows it before any training.
``waves`` cuts that order into groups of gradients that do not depend on each other, to be computed in parallel;
``apply_in_order`` is the reduce half that applies them one by one, under one of the ``RULES`` about staleness.

>>> import numpy as np
>>> durations = from_table(np.array([[1.0, 1.0, 3.5]] * 9))  # seconds of each task of three workers
>>> for wave in waves(order(durations, num_workers=3, num_events=11), num_workers=3):
...     print(wave.events.worker, wave.events.staleness)
[0 1] [0 1]
[0 1] [1 1]
[0 1 2] [1 1 6]
[0 1] [2 2]
[0 1] [1 1]
"""

from asynchronous.durations import Durations, from_model, from_table
from asynchronous.events import Cursor, Events, Reads, advance, order, start
from asynchronous.layers import LayerTimes, layer_staleness, layer_table, layer_times
from asynchronous.modes import MODES, Mode
from asynchronous.rules import RULES, Rate, Rule, make
from asynchronous.server import Server, ServerState, apply_in_order, traffic, update_at, values_in_order
from asynchronous.staleness import Summary, histogram, merge, summary, table
from asynchronous.waves import Slots, Wave, waves

__all__ = [
    "MODES",
    "RULES",
    "Cursor",
    "Durations",
    "Events",
    "LayerTimes",
    "Mode",
    "Rate",
    "Reads",
    "Rule",
    "Server",
    "ServerState",
    "Slots",
    "Summary",
    "Wave",
    "advance",
    "apply_in_order",
    "from_model",
    "from_table",
    "histogram",
    "layer_staleness",
    "layer_table",
    "layer_times",
    "make",
    "merge",
    "order",
    "start",
    "summary",
    "table",
    "traffic",
    "update_at",
    "values_in_order",
    "waves",
]
