"""Reports on claims: a section of Markdown with a figure, and all claims on one page; pure functions of rows."""

import base64
import re
import sys
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from html import escape, unescape
from pathlib import Path
from typing import Any

from experiments.plots.drawing import Figure, new_figure
from experiments.study import former, frames, publications
from experiments.study.claim import Claim, Facts, hash_of
from experiments.study.experiment import AnyClaim
from experiments.study.frames import Frame
from experiments.study.inference import Test
from experiments.study.publications import Publication
from experiments.study.run import Rows, scale_of

MARKS = "?: not known to us. Marks: READ in a source, DERIVED from facts, MEM recalled and unverified."


def section(experiment: AnyClaim, rows: Rows, *, figure: str = "", log: Sequence[Publication] = ()) -> str:
    """Returns the claim, the rule, the verdict, the findings, the table and where the rows came from, as Markdown.

    Args:
      experiment: the experiment.
      rows: rows of its finished runs; while they are too few, there is no verdict.
      figure: path of the figure, relative to the text; "" for none.
      log: what was published before.

    Raises:
      ValueError: one line, for rows that lack what the claim needs.
    """
    with experiment.reading_rows():
        if isinstance(experiment, Claim):
            return _section(experiment, rows, figure=figure, log=log)
        return former.section(experiment, rows, figure=figure, log=log, report=sys.modules[__name__])


def _section(claim: Claim, rows: Rows, *, figure: str, log: Sequence[Publication]) -> str:
    verdict, df = claim.verdict(rows), claim.frame(rows) if rows else Frame()
    facts = _facts(claim.facts(df) if len(df) else {})
    parts = [
        f"## {heading(claim)}",
        f"**Claim.** {claim.prose.claim} ({claim.prose.source})",
        f"**Verdict: {in_words(verdict, claim, rows)}.** {verdict.because}",
        *_shown(_tests(verdict.tests)),
    ]
    parts.append(f"**Rule.** {claim.prose.rule}{changed_rule(claim, rows)}")
    if claim.selection:
        parts.append(f"**Selection.** {claim.selection}")
    if claim.tuned and rows:
        parts += _shown(claim.tuned.table(scale_of(rows), rows))
    if len(df):
        parts += _shown(claim.summary(df))
        parts += _shown(facts)
        parts += [MARKS] if claim.paper or "Paper" in facts else []
        parts += [f"![{claim.prose.title}]({figure})"] if figure else []
    parts += claim.prose.notes
    if rows:
        parts += [*publications.earlier(log, claim, rows), origins(rows)]
    return "\n\n".join(parts) + "\n"


def draw(experiment: AnyClaim, rows: Rows) -> Figure:
    """Returns the claim's figure, which is empty before a reported run is finished."""
    with experiment.reading_rows(), new_figure(*experiment.inches) as figure:
        if not isinstance(experiment, Claim):
            experiment.draw(rows, figure)
        elif experiment.enough(rows):
            experiment.draw(experiment.frame(rows), figure)
    return figure


def overview(experiments: Mapping[str, tuple[AnyClaim, Rows]], *, thumbnails: Mapping[str, str] | None = None) -> str:
    """Returns a table of all claims with where they come from and their verdicts, for docs and the head of the page.

    Args:
      experiments: name -> experiment and its rows.
      thumbnails: name -> path of a small figure, relative to the text; None for a table without figures, and
        without links to the sections.
    """
    cells = []
    for name, (experiment, rows) in experiments.items():
        verdict = in_words(experiment.verdict(rows), experiment, rows)
        line = [str(experiment.prose.number), f"`{name}`", experiment.prose.claim, experiment.prose.source, verdict]
        if thumbnails is not None:
            line[1] = f"[`{name}`](#{_anchor(heading(experiment))})"
            line.append(f"![{experiment.prose.title}]({thumbnails[name]})" if name in thumbnails else "")
        cells.append(line)
    header = ["", "AnyClaim", "Claim", "Where", "Verdict", *([] if thumbnails is None else ["Figure"])]
    return frames.markdown(Frame(cells, columns=header))


def page(
    experiments: Mapping[str, tuple[AnyClaim, Rows]],
    *,
    figures: Mapping[str, str],
    thumbnails: Mapping[str, str],
    logs: Mapping[str, Sequence[Publication]],
) -> str:
    """Returns all sections on one page, as Markdown, below a table of all claims.

    Args:
      experiments: name -> experiment and its rows.
      figures: name -> path of its figure, relative to the page.
      thumbnails: name -> path of its small figure.
      logs: name -> what was published of it before.
    """
    sections = [
        section(found, rows, figure=figures.get(name, ""), log=logs.get(name, ()))
        for name, (found, rows) in experiments.items()
    ]
    words = Counter(found.verdict(rows).word for found, rows in experiments.values() if rows)
    tally = f"{', '.join(f'{count} {word}' for word, count in words.most_common())}.\n"
    head = ["# Claims, and what our runs say of them\n", tally, overview(experiments, thumbnails=thumbnails), ""]
    return "\n".join([*head, *sections])


