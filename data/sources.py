"""Data by name: what a config's ``data`` block stands for."""

from collections.abc import Callable
from typing import Annotated, Any, Literal, NamedTuple, get_args

import numpy as np

from data import augment as augmentations
from data import decoded, examples, streams, text, tfds_sets
from data.augment import Augmentation
from data.examples import Arrays, Columns, Dataset, Info, Placement
from reducers.registry import Registry

# Of ImageNet's training images; for streamed sets, whose own statistics nobody has counted.
IMAGENET_MEAN, IMAGENET_STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)

Normalise = Literal["channels", "symmetric", "none"]
EvaluateOn = Literal["test", "validation"]
VALIDATION_SHARE = 10  # one in so many training examples is for validation


class Source(NamedTuple):
    """Data that are known to be there, and not read yet.

    Attributes:
      info: what is known of them.
      load: seed -> the examples; the seed is that of random crops which are made while reading.
      placement: of the training examples.
      augment: of training images, on the device.
      note: what a dry run says of them; "" if nothing.
    """

    info: Info
    load: Callable[[int], Dataset]
    placement: Literal["device", "stream"]
    augment: Augmentation = augmentations.unchanged
    note: str = ""


def source_of(
    info: Info,
    load: Callable[[int], Dataset],
    *,
    placement: Placement = "auto",
    image_size: int | None = None,
    augment: str = "none",
    normalise: Normalise = "channels",
    evaluate_on: EvaluateOn = "test",
    note: str = "",
    **found_by: Any,
) -> Source:
    """Returns what a config's ``data`` block makes of a set, be it at hand or not.

    Args:
      info: of the set.
      load: seed -> the examples.
      placement: as for ``images``, like the next four, of which texts have the last.
      image_size: side of crops.
      augment: what is done to training images.
      normalise: whether the set's constants are of use.
      evaluate_on: as for ``divide``.
      note: what a dry run says of it.
      **found_by: the block's other keys, which say what set it is.

    Raises:
      ValueError: one line; a value is not allowed.
    """
    del found_by
    where = examples.resolve_placement(placement, num_bytes=info.num_train * info.example_bytes)
    if image_size is not None:
        if placement == "device":
            raise _no_crops(image_size, of="placement='device'")
        where = "stream"
    info = info._replace(constants=info.constants if normalise != "none" else {})
    return divide(Source(info, load, where, augmentations.lookup(augment), note), evaluate_on=evaluate_on)


def divide(source: Source, *, evaluate_on: EvaluateOn) -> Source:
    r"""Returns the source, of which evaluation reads the test examples, or the last tenth of the training examples.

    Of :math:`N` training examples, training keeps the first :math:`N - \lfloor N / 10 \rfloor`. All that was found
    from the training examples stays: the constants are those of all N.

    Raises:
      ValueError: if there are fewer than ten, or it is neither "test" nor "validation".
    """
    if evaluate_on not in get_args(EvaluateOn):
        raise ValueError(f"data.evaluate_on={evaluate_on!r}: must be one of {', '.join(get_args(EvaluateOn))}")
    if evaluate_on == "test":
        return source
    count = source.info.num_train
    kept = count - count // VALIDATION_SHARE
    if kept == count:
        told = f"needs {VALIDATION_SHARE} training examples, to keep one of them; there are {count}"
        raise ValueError(f"data.evaluate_on={evaluate_on!r}: {told}")
    info = source.info._replace(num_train=kept, num_test=count - kept)
    return source._replace(info=info, load=lambda seed: source.load(seed).divided(kept))


