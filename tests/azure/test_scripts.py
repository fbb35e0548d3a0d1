"""The PowerShell scripts, parsed by a PowerShell grammar. Neither PowerShell nor Azure is used."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import tree_sitter
import tree_sitter_powershell

INFRASTRUCTURE = Path(__file__).parents[2] / "infrastructure"
CREATE, REMOVE = "Create-AzureResources.ps1", "Remove-AzureResources.ps1"
LANGUAGE = tree_sitter.Language(tree_sitter_powershell.language())

PARAMETERS = {
    CREATE: {
        "SubscriptionId": None,
        "ResourceGroupName": "'cristp-reltaskexec'",
        "Location": "'west us2'",
        "ServerName": "''",
        "DatabaseName": "'TaskExecutionDb'",
        "SkuName": "'Basic'",
        "ClientIpAddress": "''",
        "DisablePublicAccess": None,
        "AdministratorName": "''",
        "AdministratorObjectId": "''",
        "AdministratorType": "'User'",
    },
    REMOVE: {"SubscriptionId": None, "ResourceGroupName": "'cristp-reltaskexec'"},
}
CMDLETS = {
    "Az.Accounts": {"Get-AzContext", "Set-AzContext"},
    "Az.Resources": {
        "Get-AzADServicePrincipal",
        "Get-AzADUser",
        "Get-AzResource",
        "Get-AzResourceGroup",
        "New-AzResourceGroup",
        "New-AzResourceGroupDeployment",
        "Remove-AzResourceGroup",
        "Set-AzResource",
    },
    "PowerShell": {
        "ForEach-Object",
        "Join-Path",
        "Set-StrictMode",
        "Where-Object",
        "Write-Output",
        "Write-Verbose",
        "Write-Warning",
    },
}
"""Every command that the scripts may use, by its module."""
CHANGES_AZURE = re.compile(r"(New|Set|Remove|Update)-Az(?!Context|ure)")


def source(script: str) -> str:
    return (INFRASTRUCTURE / script).read_text(encoding="utf-8")


def parse(text: str) -> tree_sitter.Node:
    return tree_sitter.Parser(LANGUAGE).parse(text.encode()).root_node


def walk(node: tree_sitter.Node) -> Iterator[tree_sitter.Node]:
    yield node
    for child in node.children:
        yield from walk(child)


def nodes(script: str, kind: str) -> list[str]:
    """The texts of all nodes of a kind."""
    return [(node.text or b"").decode() for node in walk(parse(source(script))) if node.type == kind]


def declared(script: str) -> dict[str, str | None]:
    """The script's own parameters with their defaults."""
    header = source(script).partition("\nparam(\n")[2].partition("\n)\n")[0]
    found = re.findall(r"^    \[(?:string|switch)\] \$(\w+)(?: = ('[^']*'))?,?$", header, re.MULTILINE)
    return {name: value or None for name, value in found}


@pytest.mark.parametrize("script", [CREATE, REMOVE])
def test_syntax(script: str) -> None:
    """The whole script is PowerShell."""
    assert not parse(source(script)).has_error


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("function Get-Administrator {", "function Get-Administrator ("),
        ("if ($null -eq (Get-AzContext)) {", "if ($null -eq (Get-AzContext) {"),
        ("    return $parameters\n}", "    return $parameters\n"),
        ("$deployment = @{", "$deployment = @"),
        ("'Incremental'", "'Incremental"),
    ],
)
def test_broken_script_is_noticed(before: str, after: str) -> None:
    """The grammar rejects a broken script."""
    assert before in source(CREATE)
    assert parse(source(CREATE).replace(before, after)).has_error


@pytest.mark.parametrize("script", [CREATE, REMOVE])
def test_parameters_and_defaults(script: str) -> None:
    """Names and defaults are the required ones; the subscription has none, and must be given."""
    assert declared(script) == PARAMETERS[script]
    mandatory = re.search(
        r"\[Parameter\(Mandatory = \$true\)\]\s+\[Validate[^\n]+\]\s+\[string\] \$(\w+)", source(script)
    )
    assert mandatory is not None
    assert mandatory[1] == "SubscriptionId"


@pytest.mark.parametrize("script", [CREATE, REMOVE])
def test_help_explains_every_parameter(script: str) -> None:
    """`Get-Help` shows each of them, and an example."""
    assert re.findall(r"^\.PARAMETER (\w+)$", source(script), re.MULTILINE) == list(PARAMETERS[script])
    assert {".SYNOPSIS", ".DESCRIPTION", ".EXAMPLE"} <= set(re.findall(r"^\.[A-Z]+", source(script), re.MULTILINE))


