"""The images that claims about training are tested on."""

from experiments.experiment import Scale


def image_set(scale: Scale) -> dict[str, str]:
    """Returns the overrides of a config that name its images: MNIST, and digits at smoke scale.

    The smoke scale always has digits, which come with scikit-learn, so that it runs anywhere within seconds.

    Args:
      scale: scale of the runs.

    >>> image_set("smoke")
    {'data.name': 'digits'}
    """
    return {"data.name": "digits" if scale == "smoke" else "mnist"}
