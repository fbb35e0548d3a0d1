"""Collects what the site is built from: the pages as they stand in the tree, and those made from code.

The tree is copied in its own shape, so that a link that works on a checkout works on the site.
"""

from __future__ import annotations

import html
import json
import re
import shutil
from pathlib import Path

from tools.site.reference import reference

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "build" / "pages"
COPIED = (
    *("*.md", "docs/**/*.md", "docs/**/*.png", "docs/**/*.svg", "examples/**/*", "benchmarks/results/*.*"),
    *(
        "LICENSE",
        "infrastructure/*",
        "deploy/**/*",
        "database/**/*.sql",
        "src/reltask/stores/SQL.md",
        "tests/README.md",
    ),
)
_SECTION = re.compile(r"^## (?P<code>[a-z-]+)\n(?P<text>.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)


def stage(*, mermaid: Path | None) -> None:
    """Write everything that zensical reads below build/."""
    shutil.rmtree(PAGES, ignore_errors=True)
    for pattern in COPIED:
        for path in ROOT.glob(pattern):
            if path.is_file() and "__pycache__" not in path.parts:
                target = PAGES / place(path.relative_to(ROOT))
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, target)
    _write("index.md", landing())
    _write("docs/reference.md", reference())
    _write("docs/decisions/index.md", decisions())
    for code, text in error_pages():
        _write(f"errors/{code}.md", text)
    settings = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    if mermaid is not None:
        shutil.copyfile(mermaid, PAGES / "mermaid.js")
    shutil.copyfile(ROOT / "tools" / "site" / "site.js", PAGES / "site.js")
    scripts = ["mermaid.js", "site.js"] if mermaid is not None else ["site.js"]
    settings += f"extra_javascript: [{', '.join(scripts)}]\n"
    (PAGES.parent / "mkdocs.yml").write_text(settings, encoding="utf-8")


def place(path: Path) -> Path:
    """Where a file of the tree stands on the site. A README at the root would be its first page, which is another."""
    return Path("overview.md") if path == Path("README.md") else path


def _write(name: str, text: str) -> None:
    (PAGES / name).parent.mkdir(parents=True, exist_ok=True)
    (PAGES / name).write_text(text, encoding="utf-8")


def landing() -> str:
    """The first page: one sentence, the code of the README, the recorded demo, and the matrix of faults."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    promises = (ROOT / "docs" / "promises.md").read_text(encoding="utf-8")
    code, commands = re.findall(r"^```(?:python|console)[^\n]*\n.*?^```$", readme, re.MULTILINE | re.DOTALL)[:2]
    text = (ROOT / "tools" / "site" / "landing.md").read_text(encoding="utf-8")
    parts = {"code": code, "commands": commands, "recording": recording(), "faults": faults(promises)}
    return re.sub(r"^\{(\w+)\}$", lambda match: parts[match[1]], text, flags=re.MULTILINE)


def recording() -> str:
    """The demo as it ran: each line with the second at which it came. Without JavaScript all lines are shown."""
    lines = json.loads((ROOT / "tools" / "site" / "demo.json").read_text(encoding="utf-8"))
    shown = "\n".join(f'<span data-at="{at}">{html.escape(line)}</span>' for at, line in lines)
    text = f'<pre style="overflow-x: auto"><code>$ reltask demo\n{shown}</code></pre>'
    return f'<div class="recording"><button class="md-button">Play</button>{text}</div>'


def faults(promises: str) -> str:
    """The matrix of promises.md, without the columns that repeat a trial."""
    matrix = promises.partition("fault matrix: begin")[2].partition("fault matrix: end")[0]
    kept = [line for line in matrix.splitlines() if line.startswith("- ") and "trials" in line]
    rows = [line.split("|")[1:7] for line in matrix.splitlines() if line.startswith("|")]
    return "\n".join([*kept, "", *("|" + "|".join(row) + "|" for row in rows)])


def decisions() -> str:
    """The list of decisions, by their titles."""
    notes = sorted((ROOT / "docs" / "decisions").glob("0*.md"))
    titles = [(note.name, note.read_text(encoding="utf-8").splitlines()[0].lstrip("# ")) for note in notes]
    return "# Decisions\n\n" + "".join(f"- [{title}]({name})\n" for name, title in titles)


def error_pages() -> list[tuple[str, str]]:
    """A page for each error code, from its section of docs/errors.md."""
    text = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    return [
        (match["code"], f"# {match['code']}\n{_from_below(match['text'])}\n[All errors](../docs/errors.md)\n")
        for match in _SECTION.finditer(text)
    ]


def _from_below(text: str) -> str:
    """Links of a page in docs/ as a page in errors/ has to write them."""
    text = re.sub(r"\]\(#([^)]+)\)", r"](../docs/errors.md#\1)", text)
    return re.sub(r"\]\((?!https?:|\.\./)([^)]+)\)", r"](../docs/\1)", text)
