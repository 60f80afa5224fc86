"""Reports on claims: a section of Markdown with a figure, and the table of all claims; pure functions of rows."""

from collections import Counter
from collections.abc import Mapping, Sequence

from experiments.plots.drawing import Figure, new_figure
from experiments.study import publications
from experiments.study.experiment import Experiment, Verdict, hash_of
from experiments.study.findings import Finding, Table
from experiments.study.publications import Publication
from experiments.study.run import Rows, scale_of
from experiments.study.significance import Contrast


def section(experiment: Experiment, rows: Rows, *, figure: str = "", log: Sequence[Publication] = ()) -> str:
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
        return _section(experiment, rows, figure=figure, log=log)


def _section(experiment: Experiment, rows: Rows, *, figure: str, log: Sequence[Publication]) -> str:
    parts = [
        f"## {experiment.prose.number}. {experiment.prose.title}",
        f"**Claim.** {experiment.prose.claim} ({experiment.prose.source})",
    ]
    verdict, enough = experiment.verdict(rows), experiment.enough(rows)
    if enough:
        parts += _shown(experiment.paper_table(rows))
    parts += [
        f"**Verdict: {_in_words(verdict, experiment, rows)}.** {verdict.because}",
        *_shown(_contrasts(verdict.contrasts)),
    ]
    parts.append(f"**Rule.** {experiment.rule.text}{_changed_rule(experiment, rows)}")
    if experiment.selection:
        parts.append(f"**Selection.** {experiment.selection}")
    if enough:
        if experiment.tuned:
            parts += _shown(experiment.tuned.table(scale_of(rows), rows))
        parts += [*_shown(_findings(experiment.findings(rows))), *_shown(experiment.table(rows))]
        if figure:
            parts.append(f"![{experiment.prose.title}]({figure})")
    parts += experiment.prose.notes
    if rows:
        parts += [*publications.earlier(log, experiment, rows), _origins(rows)]
    return "\n\n".join(parts) + "\n"


def draw(experiment: Experiment, rows: Rows) -> Figure:
    """Returns the experiment's figure."""
    with experiment.reading_rows(), new_figure(*experiment.inches) as figure:
        experiment.draw(rows, figure)
    return figure


def overview(experiments: Mapping[str, tuple[Experiment, Rows]]) -> str:
    """Returns a table of all claims with their sources and verdicts, for docs.

    Args:
      experiments: name -> experiment and its rows.
    """
    cells = []
    for name, (experiment, rows) in experiments.items():
        verdict = _in_words(experiment.verdict(rows), experiment, rows)
        prose = experiment.prose
        cells.append([str(prose.number), f"`{name}`", prose.claim, prose.source, verdict])
    return Table(["", "Experiment", "Claim", "Where", "Verdict"], cells).markdown()


def _in_words(verdict: Verdict, experiment: Experiment, rows: Rows) -> str:
    """Returns the verdict's word with the scale, the data, the model and the number of seeds that it rests on."""
    if not rows:
        return "not tested (not run)"
    with experiment.reading_rows():
        basis = str(experiment.basis(rows)) if experiment.enough(rows) else f"{len(rows)} runs"
    return f"{verdict.word} ({scale_of(rows)}: {basis})"


def _shown(table: Table) -> list[str]:
    """Returns the paragraphs of a table; none for an empty one."""
    return [table.markdown(), *filter(None, [table.note])] if table.cells else []


def _contrasts(contrasts: Sequence[Contrast]) -> Table:
    cells = [
        [c.compared, c.interval, f"{c.effect:.2f}", f"{c.p:.2g}", " and ".join(map(str, c.n)), f"{c.method}{_with(c)}"]
        for c in contrasts
    ]
    return Table(["Compared", "Difference [interval]", "Hedges' g", "p", "n", "Test"], cells)


def _with(contrast: Contrast) -> str:
    return f"; {contrast.corrected}" if contrast.corrected else ""


def _changed_rule(experiment: Experiment, rows: Rows) -> str:
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


def _findings(findings: Sequence[Finding]) -> Table:
    cells = [[f.quantity, str(f.paper or "not given"), str(f.ours), f.olympic, f.difference] for f in findings]
    header = ["Quantity", "Paper", "Ours: mean ± standard deviation (n)", "Olympic mean", "Difference"]
    shown = [place for place in range(len(header)) if place < 3 or any(line[place] for line in cells)]
    return Table([header[place] for place in shown], [[line[place] for place in shown] for line in cells])


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
