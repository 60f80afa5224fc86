"""Data sets by name, as a config's ``data`` block names them."""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np

from data import augment as augmentations
from data import decoded, streams, tfds_sets
from data.augment import Augmentation
from data.checking import check_info
from data.examples import Columns, Dataset, Info
from data.texts.text import Texts
from reducers.registry import Registry
from reducers.registry.components import is_component

# Statistics of ImageNet's training images. Streamed sets are normalised by these, since their own would take a pass.
IMAGENET_MEAN = (123.675, 116.28, 103.53)
IMAGENET_STD = (58.395, 57.12, 57.375)

MAX_RESIDENT_BYTES = 256 * 2**20  # "auto" keeps a training set of up to this size on each device

Placement = Literal["auto", "device", "stream"]
Normalise = Literal["channels", "symmetric", "none"]
EvaluateOn = Literal["test", "validation"]
VALIDATION_SHARE = 10  # one in this many training examples is held out for validation


class Source(NamedTuple):
    """A data set that was found, and is not read yet.

    Attributes:
      info: Its shapes and sizes.
      load: seed -> the examples. The seed is for random crops, which are made while reading.
      placement: Where the training examples are kept.
      augment: Changes training images on the device.
      note: A remark for the dry run, or "".
      reads: How training examples are read: "by_index", or "in_order" as those of ``data.iterators.Batches``.
    """

    info: Info
    load: Callable[[int], Dataset]
    placement: Literal["device", "stream"]
    augment: Augmentation = augmentations.unchanged
    note: str = ""
    reads: Literal["by_index", "in_order"] = "by_index"


def source_of(
    info: Info, load: Callable[[int], Dataset], *, placement: Placement = "auto", evaluate_on: EvaluateOn = "test"
) -> Source:
    """Returns the source for these keys of a config's ``data`` block, whether or not its files exist.

    Args:
      info: Shapes and sizes of the set.
      load: seed -> the examples.
      placement: As for ``images``.
      evaluate_on: As for ``images``.

    Raises:
      ValueError: One line; the shapes and sizes are invalid, or too few examples are left to hold some out.
    """
    check_info(info)
    if placement == "auto":
        placement = "device" if info.num_train * info.example_bytes <= MAX_RESIDENT_BYTES else "stream"
    source = Source(info, load, placement)
    return hold_out(source) if evaluate_on == "validation" else source


def source_of_batches(info: Info, load: Callable[[int], Dataset]) -> Source:
    """Returns the source of a data set whose training examples are ``data.iterators.Batches``.

    Args:
      info: Shapes and sizes of the set; ``num_train`` is the number of examples in an epoch.
      load: seed -> the examples.

    Raises:
      ValueError: One line; the shapes and sizes are invalid.
    """
    check_info(info)
    return Source(info, load, "stream", reads="in_order")


def source_of_images(info: Info, load: Callable[[int], Dataset], block: Mapping[str, Any]) -> Source:
    """Returns the source for the keys of ``images``, whether or not its files exist.

    Raises:
      ValueError: One line; values contradict each other.
    """
    placement = block["placement"]
    image_size = block["image_size"]
    processes = block["processes"]
    if image_size is not None:
        if placement == "device":
            raise _no_crops(image_size, of="placement='device'")
        placement = "stream"
    elif processes is not None or block["on_damage"] != "stop":
        setting = f"processes={processes}" if processes is not None else f"on_damage={block['on_damage']!r}"
        raise ValueError(f"{setting}: must be left out without an image_size, where images are decoded once")
    if block["normalise"] == "none":
        info = info._replace(constants={})
    source = source_of(info, load, placement=placement, evaluate_on=block["evaluate_on"])
    return source._replace(augment=augmentations.AUGMENTATIONS[block["augment"]])


def hold_out(source: Source) -> Source:
    r"""Returns the source with the last tenth of its training examples in place of the test examples.

    Training keeps the first :math:`N - \lfloor N / 10 \rfloor` of :math:`N` training examples. Statistics stay those
    of all N.

    Raises:
      ValueError: If there are fewer than ten.
    """
    count = source.info.num_train
    kept = count - count // VALIDATION_SHARE
    if kept == count:
        needed = f"needs {VALIDATION_SHARE} training examples, to keep one of them; the data set has {count}"
        raise ValueError(f"data.evaluate_on='validation': {needed}")
    info = source.info._replace(num_train=kept, num_test=count - kept)
    return source._replace(info=info, load=lambda seed: source.load(seed).divided(kept))


def _no_crops(image_size: int, *, of: str) -> ValueError:
    return ValueError(f"image_size={image_size}: crops are made as images are read, which {of} does not allow")


