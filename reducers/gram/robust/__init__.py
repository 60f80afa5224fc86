"""Weights that a minority of Byzantine workers cannot move far, one rule a file."""
