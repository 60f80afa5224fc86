"""Asynchronous SGD, simulated exactly: n workers read, compute and push without waiting, with one server or none.

The order of arrivals depends on the durations of tasks alone, so ``order`` computes it before any training. ``waves``
cuts the order into groups of gradients that do not depend on each other and can be computed in parallel.
``apply_in_order`` applies the gradients of a wave one by one, under one of the staleness ``RULES``. Without a server
each worker has a replica: ``exchange`` lists the updates that each worker receives, and ``exchange_updates`` applies
them.

>>> import jax
>>> durations = from_model(lambda step: jax.numpy.array([1.0, 1.0, 3.5]))  # seconds of the tasks of three workers
>>> for wave in waves(order(durations, num_workers=3, num_events=11), num_workers=3):
...     print(wave.events.worker, wave.events.staleness)
[0 1] [0 1]
[0 1] [1 1]
[0 1 2] [1 1 6]
[0 1] [2 2]
[0 1] [1 1]
"""

from asynchronous.events import (
    Durations,
    Events,
    Reads,
    Recorded,
    Source,
    from_model,
    order,
    read_order,
)
from asynchronous.messages import Latencies, Mail, Received, exchange, latencies_from_model, mail, num_slots
from asynchronous.replicas import broadcast_traffic, exchange_updates, mean_replica, squared_distance
from asynchronous.rules import RULES, Rate, Rule, make
from asynchronous.server import apply_in_order, at_rate, init_server, traffic, values_in_order
from asynchronous.settings import Broadcast, Server, Settings
from asynchronous.staleness import (
    LayerTimes,
    histogram,
    layer_staleness,
    layer_table,
    layer_times,
    summary,
    table,
)
from asynchronous.waves import Slots, waves
