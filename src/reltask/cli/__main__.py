"""`python -m reltask.cli` is `reltask`."""

from reltask.cli import main

main()
