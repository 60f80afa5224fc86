"""Reducers that add up: the mean, the sum, the majority of signs."""
