"""What linters say of the files that other programs read: nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.linters import ROOT, lint

pytestmark = pytest.mark.slow
GITHUB = ROOT / ".github"
DEPLOY = ROOT / "deploy"


@pytest.mark.parametrize(
    ("schema", "files"),
    [
        ("github-workflows", sorted(GITHUB.glob("workflows/*.yml"))),
        ("github-issue-forms", [GITHUB / "ISSUE_TEMPLATE" / "bug.yml", GITHUB / "ISSUE_TEMPLATE" / "idea.yml"]),
        ("github-issue-config", [GITHUB / "ISSUE_TEMPLATE" / "config.yml"]),
        ("dependabot", [GITHUB / "dependabot.yml"]),
        ("compose-spec", [DEPLOY / "compose.yaml"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_files_have_the_form_of_their_schema(schema: str, files: list[Path]) -> None:
    """Each key is one that GitHub, or compose, knows."""
    assert files
    assert lint("check-jsonschema", "--builtin-schema", f"vendor.{schema}", *files) == ""


def test_dockerfile_is_well_written() -> None:
    """Hadolint has no remark."""
    assert lint("hadolint", DEPLOY / "Dockerfile") == ""


def test_workflows_are_safe() -> None:
    """Zizmor finds no way to inject, to poison a cache, or to steal a token; every action is pinned by its commit."""
    assert lint("zizmor", "--offline", "--quiet", "--no-progress", GITHUB) == ""
