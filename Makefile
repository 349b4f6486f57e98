# Two commands on a bare machine with Python 3.11 and a package index: `make demo` and `make test`.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test test-first test-second test-all bench experiments check lint types clean

demo: .venv/installed
	$(BIN)/pipeplan demo --output demo-out

# Side by side, in halves of about equal length: most tests keep one core busy.
FIRST := tests/properties tests/formulations $(addprefix tests/planner/,io search)
test: .venv/installed-test
	$(MAKE) --no-print-directory -j2 test-first test-second

test-first: .venv/installed-test
	$(BIN)/pytest -m "not slow" $(FIRST)

test-second: .venv/installed-test
	$(BIN)/pytest -m "not slow" $(FIRST:%=--ignore=%)

# All tests, with all of their examples: hours.
test-all: .venv/installed-test
	HYPOTHESIS_PROFILE=whole $(BIN)/pytest

check: .venv/installed-test lint types test

lint: .venv/installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/installed-test
	$(BIN)/mypy

bench: .venv/installed-test
	$(BIN)/python -m benchmarks

# The tables of docs/experiments.md, in about half an hour; stopped, it goes on. Published profiles are used where they lie in PROFILES.
PROFILES ?= ../shared/data/pipedream
experiments: .venv/installed
	$(BIN)/pipeplan sweep headline --data $(PROFILES)
	$(BIN)/python scripts/experiments_page.py sweep-out/headline/table.md docs/experiments.md

clean:
	rm -rf .venv demo-out bench-out sweep-out

.venv/bin/pip:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "pipeplan needs Python 3.11 or newer: make PYTHON=python3.11")'
	$(PYTHON) -m venv .venv

.venv/installed: pyproject.toml | .venv/bin/pip
	$(BIN)/pip install --quiet --editable '.[torch,plot]'
	touch $@

.venv/installed-test: pyproject.toml | .venv/bin/pip
	$(BIN)/pip install --quiet --editable '.[test]'
	touch $@ .venv/installed
