"""Refusals: one line, which names what is wrong."""

import contextlib
import pathlib

import pytest


@contextlib.contextmanager
def refused(error: type[Exception], match: str):
    """Expects an error whose message matches, and is one line."""
    with pytest.raises(error, match=match) as caught:
        yield caught
    assert "\n" not in str(caught.value)


@contextlib.contextmanager
def refused_without_a_trace(words: str, folder: pathlib.Path, capfd):
    """Expects a refusal in one line, which names a key of data; nothing is written in the folder, or printed."""
    before = sorted(folder.rglob("*"))
    with refused(ValueError, r"^data\.") as caught:
        yield
    assert words in str(caught.value) and len(str(caught.value)) < 500
    assert sorted(folder.rglob("*")) == before and capfd.readouterr() == ("", "")


def only_line_of(capsys) -> str:
    """Returns what was said on stderr since the last look, which must be one line, and nothing on stdout."""
    said = capsys.readouterr()
    assert not said.out and said.err.count("\n") == 1, said
    return said.err


def line_of(capsys) -> str:
    """Returns what was said on stderr since the last look, which must be one line."""
    said = capsys.readouterr().err
    assert said.count("\n") == 1, said
    return said
