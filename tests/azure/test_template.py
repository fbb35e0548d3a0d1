"""The ARM template: its structure, its rules, and the required names. Azure itself is not used."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

TEMPLATE = Path(__file__).parents[2] / "infrastructure/azure-sql.json"
FUNCTIONS = {
    "and",
    "concat",
    "empty",
    "equals",
    "not",
    "parameters",
    "reference",
    "resourceGroup",
    "resourceId",
    "subscription",
    "uniqueString",
    "variables",
}
"""The template functions that this template may use."""


def template() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(TEMPLATE.read_text(encoding="utf-8"))
    return found


def resource(kind: str) -> dict[str, Any]:
    (found,) = [one for one in template()["resources"] if one["type"] == kind]
    return dict(found)


def texts(value: Any) -> Iterator[str]:
    """Every text inside a value."""
    if isinstance(value, str):
        yield value
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for child in children:
        yield from texts(child)


def expressions() -> list[str]:
    return [text[1:-1] for text in texts(template()) if text.startswith("[") and text.endswith("]")]


def default(name: str) -> Any:
    return template()["parameters"][name].get("defaultValue")


def test_names_and_defaults() -> None:
    """The names of the requirements are the defaults."""
    assert default("databaseName") == "TaskExecutionDb"
    assert default("skuName") == "Basic"
    assert default("serverName") == "[concat('reltaskexec-', uniqueString(resourceGroup().id))]"
    assert default("location") == "[resourceGroup().location]"
    assert default("clientIpAddress") == ""
    assert default("publicNetworkAccess") == "Enabled"


def test_every_parameter_has_a_default_and_none_is_a_password() -> None:
    """A new server needs its administrator, an existing one nothing; no parameter is a password."""
    parameters = template()["parameters"]
    assert [name for name in parameters if default(name) is None] == []
    assert default("administratorLogin") == default("administratorObjectId") == ""
    assert not any("minLength" in parameter for parameter in parameters.values())
    assert not re.search(
        "password|secret|securestring",
        TEMPLATE.read_text(encoding="utf-8").partition("metadata")[2].replace("no passwords", ""),
        re.IGNORECASE,
    )
    assert all(parameter["metadata"]["description"] for parameter in parameters.values())


def test_server_knows_entra_alone() -> None:
    """No SQL login can exist on the server; TLS 1.2 is the minimum."""
    properties = resource("Microsoft.Sql/servers")["properties"]
    assert properties["administrators"]["azureADOnlyAuthentication"] is True
    assert properties["administrators"]["administratorType"] == "ActiveDirectory"
    assert properties["administrators"]["sid"] == "[parameters('administratorObjectId')]"
    assert properties["minimalTlsVersion"] == "1.2"
    assert not {"administratorLogin", "administratorLoginPassword"} & properties.keys()


@pytest.mark.parametrize(
    ("kind", "parameter"),
    [("Microsoft.Sql/servers", "administratorLogin"), ("Microsoft.Sql/servers/databases", "skuName")],
)
def test_existing_resources_can_be_left_alone(kind: str, parameter: str) -> None:
    """A deployment would reset tier, access and administrator: without a value nothing is deployed."""
    assert resource(kind)["condition"] == f"[not(empty(parameters('{parameter}')))]"
    assert "as it is" in template()["parameters"][parameter]["metadata"]["description"]


def test_output_does_not_need_the_server_to_be_deployed() -> None:
    """`reference` finds a resource outside this deployment only if it is given the API version."""
    version = resource("Microsoft.Sql/servers")["apiVersion"]
    server = "resourceId('Microsoft.Sql/servers', parameters('serverName'))"
    assert f"reference({server}, '{version}')" in template()["outputs"]["connectionUrl"]["value"]


def test_firewall_opens_for_one_address_and_only_on_request() -> None:
    """No rule without an address, none on a server without public access, and never a range."""
    rule = resource("Microsoft.Sql/servers/firewallRules")
    assert rule["condition"] == "[variables('opensFirewall')]"
    opens = template()["variables"]["opensFirewall"]
    assert "publicNetworkAccess'), 'Enabled'" in opens
    assert "not(empty(parameters('clientIpAddress')))" in opens
    assert set(rule["properties"].values()) == {"[parameters('clientIpAddress')]"}


def test_order_and_tags() -> None:
    """Resources on the server depend on it, and every resource that can have tags has them."""
    server = "[resourceId('Microsoft.Sql/servers', parameters('serverName'))]"
    for one in template()["resources"]:
        if one["type"] != "Microsoft.Sql/servers":
            assert one["dependsOn"] == [server]
            assert one["name"].startswith("[concat(parameters('serverName'), '/")
        if "location" in one:
            assert one["tags"] == "[variables('tags')]"
    assert template()["variables"]["tags"] == {"managed-by": "reltask"}


def test_every_resource_names_its_api() -> None:
    """Each resource names the version of Azure's API that it was written for."""
    versions = {one["apiVersion"] for one in template()["resources"]}
    assert len(versions) == 1
    assert re.fullmatch(r"20\d\d-\d\d-\d\d", versions.pop())


def test_what_is_named_is_declared_and_what_is_declared_is_used() -> None:
    """Only Azure would notice a misspelt parameter otherwise."""
    written = " ".join(expressions())
    for section in ("parameters", "variables"):
        assert set(re.findall(rf"{section}\('(\w+)'\)", written)) == set(template()[section])


@pytest.mark.parametrize("expression", expressions())
def test_expression_is_well_formed(expression: str) -> None:
    """Brackets and quotes are closed, and every function exists."""
    bare = re.sub(r"'[^']*'", "", expression)
    assert "'" not in bare
    depth = 0
    for sign in bare:
        depth += {"(": 1, ")": -1}.get(sign, 0)
        assert depth >= 0
    assert depth == 0
    assert set(re.findall(r"(\w+)\(", bare)) <= FUNCTIONS


def test_output_is_a_url_without_a_secret() -> None:
    """It ends in the value for `RELTASK_DATABASE_URL`."""
    value = template()["outputs"]["connectionUrl"]["value"]
    assert value.startswith("[concat('mssql://', reference(")
    assert value.endswith(".fullyQualifiedDomainName, '/', parameters('databaseName'))]")
