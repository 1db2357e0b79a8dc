# palestra: everything a developer runs. `make help` lists it.
PYTHON ?= python3
BIN := .venv/bin

# Idle OpenMP threads would otherwise spin and take the cores from parallel tests.
test: export GOMP_SPINCOUNT := 0

.PHONY: help setup quickstart test check bench

help:  ## list the targets
	@grep -E '^[a-z]+:.*## ' Makefile | sed -E 's/^([a-z]+):.*## /\1\t/' | expand -t 14

setup: .venv/.installed  ## make .venv and install palestra in it (PYTHON=python3.12 to choose another)

.venv/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "palestra needs Python 3.11 or newer: make setup PYTHON=/path/to/python3" >&2; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet "$$(grep '^torch==' constraints.txt)"
	$(BIN)/pip install --quiet -c constraints.txt -e '.[train,dev]'
	@touch $@

quickstart: setup  ## train a first agent, from a clone to a report in minutes
	$(BIN)/palestra train quickstart

test: setup  ## run the tests
	$(BIN)/pytest -n 2

check: setup  ## format, lint, types and the gates on structure
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pytest tests/test_architecture.py tests/test_gates.py

bench: setup  ## list the benchmarks, each run as python bench/<name>.py [--quick]
	@for file in bench/*.py; do \
		if [ -f "$$file" ]; then printf '%-32s %s\n' "$$file" "$$(sed -n '1s/^"""//;1s/"""$$//;1p' "$$file")"; fi; \
	done
