"""The databases: one folder each, one `.sql` file per verb of `reltask.stores.store`, under the same names.

PostgreSQL has a plainer statement beside two of them: for one job, and for jobs that do not come again. Many new jobs
reach it by COPY, whose text is the driver's.
"""
