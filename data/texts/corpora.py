"""Texts by name: Python's own reference, any set of texts that TFDS has prepared, or plain text files."""

import glob
import hashlib
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from data import tfds_sets
from reducers.arrivals import foreign_files

BUILT_IN = "pydoc"
HELD_OUT = 10  # without a test split, the last documents, one in this many, are held out for testing


class Corpus(NamedTuple):
    """Texts that were found, and are not read yet.

    Attributes:
      label: Name for cache folders.
      fingerprint: 12 hex digits that change with the texts.
      read: Returns the documents of "train" and "test".
    """

    label: str
    fingerprint: str
    read: Callable[[], dict[str, list[str]]]


def open_corpus(source: str, *, directory: str = "") -> Corpus:
    """Finds texts and checks all that can be checked without reading them.

    * ``"pydoc"``: the topics of Python's language reference, which come with Python and differ between its versions.
    * A path or a pattern such as ``"texts/*.txt"``: a source that ends in .txt, contains ``*`` or ``?``, or begins with
      ``/``, ``.`` or ``~``. Each file is a document in UTF-8; documents are sorted by file name.
    * Any other name: a TFDS set of texts as "set", "set/config" or "set:version". Each example is a document. But if
      the set says that its examples are ordered, and none contains an empty line, they are paragraphs of one document.

    Test texts are the split "test", or else "validation". Without either, they are the last tenth of the documents, or
    with fewer than ten documents the last tenth of each, cut at an end of line.

    Args:
      source: A source of one of these kinds.
      directory: Folder of prepared TFDS sets ("" means TFDS_DATA_DIR, or else TFDS's own default), and the folder in
        which relative paths begin ("" means the current one).

    Raises:
      ValueError: One line; the texts do not exist or cannot be used.

    >>> corpus = open_corpus("pydoc")
    >>> corpus.label, len(corpus.fingerprint)
    ('pydoc', 12)
    """
    if re.search(r"[*?]|^[/.~]|\.txt$", source):
        return _files(source, directory)
    if source == BUILT_IN:
        from pydoc_data.topics import topics

        texts = [topics[name] for name in sorted(topics)]
        return Corpus(BUILT_IN, _digest(*texts), lambda: _hold_out(texts))
    builder, splits = tfds_sets.open_builder(source, directory=directory, kind=tfds_sets.TEXTS)
    label = re.sub(r"[^\w.-]+", "-", builder.info.full_name)

    def read() -> dict[str, list[str]]:
        found = {}
        for name, split in splits.items():
            texts = list(tfds_sets.read_texts(builder, split, source=source))
            if builder.info.disable_shuffling and not any("\n\n" in text for text in texts):
                texts = ["".join(text if text.endswith("\n") else text + "\n" for text in texts)]
            found[name] = texts
        return found if "test" in found else _hold_out(found["train"])

    return Corpus(label, tfds_sets.fingerprint(builder, splits.values()), read)


def _files(source: str, directory: str) -> Corpus:
    key = f"data.source={source!r}"
    folder = tfds_sets.data_directory(directory) if directory else ""
    source = os.path.expanduser(source)
    try:
        paths = [Path(folder, source)]
        if re.search(r"[*?]", source):  # a bracket is a character as any other
            pattern = os.path.join(glob.escape(folder), source.replace("[", "[[]"))
            paths = [Path(path) for path in sorted(glob.glob(pattern, recursive=True)) if os.path.isfile(path)]
        status = [path.stat() for path in paths]
        for path in paths:
            if path.is_dir():
                raise ValueError(f"{path.name} is a folder; write {os.path.join(source, '*.txt')!r}")
            foreign_files.opened(path).close()
    except (OSError, ValueError) as error:  # ValueError: a null byte
        raise ValueError(f"{key}: must be text files that can be read ({tfds_sets.reason(error)})") from None
    if not paths:
        raise ValueError(f"{key}: no file has such a name")
    digest = _digest(
        *(f"{path.resolve()} {was.st_size} {was.st_mtime_ns}" for path, was in zip(paths, status, strict=True))
    )
    label = re.sub(r"[^\w.-]+", "-", Path(source).stem).strip("-.") or "texts"

    def read() -> dict[str, list[str]]:
        documents = []
        for path in paths:
            try:
                documents.append(path.read_text("utf-8-sig"))
            except (OSError, ValueError) as error:
                raise ValueError(f"{key}: {path.name} cannot be read: {tfds_sets.reason(error)}") from None
        return _hold_out(documents)

    return Corpus(label[:40], digest, read)


def _digest(*parts: str) -> str:
    content = hashlib.sha256()
    for part in parts:
        content.update(f"{len(part)} {part}\n".encode(errors="surrogateescape"))
    return content.hexdigest()[:12]


def _hold_out(documents: list[str]) -> dict[str, list[str]]:
    """Divides documents into train and test as ``open_corpus`` describes."""
    count = len(documents) // HELD_OUT
    if count:
        return {"train": documents[:-count], "test": documents[-count:]}
    train, test = [], []
    for text in documents:
        end = text.rstrip("\n").find("\n", len(text) - len(text) // HELD_OUT - 1) + 1
        if not end:  # no line ends so late, so hold out the last line, of any length
            end = text.rstrip("\n").rfind("\n") + 1
        train.append(text[:end] if end else text)
        test.append(text[end:] if end else "")
    return {"train": train, "test": test}
