"""The images that claims about training use, and a check that the data of runs are prepared."""

import contextlib
import contextvars
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from data import sources
from data.texts import corpora
from experiments.study.run import Run, Scale

IMAGES = "mnist"
STAND_IN = "digits"  # comes with scikit-learn
# Overrides by which a config of small images trains a residual network on CIFAR-10, as claims do at scale gpu.
RESNET: Mapping[str, str] = {"data.name": "cifar10", "data.augment": "crop_flip", "model.name": "resnet20"}
MLP: Mapping[str, Any] = {"model.name": "mlp", "model.hidden_sizes": (64,)}
LENET_RATE = 0.03278  # learning rate of one worker, LeNet-5 on MNIST, in the code of Adasum's authors
_images = contextvars.ContextVar("images", default=IMAGES)


def image_set(scale: Scale) -> dict[str, str]:
    """Returns the overrides that name the images of a run: MNIST, or its replacement within `stand_in`.

    The smoke scale always has digits, so that it runs anywhere within seconds.

    Args:
      scale: scale of the runs.

    >>> image_set("smoke"), image_set("laptop")
    ({'data.name': 'digits'}, {'data.name': 'mnist'})
    """
    return {"data.name": STAND_IN if scale == "smoke" else _images.get()}


def mlp(scale: Scale, *, momentum: float | None) -> dict[str, Any]:
    """Returns the overrides of a small network on the images of a run, by SGD at a constant rate of all workers."""
    rate = {"schedule.name": "constant", "learning_rate_scaling": "none"}
    return {**image_set(scale), **MLP, **rate, "optimizer.momentum": momentum}


def digits(scale: Scale) -> dict[str, Any]:
    """Returns the overrides of a run on digits: 60 epochs, or 2 at smoke scale, with ten evaluations."""
    epochs = 2 if scale == "smoke" else 60
    every = {f"{key}_every_epochs": epochs / 10 for key in ("log", "eval")}
    return {"data.name": "digits", "train_epochs": epochs, "checkpoint_every_epochs": epochs, **every}


@contextlib.contextmanager
def stand_in(name: str | None) -> Iterator[None]:
    """Makes `image_set` return these images instead of MNIST; None leaves it.

    >>> with stand_in("digits"):
    ...     image_set("laptop")
    {'data.name': 'digits'}
    """
    token = _images.set(name or _images.get())
    try:
        yield
    finally:
        _images.reset(token)


def check(runs: Sequence[Run]) -> None:
    """Refuses runs whose data are not prepared; reads no examples.

    Raises:
      ValueError: one line with the command that prepares them.
    """
    checked: list[Mapping[str, Any]] = [{"name": ""}]  # measurements without data
    for run in runs:
        block = run.config["data"] if run.spec else {"name": run.labels.get("data", "")}
        if block in checked or block["name"] == "synthetic":
            continue
        checked.append(block)
        if block["name"] == "text":
            corpora.open_corpus(block["source"], directory=block["dir"])
            continue
        try:
            sources.make(**block)
        except ValueError as error:
            if block["name"] != IMAGES:
                raise
            raise ValueError(f"{error}, or take {STAND_IN} instead by --data={STAND_IN}") from None
