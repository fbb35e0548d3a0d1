#Requires -Version 5.1
#Requires -Modules Az.Accounts, Az.Resources

<#
.SYNOPSIS
    Removes the resource group that Create-AzureResources.ps1 has created, with the server, the database and all its data.

.DESCRIPTION
    It shows what would be removed and asks first. A group that does not carry reltask's tag is refused. A group that does
    not exist is no error, so it can be run again; one that this login may not see looks the same. With -WhatIf it only
    says what it would do; -Confirm:$false does not ask.

.PARAMETER SubscriptionId
    The subscription that the group belongs to.

.PARAMETER ResourceGroupName
    The group to remove.

.EXAMPLE
    ./Remove-AzureResources.ps1 -SubscriptionId 00000000-0000-0000-0000-000000000000
#>
[CmdletBinding(SupportsShouldProcess = $true, ConfirmImpact = 'High')]
param(
    [Parameter(Mandatory = $true)]
    [ValidatePattern('^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$')]
    [string] $SubscriptionId,

    [ValidateNotNullOrEmpty()]
    [string] $ResourceGroupName = 'cristp-reltaskexec'
)

Set-StrictMode -Version Latest
$ErrorActionPreference = 'Stop'

$TagName = 'managed-by'
$TagValue = 'reltask'

if ($null -eq (Get-AzContext)) {
    throw 'You are not logged in to Azure. Run: Connect-AzAccount'
}
# Choosing a subscription changes nothing on Azure: it needs no confirmation, and a dry run needs it.
$null = Set-AzContext -SubscriptionId $SubscriptionId -WhatIf:$false -Confirm:$false

# Groups are listed, because asking for one by its name fails in the same way whether it is missing, the login has
# expired or Azure is busy. Only the first of these is no error.
$group = Get-AzResourceGroup | Where-Object { $_.ResourceGroupName -eq $ResourceGroupName }
if ($null -eq $group) {
    Write-Output "There is no resource group $ResourceGroupName that this login may see. Nothing to remove."
    return
}

$tags = $group.Tags
if ($null -eq $tags -or $tags[$TagName] -ne $TagValue) {
    throw "The resource group $ResourceGroupName is not tagged $TagName=$TagValue, so it was not made for reltask. It is left alone."
}

Write-Output "The resource group $ResourceGroupName holds:"
Get-AzResource -ResourceGroupName $ResourceGroupName | ForEach-Object { Write-Output "  $($_.ResourceType)  $($_.Name)" }

if ($PSCmdlet.ShouldProcess($ResourceGroupName, 'Remove the resource group and all data in it, for good')) {
    $null = Remove-AzResourceGroup -Name $ResourceGroupName -Force -Confirm:$false
    Write-Output "The resource group $ResourceGroupName is removed."
}
