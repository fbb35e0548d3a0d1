"""What monitoring systems get of reltask; each needs an extra, and nothing here is imported until it is asked for.

prometheus.py      counts of one worker's runs; gauges of what the database knows
opentelemetry.py   one trace from the request that enqueued a job to its last step
"""
