"""The databases: one folder each, one `.sql` file per verb of `reltask.store`, under the same names."""