def images(
    *,
    name: str,
    dir: str = "",
    image_size: Annotated[int, "[1, 4096]"] | None = None,
    augment: Literal["none", "crop_flip"] = "none",
    normalise: Normalise = "channels",
    placement: Placement = "auto",
    processes: Annotated[int, "[0, 1024]"] | None = None,
    on_damage: Literal["stop", "skip"] = "stop",
    evaluate_on: EvaluateOn = "test",
) -> Source:
    """Images with one label each: ``digits``, or any image classification set of TFDS by its name.

    Sets whose images have one size are decoded once and kept. With an ``image_size``, which sets of images of different
    sizes need, images are decoded as they are needed: random-resized crops, mirrored with probability 1/2, for
    training; centre crops for evaluation, as for Inception.

    Args:
      name: The set.
      dir: Folder of prepared TFDS sets. Default: ``TFDS_DATA_DIR``, or else TFDS's own.
      image_size: Side of crops in pixels. Default: whole images.
      augment: Augmentation of training images, on the device.
      normalise: "channels" subtracts the mean of each channel and divides by its standard deviation over all training
        images (with an image_size: over ImageNet's); "symmetric" maps bytes to [-1, 1]; "none" leaves bytes.
      placement: "device" keeps the training set on every device, "stream" sends one batch at a time, "auto" keeps
        whole images and texts of up to 256 MiB on every device.
      processes: Number of decoding processes, with an image_size. Default: the usable cores less one; 0 is a thread.
      on_damage: "skip" logs an image that cannot be decoded and takes the next one in its place, with an image_size.
      evaluate_on: "validation" holds out the last tenth of the training images and evaluates on that instead of the
        test images, to choose hyper-parameters by. The order is that in which the set is stored; digits are shuffled,
        and TFDS shuffles sets unless they ask it not to.

    Raises:
      ValueError: One line; no such set, or not prepared in that folder.
    """
    crops: dict[str, Any] = {"image_size": image_size, "processes": processes, "on_damage": on_damage}
    block = {**crops, "placement": placement, "augment": augment, "normalise": normalise, "evaluate_on": evaluate_on}
    if image_size is None:
        info = decoded.check(name, directory=dir)

        def load(seed: int) -> Dataset:
            del seed
            dataset = decoded.load(name, directory=dir)
            return dataset._replace(constants=constants_of(normalise, measured=dataset.constants))

    else:
        if name == "digits":
            raise _no_crops(image_size, of="name='digits'")
        prepared = tfds_sets.open_set(name, directory=dir, kind=tfds_sets.IMAGES_OF_ANY_SIZE)
        shape = (image_size, image_size, 3)
        info = decoded.describe(shape, prepared.num_classes, *prepared.counts, fingerprint=prepared.fingerprint)

        def load(seed: int) -> Dataset:
            train = streams.open_images(prepared, "train", mode="training", seed=seed, **crops)
            test = streams.open_images(prepared, "test", mode="evaluation", **crops)
            return Dataset(name, train, test, constants_of(normalise))

    return source_of_images(info, load, block)


def constants_of(normalise: Normalise, *, measured: Columns | None = None) -> Columns:
    """Returns "mean" and "std" [C] for ``augment.normalise``, in units of a pixel value; {} to leave bytes.

    Args:
      normalise: As for ``images``.
      measured: Mean and standard deviation of the training images. Default: ImageNet's.
    """
    if normalise == "none":
        return {}
    measured = measured or {"mean": np.array(IMAGENET_MEAN, np.float32), "std": np.array(IMAGENET_STD, np.float32)}
    if normalise == "symmetric":
        return {name: np.full_like(value, 127.5) for name, value in measured.items()}
    return measured


def texts(
    *,
    name: str,
    source: str,
    dir: str = "",
    tokenizer: Literal["wordpiece", "bytes"] = "wordpiece",
    vocab_size: Annotated[int, "[300, 262144]"] = 8192,
    sequence_length: Annotated[int, "[8, 8192]"] = 128,
    form: Literal["causal", "masked"] = "causal",
    pairs: Literal["on", "off"] = "on",
    placement: Placement = "auto",
    evaluate_on: EvaluateOn = "test",
) -> Source:
    """Sequences of tokens from a text set of TFDS or from plain text files.

    Args:
      name: ``text``.
      source: "pydoc" (Python's own reference, which needs no file), the name of a TFDS set, or a path or pattern of
        text files, such as ``~/books/*.txt``.
      dir: Folder of prepared TFDS sets, and the folder in which relative paths begin.
      tokenizer: "bytes", or "wordpiece", which is learnt from the training texts.
      vocab_size: Maximal vocabulary of "wordpiece".
      sequence_length: T: the predictions in a causal sequence, or all tokens of a masked one.
      form: "causal", each token is predicted from those before it; "masked", as for BERT.
      pairs: "on" gives masked sequences two segments; the second one follows the first or not.
      placement: As for images.
      evaluate_on: As for images. "validation" is the last tenth of the training sequences, in the order of the texts.
        WordPiece still learns from all training texts, a text may be cut by the division, and a second segment that
        does not follow may come from either part.

    Raises:
      ValueError: One line; no such texts, or too few of them.
    """
    del name
    found = Texts(
        source,
        tokenizer=tokenizer,
        vocab_size=vocab_size,
        sequence_length=sequence_length,
        form=form,
        pairs=pairs,
        directory=dir,
    )
    return source_of(found.info(), lambda seed: found.load(), placement=placement, evaluate_on=evaluate_on)


class _Sources(Registry):
    def find(self, name: str) -> Callable[..., Source]:
        """Returns the constructor; a name that is not registered, and not ``module:attribute``, is an image set's."""
        return super().find(name) if name in self or is_component(name) else images


SOURCES = _Sources({"text": texts}, makes=Source)


def make(name: str, **kwargs) -> Source:
    """Finds the data of a config block, ``make(**config.data)``; reads no examples.

    >>> make("digits").info.sizes
    {'num_classes': 10}
    """
    return SOURCES.build({**kwargs, "name": name}, name=name)
