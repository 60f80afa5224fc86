"""Collectives over the worker axes: axes, slices, buckets, and operations written for a backend."""

from reducers.collectives.axes import (
    AxisName,
    agreed,
    as_own,
    axes_of,
    check_one_per_worker,
    devices_and_lanes,
    gather_workers,
    num_workers,
    per_worker,
    same_on_all,
    shift_workers,
    split_axes,
    tracked_axes,
)
from reducers.collectives.buckets import (
    Combined,
    buckets,
    by_size,
    in_buckets,
    map_together,
    sum_workers,
    too_small,
)
from reducers.collectives.devices import Devices
from reducers.collectives.joined import cut, join, pad_axis
from reducers.collectives.masks import num_counted, weigh, whole_mask
from reducers.collectives.slices import from_slices, own_from_slices, slice_size, to_slices