def _no_crops(image_size: int, *, of: str) -> ValueError:
    return ValueError(f"image_size={image_size}: crops are made as images are read, which {of} are not")


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

    Sets of one size are decoded once and kept. With an ``image_size``, and sets whose images differ in size need one,
    images are decoded as they are needed: random-resized crops and mirrored halves for training, centre crops for
    evaluation, as Inception's.

    Args:
      name: the set.
      dir: folder of prepared TFDS sets; by default ``TFDS_DATA_DIR``, then TFDS's own.
      image_size: side of crops; by default images are taken whole.
      augment: what is done to training images, on the device.
      normalise: "channels" takes the mean of each channel away and divides by its standard deviation, of the training
        images, all of them (with an image_size: of ImageNet's); "symmetric" maps bytes to -1 to 1; "none" leaves bytes.
      placement: "device" keeps the training set on every device, "stream" sends batch by batch.
      processes: that decode, with an image_size; by default one less than the cores, 0 is a thread.
      on_damage: "skip" takes the next image in the place of one that cannot be decoded, and says so.
      evaluate_on: "validation" keeps the last tenth of the training images from training and evaluates on that, and
        not on the test images: to choose hyper-parameters by. In the order in which the set is stored, which has been
        shuffled for digits, and by TFDS unless a set asks it not to.

    Raises:
      ValueError: one line; no such set, or not prepared in that folder.
    """
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
        counts = prepared.num_examples("train"), prepared.num_examples("test")
        info = decoded.describe((image_size, image_size, 3), prepared.num_classes, *counts)
        options: dict[str, Any] = {"image_size": image_size, "on_damage": on_damage}
        options["processes"] = "auto" if processes is None else processes

        def load(seed: int) -> Dataset:
            train = streams.open_images(prepared, "train", mode="training", seed=seed, **options)
            test = streams.open_images(prepared, "test", mode="evaluation", **options)
            return Dataset(name, train, test, constants_of(normalise))

    crops: dict[str, Any] = {"image_size": image_size, "augment": augment, "normalise": normalise}
    return source_of(info, load, placement=placement, evaluate_on=evaluate_on, **crops)


def constants_of(normalise: Normalise, *, measured: Columns | None = None) -> Columns:
    """Returns "mean" and "std" [C] by which images are normalised, in units of a pixel value; {} leaves them.

    Args:
      normalise: how.
      measured: of the training images; by default ImageNet's.
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
    """Sequences of tokens, of a text set of TFDS or of plain text files.

    Args:
      name: ``text``.
      source: "pydoc" (Python's own reference, which needs no file), the name of a TFDS set, or a path or pattern of
        text files, as ``~/books/*.txt``.
      dir: folder of prepared TFDS sets, and where relative paths begin.
      tokenizer: "bytes", or "wordpiece", learnt from the training texts.
      vocab_size: of "wordpiece", at most.
      sequence_length: T; predictions in a causal sequence, all tokens of a masked one.
      form: "causal", each token predicted from those before it; "masked", BERT's.
      pairs: of masked sequences: "on" for two segments, of which the second follows or not.
      placement: as for images.
      evaluate_on: as for images; "validation" is the last tenth of the training sequences, in the order of the texts.
        Word pieces are learnt from all training texts still, a text may be divided, and a second segment that does not
        follow may come from either part.

    Raises:
      ValueError: one line; no such texts, or too few of them.
    """
    del name
    options: dict[str, Any] = {
        "tokenizer": tokenizer,
        "vocab_size": vocab_size,
        "sequence_length": sequence_length,
        "form": form,
        "pairs": pairs,
        "directory": dir,
    }
    info = text.check_text(source, **options)

    def load(seed: int) -> Dataset:
        del seed
        found = text.load_text(source, **options)
        return Dataset(source, Arrays(found.train), Arrays(found.test), {})

    return source_of(info, load, placement=placement, evaluate_on=evaluate_on)


class _Sources(Registry):
    def find(self, name: str) -> Callable[..., Source]:
        """Returns the constructor; every name that is not registered is that of an image set."""
        return self.get(name, images)


SOURCES = _Sources({"text": texts})


def make(name: str, **kwargs) -> Source:
    """Opens the data of a config block: ``make(**config.data)``; reads no examples.

    >>> make("digits").info.sizes
    {'num_classes': 10}
    """
    return SOURCES.build({**kwargs, "name": name}, name=name)
