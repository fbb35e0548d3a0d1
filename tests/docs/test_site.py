"""The documentation site: what is staged, what the navigation names, and that the check of links can fail."""

from __future__ import annotations

import re
from pathlib import Path

import reltask
from reltask import errors
from tests.docs.pages import ROOT
from tools.site.check import problems
from tools.site.reference import INTERNAL, reference
from tools.site.stage import error_pages, landing, place


def test_every_guide_is_in_the_navigation() -> None:
    """A page of docs/ that the navigation leaves out would not be found by a reader."""
    named = set(re.findall(r"docs/[\w./-]+\.md", (ROOT / "mkdocs.yml").read_text(encoding="utf-8")))
    there = {str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md") if path.parent.name != "decisions"}
    assert there - named == set()
    assert named - there <= {"docs/reference.md"}  # made when the site is built


def test_readme_has_a_page_of_its_own() -> None:
    """The generator makes index.html of a README.md, and the first page is another: one of them would be lost."""
    assert place(Path("README.md")) == Path("overview.md")
    assert place(Path("examples/flask/README.md")) == Path("examples/flask/README.md")
    for text in ((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), landing()):
        assert "overview.md" in text
        assert "README.md" not in text


def test_every_error_code_has_a_page() -> None:
    """The command line names a page by an error's code."""
    codes = {kind.code for kind in vars(errors).values() if isinstance(kind, type) and hasattr(kind, "code")}
    assert codes <= {code for code, _ in error_pages()}


def test_reference_has_what_users_call_and_read() -> None:
    """Methods of private bases, options of decorators, facts of a context: the reference has them, and no internals."""
    text = reference()
    for heading in ("# App", "## App.task", "## App.schedule", "## App.jobs", "## Task.enqueue", "## Context.step"):
        assert f"\n##{heading}\n" in text
    assert "    every: Duration | None = None,\n" in text
    assert "\nidempotency_key: str\n" in text
    assert "async Task.enqueue(*args: P.args, **kwargs: P.kwargs) -> Job[R]\n" in text
    assert "What it was given, as it is shown" in text
    assert not re.search(r"`[^`\n]*\\[_*<][^`\n]*`", text)
    for name, methods in INTERNAL.items():
        assert methods <= set(dir(getattr(reltask, name)))
        assert not any(f"{name}.{method}(" in text for method in methods)


def test_first_page_has_code_a_recording_and_the_faults() -> None:
    """One sentence, the README's code and commands, the demo line by line, and each row of the fault matrix."""
    page, readme = landing(), (ROOT / "README.md").read_text(encoding="utf-8")
    promises = (ROOT / "docs/promises.md").read_text(encoding="utf-8")
    code = readme.partition("```python")[2].partition("```")[0]
    assert code in page
    assert "$ reltask worker app:app --once" in page
    times = [float(at) for at in re.findall(r'data-at="([\d.]+)"', page)]
    assert len(times) > 10
    assert times == sorted(times)
    assert page.count("| PostgreSQL |") == promises.count("| PostgreSQL |")
    assert not re.search(r"^\{\w+\}$", page, re.MULTILINE)


def test_dead_links_and_foreign_files_are_found(tmp_path: Path) -> None:
    """The check reports a missing page, a missing anchor, and a file that would be loaded from elsewhere."""
    (tmp_path / "good.html").write_text('<h1 id="here">x</h1><a href="good.html#here">x</a>')
    assert problems(tmp_path) == []
    (tmp_path / "bad.html").write_text(
        '<a href="gone.html">x</a><a href="good.html#there">x</a><script src="https://example.org/x.js"></script>'
        '<a href="https://example.org/">a link out is fine</a>'
    )
    assert problems(tmp_path) == [
        "bad.html: gone.html does not exist",
        "bad.html: good.html#there has no such anchor",
        "bad.html: loads https://example.org/x.js",
    ]
