"""Data: from a set's name to each step's batches; a batch is a pure function of (seed, draw).

    source = make("digits")                                 # shapes; reads nothing, refuses bad names and folders
    dataset = source.load(0)                                # uint8 images, decoded once and cached
    draws = Draws(num_examples=source.info.num_train, batch_size=16, seed=0)
    with Feeds(dataset.train, draws, layout=(8, 1)) as feeds:
        for turn, feed in feeds.follow(turns):              # leading axes [D, L]; one worker: fetch(resident, feed)
            ...

>>> info = make("digits").info
>>> info.example["image"].shape, info.sizes, info.num_train, info.num_test
((8, 8, 1), {'num_classes': 10}, 1437, 360)
>>> Draws(num_examples=info.num_train, batch_size=4, seed=0).indices(0, num_draws=2).shape
(2, 4)
"""

from data.assumed import make_or_assume
from data.augment import AUGMENTATIONS, as_inputs, crop_flip, normalise
from data.draws import Draws
from data.examples import Arrays, Dataset, Examples, Info, Placement, ReadError, gather, resolve_placement
from data.feeds import Feeds, fetch
from data.sources import Source, make

__all__ = [
    "AUGMENTATIONS",
    "Arrays",
    "Dataset",
    "Draws",
    "Examples",
    "Feeds",
    "Info",
    "Placement",
    "ReadError",
    "Source",
    "as_inputs",
    "crop_flip",
    "fetch",
    "gather",
    "make",
    "make_or_assume",
    "normalise",
    "resolve_placement",
]
