"""A reader's own folder: a config beside a module ``parts`` of components of their own."""

import pathlib

import pytest

from configs import config_file
from tests.in_process import DIGITS


@pytest.fixture
def folder(request, tmp_path, monkeypatch):
    """The working folder, with the text ``PARTS`` of the test's module as parts.py and the digits config beside it."""
    (tmp_path / "parts.py").write_text(request.module.PARTS)
    (tmp_path / "config.py").write_text(pathlib.Path(DIGITS).read_text())
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    config_file.execute(DIGITS)  # which takes the place of theirs
