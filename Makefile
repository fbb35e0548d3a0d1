# Everything runs in .venv, which the first target that needs it makes. Needed beforehand: make, and Python 3.11 or later.
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
CHECKED := src tests $(wildcard examples benchmarks)

.DEFAULT_GOAL := help
.PHONY: help setup demo test simulate simulate-mutants faults check format lock build clean
MAKEFLAGS += --no-print-directory

help: ## show these lines
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-17s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(READY) ## make .venv and install the locked packages and reltask itself into it

demo: $(READY) ## three workers, one killed, one stopped: watch the others take over
	@$(BIN)/reltask demo $(ARGS)

test: $(READY) ## run every test, on SQLite and on a real PostgreSQL
	@$(BIN)/python -m pytest -q --numprocesses 2 --dist loadscope $(ARGS)

simulate: $(READY) ## run SEEDS simulated histories with faults, from seed FROM on
	@$(BIN)/python -m tests.simulation.run --seeds $(SEEDS) --from $(FROM)

simulate-mutants: $(READY) ## see the simulation catch deliberately broken variants
	@$(BIN)/python -m tests.simulation.mutants $(ARGS)

faults: $(READY) ## kill, pause, cut off and crash real processes; renews the table in docs/promises.md
	@$(BIN)/python -m tests.faults $(ARGS)

check: $(READY) ## lint, formatting, types and layers; changes nothing
	@$(BIN)/ruff check --quiet --output-format concise .
	@$(BIN)/ruff format --check --quiet . || { echo "Run: make format"; exit 1; }
	@$(BIN)/mypy --no-error-summary $(CHECKED)
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/python -m pytest -q --no-header tests/unit/test_tree.py

format: $(READY) ## format, and mend what the linter can mend
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format .

lock: $(READY) ## renew requirements-dev.txt from pyproject.toml
	@$(PIP) install uv
	@$(BIN)/uv pip compile pyproject.toml --all-extras --group dev --no-emit-package reltask --universal --python-version 3.11 \
	  --upgrade --generate-hashes --no-header --no-annotate --no-emit-index-url --quiet --output-file requirements-dev.txt

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

# The stamp lives in the environment, so that removing the one removes the other.
$(READY): requirements-dev.txt pyproject.toml | $(BIN)/python
	@echo "Installing the locked packages into $(VENV)"
	@$(PIP) install --require-hashes --requirement requirements-dev.txt
	@$(PIP) install --no-deps --no-build-isolation --editable .
	@touch $@
