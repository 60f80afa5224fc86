"""Runs of experiments on disk: executed, resumed, listed, saved and verified."""
