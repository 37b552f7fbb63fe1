# `make setup` is what every other target needs; it is done once, and again when pyproject.toml changes.
SHELL := /bin/bash
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: setup demo test test-full lint format clean
setup: $(STAMP)

$(STAMP): pyproject.toml scripts/setup.sh
	PYTHON=$(PYTHON) VENV=$(VENV) bash scripts/setup.sh
	touch $@

demo: setup
	$(BIN)/rolecast demo

test: setup
	$(BIN)/python -m pytest -m "not slow" --durations=8

test-full: setup
	$(BIN)/python -m pytest --durations=15

lint: setup
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

format: setup
	$(BIN)/ruff check --fix . ; $(BIN)/ruff format .

clean:
	rm -rf runs .pytest_cache .mypy_cache .ruff_cache
