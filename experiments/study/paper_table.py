"""Tables in the shape of a paper's own: its rows and columns, and in each cell the paper's value beside ours."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from experiments.study.findings import Quoted, Sample, Table

UNKNOWN = "?"


class Cell(NamedTuple):
    """A value of the paper, and ours.

    Attributes:
      paper: the paper's value with its mark; None where it is not known.
      ours: our value; None where we have none.
    """

    paper: Quoted | None = None
    ours: Sample | str | None = None

    def __str__(self) -> str:
        return f"{self.paper or UNKNOWN} / {'' if self.ours is None else self.ours}".rstrip()


def table(corner: str, columns: Sequence[str], rows: Mapping[str, Sequence[Cell]], *, note: str = "") -> Table:
    """Returns the table.

    Args:
      corner: what the rows are, as the head of their names.
      columns: names of the paper's columns.
      rows: name of a row -> its cells, one for each column.
      note: a sentence below the table.

    >>> cells = {"8": [Cell(Quoted("62", "MEM-lo"), "70"), Cell()]}
    >>> table("Workers", ["Epochs", "Accuracy"], cells).cells
    [['8', '62 [MEM-lo] / 70', '? /']]
    """
    if wrong := [name for name, cells in rows.items() if len(cells) != len(columns)]:
        raise ValueError(f"{corner} {wrong[0]}: {len(rows[wrong[0]])} cells for {len(columns)} columns")
    header = [corner, *(f"{column}: paper / ours" for column in columns)]
    marks = f"{UNKNOWN}: not known to us. Marks: READ in a source, DERIVED from facts, MEM recalled and unverified."
    return Table(header, [[name, *map(str, cells)] for name, cells in rows.items()], f"{note} {marks}".strip())
