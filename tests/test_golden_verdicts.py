"""Every claim says of many sets of rows what it said when the sets were recorded.

The sets are the published rows, disturbed ones, and such on both sides of each threshold: a rule that is wrong where
the published rows do not show it is wrong for one of these. tests/golden/make_verdicts.py records them.
"""

import pytest

from experiments import claims
from experiments.execution import results
from tests import disturbed_rows, judging

PUBLISHED = [name for name in claims.CLAIMS if results.published(name)]
EVERY = 12  # of the sets is tried in the quick suite, the published rows first


@pytest.mark.parametrize(
    "sets",
    [pytest.param(slice(None, None, EVERY), id="some"), pytest.param(slice(None), id="all")],
)
@pytest.mark.parametrize("name", PUBLISHED)
def test_words_tests_and_intervals_are_those_that_were_recorded(name, sets):
    claim = claims.load(name)
    rows = results.published(name)
    kept = judging.kept(name)
    assert kept[0]["changes"] == []
    for one in kept[sets]:
        word, tests = judging.judge(claim, disturbed_rows.changed(claim, rows, one["changes"]))
        assert (word, len(tests)) == (one["word"], len(one["tests"])), one["changes"]
        for found, was in zip(tests, one["tests"], strict=True):
            assert judging.agree(found, was), f"{one['changes']}: {found} was {was}"
