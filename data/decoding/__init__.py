"""Decodes and crops images from TFDS's files. Decoding processes import this package, so it imports no JAX."""
