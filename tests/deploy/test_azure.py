"""The templates for workers on Azure. They were never deployed: this is what can be checked without a subscription."""

from __future__ import annotations

import json
import re
import shlex
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from reltask.cli import cli
from reltask.model.settings import WorkerSettings
from tests.cluster.cluster import ROOT
from tests.deploy.test_files import STOP_GRACE

TEMPLATES = sorted((ROOT / "deploy" / "azure").glob("*.json"))
EXPRESSION = re.compile(r"^\[(?!\[).*\]$")


def read(path: Path) -> dict[str, Any]:
    template: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return template


def texts(value: Any) -> list[str]:
    """Every text of a template, keys included."""
    if isinstance(value, dict):
        return [text for key, each in value.items() for text in (key, *texts(each))]
    if isinstance(value, list):
        return [text for each in value for text in texts(each)]
    return [value] if isinstance(value, str) else []


def test_both_are_here() -> None:
    """One for Container Apps, one for App Service."""
    assert [path.stem for path in TEMPLATES] == ["app-service", "container-app"]


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_expressions_name_declared_parameters_and_balance(path: Path) -> None:
    """Each parameter is used, each used one is declared and described, and every bracket is closed."""
    template = read(path)
    expressions = [text for text in texts(template["resources"]) if EXPRESSION.match(text)]
    defaults = [each.get("defaultValue") for each in template["parameters"].values()]
    used = {name for text in expressions for name in re.findall(r"parameters\('(\w+)'\)", text)}
    assert used == set(template["parameters"])
    assert all(each["metadata"]["description"] for each in template["parameters"].values())
    for text in [*expressions, *(each for each in defaults if isinstance(each, str))]:
        assert text.count("(") == text.count(")")
        assert text.count("'") % 2 == 0


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_worker_logs_in_by_its_identity(path: Path) -> None:
    """A user-assigned identity, named to the driver by AZURE_CLIENT_ID; no secret, no password, no key anywhere."""
    (resource,) = read(path)["resources"]
    assert resource["identity"]["type"] == "UserAssigned"
    (identity,) = resource["identity"]["userAssignedIdentities"]
    assert "parameters('identityName')" in identity
    variables = _environment(resource)
    assert variables["AZURE_CLIENT_ID"].endswith(".clientId]")
    assert variables["RELTASK_DATABASE_URL"] == "[parameters('databaseUrl')]"
    said = path.read_text(encoding="utf-8").replace("without a password", "")
    assert not re.search(r"password|secret|listKeys|securestring", said, re.IGNORECASE)


def _environment(resource: dict[str, Any]) -> dict[str, str]:
    properties = resource["properties"]
    found = properties["template"]["containers"][0]["env"] if "template" in properties else None
    return {each["name"]: each["value"] for each in found or properties["siteConfig"]["appSettings"]}


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_no_worker_is_killed_before_its_grace_is_over(path: Path) -> None:
    """Both wait longer than the defaults of `worker.shutdown_grace` and of the stop grace together."""
    (resource,) = read(path)["resources"]
    template = resource["properties"].get("template", {})
    seconds = (
        template.get("terminationGracePeriodSeconds") or _environment(resource)["WEBSITES_CONTAINER_STOP_TIME_LIMIT"]
    )
    assert timedelta(seconds=int(seconds)) > WorkerSettings().shutdown_grace + STOP_GRACE


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_command_is_one_that_the_image_understands(path: Path) -> None:
    """The image's entry point is `reltask`; every option is one of `reltask worker`."""
    (resource,) = read(path)["resources"]
    properties = resource["properties"]
    given = properties["template"]["containers"][0]["args"] if "template" in properties else None
    words = given or shlex.split(properties["siteConfig"]["appCommandLine"])
    assert words[0] == "worker"
    shown = CliRunner().invoke(cli, ["worker", "--help"]).output
    assert [word for word in words if word.startswith("--") and word not in shown] == []
    if "siteConfig" in properties:  # App Service restarts a container that does not answer on its port
        assert words[-1].endswith(":" + _environment(resource)["WEBSITES_PORT"])
