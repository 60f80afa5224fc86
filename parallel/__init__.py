"""Workers on hardware: which device a worker sits on, and how one worker's step becomes all workers' step.

A *worker* is an algorithmic replica, a *device* a piece of hardware, a *lane* a worker's place on a device. Nothing
here knows of models, data or optimizers.
"""

from parallel import processes, xla
from parallel.cpu_devices import configure_cpu_devices
from parallel.devices import Lift, on_devices
from parallel.lanes import Lanes, resolve_lanes, resolve_steps_per_dispatch
from parallel.layout import AXES, DEVICE_AXIS, LANE_AXIS, Layout
from parallel.lift import Halves, Step, over_workers
from parallel.steps_in_flight import Window
from parallel.worker_times import WorkerTimes

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
    "configure_cpu_devices",
    "on_devices",
    "over_workers",
    "processes",
    "resolve_lanes",
    "resolve_steps_per_dispatch",
    "xla",
]
