"""The images that claims about training are tested on."""

from pathlib import Path

from data import tfds_sets
from experiments.experiment import Scale


def image_set(scale: Scale) -> dict[str, str]:
    """Returns the overrides of a config that name its images: MNIST where it is prepared, else digits.

    The smoke scale always has digits, which come with scikit-learn, so that it runs anywhere within seconds.

    Args:
      scale: scale of the runs.

    Raises:
      ValueError: one line, if TFDS_DATA_DIR is no folder that can be read.

    >>> image_set("smoke")
    {'data.name': 'digits'}
    """
    if scale == "smoke":
        return {"data.name": "digits"}
    found = Path(tfds_sets.data_directory("")).glob("mnist/*/dataset_info.json")
    return {"data.name": "mnist" if any(found) else "digits"}
