"""Values and rules: no I/O, no await. Time arrives as an argument.

job             jobs, claims and runs as values, and the table of their transitions
task            what a decorated function is
arguments       a job's arguments as JSON
surroundings    headers, context variables and middleware around runs
schedule        when the next slot is
cron            cron expressions: from wall times in a zone to instants
preview         when a schedule fires next, for people
backoff         when a failed run is tried again
pace            until when a holder may trust its lock
clock           time as a dependency
duration        durations as users write them
durable         durable functions: steps, suspensions, signals and children
limit           limits across all workers
control         pauses of queues and tasks
lease           leases: what is asked of the database, and what it answers
shards          on which shard a job lives
merged          what several shards report, as one system reports it
codec           payloads that only the app can read
keys            keys made from arguments, of unique tasks and of limits
hidden          values that no view shows
escape          hostile text made harmless
views           rows as users are shown them
screens         rows of the dashboard's lists
overview        what the first screen shows
problems        what is wrong, in sentences
waiting         why a job is not running
audit           findings of `reltask audit`
doctor          findings of `reltask doctor`
metrics         sums of the counts by minute and task
settings        what can be configured; `config` reads it
connection_url  database URLs, and how to show one without its secrets
schema_name     the schema of the tables, and which names are allowed
"""
