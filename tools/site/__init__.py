"""The documentation site: `make docs` builds it into build/site.

README, docs, examples ──stage──► build/pages ──zensical──► build/site ──check──► every link and anchor exists,
docstrings, errors.md ─────────►                                                  nothing is fetched from elsewhere
"""
