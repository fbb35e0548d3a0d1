"""reltask's tables, as Django's migrations."""
