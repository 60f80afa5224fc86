"""Reports on claims: a section of Markdown with a figure, and all claims on one page; pure functions of rows."""

import base64
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from experiments.drawing import Figure, new_figure
from experiments.experiment import Experiment, Finding, Rows, Table


def section(experiment: Experiment, rows: Rows, *, figure: str = "") -> str:
    """Returns the claim, the rule, the verdict, the findings, the table and where the rows came from, as Markdown.

    Args:
      experiment: the experiment.
      rows: rows of its finished runs; while they are too few, there is no verdict.
      figure: path of the figure, relative to the text; "" for none.
    """
    parts = [
        f"## {experiment.number}. {experiment.title}",
        f"**Claim.** {experiment.claim} ({experiment.source})",
        f"**Rule.** {experiment.rule}",
    ]
    if experiment.selection:
        parts.append(f"**Selection.** {experiment.selection}")
    if experiment.enough(rows):
        verdict = experiment.judge(rows)
        parts.append(f"**Verdict: {verdict.word}.** {verdict.because}")
        findings = experiment.findings(rows)
        if findings:
            parts.append(markdown(_findings(findings)))
        table = experiment.table(rows)
        if table.cells:
            parts += [markdown(table), *([table.note] if table.note else [])]
        if figure:
            parts.append(f"![{experiment.title}]({figure})")
    else:
        parts.append(f"**No verdict:** {len(rows) or 'no'} runs are finished, which is not enough to decide.")
    parts += experiment.notes
    if rows:
        parts.append(_origins(rows))
    return "\n\n".join(parts) + "\n"


def draw(experiment: Experiment, rows: Rows) -> Figure:
    """Returns the experiment's figure."""
    with new_figure(*experiment.inches) as figure:
        experiment.draw(rows, figure)
    return figure


def markdown(table: Table) -> str:
    r"""Returns a table as Markdown.

    >>> print(markdown(Table(["a", "b"], [["1", "2|3"]])))
    | a | b |
    | --- | --- |
    | 1 | 2\|3 |
    """
    lines = [table.header, ["---"] * len(table.header), *table.cells]
    return "\n".join("| " + " | ".join(cell.replace("|", r"\|") for cell in line) + " |" for line in lines)


def overview(experiments: Mapping[str, tuple[Experiment, Rows]]) -> str:
    """Returns a table of all claims with their verdicts, for docs/experiments.md and the head of the page."""
    cells = []
    for name, (experiment, rows) in experiments.items():
        word = experiment.judge(rows).word if experiment.enough(rows) else "not run"
        cells.append([str(experiment.number), f"`{name}`", experiment.claim, word])
    return markdown(Table(["", "Experiment", "Claim", "Verdict"], cells))


def page(experiments: Mapping[str, tuple[Experiment, Rows]], *, figures: Mapping[str, str]) -> str:
    """Returns all sections on one page, as Markdown.

    Args:
      experiments: name -> experiment and its rows.
      figures: name -> path of its figure, relative to the page.
    """
    sections = [section(found, rows, figure=figures.get(name, "")) for name, (found, rows) in experiments.items()]
    return "\n".join(["# Claims, and what our runs say of them\n", overview(experiments), "", *sections])


def html(text: str, *, folder: Path) -> str:
    """Returns a page as HTML that needs no other file, since its figures are embedded.

    Args:
      text: Markdown.
      folder: the folder that paths of figures are relative to.
    """
    from markdown_it import MarkdownIt

    body = MarkdownIt("commonmark", {"html": False}).enable("table").render(text)

    def inline(match: re.Match) -> str:
        path = folder / match[1]
        kind = {".png": "png", ".svg": "svg+xml"}[path.suffix]
        return f'src="data:image/{kind};base64,{base64.b64encode(path.read_bytes()).decode()}"'

    body = re.sub(r'src="([^":]+)"', inline, body)
    body = re.sub(r"(<table>.*?</table>)", r'<div class="table">\1</div>', body, flags=re.DOTALL)
    title = re.search(r"^# (.*)$", text, re.MULTILINE)
    return _PAGE.format(title=title[1] if title else "Report", body=body)


def _findings(findings: Sequence[Finding]) -> Table:
    cells = [[f.quantity, str(f.paper or "not given"), str(f.ours), f.difference] for f in findings]
    return Table(["Quantity", "Paper", "Ours: mean ± standard deviation (n)", "Difference"], cells)


def _origins(rows: Rows) -> str:
    """Returns one line on where the rows came from."""
    origins = [row["origin"] for row in rows]

    def counted(values: Sequence[str]) -> str:
        return ", ".join(f"{value} ({count})" for value, count in sorted(Counter(values).items()))

    commits = counted([f"{str(o['commit'])[:10]}{'' if o['tree'] == 'clean' else ', changed'}" for o in origins])
    devices = counted([f"{len(o['devices'])} x {(o['devices'] or ['?'])[0]}" for o in origins])
    hours = sum(origin["wall_seconds"] or 0 for origin in origins) / 3600
    versions = counted([f"{o['jax']}" for o in origins])
    return f"{len(rows)} runs, {hours:.2f} hours in all; commit {commits}; jax {versions}; devices {devices}."


_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; color: #222; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }}
h1, h2 {{ line-height: 1.2; }}
h2 {{ margin-top: 3rem; border-top: 1px solid #ddd; padding-top: 1rem; }}
.table {{ overflow-x: auto; }}
table {{ border-collapse: collapse; font-size: 0.9rem; margin: 1rem 0; }}
th, td {{ text-align: left; vertical-align: top; padding: 0.3rem 0.7rem; border-bottom: 1px solid #ddd; }}
th {{ border-bottom: 2px solid #888; }}
img {{ max-width: 100%; height: auto; display: block; margin: 1rem auto; }}
code {{ background: #f3f3f3; padding: 0.1em 0.3em; border-radius: 3px; }}
</style>
</head>
<body>
{body}
</body>
</html>
"""
