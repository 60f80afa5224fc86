"""Data by name: what a config's ``data`` block stands for."""

from collections.abc import Callable
from typing import Literal, NamedTuple

from data import augment as augmentations
from data import examples
from data import images as image_sets
from data.augment import Augmentation
from data.examples import Dataset, Info, Placement


class Source(NamedTuple):
    """Data that are known to be there, and not read yet."""

    info: Info
    load: Callable[[], Dataset]
    placement: Literal["device", "stream"]  # of the training examples
    augment: Augmentation  # of training images, on the device


def images(
    *,
    name: str,
    dir: str = "",
    augment: Literal["none", "crop_flip"] = "none",
    normalise: Literal["channels", "none"] = "channels",
    placement: Placement = "auto",
) -> Source:
    """Images with one label each: ``digits``, or any image classification set of TFDS by its name.

    Args:
      name: the set.
      dir: folder of prepared TFDS sets; by default ``TFDS_DATA_DIR``, then TFDS's own.
      augment: what is done to training images, on the device.
      normalise: "channels" takes the mean of each channel away and divides by its standard deviation, of the training
        images; "none" leaves bytes.
      placement: "device" keeps the training set on every device, "stream" sends batch by batch.

    Raises:
      ValueError: one line; no such set, or not prepared in that folder.
    """
    info = image_sets.check(name, directory=dir)
    if normalise == "none":
        info = info._replace(constants={})

    def load() -> Dataset:
        dataset = image_sets.load(name, directory=dir)
        return dataset._replace(constants={key: dataset.constants[key] for key in info.constants})

    where = examples.resolve_placement(placement, num_bytes=info.num_train * info.example_bytes)
    return Source(info, load, where, augmentations.lookup(augment))


# Every other name is that of an image set.
SOURCES: dict[str, Callable[..., Source]] = {}

GIVEN: frozenset[str] = frozenset()
"""Nothing: every parameter of a source is a config key."""


def lookup(name: str) -> Callable[..., Source]:
    """Returns the constructor; its signature is the schema of a config's ``data`` block."""
    return SOURCES.get(name, images)


def make(name: str, **kwargs) -> Source:
    """Opens the data of a config block: ``make(**config.data)``; reads no examples.

    >>> make("digits").info.sizes
    {'num_classes': 10}
    """
    return lookup(name)(name=name, **kwargs)


def make_or_assume(name: str, **kwargs) -> Source:
    """Opens the data of a config block; where they are not at hand, assumes their sizes, for a dry run.

    Raises:
      ValueError: as ``make``, if they are not at hand and their sizes are not known either.

    >>> make_or_assume("imagenet2012", image_size=224, dir="/nowhere").info.num_train
    1281167
    """
    try:
        return make(name, **kwargs)
    except ValueError:
        assumed = _ASSUMED.get(lookup(name))
        source = assumed(name=name, **kwargs) if assumed else None
        if source is None:
            raise
        return source
