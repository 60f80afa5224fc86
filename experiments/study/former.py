"""A section of the report on a claim that is declared as an `Experiment`."""

from collections.abc import Sequence
from typing import Any

from experiments.study import publications
from experiments.study.experiment import Experiment
from experiments.study.findings import Finding, Table
from experiments.study.publications import Publication
from experiments.study.run import Rows, scale_of
from experiments.study.significance import Contrast


def section(experiment: Experiment, rows: Rows, *, figure: str, log: Sequence[Publication], report: Any) -> str:
    """Returns the section, as `experiments.study.report.section` does, which gives its other functions."""

    parts = [
        f"## {experiment.prose.number}. {experiment.prose.title}",
        f"**Claim.** {experiment.prose.claim} ({experiment.prose.source})",
    ]
    verdict, enough = experiment.verdict(rows), experiment.enough(rows)
    if enough:
        parts += _shown(experiment.paper_table(rows))
    parts += [
        f"**Verdict: {report.in_words(verdict, experiment, rows)}.** {verdict.because}",
        *_shown(_contrasts(verdict.contrasts)),
    ]
    parts.append(f"**Rule.** {experiment.rule.text}{report.changed_rule(experiment, rows)}")
    if experiment.selection:
        parts.append(f"**Selection.** {experiment.selection}")
    if enough:
        if experiment.tuned:
            tried = experiment.tuned.table(scale_of(rows), rows)
            parts += _shown(Table(list(tried), tried.to_numpy().tolist()))
        parts += [*_shown(_findings(experiment.findings(rows))), *_shown(experiment.table(rows))]
        if figure:
            parts.append(f"![{experiment.prose.title}]({figure})")
    parts += experiment.prose.notes
    if rows:
        parts += [*publications.earlier(log, experiment, rows), report.origins(rows)]
    return "\n\n".join(parts) + "\n"


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


def _findings(findings: Sequence[Finding]) -> Table:
    cells = [[f.quantity, str(f.paper or "not given"), str(f.ours), f.olympic, f.difference] for f in findings]
    header = ["Quantity", "Paper", "Ours: mean ± standard deviation (n)", "Olympic mean", "Difference"]
    shown = [place for place in range(len(header)) if place < 3 or any(line[place] for line in cells)]
    return Table([header[place] for place in shown], [[line[place] for place in shown] for line in cells])
