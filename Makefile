# Shortcuts for the commands that README.md shows for pip and uv; nothing here does more than they do.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help demo test lint lock clean

help:
	@echo "make demo   run the bundled tasks end to end, without a key or a network"
	@echo "make test   run the test suite"
	@echo "make lint   run ruff and mypy"
	@echo "make lock   lock again what CI installs (UPGRADE=1: newest releases)"
	@echo "make clean  remove $(VENV)/"

$(BIN)/pip:
	@test -x $(BIN)/python || $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "$(PYTHON) is not Python 3.11 or newer; try make PYTHON=python3.12" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@test -x $@ || $(BIN)/python -m ensurepip --default-pip >/dev/null

$(VENV)/.core: $(BIN)/pip pyproject.toml
	$(BIN)/python -m pip install --quiet -e .
	@touch $@

$(VENV)/.dev: $(BIN)/pip pyproject.toml requirements/ci.txt
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements/ci.txt
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
	@touch $@ $(VENV)/.core

demo: $(VENV)/.core
	@$(BIN)/python -m pytest tasks; code=$$?; echo "artifacts: $$(ls -td jobs/*/ 2>/dev/null | head -n 1)"; exit $$code

test: $(VENV)/.dev
	$(BIN)/python -m pytest -n 2

lint: $(VENV)/.dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

lock: $(BIN)/pip
	@test -x $(BIN)/uv || $(BIN)/python -m pip install --quiet uv
	$(BIN)/python requirements/lock.py $(if $(UPGRADE),--upgrade)

clean:
	rm -rf $(VENV)
