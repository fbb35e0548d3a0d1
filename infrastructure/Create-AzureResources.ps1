#Requires -Version 5.1
#Requires -Modules Az.Accounts, Az.Resources

<#
.SYNOPSIS
    Creates what reltask needs on Azure: a resource group, a SQL server without passwords, and a database.

.DESCRIPTION
    The resources are described by azure-sql.json, beside this script. The server knows Microsoft Entra ID alone; whoever
    runs this becomes its administrator, unless another one is named. TLS 1.2 is the least.

    Running it again changes nothing that is there already, and goes on where an interrupted run ended: the group, the
    server and the database keep their names. The group is tagged, so that Remove-AzureResources.ps1 knows it. A group
    of that name which somebody else has made is refused.

    Log in first: Connect-AzAccount. With -WhatIf it only says what it would do.

.PARAMETER SubscriptionId
    The subscription that pays.

.PARAMETER ResourceGroupName
    The group that holds everything, and that Remove-AzureResources.ps1 removes.

.PARAMETER Location
    The region of the group and of all that is in it.

.PARAMETER ServerName
    Unique in the whole world. Left out: reltaskexec- and a suffix that follows from subscription and group.

.PARAMETER DatabaseName
    The database that holds reltask's tables.

.PARAMETER SkuName
    The tier of the database. Basic has 5 DTU, 2 GB and 30 concurrent workers.

.PARAMETER ClientIpAddress
    An IPv4 address that may connect from outside Azure, for local development. Left out: no firewall rule is made.

.PARAMETER DisablePublicAccess
    The server can then be reached through private endpoints alone.

.PARAMETER AdministratorName
    The server's administrator, where it is not the one who runs this. Wants AdministratorObjectId, too.

.PARAMETER AdministratorObjectId
    The object id of that administrator; of an application: its application id.

.PARAMETER AdministratorType
    User, Group or Application.

.EXAMPLE
    ./Create-AzureResources.ps1 -SubscriptionId 00000000-0000-0000-0000-000000000000 -ClientIpAddress 203.0.113.7
#>
[CmdletBinding(SupportsShouldProcess = $true)]
param(
    [Parameter(Mandatory = $true)]
    [ValidatePattern('^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$')]
    [string] $SubscriptionId,

    [ValidateNotNullOrEmpty()]
    [string] $ResourceGroupName = 'cristp-reltaskexec',

    [ValidateNotNullOrEmpty()]
    [string] $Location = 'west us2',

    [ValidatePattern('^([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)?$')]
    [string] $ServerName = '',

    [ValidateNotNullOrEmpty()]
    [string] $DatabaseName = 'TaskExecutionDb',

    [ValidateNotNullOrEmpty()]
    [string] $SkuName = 'Basic',

    [ValidatePattern('^(\d{1,3}(\.\d{1,3}){3})?$')]
    [string] $ClientIpAddress = '',

    [switch] $DisablePublicAccess,

    [string] $AdministratorName = '',

    [ValidatePattern('^([0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12})?$')]
    [string] $AdministratorObjectId = '',

    [ValidateSet('User', 'Group', 'Application')]
    [string] $AdministratorType = 'User'
)

Set-StrictMode -Version Latest
$ErrorActionPreference = 'Stop'

$TagName = 'managed-by'
$TagValue = 'reltask'
$Template = Join-Path -Path $PSScriptRoot -ChildPath 'azure-sql.json'

function Select-Subscription {
    # Without a login every later command would fail, each in its own words.
    if ($null -eq (Get-AzContext)) {
        throw 'You are not logged in to Azure. Run: Connect-AzAccount'
    }
    # Choosing a subscription changes nothing on Azure, and a dry run needs it.
    return Set-AzContext -SubscriptionId $SubscriptionId -WhatIf:$false
}

