"""Runs of experiments on disk: executed, resumed, listed, saved, forecast and verified."""
