# Two commands on a bare machine with Python 3.11 and a package index: `make demo` and `make test`.
PYTHON ?= python3
# The torch version to install; pip refuses those that pyproject.toml does not allow
TORCH ?= 2.13.0
BIN := .venv/bin
INSTALLED := .venv/installed-$(TORCH)

# What tests start, some hundred processes, finds modules compiled.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-first test-second test-third slow test-all bench experiments docs docs-pictures check lint types clean

demo: $(INSTALLED)
	$(BIN)/pipeplan demo --output demo-out

# Side by side, in parts of about equal length: most tests keep one core busy, and some wait for processes.
WHICH := not slow
FIRST := tests/properties tests/formulations $(addprefix tests/planner/,baselines fpga schedules)
SECOND := tests/distributed tests/executor tests/planner/search
test: $(INSTALLED)-test
	$(MAKE) --no-print-directory -j3 test-first test-second test-third

test-first: $(INSTALLED)-test
	$(BIN)/pytest -m "$(WHICH)" $(FIRST)

test-second: $(INSTALLED)-test
	$(BIN)/pytest -m "$(WHICH)" $(SECOND)

test-third: $(INSTALLED)-test
	$(BIN)/pytest -m "$(WHICH)" $(FIRST:%=--ignore=%) $(SECOND:%=--ignore=%)

# The slow tests alone, in the same parts.
slow: $(INSTALLED)-test
	$(MAKE) --no-print-directory -j3 WHICH=slow test-first test-second test-third

# All tests, with all of their examples: hours.
test-all: $(INSTALLED)-test
	HYPOTHESIS_PROFILE=whole $(BIN)/pytest

check: $(INSTALLED)-test lint types test

lint: $(INSTALLED)-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(INSTALLED)-test
	$(BIN)/mypy

bench: $(INSTALLED)-test
	$(BIN)/python -m benchmarks

# The tables of docs/experiments.md, in five to thirty minutes; stopped, it goes on. Published profiles are used where they lie in PROFILES.
PROFILES ?= ../shared/data/pipedream
experiments: $(INSTALLED)
	$(BIN)/pipeplan sweep headline --data $(PROFILES)
	$(BIN)/python scripts/experiments_page.py sweep-out/headline/table.md docs/experiments.md README.md

# The site, in docs/_build/html.
docs: $(INSTALLED)-docs
	$(BIN)/python scripts/site.py

# Pictures of the README and the pages, by the commands that stand beside them.
docs-pictures: $(INSTALLED)
	$(BIN)/python scripts/shown.py --pictures

clean:
	rm -rf .venv demo-out bench-out sweep-out docs/_build

.venv/bin/pip:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "pipeplan needs Python 3.11 or newer: make PYTHON=python3.11")'
	$(PYTHON) -m venv .venv

$(INSTALLED): pyproject.toml | .venv/bin/pip
	rm -f .venv/installed*
	$(BIN)/pip install --quiet torch==$(TORCH) --editable '.[torch,plot,report]'
	touch $@

$(INSTALLED)-test: pyproject.toml | .venv/bin/pip
	rm -f .venv/installed*
	$(BIN)/pip install --quiet torch==$(TORCH) --editable '.[test]'
	touch $(INSTALLED) $@

$(INSTALLED)-docs: pyproject.toml | $(INSTALLED)
	$(BIN)/pip install --quiet --editable '.[docs]'
	touch $@
