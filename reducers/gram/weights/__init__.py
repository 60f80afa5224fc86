"""Weights of gradients that follow from their dot products, one rule a file."""
