"""Reducers whose result is a combination of the workers' gradients with weights that follow from their dot products."""

from reducers.gram.products import Products
from reducers.gram.reducer import GramState, from_gram
from reducers.gram.telemetry import Telemetry
