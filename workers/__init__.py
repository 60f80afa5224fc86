"""Workers on hardware: which device a worker sits on, and how one worker's step becomes all workers' step.

A *worker* is an algorithmic replica, a *device* a piece of hardware, a *lane* a worker's place on a device. Nothing
here knows of models, data or optimizers.
"""

from workers import peers, xla
from workers.devices import Lift, on_devices
from workers.lanes import Lanes, resolve_lanes, resolve_steps_per_dispatch
from workers.layout import AXES, DEVICE_AXIS, LANE_AXIS, Layout
from workers.lift import Halves, Step, over_workers
from workers.timing import WorkerTimes
from workers.virtual import claim_cpu_devices
from workers.window import Window

__all__ = [
    "AXES",
    "DEVICE_AXIS",
    "LANE_AXIS",
    "Halves",
    "Lanes",
    "Layout",
    "Lift",
    "Step",
    "Window",
    "WorkerTimes",
    "claim_cpu_devices",
    "on_devices",
    "over_workers",
    "peers",
    "resolve_lanes",
    "resolve_steps_per_dispatch",
    "xla",
]
