"""Prepares a TFDS set of images or of texts for reading without TensorFlow: ``python -m data.prepare mnist``.

TFDS itself downloads and converts the set. Most sets need TensorFlow for that, once; if it is not installed, this
program prints the commands that install it in a separate environment.
"""

import importlib.util
import logging
import os
import shlex
import sys
from collections.abc import Sequence
from importlib import metadata

if __name__ == "__main__":  # the imports below take seconds
    import launch.command

    launch.command.begin()

from data import tfds_sets
from launch.parser import Parser

IMAGES_OR_TEXTS = tfds_sets.IMAGES_OF_ANY_SIZE._replace(
    unfit=lambda features: tfds_sets.TEXTS.unfit(features) and tfds_sets.IMAGES_OF_ANY_SIZE.unfit(features)
)


def main(argv: Sequence[str] | None = None) -> int:
    """Prepares one set; returns the exit code, 2 after an error, which it prints on stderr in one line."""
    parser = Parser(
        prog="python -m data.prepare", description="Prepares a TFDS set of images with labels, or of texts."
    )
    parser.add_argument("name", help="for example mnist, fashion_mnist, cifar10, svhn_cropped, tiny_shakespeare")
    parser.add_argument("--dir", default="", help="folder of prepared sets (default: TFDS_DATA_DIR, then TFDS's own)")
    try:
        arguments = parser.parse_args(argv)
        print(prepare(arguments.name, directory=arguments.dir))
    except ValueError as error:
        print(f"data.prepare: {error}", file=sys.stderr)
        return 2
    return 0


def prepare(name: str, *, directory: str = "") -> str:
    """Prepares a set unless it is prepared already; returns a message for the user.

    Raises:
      ValueError: If it cannot be prepared; the message says why, and what to do if TensorFlow is missing.
    """
    if name == "digits":
        return "digits: nothing to prepare, it comes with scikit-learn"
    folder = _folder(directory)
    builder = tfds_sets.find(name, directory=folder, kind=IMAGES_OR_TEXTS, file_format="array_record")
    if tfds_sets.is_prepared(builder):
        return f"{name}: already prepared in {builder.data_dir} ({_describe(builder, name, folder)})"
    if _needs_tensorflow(builder):
        raise ValueError(_without_tensorflow(name, folder))
    logging.getLogger("urllib3").setLevel(logging.ERROR)  # a warning for each of many retries says nothing new
    try:
        builder.download_and_prepare()
    except Exception as error:  # network, disk, checksums, manual downloads: TFDS has no common type
        if isinstance(error, ImportError) and "tensorflow" in str(error):
            raise ValueError(_without_tensorflow(name, folder)) from error
        raise ValueError(f"{name}: cannot be prepared in {folder}: {tfds_sets.reason(error)}") from error
    return f"{name}: prepared in {builder.data_dir} ({_describe(builder, name, folder)})"


def _folder(directory: str) -> str:
    """Returns the folder to prepare into; it may be made later, if its nearest existing parent is a readable folder."""
    named = directory or os.environ.get("TFDS_DATA_DIR", "")
    if not named:
        return tfds_sets.data_directory("")
    if os.path.expanduser(named).startswith("~"):
        raise ValueError(f"dir={named!r}: the home folder is not known")
    folder = os.path.abspath(os.path.expanduser(named))
    holder = folder
    while not os.path.lexists(holder):
        holder = os.path.dirname(holder)
    tfds_sets.data_directory(holder)
    return folder


def _describe(builder: tfds_sets.Builder, name: str, folder: str) -> str:
    if tfds_sets.text_feature(builder.info.features):
        builder, splits = tfds_sets.open_builder(name, directory=folder, kind=tfds_sets.TEXTS)
        return " + ".join(str(builder.info.splits[split].num_examples) for split in splits.values()) + " texts"
    prepared = tfds_sets.open_set(name, directory=folder, kind=tfds_sets.IMAGES_OF_ANY_SIZE)
    size = "many sizes" if None in prepared.image_shape else prepared.image_shape
    return f"{prepared.counts[0]} + {prepared.counts[1]} images of {size}"


def _needs_tensorflow(builder: tfds_sets.Builder) -> bool:
    """Returns whether the set's own code will import TensorFlow, which is not installed; downloads nothing."""
    return importlib.util.find_spec("tensorflow") is None and hasattr(sys.modules[type(builder).__module__], "tf")


def _without_tensorflow(name: str, folder: str) -> str:
    version = metadata.version("tensorflow-datasets")
    code = "import sys, tensorflow_datasets as tfds; "
    code += 'tfds.builder(sys.argv[1], data_dir=sys.argv[2], file_format="array_record").download_and_prepare()'
    return (
        f"{name}: preparing it needs TensorFlow, which is not installed; training does not. Prepare it with\n"
        f"    python3 -m venv tfds-env && tfds-env/bin/pip install "
        f"tensorflow-cpu tensorflow-datasets=={version} importlib_resources\n"
        f"    tfds-env/bin/python -c {shlex.quote(code)} {shlex.quote(name)} {shlex.quote(folder)}"
    )


if __name__ == "__main__":
    launch.command.run(main)
