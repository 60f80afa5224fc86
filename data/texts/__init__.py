"""Texts: corpora, tokens, and rows of tokens."""
