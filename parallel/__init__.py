"""Workers on hardware: the only package that knows ``pmap`` and ``shard_map``.

A *worker* is an algorithmic replica, a *device* a piece of hardware, a *node* one device or several that compute
together, and a *lane* a worker's place on a node: ``num_workers = num_nodes * lanes``. Nothing here knows models, data
or optimizers.
"""

from parallel import processes
from parallel.backend import (
    compile_quickly,
    configure_cpu_devices,
    default_cpu_devices,
    enable_latency_hiding,
    keep_freed_memory,
    start_backend,
)
from parallel.dispatched_lanes import dispatch_lanes, update_of_work
from parallel.lanes import Lanes, resolve_lanes, resolve_steps_per_call
from parallel.layout import AXES, DEVICE_AXIS, LANE_AXIS, Layout
from parallel.mapping import DeviceMapping, Step, map_devices, map_workers
from parallel.parts import PART_AXIS, WHOLE, Cut, Partition, PartitionOf, part_shape
from parallel.steps_in_flight import StepsInFlight
from parallel.worker_times import WorkerTimes
