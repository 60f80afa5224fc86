"""The prose of a claim, in a file of Markdown beside its code: heading, sentence, source, topic, rule and notes."""

import re
import string
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

FILE = "claim.md"
TOPICS = (  # in the order of the page of all claims
    "Asynchronous SGD",
    "Late workers and backup workers",
    "Adasum",
    "Workers that communicate seldom",
    "Other reducers",
    "Encodings",
    "Optimizers and batches",
    "Memory, network and planning",
)
_HEADING = re.compile(r"# (\d+)\. (.+)")
_PARTS = ("Topic: ", "Rule: ", "Selection: ", "Reworded: ")
_CONSTANT = re.compile(r"\{[A-Z][^{}]*\}")


class Prose(NamedTuple):
    """The contents of a claim's file.

    Attributes:
      number: its place in the report.
      title: the title of its section.
      claim: the sentence that is tested.
      source: paper, section, table or figure.
      topic: the heading under which the page of all claims lists it, one of `TOPICS`.
      notes: remarks for readers, such as differences from the paper, and measures taken to be fair to it.
      rule: what decides, as it is stated before the runs.
      selection: how values such as learning rates are picked, where the claim itself picks them.
      reworded: hashes of earlier texts of rule and selection that decide the same.
    """

    number: int
    title: str
    claim: str
    source: str
    topic: str
    notes: Sequence[str]
    rule: str = ""
    selection: str = ""
    reworded: str = ""

    @classmethod
    def parse(cls, text: str) -> "Prose":
        """Parses a file's text: its paragraphs are heading, sentence, source, topic, rule and notes.

        Below the rule may stand a paragraph on the selection, and one with the hashes of earlier texts.

        Raises:
          ValueError: one line, if it does not begin so, or if there is no such topic.

        >>> parts = ["# 3. Title", "A sentence.", "Source: a paper", "Topic: Adasum", "Rule: If so.", "A\\nnote."]
        >>> prose = Prose.parse("\\n\\n".join(parts))
        >>> prose.topic, prose.rule, prose.notes
        ('Adasum', 'If so.', ['A note.'])
        """
        heading, claim, source, *notes = [" ".join(part.split()) for part in text.strip().split("\n\n")] + [""] * 2
        found = _HEADING.fullmatch(heading)
        if not found or not claim or not source.startswith("Source: "):
            raise ValueError("must begin with '# NUMBER. TITLE', the claim, and a paragraph 'Source: ...'")
        stated: list[str] = []
        for head in _PARTS:
            is_there = notes[:1] and notes[0].startswith(head)
            stated.append(notes.pop(0).removeprefix(head) if is_there else "")
        topic, *rule = stated
        if topic not in TOPICS:
            raise ValueError(f"topic={topic!r}: below the source must stand 'Topic: ' and one of {'; '.join(TOPICS)}")
        notes = list(filter(None, notes))
        return cls(int(found[1]), found[2], claim, source.removeprefix("Source: "), topic, notes, *rule)


def beside(module: Mapping[str, Any]) -> Prose:
    """Returns the prose beside a module.

    Args:
      module: the module's ``globals()``, whose constants the prose names as {MARGIN}, {SEEDS[laptop]} or {SHARE:%},
        so that prose and code cannot differ. Numbers are as short as they can be; those with % are percentages.

    Raises:
      ValueError: one line with the path, in the cases of `Prose.parse`, and for a constant that the module lacks.
    """
    path = Path(module["__file__"]).parent / FILE
    text = path.read_text()
    try:
        return Prose.parse(_filled(text, module))
    except (ValueError, LookupError, AttributeError) as error:
        reason = f"the module has no {error.args[0]!r}" if isinstance(error, LookupError) else error
        raise ValueError(f"{str(path)!r}: {reason}") from None


def _filled(text: str, constants: Mapping[str, Any]) -> str:
    """Returns a text with the values of constants in place of their names in braces.

    >>> _filled("{SEEDS[laptop]} seeds, {SHARE:%} of {STEPS}", {"SEEDS": {"laptop": 5}, "SHARE": 0.02, "STEPS": 3000})
    '5 seeds, 2 % of 3,000'
    """
    return _CONSTANT.sub(lambda match: _Short().vformat(match[0], (), constants), text)


class _Short(string.Formatter):
    """Formats numbers as short as they can be, and shares as percentages."""

    def format_field(self, value: Any, spec: str) -> str:
        if spec == "%":
            return f"{100 * value:.12g} %"
        return f"{value:,.12g}" if isinstance(value, float | int) else value
