"""How a device goes over its lanes, and over steps, where it is left open."""

from typing import Literal

from parallel.layout import Layout

Lanes = Literal["auto", "vmap", "unrolled", "dispatched"]

# Unrolling compiles in time proportional to the lanes (5 s at 8, 17 s at 32 for LeNet-5 on 2 cores); dispatching
# compiles once whatever their number.
_MAX_UNROLLED = 8
# One program with several lanes of a large model, on several devices at once, falls out of cache: 16 workers' step of
# LeNet-5 with Adasum on 8 devices takes 0.73 s unrolled and 0.42 s dispatched. A call costs more than it saves for the
# MLP of the digits: 8.6 ms and 13.7 ms; with 1,024 hidden units, 3 MB, they are even.
_MAX_UNROLLED_BYTES = 4 * 2**20
# Of an accelerator; what a step costs the host is then shared by as many as the pipeline would hold.
_STEPS_PER_DISPATCH = 8


def resolve_lanes(
    lanes: Lanes,
    *,
    layout: Layout,
    work: Literal["all", "some"] = "all",
    num_bytes: int = 0,
    steps_per_dispatch: int = 1,
) -> Lanes:
    """Returns how ``"auto"`` goes over lanes: what measured fastest on this kind of device.

    On CPU a convolution's weight gradient under ``vmap`` is a grouped convolution, 3 times slower than lane after
    lane. On accelerators one batched program keeps the device busy; not measured there yet. Where only some workers
    have work, lane after lane is dispatched, so that those without are passed over.

    Args:
      lanes: what is asked for.
      layout: of the workers.
      work: who has some.
      num_bytes: of a device's shared state.
      steps_per_dispatch: several are one program, whose lanes cannot be dispatched.
    """
    if lanes != "auto":
        return lanes
    if layout.lanes == 1:
        return "unrolled"
    if layout.devices[0].platform != "cpu":
        return "vmap"
    if steps_per_dispatch > 1:
        return "unrolled"
    is_small = layout.num_devices == 1 or num_bytes <= _MAX_UNROLLED_BYTES
    return "unrolled" if layout.lanes <= _MAX_UNROLLED and work == "all" and is_small else "dispatched"


def resolve_steps_per_dispatch(
    asked: int | None, *, layout: Layout, lanes: Lanes, placement: Literal["device", "stream"]
) -> int:
    """Returns how many steps one call of the devices does, by default 8 of an accelerator and 1 of a CPU.

    A small step takes a GPU less time than the host needs to ask for it; not measured there yet. On CPU the weight
    gradient of a convolution is 18 times as slow in a loop. Where batches come from the host, it is asked for each.

    Args:
      asked: for so many; None leaves it open.
      layout: of the workers.
      lanes: how a device goes over them.
      placement: of the training data.

    Raises:
      ValueError: if several are asked for, of lanes that are dispatched.
    """
    if asked is not None and asked > 1 and lanes == "dispatched":
        told = "must be 1 where lanes are dispatched, as record_times has them"
        raise ValueError(f"steps_per_dispatch={asked}: {told}")
    if asked is not None:
        return asked
    gains = layout.devices[0].platform != "cpu" and lanes != "dispatched" and placement == "device"
    return _STEPS_PER_DISPATCH if gains else 1
