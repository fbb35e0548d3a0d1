"""The databases: one folder each, one `.sql` file per verb, under the same names.

The seam, which the other rooms know:

store             the store interface; it is composed of the parts below, and a part's verbs are in the file
                  of the same name in each database's folder; those of leases and maintenance are in
                  `maintenance.py`, those of waking in `store.py`
audit             what `reltask audit` and `reltask doctor` read
cancel            cancelling jobs
control           pauses of queues and tasks
durable           steps, suspensions, signals and children
keys              unique tasks
limits            limits across all workers
screens           the dashboard's reads, and the log of its actions
waking            signals, and listening for them

What sends them:

choose            makes the store for a URL, and imports its driver
verbs             what a lost answer means, verb by verb
statement         compiles `.sql` files for a driver
settling          settles a refused batch row by row
prune_cutoff      how much of the ledger is surplus, cached
encoded           a store whose payloads a codec encodes
shards            several shards behind the store interface
shard_routes      which way each verb goes there
shard_keys        keys on several shards: where they live, and looking for them on all
shard_connection  a user's connection to a database with several shards
migration         runs the files of `database/`
entra             tokens of Microsoft Entra ID
"""
