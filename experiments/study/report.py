"""Reports on claims: a section of Markdown with a figure, and the table of all claims; pure functions of rows."""

from collections import Counter
from collections.abc import Mapping, Sequence

from experiments.plots.drawing import Figure, new_figure
from experiments.study import frames, publications
from experiments.study.claim import Claim, Facts
from experiments.study.frames import Frame
from experiments.study.inference import Test
from experiments.study.prose import TOPICS
from experiments.study.publications import Publication
from experiments.study.run import Rows, hash_of, identity, scale_of
from experiments.study.verdict import Verdict

MARKS = "?: not known to us. Marks: READ in a source, DERIVED from facts, MEM recalled and unverified."


def section(claim: Claim, rows: Rows, *, figure: str = "", log: Sequence[Publication] = ()) -> str:
    """Returns the claim, its verdict, the rule, the summary, and the origin of the rows, as Markdown.

    Args:
      claim: the claim.
      rows: rows of its finished runs; while they are too few, there is no verdict.
      figure: path of the figure, relative to the text; "" for none.
      log: the earlier publications.

    Raises:
      ValueError: one line, for rows that lack what the claim needs.
    """
    with claim.reading_rows():
        verdict = claim.verdict(rows)
        df = claim.frame(rows) if claim.enough(rows) else Frame()
        facts = _facts(claim.facts(df) if len(df) and not claim.missing(rows) else {})
        parts = [
            f"## {claim.prose.number}. {claim.prose.title}",
            f"**Claim.** {claim.prose.claim} ({claim.prose.source})",
            f"**Verdict: {in_words(verdict, claim, rows)}.** {verdict.because}",
            *_shown(_tests(verdict.tests)),
        ]
        parts.append(f"**Rule.** {claim.prose.rule}{_changed_rule(claim, rows)}")
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
            before = publications.earlier(log, publication(claim, rows), alike=claim.decides_alike) if log else ()
            parts += [*before, _origins(rows)]
    return "\n\n".join(parts) + "\n"


def draw(claim: Claim, rows: Rows, *, columns: int | None = None) -> Figure:
    """Returns the claim's figure, which is empty before a reported run is finished, as wide as so many columns."""
    with claim.reading_rows(), new_figure(*claim.inches, columns=columns) as figure:
        if claim.enough(rows):
            claim.draw(claim.frame(rows), figure)
    return figure


def publication(claim: Claim, rows: Rows) -> Publication:
    """Returns the entry of the log for rows that are published."""
    with claim.reading_rows():
        reported = claim.reported(rows)
    commits = Counter(str(row["origin"]["commit"]) for row in rows)
    return Publication(
        commit=commits.most_common(1)[0][0],
        verdict=claim.verdict(rows).word,
        rule=claim.stated["text"],
        runs=[identity(row) for row in reported],
    )


def overview(claims: Mapping[str, tuple[Claim, Rows]]) -> str:
    """Returns a table of each topic's claims with their verdicts, for docs; each links to its page with the source.

    Args:
      claims: name -> claim and its rows, in order.
    """
    cells: dict[str, list[list[str]]] = {topic: [] for topic in TOPICS}
    for name, (claim, rows) in claims.items():
        verdict = in_words(claim.verdict(rows), claim, rows)
        page = "report.md" if rows else "claim.md"
        link = f"{claim.prose.number}. [{name}](../experiments/claims/{name}/{page})"
        cells[claim.prose.topic].append([verdict, claim.prose.claim, link])
    tables = [(topic, Frame(lines, columns=["Verdict", "Claim", "Report"])) for topic, lines in cells.items() if lines]
    return "\n\n".join(f"## {topic}\n\n{frames.markdown(table)}" for topic, table in tables)


def in_words(verdict: Verdict, claim: Claim, rows: Rows) -> str:
    """Returns the verdict's word with the scale, the data, the model and the number of seeds that it rests on."""
    if not rows:
        return "not tested (not run)"
    with claim.reading_rows():
        basis = claim.basis(claim.frame(rows)) if claim.enough(rows) else f"{len(rows)} runs"
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


def _changed_rule(claim: Claim, rows: Rows) -> str:
    """Returns remarks on rows that were made under another rule, by their records; "" if none was."""
    texts = Counter(row["origin"]["rule"]["text"] for row in rows if row["origin"].get("rule"))
    del texts[claim.stated["text"]]
    said, reworded = [], 0
    for text, count in texts.items():
        if hash_of(text) in claim.decides_alike:
            reworded += count
            continue
        changed = f"The rule was changed after the first runs; {count} of {len(rows)} were made under:"
        said.append(f"{changed} {' '.join(text.split())}")
    if reworded:
        said.append(f"{reworded} of {len(rows)} runs were made under this rule in other words, which their rows have.")
    return "".join(f" *{sentence}*" for sentence in said)


def _origins(rows: Rows) -> str:
    """Returns one line on how and where the rows were made."""
    origins = [row["origin"] for row in rows]

    def counted(values: Sequence[str]) -> str:
        return ", ".join(f"{value} ({count})" for value, count in sorted(Counter(values).items()))

    commits, devices = [], []
    for origin in origins:
        changed = "" if origin["tree"] == "clean" else ", changed"
        commits.append(f"{str(origin['commit'])[:10]}{changed}")
        kind = origin["devices"][0] if origin["devices"] else "?"
        devices.append(f"{len(origin['devices'])} x {kind}")
    hours = sum(origin["wall_seconds"] or 0 for origin in origins) / 3600
    versions = [str(origin["jax"]) for origin in origins]
    said = f"{len(rows)} runs, {hours:.2f} hours in all; commit {counted(commits)}"
    return f"{said}; jax {counted(versions)}; devices {counted(devices)}."
