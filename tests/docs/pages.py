"""Markdown pages as tests see them: fenced blocks, links, and the paths that they name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])

_FENCE = re.compile(r"^```(?P<info>[^\n`]+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_TITLE = re.compile(r'title="([^"]+)"')


class Block(NamedTuple):
    """One fenced block."""

    language: str
    title: str | None
    text: str


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    return [_block(match["info"], match["text"]) for match in _FENCE.finditer(page.read_text(encoding="utf-8"))]


def _block(info: str, text: str) -> Block:
    title = _TITLE.search(info)
    return Block(info.split(maxsplit=1)[0], title[1] if title else None, text)


def mermaid(page: Path, kind: str) -> str:
    """The one diagram of this kind on a page."""
    (found,) = [block.text for block in blocks(page) if block.language == "mermaid" and block.text.startswith(kind)]
    return found


def links(page: Path) -> Iterator[str]:
    """The targets of links to files of this tree, without their anchors."""
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if "://" not in target and not target.startswith(("#", "mailto:")):
            yield target.partition("#")[0]


def prose(page: Path) -> Iterator[str]:
    """The lines of a page outside of fenced blocks, tables and generated parts."""
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    text = re.sub(r"<!-- [^\n]*\bbegin\b.*?<!-- [^\n]*\bend\b", "", text, flags=re.DOTALL)
    return (line for line in text.splitlines() if not line.startswith("|"))


def paths(page: Path) -> Iterator[str]:
    """The files of this tree that a page names between backticks."""
    for quoted in re.findall(r"`([^`\n]+)`", page.read_text(encoding="utf-8")):
        path = quoted.partition("::")[0]
        if re.fullmatch(r"(src|tests|docs|examples|database)/[\w./-]*", path):
            yield path
