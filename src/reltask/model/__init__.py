"""Values and rules: no I/O, no await. Time arrives as an argument.

job, views, lease      rows as values: what the stores take and return, and what users are shown
schedule, cron         when the next slot is
backoff                when a failed run is tried again
pace                   until when a holder may trust its lock
clock, duration        time, and durations as users write them
task, arguments        what a decorated function is, and its arguments as JSON
surroundings           headers, context variables and middleware around runs
codec, keys, hidden    payloads that only the app can read, keys made from them, and what no view shows
settings               what can be configured; `config` reads it
audit, doctor, metrics findings about a database, computed from what the stores read
connection_url         database URLs, and how to show one without its secrets
"""