def html(text: str, *, folder: Path, figures: Collection[str]) -> str:
    """Returns a page as HTML that needs no other file, since its figures are embedded.

    Args:
      text: Markdown.
      folder: the folder that paths of figures are relative to.
      figures: the paths that may be embedded. Any other picture, which a text of a row may name, is left to its title.
    """
    from markdown_it import MarkdownIt

    body = MarkdownIt("commonmark", {"html": False}).enable("table").render(text)

    def inline(match: re.Match) -> str:
        path, title = unescape(match[1]), match[2]
        if path not in figures:
            return title
        content = base64.b64encode((folder / path).read_bytes()).decode()
        return f'<img src="data:image/png;base64,{content}" alt="{title}" />'

    body = re.sub(r'<img src="([^"]*)" alt="([^"]*)"[^>]*>', inline, body)
    body = re.sub(r"<h2>(.*?)</h2>", lambda match: f'<h2 id="{_anchor(unescape(match[1]))}">{match[1]}</h2>', body)
    body = re.sub(r"(<table>.*?</table>)", r'<div class="table">\1</div>', body, flags=re.DOTALL)
    title = re.search(r"^# (.*)$", text, re.MULTILINE)
    return _PAGE.format(title=escape(title[1]) if title else "Report", body=body)


def heading(experiment: AnyClaim) -> str:
    """Returns the heading of a section: its number and its title."""
    return f"{experiment.prose.number}. {experiment.prose.title}"


def _anchor(heading: str) -> str:
    """Returns the name that GitHub gives a heading as the target of a link.

    >>> _anchor("8. LeNet-5's gradients, at 8 workers")
    '8-lenet-5s-gradients-at-8-workers'
    """
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def in_words(verdict: Any, experiment: AnyClaim, rows: Rows) -> str:
    """Returns the verdict's word with the scale, the data, the model and the number of seeds that it rests on."""
    if not rows:
        return "not tested (not run)"
    with experiment.reading_rows():
        reported: Any = experiment.frame(rows) if isinstance(experiment, Claim) else rows
        basis = str(experiment.basis(reported)) if experiment.enough(rows) else f"{len(rows)} runs"
    return f"{verdict.word} ({scale_of(rows)}: {basis})"


def _shown(table: Frame) -> list[str]:
    return [frames.markdown(table)] if len(table) else []


def _facts(facts: Facts) -> Frame:
    cells = [(quantity, *((said, "") if isinstance(said, str) else said)) for quantity, said in facts.items()]
    table = Frame(cells, columns=["Quantity", "Ours", "Paper"])
    return table if table["Paper"].any() else table.drop(columns="Paper")


def _tests(tests: Sequence[Test]) -> Frame:
    cells = []
    for test in tests:
        method = "; ".join(filter(None, (test.method, test.corrected)))
        n = " and ".join(map(str, test.n))
        cells.append([test.compared, test.interval, f"{test.effect:.2f}", f"{test.p:.2g}", n, method])
    return Frame(cells, columns=["Compared", "Difference [interval]", "Hedges' g", "p", "n", "Test"])


def changed_rule(experiment: AnyClaim, rows: Rows) -> str:
    """Returns what the rows' records say of the rule that was stated when they were made; "" if it was this one."""
    stated = [row["origin"].get("rule") for row in rows]
    unknown = stated.count(None)
    texts = Counter(rule["text"] for rule in stated if rule)
    alike, now = experiment.decides_alike, experiment.stated["text"]
    others = {text: count for text, count in texts.items() if hash_of(text) not in alike}
    said = [
        f"The rule was changed after the first runs; {count} of {len(rows)} were made under: {' '.join(text.split())}"
        for text, count in others.items()
    ]
    if reworded := sum(count for text, count in texts.items() if text != now and text not in others):
        said.append(f"{reworded} of {len(rows)} runs were made under this rule in other words, which their rows have.")
    if unknown:
        said.append(f"{unknown} of {len(rows)} runs are from before rules were recorded with the runs.")
    return "".join(f" *{sentence}*" for sentence in said)


def origins(rows: Rows) -> str:
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
body {{ font: 16px/1.5 system-ui, sans-serif; color: #222; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }}
p, li {{ max-width: 50rem; overflow-wrap: break-word; }}
h1, h2 {{ line-height: 1.2; }}
h2 {{ margin-top: 3rem; border-top: 1px solid #ddd; padding-top: 1rem; }}
.table {{ overflow-x: auto; }}
table {{ border-collapse: collapse; font-size: 0.9rem; margin: 1rem 0; }}
th, td {{ text-align: left; vertical-align: top; padding: 0.3rem 0.7rem; border-bottom: 1px solid #ddd; }}
th {{ border-bottom: 2px solid #888; }}
img {{ max-width: 100%; height: auto; display: block; margin: 1rem auto; }}
td img {{ width: 9rem; max-width: none; margin: 0; }}
code {{ background: #f3f3f3; padding: 0.1em 0.3em; border-radius: 3px; }}
/* On a narrow screen each claim of the table at the top is a block of its own. */
@media (max-width: 48rem) {{
  td {{ min-width: 6rem; }}
  h1 + .table thead {{ display: none; }}
  h1 + .table tr {{ display: block; border-bottom: 1px solid #ddd; padding: 0.5rem 0; }}
  h1 + .table td {{ display: block; border: 0; padding: 0.1rem 0; }}
  h1 + .table td:first-child {{ font-weight: bold; }}
}}
</style>
</head>
<body>
{body}
</body>
</html>
"""
