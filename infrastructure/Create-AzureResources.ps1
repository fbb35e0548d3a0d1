#Requires -Version 5.1
#Requires -Modules Az.Accounts, Az.Resources

<#
.SYNOPSIS
    Creates what reltask needs on Azure: a resource group, a SQL server without passwords, and a database.

.DESCRIPTION
    The resources are described by azure-sql.json, beside this script. The server accepts only Microsoft Entra ID; the
    user who runs this becomes its administrator, unless another one is named. TLS 1.2 is the minimum.

    Running it again creates what is missing, so it completes an interrupted run. An existing server and database of the
    group are left as they are, whatever their names, tier, access and administrator. Only parameters that are given
    change them: -SkuName, -DisablePublicAccess (:$false opens the server again) and -ClientIpAddress, whose rule
    replaces the previous one. The group is tagged, so that Remove-AzureResources.ps1 recognizes it. A group of that
    name without the tag is refused.

    Log in first: Connect-AzAccount. With -WhatIf it only says what it would do.

.PARAMETER SubscriptionId
    The subscription that pays.

.PARAMETER ResourceGroupName
    The group that holds everything, and that Remove-AzureResources.ps1 removes.

.PARAMETER Location
    The region of the group and of everything in it.

.PARAMETER ServerName
    Globally unique. Default: the server that the group has, or else reltaskexec- and a suffix that follows from
    subscription and group.

.PARAMETER DatabaseName
    The database that holds reltask's tables. Default: TaskExecutionDb, or else the only one that the server has.

.PARAMETER SkuName
    The tier of the database. Basic has 5 DTU, 2 GB and 30 concurrent workers. Default: an existing database keeps
    its own.

.PARAMETER ClientIpAddress
    An IPv4 address that may connect from outside Azure, for local development. Default: no firewall rule is created.

.PARAMETER DisablePublicAccess
    The server can then be reached only through private endpoints. Default: an existing server stays as it is.

.PARAMETER AdministratorName
    The administrator of a new server, if it is not the user who runs this. Needs AdministratorObjectId, too.

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
$ApiVersion = '2021-11-01'
$Nobody = @{ Login = ''; ObjectId = ''; Type = 'User' }
# The parameters that were given, without defaults. Inside a function that variable is the function's own.
$Given = $PSBoundParameters

function Select-Subscription {
    # Without a login every later command would fail, each in its own words.
    if ($null -eq (Get-AzContext)) {
        throw 'You are not logged in to Azure. Run: Connect-AzAccount'
    }
    # Choosing a subscription changes nothing on Azure, and a dry run needs it.
    return Set-AzContext -SubscriptionId $SubscriptionId -WhatIf:$false
}

function Get-Administrator {
    # The administrator that was named, or the user who is logged in.
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
    throw "No administrator could be found for the server: $reason Name one: -AdministratorName, -AdministratorObjectId and -AdministratorType."
}

function Find-ResourceGroup {
    # The group, or nothing. A group without our tag is refused: it would be removed with everything in it.
    # Groups are listed, because asking for one by its name fails in the same way whether it is missing, the login has
    # expired or Azure is busy.
    $group = Get-AzResourceGroup | Where-Object { $_.ResourceGroupName -eq $ResourceGroupName }
    if ($null -eq $group) {
        return $null
    }
    $tags = $group.Tags
    if ($null -eq $tags -or $tags[$TagName] -ne $TagValue) {
        throw "The resource group $ResourceGroupName exists and is not tagged $TagName=$TagValue. Choose another -ResourceGroupName."
    }
    Write-Verbose "The resource group $ResourceGroupName exists already."
    return $group
}

function Find-Server {
    # The server that the group has already, or nothing: the one that was named, or else the only one.
    $servers = @(Get-AzResource -ResourceGroupName $ResourceGroupName -ResourceType 'Microsoft.Sql/servers')
    if ($ServerName -ne '') {
        $servers = @($servers | Where-Object { $_.Name -eq $ServerName })
    }
    if ($servers.Count -gt 1) {
        throw "The resource group $ResourceGroupName has several SQL servers. Say which one: -ServerName."
    }
    if ($servers.Count -eq 0) {
        return $null
    }
    # A list does not say whether public access is on.
    return Get-AzResource -ResourceId $servers[0].ResourceId -ApiVersion $ApiVersion -ExpandProperties
}

function Find-Database {
    # The name of the database that the server has already, or '': the one that was named, or else the only one.
    param([Parameter(Mandatory = $true)] $Server)

    $databases = @(Get-AzResource -ResourceGroupName $ResourceGroupName -ResourceType 'Microsoft.Sql/servers/databases')
    $names = @($databases |
            Where-Object { $_.ResourceId -like "*/servers/$($Server.Name)/databases/*" } |
            ForEach-Object { ($_.ResourceId -split '/')[-1] } |
            Where-Object { $_ -ne 'master' })
    if ($names -contains $DatabaseName) {
        return $DatabaseName
    }
    if ($names.Count -eq 0 -or $Given.ContainsKey('DatabaseName')) {
        return ''
    }
    if ($names.Count -gt 1) {
        throw "The server $($Server.Name) has several databases, and none is called $DatabaseName. Say which one: -DatabaseName."
    }
    return $names[0]
}

