"""The matrix on the page is what the committed results say, and they are complete."""

from __future__ import annotations

from tests.faults import results
from tests.faults.catalog import OWN, ROWS
from tests.faults.environment import Verdict


def test_page_shows_the_committed_results() -> None:
    """The table is generated, not typed: after a run, or by hand: python -m tests.faults --write-docs."""
    assert results.section(results.read()) in results.PAGE.read_text(encoding="utf-8")


def test_results_cover_every_row_without_a_duplicate_or_a_loss() -> None:
    """At least 200 trials per database that the suite brings; each row was played, or says why it was not."""
    entries = {(entry["row"], entry["database"]): entry for entry in results.read()}
    wanted = {(row.name, database) for row in ROWS for database in OWN if not row.missing(database)}
    assert wanted <= set(entries)
    for database in OWN:
        assert sum(entry["trials"] for entry in entries.values() if entry["database"] == database) >= 200
    assert sum(entry["duplicates"] + entry["lost"] for entry in entries.values() if entry["trials"]) == 0


def test_an_entry_sums_up_its_trials() -> None:
    """Counts are added, times are ordered; a trial without an end has no time."""
    row = ROWS[0]
    verdicts = [Verdict(1, 0, 2.0, 3), Verdict(0, 1, None), Verdict(0, 0, 5.0, 1), Verdict(0, 0, 3.0)]
    entry = results.summary(row, "sqlite", verdicts)
    assert (entry["trials"], entry["duplicates"], entry["lost"], entry["cut_short"]) == (4, 1, 1, 4)
    assert (entry["recovery_median"], entry["recovery_max"]) == (3.0, 5.0)
