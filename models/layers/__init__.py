"""Layers of the models: attention and blocks, normalisation, dropout, pooling, convolutions over lanes."""
