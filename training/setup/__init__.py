"""Builds the objects of a config: model, data, reducer, optimizer, steps; reads no data, and chooses no devices.

``make_setup`` makes the sections of a setup one after another; a section does not change once it is made. Then it goes
through ``combinations.CHECKS``, which reject combinations of parts that are valid alone.
"""

from training.setup.making import make_setup
from training.setup.sections import make_arrivals
from training.setup.train_setup import TrainSetup
