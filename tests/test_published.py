"""The published reports and figures follow from the published rows."""

import re

import pytest

from experiments import claims
from experiments.execution import results, saved_rows
from experiments.study import publications, report
from experiments.study.run import identity

PUBLISHED = [name for name in claims.CLAIMS if results.published(name)]
MIN_SEEDS = 3


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_report_is_what_its_rows_say(name):
    claim = claims.load(name)
    rows = results.published(name)
    folder = results.PUBLISHED / name
    text = report.section(claim, rows, figure="figure.png", log=publications.read(folder))
    assert text == (folder / "report.md").read_text()
    if claim.enough(rows):
        assert report.draw(claim, rows).axes and (folder / "figure.png").stat().st_size > 5000


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_log_ends_with_what_is_published(name):
    claim, rows = claims.load(name), results.published(name)
    *_, last = publications.read(results.PUBLISHED / name)
    assert (last.verdict, last.rule) == (claim.verdict(rows).word, claim.stated["text"])
    assert set(last.runs) <= {identity(row) for row in rows}


SOME, MANY = 8, 100  # numbers of rows that are tried


@pytest.mark.parametrize(
    ("name", "num_counts"), [(name, SOME) for name in PUBLISHED] + [(name, MANY) for name in PUBLISHED[::12]]
)
def test_any_number_of_finished_runs_can_be_reported(name, num_counts):
    """The time of a report grows with its rows, so that some of the numbers are tried, from none to nearly all."""
    claim, rows = claims.load(name), results.published(name)
    assert "**Verdict: not tested (not run).**" in report.section(claim, [])
    for count in range(len(rows))[:: max(1, len(rows) // num_counts)]:
        for some in (rows[:count], rows[:count] + rows[count + 1 :]):  # not there yet, or one of them failed
            assert claim.prose.claim in report.section(claim, some)
    for count in (1, 2, len(rows) // 3, len(rows) // 2, len(rows) - 1):
        if claim.enough(rows[:count]):
            report.draw(claim, rows[:count])


@pytest.mark.parametrize("name", PUBLISHED)
def test_rows_can_be_traced(name):
    rows = results.published(name)
    assert all(re.fullmatch(r"[0-9a-f]{40}", row["origin"]["commit"]) for row in rows)
    assert {row["origin"]["tree"] for row in rows} == {"clean"}
    seeds = {row.get("seed") for row in rows}
    assert len(seeds) >= MIN_SEEDS or seeds == {None}  # arithmetic draws nothing


def test_saved_rows_are_of_claims_and_can_be_published():
    for path in results.PUBLISHED.glob("*/unfinished-*.jsonl"):
        name = path.parent.name
        scale = path.stem.removeprefix("unfinished-")
        assert scale in claims.load(name).hours and path == saved_rows.path_of(name, scale)
        assert {row["origin"]["tree"] for row in saved_rows.read(name, scale)} == {"clean"}


def test_every_folder_of_claims_has_an_experiment():
    folders = {path.parent.name for path in results.PUBLISHED.glob("*/rows.jsonl")}
    assert folders == set(PUBLISHED)
