"""Reducers around another reducer."""
