"""The defaults of ``config.lanes`` and ``--steps_per_dispatch``: what measured fastest on each kind of device."""

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
# On an accelerator; that many steps share the host's cost of one call.
_STEPS_PER_CALL = 8


def resolve_lanes(
    lanes: Lanes,
    *,
    layout: Layout,
    work: Literal["all", "some"] = "all",
    num_bytes: int = 0,
    steps_per_call: int = 1,
) -> Literal["vmap", "unrolled", "dispatched"]:
    """Returns how a device goes over its lanes; "auto" becomes what measured fastest on this kind of device.

    On CPU a convolution's weight gradient under ``vmap`` is a grouped convolution, 3 times slower than lane after lane.
    Where only some workers have work, lanes are dispatched one by one, so that idle ones are skipped.

    Args:
      lanes: the config's value.
      layout: W workers as D devices x L lanes.
      work: whether "all" workers compute in every step, or only "some".
      num_bytes: the bytes of one device's shared state.
      steps_per_call: several steps are one program, whose lanes cannot be dispatched.
    """
    if lanes != "auto":
        return lanes
    if layout.lanes == 1:
        return "unrolled"
    if layout.devices[0].platform != "cpu":
        return "vmap"
    if steps_per_call > 1:
        return "unrolled"
    is_small = layout.num_devices == 1 or num_bytes <= _MAX_UNROLLED_BYTES
    return "unrolled" if layout.lanes <= _MAX_UNROLLED and work == "all" and is_small else "dispatched"


def resolve_steps_per_call(
    asked: int | None, *, platform: str, lanes: Lanes, placement: Literal["device", "stream"]
) -> int:
    """Returns how many steps one call of the devices takes: by default 8 on an accelerator and 1 on a CPU.

    A small step takes a GPU less time than the host needs to dispatch it. On CPU the weight gradient of a convolution
    is 18 times slower inside of a loop. Streamed batches are sent one by one.

    Args:
      asked: the value of ``--steps_per_dispatch``, or None.
      platform: of the devices: "cpu", "gpu" or "tpu".
      lanes: the config's value, or "dispatched".
      placement: where the training data are.

    Raises:
      ValueError: if several steps are asked for with dispatched lanes.
    """
    if asked is not None and asked > 1 and lanes == "dispatched":
        raise ValueError(f"steps_per_dispatch={asked}: must be 1 where lanes are dispatched, as record_times does")
    if asked is not None:
        return asked
    gains = platform != "cpu" and lanes != "dispatched" and placement == "device"
    return _STEPS_PER_CALL if gains else 1
