"""Data: from a set's name to each step's batches; a batch is a pure function of (seed, draw).

    info = check("digits")                                  # shapes; decodes nothing, refuses bad names and folders
    dataset = load("digits")                                # uint8 images, decoded once and cached
    draws = Draws(num_examples=info.num_train, batch_size=16, seed=0)
    with Feeds(dataset.train, draws, layout=(8, 1)) as feeds:
        for turn, feed in feeds.follow(turns):              # leading axes [D, L]; one worker: fetch(resident, feed)
            ...

>>> info = check("digits")
>>> info.image_shape, info.num_classes, info.num_train, info.num_test
((8, 8, 1), 10, 1437, 360)
>>> Draws(num_examples=info.num_train, batch_size=4, seed=0).indices(0, num_draws=2).shape
(2, 4)
"""

from data.augment import AUGMENTATIONS, crop_flip, lookup, normalise
from data.draws import Draws
from data.feeds import Feeds, Placement, fetch, resolve_placement
from data.sources import Dataset, Info, Split, check, load

__all__ = [
    "AUGMENTATIONS",
    "Dataset",
    "Draws",
    "Feeds",
    "Info",
    "Placement",
    "Split",
    "check",
    "crop_flip",
    "fetch",
    "load",
    "lookup",
    "normalise",
    "resolve_placement",
]
