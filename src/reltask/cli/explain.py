"""`reltask explain CODE`: what an error means, from the page that is installed with reltask."""

from __future__ import annotations

import difflib
import re
from importlib.resources import files
from pathlib import Path

import click

from reltask.cli.show import print_lines
from reltask.errors import UsageError

_SECTION = re.compile(r"^## (?P<code>[a-z-]+)\n(?P<text>.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)


@click.command(name="explain")
@click.argument("code")
def command(*, code: str) -> None:
    """Say what an error code means, and what to do. An error prints its code as error[CODE]."""
    known = sections()
    name = code.removeprefix("error[").removesuffix("]")
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        raise UsageError(
            f"There is no error code {name!r}.",
            remedy=f"Did you mean {near[0]!r}?" if near else f"Known codes: {', '.join(sorted(known))}.",
        )
    print_lines(f"{name}\n\n{known[name].strip()}")


def sections() -> dict[str, str]:
    """The sections of the page of errors, by code. In a checkout the page stands in docs/."""
    packaged = files("reltask") / "docs" / "errors.md"
    page = packaged if packaged.is_file() else Path(__file__).parents[3] / "docs" / "errors.md"
    return {match["code"]: match["text"] for match in _SECTION.finditer(page.read_text(encoding="utf-8"))}