@pytest.mark.parametrize("script", [CREATE, REMOVE])
def test_commands_exist(script: str) -> None:
    """Each command is a cmdlet of a module that the script requires, or a function of its own."""
    own = set(nodes(script, "function_name"))
    used = set(nodes(script, "command_name"))
    known = set().union(*CMDLETS.values())
    assert used - own <= known
    assert own <= used
    (required,) = re.findall(r"^#Requires -Modules (.+)$", source(script), re.MULTILINE)
    assert set(required.split(", ")) == {name for name, cmdlets in CMDLETS.items() if cmdlets & used} - {"PowerShell"}


@pytest.mark.parametrize("script", [CREATE, REMOVE])
def test_every_change_of_azure_can_be_declined(script: str) -> None:
    """-WhatIf and -Confirm work: every change of Azure is inside a ShouldProcess."""
    text = source(script)
    assert "[CmdletBinding(SupportsShouldProcess = $true" in text
    changing = [
        line for line in text.splitlines() if CHANGES_AZURE.search(line) and not line.lstrip().startswith(("#", "."))
    ]
    assert changing
    for line in changing:
        before = text[: text.index(line)].splitlines()
        opened = [one for one in before if "$PSCmdlet.ShouldProcess(" in one]
        assert opened
        assert indent(line) > indent(opened[-1])


def indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def test_removal_asks_and_refuses() -> None:
    """Removal shows what it would remove, then asks; a group without the tag is refused before that."""
    text = source(REMOVE)
    assert "ConfirmImpact = 'High'" in text
    order = ["is not tagged", "Get-AzResource ", "$PSCmdlet.ShouldProcess(", "Remove-AzResourceGroup"]
    places = [text.index(one) for one in order]
    assert places == sorted(places)
    assert "Nothing to remove" in text


@pytest.mark.parametrize("script", [CREATE, REMOVE])
def test_only_a_missing_group_is_no_error(script: str) -> None:
    """An expired login or throttling must not look like a missing group: groups are listed."""
    text = source(script)
    assert "SilentlyContinue" not in text
    assert "Get-AzResourceGroup | Where-Object { $_.ResourceGroupName -eq $ResourceGroupName }" in text
    assert not re.search(r"Get-AzResourceGroup\s+-(Name|Id)", text)


def test_foreign_group_is_refused_at_creation_too() -> None:
    """A group that was not made by this script is never tagged; otherwise it could be removed with its content."""
    text = source(CREATE)
    assert text.index("is not tagged") < text.index("New-AzResourceGroup -Name")
    assert "-Tag @{ $TagName = $TagValue }" in text
    for script in (CREATE, REMOVE):
        assert "$TagName = 'managed-by'" in source(script)
        assert "$TagValue = 'reltask'" in source(script)
    template = json.loads((INFRASTRUCTURE / "azure-sql.json").read_text(encoding="utf-8"))
    assert template["variables"]["tags"] == {"managed-by": "reltask"}


def test_script_and_template_fit_together() -> None:
    """The script passes exactly the parameters that the template declares and requires."""
    template = json.loads((INFRASTRUCTURE / "azure-sql.json").read_text(encoding="utf-8"))
    handed = set(re.findall(r"^        (\w+) += \$", source(CREATE), re.MULTILINE)) & set(template["parameters"])
    demanded = {name for name, parameter in template["parameters"].items() if "defaultValue" not in parameter}
    assert demanded <= handed
    assert handed | {"serverName", "location"} == set(template["parameters"])
    (version,) = {one["apiVersion"] for one in template["resources"]}
    assert f"$ApiVersion = '{version}'" in source(CREATE)
    assert "$result.Outputs['connectionUrl'].Value" in source(CREATE)
    assert "'azure-sql.json'" in source(CREATE)
    assert "Mode                    = 'Incremental'" in source(CREATE)


def function(name: str) -> str:
    """The text of one function of the script that creates."""
    (found,) = [one for one in nodes(CREATE, "function_statement") if one.startswith(f"function {name} ")]
    return found


