"""What a release needs: versions that agree, workflows that can be read, actions pinned, archives with all files."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path, PurePosixPath

import pytest

from reltask.version import __version__
from tests.docs.pages import PAGES, links
from tests.linters import lint
from tools.check_release import problems

ROOT = Path(__file__).parents[2]


def test_tag_version_and_changelog_must_agree(tmp_path: Path) -> None:
    """A tag is refused unless pyproject.toml, the module and a dated section of the changelog name its version."""
    (tmp_path / "src" / "reltask").mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "reltask"\nversion = "1.2.3"\n')
    (tmp_path / "src/reltask/version.py").write_text('__version__ = "1.2.3"\n')
    (tmp_path / "CHANGELOG.md").write_text("## [1.2.3] - 2026-11-18\n")
    assert problems("v1.2.3", tmp_path) == []
    assert len(problems("v1.2.4", tmp_path)) == 1
    (tmp_path / "src/reltask/version.py").write_text('__version__ = "1.2.2"\n')
    (tmp_path / "CHANGELOG.md").write_text("## [Unreleased]\n")
    assert len(problems("v1.2.3", tmp_path)) == 2


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The wheel and the source archive, as `make build` makes them."""
    target = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-d", str(target)], cwd=ROOT, check=True, capture_output=True
    )
    return {"wheel": next(target.glob("*.whl")), "source": next(target.glob("*.tar.gz"))}


@pytest.mark.slow
def test_wheel_alone_runs_a_job_and_explains_errors(archives: dict[str, Path], tmp_path: Path) -> None:
    """Unpacked elsewhere: its own SQL makes the tables, and its own page of errors is read."""
    with zipfile.ZipFile(archives["wheel"]) as wheel:
        wheel.extractall(tmp_path / "installed")
    code = (
        "import reltask; app = reltask.App('sqlite:///x.db')\n@app.task\ndef hello() -> None: print(reltask.__file__)\n"
    )
    (tmp_path / "shop.py").write_text(code)
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path / 'installed'}{os.pathsep}{tmp_path}"}

    def reltask(*words: str) -> str:
        command = [sys.executable, "-m", "reltask.cli", *words]
        return subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True, text=True).stdout

    reltask("enqueue", "shop:app", "hello")
    assert str(tmp_path / "installed") in reltask("worker", "shop:app", "--once")
    assert "No task of that name" in reltask("explain", "unknown-task")


@pytest.mark.slow
def test_archives_say_who_what_and_where(archives: dict[str, Path]) -> None:
    """Authors, version and licence are named; no address is given that does not exist; the docs are in the source."""
    with zipfile.ZipFile(archives["wheel"]) as wheel:
        names = wheel.namelist()
        metadata = wheel.read(next(name for name in names if name.endswith("METADATA"))).decode()
    assert "Author: reltask contributors" in metadata
    assert f"Version: {__version__}\n" in metadata
    assert "Project-URL" not in metadata
    assert {"reltask/py.typed", "reltask/docs/errors.md", "reltask/database/postgres/permissions.sql"} <= set(names)
    with tarfile.open(archives["source"]) as source:
        inside = {name.partition("/")[2] for name in source.getnames()}
    assert {"docs/tutorial.md", "CHANGELOG.md", "LICENSE", "tests/unit/test_release.py"} <= inside
    folders = {str(parent) for name in inside for parent in PurePosixPath(name).parents}
    pages = [page for page in PAGES if str(page.relative_to(ROOT)) in inside]
    led = {page.parent.joinpath(link).resolve().relative_to(ROOT).as_posix() for page in pages for link in links(page)}
    assert sorted(led - inside - folders) == []


@pytest.mark.slow
def test_page_of_the_index_leads_nowhere_that_does_not_exist(archives: dict[str, Path]) -> None:
    """An index shows README.md without the files beside it: no link and no picture of it may need them."""
    with zipfile.ZipFile(archives["wheel"]) as wheel:
        metadata = wheel.read(next(name for name in wheel.namelist() if name.endswith("METADATA"))).decode()
    page = metadata.partition("\n\n")[2]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert page.startswith("# reltask\n")
    assert "](" in re.sub(r"\]\(https?:[^)]*\)", "", readme)
    assert "](" not in re.sub(r"\]\(https?:[^)]*\)", "", page)
    assert re.findall(r"^```.*?^```$", page, re.MULTILINE | re.DOTALL) == re.findall(
        r"^```.*?^```$", readme, re.MULTILINE | re.DOTALL
    )


@pytest.mark.slow
def test_archives_are_what_an_index_accepts(archives: dict[str, Path]) -> None:
    """`twine check --strict` has no remark: metadata are valid, and README.md can be rendered."""
    assert lint("twine", "check", "--strict", *archives.values()) == ""


@pytest.mark.parametrize("workflow", sorted((ROOT / ".github/workflows").glob("*.yml")), ids=lambda path: path.name)
def test_workflows_ask_for_few_rights(workflow: Path) -> None:
    """Every workflow begins with read access alone; a job that needs more says so."""
    text = workflow.read_text(encoding="utf-8")
    assert re.search(r"^permissions:\n  contents: read$", text, re.MULTILINE)
    assert "secrets." not in text
