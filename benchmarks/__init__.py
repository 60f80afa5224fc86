"""Measurements: they print what they measured and never judge it."""
