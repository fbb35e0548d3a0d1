"""The databases: one folder each, one `.sql` file per verb of `reltask.stores.store`, under the same names.

PostgreSQL has two more, simpler statements: to enqueue a single job, and to complete one-off jobs. It inserts large
batches by COPY, whose text the driver makes.
"""