def test_existing_resources_are_left_out_of_the_deployment() -> None:
    """A deployment sets everything it names, so it must not name an existing server or database."""
    handed = function("Get-TemplateParameter")
    assert re.search(r"\$null -ne \$Server\) \{[^}]*\['serverName'\] = \$Server\.Name\n[^}]*\['location'\]", handed)
    assert re.search(r"\$Database -ne ''\) \{[^}]*\['databaseName'\] = \$Database\n[^}]*\['skuName'\] = ''", handed)
    text = source(CREATE)
    assert "$administrator = $Nobody\nif ($null -eq $server) {\n    $administrator = Get-Administrator " in text
    assert "$Nobody = @{ Login = ''; ObjectId = ''; Type = 'User' }" in text
    assert "-ResourceType 'Microsoft.Sql/servers'" in function("Find-Server")
    assert "-ResourceType 'Microsoft.Sql/servers/databases'" in function("Find-Database")


def test_one_of_several_has_to_be_named() -> None:
    """With two servers or two databases, the script does not guess."""
    assert re.search(r"\.Count -gt 1\) \{\s+throw [^\n]*-ServerName", function("Find-Server"))
    assert re.search(r"\.Count -gt 1\) \{\s+throw [^\n]*-DatabaseName", function("Find-Database"))


@pytest.mark.parametrize(
    ("parameter", "change"),
    [
        ("DisablePublicAccess", "-Properties @{ publicNetworkAccess = $access }"),
        ("SkuName", "-Sku @{ name = $SkuName }"),
    ],
)
def test_existing_resources_change_only_on_request(parameter: str, change: str) -> None:
    """A default applies to new resources, and changes no existing one."""
    text = source(CREATE)
    (line,) = [one for one in text.splitlines() if "Set-AzResource " in one and change in one]
    assert "-UsePatchSemantics" in line
    condition = text[: text.index(line)].splitlines()[-2]
    assert f"$Given.ContainsKey('{parameter}')" in condition
    assert "$null -ne $server" in condition or "$database -ne ''" in condition


def test_a_large_database_is_made_small_enough_for_the_basic_tier() -> None:
    """Its limit of 2 GB goes with the tier, or Azure refuses; on another tier nothing is said about the size."""
    (line,) = [one for one in source(CREATE).splitlines() if "-Sku @{ name = $SkuName }" in one]
    assert "-Properties $sizes " in line
    assert "$sizes = @{}\nif ($SkuName -eq 'Basic') {\n    $sizes = @{ maxSizeBytes = 2147483648 }\n}" in source(CREATE)


def test_given_parameters_are_those_of_the_script() -> None:
    """$PSBoundParameters is different inside each function: the script's is kept once, outside of them."""
    (line,) = [one for one in source(CREATE).splitlines() if "$PSBoundParameters" in one]
    assert line == "$Given = $PSBoundParameters"


def test_parameter_with_a_rule_is_not_assigned() -> None:
    """Assigning to a parameter checks its [Validate…] again, which would refuse '' for a tier or a database."""
    names = "|".join(PARAMETERS[CREATE])
    body = source(CREATE).partition("\n)\n")[2]
    assert not re.search(rf"\$({names})\s*=[^=]", body)


def test_administrator_is_found_on_every_kind_of_login() -> None:
    """In Cloud Shell the account is `MSI@…`, and only -SignedIn finds the person; a pipeline is an application."""
    text = function("Get-Administrator")
    order = [
        "-ne 'ServicePrincipal'",
        "Get-AzADUser -SignedIn -ErrorAction Stop",
        "Get-AzADServicePrincipal -App",
        "throw",
    ]
    places = [text.rindex(one) for one in order]
    assert places == sorted(places)
    last = text[places[-1] :]
    assert "-AdministratorName" in last
    assert "-AdministratorObjectId" in last


def test_ends_with_what_to_do_next() -> None:
    """The connection URL, the schema command, and the grant for a managed identity."""
    text = source(CREATE)
    for line in (
        "RELTASK_DATABASE_URL=$Url",
        "reltask migrate --database $Url",
        "CREATE USER [my-worker] FROM EXTERNAL PROVIDER;",
        "CREATE USER [my-worker] WITH SID = 0x..., TYPE = E;",
        "ALTER ROLE reltask_run ADD MEMBER [my-worker];",
    ):
        assert line in text


@pytest.mark.parametrize("script", [CREATE, REMOVE])
def test_no_password_anywhere(script: str) -> None:
    """The scripts ask for, create and print nothing secret."""
    assert not re.search(r"SecureString|\$\w*(password|secret)", source(script), re.IGNORECASE)
