"""The log of a claim's publications, which keeps earlier rules and the runs that were known then visible."""

from collections.abc import Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from experiments.execution import results
from experiments.study.run import hash_of

FILE = "log.jsonl"


class Publication(NamedTuple):
    """A verdict of a claim as it was once published.

    Attributes:
      commit: of the code that made most of the runs.
      verdict: the verdict's word.
      rule: the rule and the selection, as they were stated.
      runs: the identities of the reported runs, by the configs and flags that their rows record.
    """

    commit: str
    verdict: str
    rule: str
    runs: Sequence[str]


def read(folder: Path) -> list[Publication]:
    """Returns the log in a folder of published rows, from the first publication on.

    Raises:
      ValueError: one line, if a line is damaged, or is not a publication.
    """
    lines = results.read_rows(folder / FILE)
    for number, line in enumerate(lines, start=1):
        if not _is_publication(line):
            wanted = "the texts commit, verdict and rule, and a list of texts as runs"
            raise ValueError(f"{str(folder / FILE)!r}: line {number} must have {wanted}")
    return [Publication(**line) for line in lines]


def _is_publication(line: Mapping[str, Any]) -> bool:
    *texts, runs = (line.get(field) for field in Publication._fields)
    if line.keys() != set(Publication._fields) or not isinstance(runs, list):
        return False
    return all(isinstance(text, str) for text in [*texts, *runs])


def record(new: Publication, folder: Path, *, alike: Container[str]) -> None:
    """Adds a publication to the log; it replaces the last entry if rule and verdict are the same.

    Args:
      new: the entry.
      folder: where the log is.
      alike: hashes of the texts of rules that decide as the present one does.
    """
    log = read(folder)
    if log and log[-1].verdict == new.verdict and hash_of(log[-1].rule) in alike:
        log.pop()
    results.write_rows(folder / FILE, [publication._asdict() for publication in [*log, new]])


def earlier(log: Sequence[Publication], now: Publication, *, alike: Container[str]) -> Iterator[str]:
    """Yields a paragraph for each publication whose rule or verdict differs from the present one."""
    for before in log:
        same_rule = hash_of(before.rule) in alike
        if before.verdict != now.verdict or not same_rule:
            known = len(set(now.runs) & set(before.runs))
            rule = "under the same rule." if same_rule else f"by the rule: {' '.join(before.rule.split())}"
            yield (
                f"**Before.** We knew {known} of the {len(now.runs)} runs that are reported now when we published the "
                f"claim as *{before.verdict}* (code of commit {before.commit[:10]}), {rule}"
            )
