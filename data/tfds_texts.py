"""Sets of texts that TFDS has prepared on disk, read without TensorFlow."""

from collections.abc import Iterator
from typing import Any

from data import tfds_sets

EXAMPLES_PER_READ = 4096


def text_feature(features: Any) -> str:
    """Returns the feature that holds an example's text: "text", or else the only one of strings; else ""."""
    items = dict(features.items()) if hasattr(features, "items") else {}
    kinds = {name: type(feature).__name__ for name, feature in items.items()}
    if kinds.keys() & {"image", "audio", "video"}:  # a text beside these is the name of a file, or a caption
        return ""
    found = [name for name, kind in kinds.items() if kind == "Text"]
    return "text" if "text" in found else found[0] if len(found) == 1 else ""


def _unfit(features: Any) -> str:
    names = sorted(features.keys()) if hasattr(features, "keys") else [type(features).__name__]
    needed = "needed is one of type Text, or one of that type called text"
    return "" if text_feature(features) else f"its examples have {', '.join(names)}; {needed}"


TEXTS = tfds_sets.Kind("data.source", "a set of texts", _unfit, ("pydoc", "tiny_shakespeare", "imdb_reviews"))


def open_texts(name: str, *, directory: str = "") -> tuple[tfds_sets.Builder, dict[str, str]]:
    """Opens a prepared set of texts and looks at all that can be seen without reading them.

    Args:
      name: "set", "set/config" or "set:version".
      directory: folder of prepared sets; "" means TFDS_DATA_DIR, and where that is not set TFDS's own default.

    Returns:
      The builder, and "train" and "test" -> the split's name in TFDS: "validation" where there is no "test", and no
      entry for "test" where there is neither.

    Raises:
      ValueError: one line; the folder, the name, or what is prepared there is not fit.
    """
    builder = tfds_sets.open_builder(name, directory=directory, kind=TEXTS)
    for_test = [split for split in ("test", "validation") if split in builder.info.splits]
    splits = {"train": "train"} | ({"test": for_test[0]} if for_test else {})
    tfds_sets.require_splits(builder, name, splits.values(), directory=directory, kind=TEXTS)
    return builder, splits


def read(builder: tfds_sets.Builder, split: str) -> Iterator[str]:
    """Yields a split's texts in the order of its files.

    Raises:
      ValueError: one line; a text cannot be read, or is not UTF-8.
    """
    name, text = builder.info.full_name, text_feature(builder.info.features)

    def example(feature: Any) -> str:
        return feature[text].bytes_list.value[0].decode()

    try:
        show = {"doing": f"reading {name} {split}", "unit": "texts"}
        for chunk in tfds_sets.read(builder, split, parse=example, size=EXAMPLES_PER_READ, **show):
            yield from chunk
    except Exception as error:  # what a damaged file gives depends on where it is damaged
        raise ValueError(f"data.source={name!r}: split {split!r} cannot be read: {tfds_sets.reason(error)}") from error
