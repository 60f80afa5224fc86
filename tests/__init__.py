"""Tests through public seams; `make test` runs the quick ones, `make test-all` all."""

import pathlib

ROOT = pathlib.Path(__file__).resolve().parent.parent  # of the repository