function Get-PublicAccess {
    # What was given, or else what the server has. A new server is open to the addresses that its firewall allows.
    param($Server)

    $open = -not $DisablePublicAccess
    if ($null -ne $Server -and -not $Given.ContainsKey('DisablePublicAccess')) {
        $open = $Server.Properties.publicNetworkAccess -eq 'Enabled'
    }
    if ($open) {
        return 'Enabled'
    }
    return 'Disabled'
}

function Get-TemplateParameter {
    # The parameters of the template. It creates no server without an administrator, and no database without a tier:
    # that is how existing ones stay unchanged. It chooses the name of a new server unless one was given.
    param($Server, [string] $Database, [string] $Access, [hashtable] $Administrator)

    $parameters = @{
        databaseName          = $DatabaseName
        skuName               = $SkuName
        clientIpAddress       = $ClientIpAddress
        publicNetworkAccess   = $Access
        administratorLogin    = $Administrator.Login
        administratorObjectId = $Administrator.ObjectId
        administratorType     = $Administrator.Type
    }
    if ($ServerName -ne '') {
        $parameters['serverName'] = $ServerName
    }
    if ($null -ne $Server) {
        $parameters['serverName'] = $Server.Name
        $parameters['location'] = $Server.Location
    }
    if ($Database -ne '') {
        $parameters['databaseName'] = $Database
        $parameters['skuName'] = ''
    }
    return $parameters
}

function Write-NextStep {
    # What to do next.
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
    Write-Output 'If the administrator is an application without Directory Readers, by its client id as binary(16):'
    Write-Output '  CREATE USER [my-worker] WITH SID = 0x..., TYPE = E;'
    Write-Output ''
    Write-Output 'To remove everything:'
    Write-Output "  ./Remove-AzureResources.ps1 -SubscriptionId $SubscriptionId -ResourceGroupName $ResourceGroupName"
}

$context = Select-Subscription
$group = Find-ResourceGroup
$server = $null
$database = ''
if ($null -ne $group) {
    $server = Find-Server
}
if ($null -ne $server) {
    $database = Find-Database -Server $server
}

$access = Get-PublicAccess -Server $server
if ($access -eq 'Disabled' -and $ClientIpAddress -ne '') {
    throw 'A server without public access has no firewall rules: leave out -ClientIpAddress, or open it with -DisablePublicAccess:$false.'
}

# Azure takes an administrator only with a new server.
$administrator = $Nobody
if ($null -eq $server) {
    $administrator = Get-Administrator -Context $context
}
elseif ($AdministratorName -ne '' -or $AdministratorObjectId -ne '') {
    Write-Warning "The server $($server.Name) exists already and keeps its administrator. To change that: az sql server ad-admin create"
}

if ($null -eq $group) {
    $region = ($Location -replace '\s', '').ToLowerInvariant()
    if ($PSCmdlet.ShouldProcess("$ResourceGroupName in $region", 'Create the resource group')) {
        $null = New-AzResourceGroup -Name $ResourceGroupName -Location $region -Tag @{ $TagName = $TagValue }
    }
}

# A deployment would set everything that the template names; a patch changes one property.
if ($null -ne $server -and $Given.ContainsKey('DisablePublicAccess')) {
    if ($PSCmdlet.ShouldProcess($server.Name, "Set public access to $access")) {
        $null = Set-AzResource -ResourceId $server.ResourceId -Properties @{ publicNetworkAccess = $access } -ApiVersion $ApiVersion -UsePatchSemantics -Force
    }
}
# A database that may grow beyond the 2 GB of the Basic tier is refused there.
$sizes = @{}
if ($SkuName -eq 'Basic') {
    $sizes = @{ maxSizeBytes = 2147483648 }
}
if ($database -ne '' -and $Given.ContainsKey('SkuName')) {
    if ($PSCmdlet.ShouldProcess("$($server.Name)/$database", "Set the tier to $SkuName")) {
        $null = Set-AzResource -ResourceId "$($server.ResourceId)/databases/$database" -Sku @{ name = $SkuName } -Properties $sizes -ApiVersion $ApiVersion -UsePatchSemantics -Force
    }
}

if ($PSCmdlet.ShouldProcess($ResourceGroupName, 'Create what is missing of the SQL server, the database and the firewall rule')) {
    $deployment = @{
        Name                    = 'reltask'
        ResourceGroupName       = $ResourceGroupName
        TemplateFile            = $Template
        TemplateParameterObject = Get-TemplateParameter -Server $server -Database $database -Access $access -Administrator $administrator
        Mode                    = 'Incremental'
    }
    $result = New-AzResourceGroupDeployment @deployment
    Write-NextStep -Url $result.Outputs['connectionUrl'].Value
}
