"""The defaults of ``config.lanes`` and ``--steps_per_dispatch``, which measured fastest on each kind of device."""

from typing import Literal

from parallel.layout import Layout

Lanes = Literal["auto", "vmap", "dispatched"]

# On an accelerator; that many steps share the host's cost of one call.
_STEPS_PER_CALL = 8


def resolve_lanes(
    lanes: Lanes,
    *,
    layout: Layout,
    work: Literal["all", "some"] = "all",
    kernels: Literal["matrices", "images"] = "matrices",
    steps_per_call: int = 1,
    lanes_at_once: int | None = None,
) -> Literal["vmap", "dispatched"]:
    """Returns how a device goes over its lanes; "auto" becomes the way that measured fastest on this kind of device.

    One batched program is the fastest in most cases. On a CPU lanes are dispatched one by one if only some workers have
    work, so that idle ones are skipped, or if several devices share the caches and the model convolves images: on two
    devices with four lanes each, a batched step takes 1.2 times as long for LeNet-5 and ResNet-20, and on one device
    with eight lanes 0.94 times as long for LeNet-5.

    Args:
      lanes: the config's value.
      layout: W workers as D devices x L lanes.
      work: whether "all" workers compute in every step, or only "some".
      kernels: "images" if the model convolves images, else "matrices".
      steps_per_call: several steps are one program, whose lanes cannot be dispatched.
      lanes_at_once: the config's value; a group of lanes is part of one program, too.
    """
    if lanes != "auto":
        return lanes
    gains = work == "some" or (kernels == "images" and len(layout.own_devices) > 1)
    can = layout.lanes > 1 and layout.devices_per_worker == 1 and steps_per_call == 1 and lanes_at_once is None
    return "dispatched" if gains and can and layout.devices[0].platform == "cpu" else "vmap"


def resolve_steps_per_call(
    asked: int | None, *, platform: str, lanes: Lanes, placement: Literal["device", "stream"]
) -> int:
    """Returns the most steps that one call of the devices takes: by default 8 on an accelerator and 1 on a CPU.

    A small step takes a GPU less time than the host needs to dispatch it. On CPU the weight gradient of a convolution
    is 18 times slower inside of a loop. Streamed batches are sent one by one.

    Args:
      asked: the value of ``--steps_per_dispatch``, or None.
      platform: platform of the devices: "cpu", "gpu" or "tpu".
      lanes: the config's value, or "dispatched".
      placement: place of the training data.

    Raises:
      ValueError: if several steps are asked for with dispatched lanes.
    """
    if asked is not None and asked > 1 and lanes == "dispatched":
        raise ValueError(f"steps_per_dispatch={asked}: must be 1 where lanes are dispatched, as record_times does")
    if asked is not None:
        return asked
    gains = platform != "cpu" and lanes != "dispatched" and placement == "device"
    return _STEPS_PER_CALL if gains else 1
