"""`reltask doctor`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import click

from reltask.app import App
from reltask.cli.errors import REMEDIES
from reltask.cli.runner import EXIT_ERROR, EXIT_OK
from reltask.cli.show import print_json, print_line
from reltask.cli.target import require_file, with_app_argument_or_new_file
from reltask.errors import ReltaskError
from reltask.model.connection_url import safe_url
from reltask.model.control import PauseView
from reltask.model.doctor import Facts, Finding, Level, diagnose, is_sound, unreachable

_MARKS = {Level.OK: "ok", Level.NOTE: "note", Level.PROBLEM: "PROBLEM"}


@click.command(name="doctor")
@with_app_argument_or_new_file
def command(app: App, *, as_json: bool) -> int:
    """Check the database and say what is wrong and how to fix it. Nothing is changed.

    Of several shards each one is checked. The exit status is 1 if there is a problem; notes do not count.
    """
    shards = app.shard_urls
    found = {number: _findings(app, url, number) for number, url in shards.items()}
    findings = [finding for some in found.values() for finding in some] if shards else _findings(app, app.url, None)
    sound = is_sound(findings)
    if as_json and shards:
        each = [
            {"shard": number, "database": safe_url(shards[number]), "sound": is_sound(some), "findings": some}
            for number, some in found.items()
        ]
        print_json({"sound": sound, "shards": each})
    elif as_json:
        print_json({"database": safe_url(app.url), "sound": sound, "findings": findings})
    elif shards:
        for nth, (number, some) in enumerate(found.items()):
            if nth:
                print_line()
            _print(some, where=f"shard {number}: {safe_url(shards[number])}")
    else:
        _print(findings, where=safe_url(app.url))
    return EXIT_OK if sound else EXIT_ERROR


def _findings(app: App, url: str, shard: int | None) -> list[Finding]:
    try:
        require_file(url)
        facts, skew = _examined(app, shard)
    except ReltaskError as error:
        return [unreachable(error.message, error.remedy or REMEDIES.get(error.code, ""))]
    return diagnose(facts, skew=skew, pauses=_pauses(app, facts))


def _pauses(app: App, facts: Facts) -> list[PauseView]:
    """What is paused, if this user may see it, and there are tables that this version can read."""
    if app.shard_urls or facts.schema_version != facts.spoken_version or not facts.may & {"run", "operate", "read"}:
        return []  # of several shards: reltask queues
    return app.pauses_sync()


def _examined(app: App, shard: int | None) -> tuple[Facts, timedelta]:
    """The facts, and how far the database's clock is ahead, less what the duration of the query can explain."""
    before = datetime.now(UTC)
    facts = app.examine_sync(shard=shard)
    after = datetime.now(UTC)
    ahead, behind = facts.now - after, before - facts.now
    return facts, max(ahead, timedelta(0)) - max(behind, timedelta(0))


def _print(findings: list[Finding], *, where: str) -> None:
    print_line(where)
    print_line()
    width = max(len(finding.check) for finding in findings)
    for finding in findings:
        print_line(f"{_MARKS[finding.level]:<7}  {finding.check:<{width}}  {finding.text}")
        if finding.remedy:
            print_line(f"{'':<7}  {'':<{width}}  → {finding.remedy}")