function Get-Administrator {
    # The administrator that was named, or whoever is logged in.
    param([Parameter(Mandatory = $true)] $Context)

    if ($AdministratorName -ne '' -or $AdministratorObjectId -ne '') {
        if ($AdministratorName -eq '' -or $AdministratorObjectId -eq '') {
            throw 'An administrator needs both -AdministratorName and -AdministratorObjectId.'
        }
        return @{ Login = $AdministratorName; ObjectId = $AdministratorObjectId; Type = $AdministratorType }
    }
    # Functions of a module do not see this script's $ErrorActionPreference.
    $reason = 'the directory knows neither a user nor an application of this login.'
    try {
        if ($Context.Account.Type -ne 'ServicePrincipal') {
            # Not by the account's name: in Cloud Shell that is MSI@ and a port, for every person.
            $user = Get-AzADUser -SignedIn -ErrorAction Stop
            if ($null -ne $user) {
                return @{ Login = $user.UserPrincipalName; ObjectId = $user.Id; Type = 'User' }
            }
        }
    }
    catch {
        $reason = $_.Exception.Message
    }
    # An application: also one with a federated login, and a managed identity that was chosen by its client id.
    try {
        if ($Context.Account.Id -match '^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$') {
            $application = Get-AzADServicePrincipal -ApplicationId $Context.Account.Id -ErrorAction Stop
            if ($null -ne $application) {
                return @{ Login = $application.DisplayName; ObjectId = $application.AppId; Type = 'Application' }
            }
        }
    }
    catch {
        $reason = $_.Exception.Message
    }
    throw "Nobody could be found to become the server's administrator: $reason Name one: -AdministratorName, -AdministratorObjectId and -AdministratorType."
}

function Confirm-ResourceGroup {
    # Makes the group unless it is there. One that is not ours is left alone: it would be removed with all that is in it.
    # Groups are listed, because asking for one by its name fails in the same way whether it is missing, the login has
    # expired or Azure is busy.
    $group = Get-AzResourceGroup | Where-Object { $_.ResourceGroupName -eq $ResourceGroupName }
    if ($null -ne $group) {
        $tags = $group.Tags
        if ($null -eq $tags -or $tags[$TagName] -ne $TagValue) {
            throw "The resource group $ResourceGroupName exists and is not tagged $TagName=$TagValue. Choose another -ResourceGroupName."
        }
        Write-Verbose "The resource group $ResourceGroupName is there already."
        return
    }
    $region = ($Location -replace '\s', '').ToLowerInvariant()
    if ($PSCmdlet.ShouldProcess("$ResourceGroupName in $region", 'Create the resource group')) {
        $null = New-AzResourceGroup -Name $ResourceGroupName -Location $region -Tag @{ $TagName = $TagValue }
    }
}

function Get-TemplateParameter {
    # What the template is given. The server's name is left to the template unless one was asked for.
    param([Parameter(Mandatory = $true)] [hashtable] $Administrator)

    $access = 'Enabled'
    if ($DisablePublicAccess) {
        $access = 'Disabled'
    }
    $parameters = @{
        databaseName          = $DatabaseName
        skuName               = $SkuName
        clientIpAddress       = $ClientIpAddress
        publicNetworkAccess   = $access
        administratorLogin    = $Administrator.Login
        administratorObjectId = $Administrator.ObjectId
        administratorType     = $Administrator.Type
    }
    if ($ServerName -ne '') {
        $parameters['serverName'] = $ServerName
    }
    return $parameters
}

function Write-NextStep {
    # What to do with what is there now.
    param([Parameter(Mandatory = $true)] [string] $Url)

    Write-Output ''
    Write-Output 'Connection URL, without any secret in it:'
    Write-Output "  RELTASK_DATABASE_URL=$Url"
    Write-Output ''
    Write-Output 'Schema, once, as the administrator (az login, or Connect-AzAccount):'
    Write-Output "  reltask migrate --database $Url"
    Write-Output '  then run database/mssql/permissions.sql in the database, in any SQL tool'
    Write-Output ''
    Write-Output 'Grant for a managed identity, in the database, by the name of the identity:'
    Write-Output '  CREATE USER [my-worker] FROM EXTERNAL PROVIDER;'
    Write-Output '  ALTER ROLE reltask_run ADD MEMBER [my-worker];'
    Write-Output ''
    Write-Output 'Removal of all of it:'
    Write-Output "  ./Remove-AzureResources.ps1 -SubscriptionId $SubscriptionId -ResourceGroupName $ResourceGroupName"
}

if ($DisablePublicAccess -and $ClientIpAddress -ne '') {
    throw 'A server without public access has no firewall rules: leave out -ClientIpAddress or -DisablePublicAccess.'
}

$context = Select-Subscription
$administrator = Get-Administrator -Context $context
Confirm-ResourceGroup

if ($PSCmdlet.ShouldProcess("$ResourceGroupName, administrator $($administrator.Login)", 'Create the SQL server and the database')) {
    $deployment = @{
        Name                    = 'reltask'
        ResourceGroupName       = $ResourceGroupName
        TemplateFile            = $Template
        TemplateParameterObject = Get-TemplateParameter -Administrator $administrator
        Mode                    = 'Incremental'
    }
    $result = New-AzResourceGroupDeployment @deployment
    Write-NextStep -Url $result.Outputs['connectionUrl'].Value
}
