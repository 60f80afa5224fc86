"""The prose of a claim, in a file of Markdown beside its code: heading, sentence, source and notes."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

FILE = "claim.md"
_HEADING = re.compile(r"# (\d+)\. (.+)")


class Prose(NamedTuple):
    """What a claim's file says.

    Attributes:
      number: its place in the report.
      title: the title of its section.
      claim: the sentence that is tested.
      source: paper, section, table or figure.
      notes: what a reader must know, such as differences from the paper and what was done to be fair to it.
    """

    number: int
    title: str
    claim: str
    source: str
    notes: Sequence[str]

    @classmethod
    def parse(cls, text: str) -> "Prose":
        """Parses a file's text: its paragraphs are the heading, the sentence, the source, and the notes.

        Raises:
          ValueError: one line, if it does not begin so.

        >>> Prose.parse("# 3. Title\\n\\nA sentence.\\n\\nSource: a paper\\n\\nA note\\nof two lines.").notes
        ['A note of two lines.']
        """
        heading, claim, source, *notes = [" ".join(part.split()) for part in text.strip().split("\n\n")] + [""] * 2
        found = _HEADING.fullmatch(heading)
        if not found or not claim or not source.startswith("Source: "):
            raise ValueError("must begin with '# NUMBER. TITLE', the claim, and a paragraph 'Source: ...'")
        return cls(int(found[1]), found[2], claim, source.removeprefix("Source: "), list(filter(None, notes)))


def beside(module_file: str) -> Prose:
    """Returns the prose beside a module.

    Args:
      module_file: the module's ``__file__``.

    Raises:
      ValueError: one line with the path, as of `Prose.parse`.
    """
    path = Path(module_file).parent / FILE
    try:
        return Prose.parse(path.read_text())
    except ValueError as error:
        raise ValueError(f"{str(path)!r}: {error}") from None
