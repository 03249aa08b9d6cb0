# Everything a user does, one target each. CI calls the same targets.
.DEFAULT_GOAL := help
.SHELLFLAGS := -eu -o pipefail -c
SHELL := /bin/bash

PYTHON ?= $(shell command -v python3.11 || command -v python3)
SPEC ?= demo
DATA ?=
RUNS ?= runs
VENV := .venv
# Threads that spin at barriers steal the cores of whoever shares them.
export OMP_WAIT_POLICY ?= PASSIVE
BIN := $(VENV)/bin
READY := $(VENV)/.ready-run
READY_TEST := $(VENV)/.ready-test

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

run: $(READY) ## set up, then run a spec's whole pipeline here: make run [SPEC=demo|kuairand|criteo|path.yaml] [DATA=path]
	@$(BIN)/shortlist run $(SPEC) $(if $(DATA),--data $(DATA)) --runs $(RUNS)

test: $(READY_TEST) check ## set up, then pass every test, the linters and the walls
	@$(BIN)/pytest

check: $(READY_TEST) ## lint, types, import walls, compiled pipelines up to date
	@$(BIN)/ruff check -q . && $(BIN)/ruff format -q --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache > $(VENV)/lint-imports.log || { cat $(VENV)/lint-imports.log; exit 1; }
	@$(BIN)/shortlist compile --check

compile: $(READY) ## write pipelines/compiled/*.yaml from the pipelines' Python
	@$(BIN)/shortlist compile

promote: $(READY) ## make the newest blessed candidate of SPEC the champion
	@$(BIN)/shortlist promote $(SPEC) --runs $(RUNS)

ui: $(READY) ## open MLflow on http://127.0.0.1:5000 with every run made here
	@$(BIN)/shortlist ui --runs $(RUNS)

bench-memory: $(READY) ## peak memory of ingest, features and loader at one and at ten times the rows
	@$(BIN)/python benchmarks/memory.py

setup: $(READY) ## only set up

clean: ## delete all runs, models and stores made here (the log you gave is never touched)
	rm -rf $(RUNS)

# --- set-up: once, quiet, skipped when up to date -----------------------------------------------------------------

define install
	@echo "  installing $(1) (log: $(VENV)/setup.log)"
	@$(BIN)/python -m pip install --disable-pip-version-check --no-input $(2) >> $(VENV)/setup.log 2>&1 \
	  || { tail -n 15 $(VENV)/setup.log; echo "Set-up failed: see $(VENV)/setup.log, then run make again."; exit 1; }
endef

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2> /dev/null \
	  || { echo "Shortlist needs Python 3.11 (tried: $(or $(PYTHON),nothing found)). Point to it: make run PYTHON=/path/to/python3.11"; exit 1; }
	@echo "Setting up $(VENV) (once, about three minutes)"
	@$(PYTHON) -m venv $(VENV)

$(READY): requirements/run.txt pyproject.toml | $(BIN)/python
	$(call install,torch,$(shell grep -m1 '^torch==' requirements/run.txt))
	$(call install,the other packages,-r requirements/run.txt)
	$(call install,shortlist,--no-deps --no-build-isolation -e .)
	@touch $@

$(READY_TEST): requirements/test.txt $(READY)
	$(call install,test tools,-r requirements/test.txt)
	@touch $@

.PHONY: help run test check compile promote ui bench-memory setup clean
