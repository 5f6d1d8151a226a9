# One command per habit. Each sets up what is missing first (scripts/setup.sh; nothing to do takes 0.1 s).
SHELL := /bin/bash
.DEFAULT_GOAL := help

CONFIG ?= # default: serve_config.yaml, on the GPU stack configs/toy-gpu.yaml
VENV ?= .venv
PY := $(VENV)/bin/python
PYTEST := $(PY) -m pytest
SOURCES := app deployments policies $(wildcard tiny_models toy_model training)
export VENV STACK PYTHON

.PHONY: help setup serve test test-full test-gpu check bench bench-graphs bench-cpu lock clean

help: ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 18

setup: ## make .venv from the lock file (STACK=cpu|gpu, PYTHON=...; chosen for you otherwise)
	@scripts/setup.sh

serve: setup ## start the app in the foreground on 127.0.0.1:8000 (CONFIG=configs/NAME.yaml)
	@exec $(PY) -m app.serve $(CONFIG)

test: setup ## every test that needs no GPU and is not long
	$(PYTEST) -m "not gpu and not full" $(ARGS)

test-full: setup ## those and the long ones: soaks, every chaos case, all dtypes
	$(PYTEST) -m "not gpu" --timeout 3600 $(ARGS)

test-gpu: setup ## the tests that need an NVIDIA GPU
	$(PYTEST) -m gpu --timeout 1800 $(ARGS)

check: setup ## ruff and mypy
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy $(SOURCES)

bench: setup ## GraphServe beside undivided vLLM on one NVIDIA GPU of 140 GB
	$(PY) -m benchmarks.serving $(ARGS)

bench-graphs: setup ## the encoders alone, eager and in graphs, needs an NVIDIA GPU
	$(PY) -m benchmarks.encoder_graphs $(ARGS)

bench-cpu: setup ## the benchmarks that run anywhere
	$(PY) -m benchmarks.cpu $(ARGS)

lock: ## compile requirements/*.in into the lock files (needs uv)
	@scripts/lock.sh $(ARGS)

clean: ## remove .venv and every cache
	rm -rf $(VENV) .cache .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info
	find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +
