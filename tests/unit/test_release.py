"""What a release needs: versions that agree, workflows that can be read, actions pinned, archives with all files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

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


@pytest.mark.parametrize("workflow", sorted((ROOT / ".github/workflows").glob("*.yml")), ids=lambda path: path.name)
def test_workflows_ask_for_few_rights(workflow: Path) -> None:
    """Every workflow begins with read access alone; a job that needs more says so."""
    text = workflow.read_text(encoding="utf-8")
    assert re.search(r"^permissions:\n  contents: read$", text, re.MULTILINE)
    assert "secrets." not in text
