# Everything a user does, one target each. CI calls the same targets.
.DEFAULT_GOAL := help
.SHELLFLAGS := -eu -o pipefail -c
SHELL := /bin/bash

# The set-up looks for a Python that fits; PYTHON=/path/to/python3.11 names one. TORCH=pip|uv|cuda: one way to get torch.
PYTHON ?=
TORCH ?=
export PYTHON TORCH
SPEC ?= demo
DATA ?=
RUNS ?= runs
PORT ?= 0
# Values to use instead of the spec's: SET="models.xgboost.max_depth=4 gates.min_auc=0.6"; text with spaces in quotes,
# elements of lists by position or name: SET='features.item_rate.prior=50 data.clock.format="%d/%m/%Y %H:%M"'
SET ?=
export SET
# Where stores are: PROFILE=cluster OBJECTS=s3://bucket/prefix, their addresses in the environment (docs/adr/0031).
PROFILE ?=
OBJECTS ?=
# What serves: TARGET=stack (this machine) or TARGET=cluster (KServe); by default what the spec says (runtime.target).
TARGET ?=
ON_TARGET = $(if $(TARGET),--target $(TARGET))
# How often make watch runs: 15m, 1h; once by default.
EVERY ?=
# A cluster's Kubeflow Pipelines, e.g. after kubectl port-forward: HOST=http://127.0.0.1:8888; and a registry to push to.
HOST ?=
REGISTRY ?=
# AGAIN=2 starts a second run of the same; UNREAD=1: this machine may not read DATA; DRY_RUN=1: only say what would be done.
AGAIN ?=
UNREAD ?=
DRY_RUN ?=
# Processes of make test: as many as there are cores; the servers of some tests run beside them.
WORKERS ?= $(shell getconf _NPROCESSORS_ONLN)
# YES=1: make init asks nothing.
YES ?=
# make bench: one benchmark, and its options.
NAME ?=
OPTIONS ?=
# make tune: one model, and how long it is searched.
MODEL ?=
MINUTES ?=
TRIALS ?=
# Of the cluster that make test-cluster tries: said with the command, never taken from the environment.
NAMED_CLUSTER = $(if $(findstring command,$(origin KUBECONFIG)),$(KUBECONFIG))
ON_CLUSTER = "$(SPEC)" $(if $(HOST),--host $(HOST)) $(if $(DATA),--data "$(DATA)") $(if $(SET),--set "$$SET") \
  $(if $(DRY_RUN),--dry-run) --runs "$(RUNS)"
VENV := .venv
# Triton's own: its Python backend needs numpy 1, Feast needs numpy 2.
TRITON_VENV := .venv-triton
# Threads that spin at barriers steal the cores of whoever shares them.
export OMP_WAIT_POLICY ?= PASSIVE
# A run is some twenty processes; each would compile our modules anew, 0.1 to 0.3 s of its start.
unexport PYTHONDONTWRITEBYTECODE
# The project's own folders are imported from here; only the framework is installed.
export PYTHONPATH := $(CURDIR)$(if $(PYTHONPATH),:$(PYTHONPATH))
BIN := $(VENV)/bin
RULES := deploy/monitoring/alert_rules.yaml
READY := $(VENV)/.ready-run
READY_TEST := $(VENV)/.ready-test
READY_CLUSTER := $(VENV)/.ready-cluster
READY_CATBOOST := $(VENV)/.ready-catboost
READY_GPU := $(VENV)/.ready-gpu
READY_TRITON := $(TRITON_VENV)/.ready
# The site's own: nothing that runs needs its generator.
DOCS_VENV := .venv-docs
READY_DOCS := $(DOCS_VENV)/.ready
# Node's: axe-core and what drives Chromium.
PAGES_ENV := .venv-pages
READY_PAGES := $(PAGES_ENV)/.ready

COMMAND ?= make run

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

run: $(READY) $(READY_TRITON) $(if $(filter cluster,$(PROFILE)),$(READY_CLUSTER)) ## set up, then run a spec's whole pipeline here: make run [SPEC=demo|kuairand|criteo|path.yaml] [DATA=path] [SET=key=value] [PROFILE=cluster OBJECTS=s3://bucket/prefix] [ROLLOUT=no]
	@$(BIN)/shortlist run "$(SPEC)" $(if $(DATA),--data "$(DATA)") $(if $(SET),--set "$$SET") \
	  $(if $(PROFILE),--profile $(PROFILE)) $(if $(OBJECTS),--objects $(OBJECTS)) \
  $(if $(filter no,$(ROLLOUT)),--no-rollout) --runs "$(RUNS)"

init: $(READY) ## look at a log and write a first spec for it: make init DATA=path [SPEC=mine.yaml] [YES=1]
	@$(BIN)/shortlist init "$(DATA)" $(if $(filter-out demo,$(SPEC)),--out "$(SPEC)") $(if $(YES),--yes)

# The linters run beside the tests, and either fails the target: one run says all that is wrong.
test: $(READY_TEST) $(READY_TRITON) ## set up, then pass the linters, the import contracts and the tests (ten minutes on 2 cores) [WORKERS=2]
	@$(MAKE) --no-print-directory --jobs 2 tests lint

# Several processes share the cores, so each computes with one thread: a sixth less processor time. What a user runs has
# all threads.
tests test-long: export OMP_NUM_THREADS = 1
tests test-long: export POLARS_MAX_THREADS = 1
tests: $(READY_TEST) $(READY_TRITON)
	@$(call run_tests,-m "not gpu and not long and not browser",4)

# Tests kill servers and wait for others on shared cores: what fails is run once more by itself, and both are printed.
run_tests = $(BIN)/pytest $(1) -n $(WORKERS) --maxprocesses $(2) --durations 25 \
  || { echo "== once more and alone: what failed beside other tests"; \
    $(BIN)/pytest $(1) -n 0 --last-failed --last-failed-no-failures none; }
test-long: $(READY_TEST) $(READY_TRITON) ## the long tests: whole runs, rollouts with faults, drills, simulations (half an hour on 2 cores) [WORKERS=2]
	@$(call run_tests,-m "long and not gpu",2)

test-pages: $(READY_TEST) $(READY_PAGES) ## every HTML page in Chromium, its controls used: axe, width, keyboard focus; skipped with the reason where Chromium or npm is missing
	@rm -rf build/pages && mkdir -p build/pages
	@SHORTLIST_PAGES=build/pages $(BIN)/pytest -q $$(grep -rlE 'page_rules import.*(problems_of|leave_for_browser)' --include='*.py' tests/unit | grep -v test_page_rules)
	@$(BIN)/pytest -q -rs -m browser tests/pages

test-gpu: $(READY_GPU) $(READY_TEST) ## the tests that need an NVIDIA GPU; skipped with the reason where there is none
	@$(BIN)/pytest -m gpu -rs

test-cluster: $(READY_TEST) ## try all that is shipped or written on a cluster; with HOST and SPEC train, serve and roll back there: make test-cluster KUBECONFIG=path [HOST=http://... SPEC=mine.yaml]
	@SHORTLIST_TEST_KUBECONFIG="$(NAMED_CLUSTER)" SHORTLIST_TEST_HOST="$(HOST)" SHORTLIST_TEST_SPEC="$(if $(HOST),$(SPEC))" \
	  $(BIN)/pytest -n 0 -rs tests/cluster/real/test_real_cluster.py tests/cluster/real/test_whole_cluster.py

check: lint ## lint, types, import contracts, compiled pipelines up to date; prints figures of the code's names and sizes
	@$(BIN)/mypy
	@$(BIN)/python -m tests.code_figures

# lint, import contracts, compiled pipelines up to date: seconds
lint: $(READY_TEST)
	@$(BIN)/ruff check -q . && $(BIN)/ruff format -q --check .
	@$(BIN)/lint-imports --no-cache > $(VENV)/lint-imports.log || { cat $(VENV)/lint-imports.log; exit 1; }
	@$(BIN)/shortlist compile --check

# write the cluster's PrometheusRule from deploy/monitoring/alert_rules.yaml
manifests:
	@{ printf '%s\n' '# Written by make manifests from $(RULES), which is the one to edit.' \
	  'apiVersion: monitoring.coreos.com/v1' 'kind: PrometheusRule' 'metadata:' '  name: shortlist' 'spec:'; \
	  sed -n '/^groups:/,$$p' $(RULES) | sed 's/^\(.\)/  \1/'; } > deploy/k8s/base/prometheus-rule.yaml

serve: $(READY) $(READY_TRITON) ## serve SPEC's champion on this machine: Triton behind Envoy [PORT=8080; a free one by default]
	@$(BIN)/shortlist serve "$(SPEC)" --port $(PORT) --runs "$(RUNS)"

status: $(READY) ## say what is served, to whom, and what is wrong
	@$(BIN)/shortlist status "$(SPEC)" --runs "$(RUNS)"

stop: $(READY) ## stop serving SPEC
	@$(BIN)/shortlist stop "$(SPEC)" --runs "$(RUNS)"

deploy-canary: $(READY) $(if $(filter cluster,$(TARGET)),$(READY_CLUSTER),$(READY_TRITON)) ## roll the newest blessed candidate out beside the champion; promote it or roll it back on evidence
	@$(BIN)/shortlist deploy-canary "$(SPEC)" $(ON_TARGET) --runs "$(RUNS)"

canary-status: $(READY) ## show the rollout under way, or the last one
	@$(BIN)/shortlist canary-status "$(SPEC)" $(ON_TARGET) --runs "$(RUNS)"

promote: $(READY) ## make the newest blessed candidate the champion now, without waiting for evidence
	@$(BIN)/shortlist promote "$(SPEC)" $(ON_TARGET) --runs "$(RUNS)"

rollback: $(READY) ## abort the rollout under way; with none, return to the previous champion
	@$(BIN)/shortlist rollback "$(SPEC)" $(ON_TARGET) --runs "$(RUNS)"

watch: $(READY) ## look at SPEC's live traffic once, or again and again: make watch [EVERY=15m]; train again when drift asks for it
	@$(BIN)/shortlist watch "$(SPEC)" $(if $(DATA),--data "$(DATA)") $(if $(EVERY),--every $(EVERY)) --runs "$(RUNS)"

drill: $(READY) $(READY_TRITON) ## break a generated world on purpose and watch the loop close by itself (about half an hour)
	@rm -rf "$(RUNS)/drill"
	@$(BIN)/shortlist drill --runs "$(RUNS)/drill"

loop: $(READY) $(READY_TRITON) ## show releases to the users of a generated world for 28 days, train on what they click, and compare the reward [SET=key=value]
	@$(BIN)/shortlist loop $(if $(filter-out demo,$(SPEC)),$(SPEC)) $(if $(SET),--set "$$SET") --runs $(RUNS)

images: $(READY) ## build the container images, and push them: make images [ONLY=pipeline] [REGISTRY=host/path] [TORCH_INDEX=url] [DRY_RUN=1]
	@$(BIN)/shortlist images $(if $(ONLY),--only $(ONLY)) $(if $(REGISTRY),--registry $(REGISTRY)) \
	  $(if $(TORCH_INDEX),--torch-index $(TORCH_INDEX)) $(if $(DRY_RUN),--dry-run)

submit: $(READY_CLUSTER) ## start SPEC's training on a cluster, once: make submit HOST=http://... [DATA=s3://...] [AGAIN=2] [UNREAD=1] [DRY_RUN=1]
	@$(BIN)/shortlist submit $(ON_CLUSTER) $(if $(AGAIN),--again $(AGAIN)) $(if $(UNREAD),--unread)

schedule: $(READY_CLUSTER) ## make a cluster's recurring runs what SPEC's schedule says: make schedule HOST=http://... [DATA=s3://...] [DRY_RUN=1]
	@$(BIN)/shortlist schedule $(ON_CLUSTER)

# The warning that is left out says what docs/adr/0037 says: MkDocs 2 will not run this theme; both are pinned.
docs: $(READY_DOCS) ## build the documentation site in build/site; a dead link is an error
	@NO_MKDOCS_2_WARNING=1 $(DOCS_VENV)/bin/mkdocs build --quiet --strict
	@echo "Documentation: build/site/index.html"

tune: $(READY) ## search for better settings of SPEC's models on the last run's features: make tune [MODEL=xgboost] [MINUTES=20|TRIALS=50]
	@$(BIN)/shortlist tune "$(SPEC)" $(if $(MODEL),--model $(MODEL)) $(if $(MINUTES),--minutes $(MINUTES)) \
	  $(if $(TRIALS),--trials $(TRIALS)) $(foreach change,$(SET),--set $(change)) --runs "$(RUNS)"

ui: $(READY) ## open MLflow on http://127.0.0.1:5000 with every run made here
	@$(BIN)/shortlist ui --runs "$(RUNS)"

bench: $(READY_TEST) $(READY_TRITON) ## the speed that is promised, against named peers in the same run (under 20 minutes on 2 cores); NAME=loader: one of them; NAME=list: all there are; OPTIONS="--all-peers"
	@$(BIN)/python -m benchmarks $(NAME) $(OPTIONS)

setup: $(READY) $(READY_TRITON) ## only set up [PYTHON=/path/to/python3.11] [TORCH=pip|uv|cuda]

check-gpu:
	@$(INSTALL) check-gpu

# let uv download a Python that Triton's environment can use, into .python
python:
	@$(INSTALL) python

container: ## on macOS, arm64 or an older Linux: run the same in a container, with this checkout: make container [COMMAND="make run"]
	@deploy/docker/laptop/container.sh $(COMMAND)

setup-catboost: $(READY_CATBOOST) ## add what models of kind catboost are trained with (97 MB)

setup-gpu: check-gpu $(READY_GPU) ## add what runtime.engine: gpu needs: cuDF, and XGBoost and torch for CUDA 13 (gigabytes; Linux, driver 580 or later)

# resolve requirements/gpu.txt anew, and write what each package asks for into requirements/gpu.json
lock-gpu: $(READY)
	@folder=$$(mktemp -d) && trap 'rm -rf "$$folder"' EXIT \
	  && sed '/^xgboost-cpu==/d' requirements/run.txt > $$folder/run.txt && cp requirements/cluster.txt requirements/gpu.txt $$folder \
	  && sed -n 's/^torch==/torch===/p' requirements/gpu.txt > $$folder/exact.txt \
	  && $(BIN)/python -m pip install -q --no-input --dry-run --ignore-installed -c $$folder/exact.txt \
	    --report $$folder/report.json -r $$folder/cluster.txt -r $$folder/gpu.txt \
	  && $(BIN)/python requirements/gpu_lock.py $$folder/report.json

clean: ## delete all runs, models and stores made here (the log you gave is never touched)
	@if [ -x $(BIN)/shortlist ] && [ -d "$(RUNS)/serving" ]; then $(BIN)/shortlist stop --runs "$(RUNS)"; fi
	rm -rf "$(RUNS)"

# --- set-up: once, skipped when up to date; locked with hashes (make lock) -----------------------------------------

UV := $(BIN)/uv
ANY_PYTHON := $(or $(PYTHON),$(shell command -v python3.11 || command -v python3 || command -v python3.12 || command -v python3.13))
LOCK := requirements/lock
# Looks at the machine before it downloads anything; says in one line what is missing (requirements/installer).
INSTALL = $(if $(ANY_PYTHON),,echo "Shortlist needs Python 3.11, 3.12 or 3.13 (found none on PATH)" >&2; exit 1;) \
  $(ANY_PYTHON) requirements/installer --venv $(VENV) --triton-venv $(TRITON_VENV) --docs-venv $(DOCS_VENV)
INSTALLER := $(wildcard requirements/installer/*.py)

$(READY): $(LOCK)/uv.txt $(LOCK)/run.txt $(LOCK)/torch-cpu.txt $(LOCK)/torch-cuda.txt requirements/run.txt pyproject.toml $(INSTALLER)
	@$(INSTALL) run
	@touch $@

$(READY_TRITON): $(LOCK)/triton.txt $(INSTALLER) | $(READY)
	@$(INSTALL) triton
	@touch $@

$(READY_DOCS): $(LOCK)/docs.txt $(INSTALLER)
	@$(INSTALL) docs
	@touch $@

$(READY_PAGES): tests/pages/package.json
	@mkdir -p $(PAGES_ENV) && cp $< $(PAGES_ENV)
	@if command -v npm > /dev/null; then npm install --prefix $(PAGES_ENV) --no-package-lock --no-audit --no-fund --silent && touch $@; fi

$(READY_CLUSTER): $(LOCK)/cluster.txt $(READY)
	@$(INSTALL) cluster
	@touch $@

$(READY_CATBOOST): $(LOCK)/catboost.txt $(READY)
	@$(INSTALL) catboost
	@touch $@

$(READY_TEST): $(LOCK)/test.txt $(READY_CLUSTER) $(READY_CATBOOST)
	@$(INSTALL) test
	@touch $@

$(READY_GPU): requirements/gpu.txt $(INSTALLER) | $(READY_CLUSTER) $(READY_TEST)
	@$(INSTALL) gpu
	@touch $@

# write requirements/lock/*.txt, the hashes of every package, from requirements/*.txt
lock: $(READY)
	@for name in run cluster test catboost triton docs gpu torch-cuda; do \
	  grep -v '^-r ' requirements/$$name.txt | if [ $$name = gpu ] || [ $$name = torch-cuda ]; then cat; else grep -v '^torch=='; fi \
	    | $(UV) pip compile --quiet --universal --no-deps --no-annotate --no-header --generate-hashes --python-version 3.11 - -o $(LOCK)/$$name.txt; done
	@sed -n 's/^torch==.*/&+cpu/p' requirements/run.txt | $(UV) pip compile --quiet --universal --no-deps --no-annotate --no-header --generate-hashes \
	  --python-version 3.11 --torch-backend cpu - -o $(LOCK)/torch-cpu.txt || echo '$(LOCK)/torch-cpu.txt stays as it was' >&2
	@echo 'uv==0.13.9' | $(UV) pip compile --quiet --no-deps --no-annotate --no-header --generate-hashes --python-version 3.11 - -o $(LOCK)/uv.txt

# write requirements/lock/*-modules.txt: what a run imports of the packages, which the set-up compiles
lock-modules: $(READY) $(READY_TRITON)
	@find $(VENV) $(TRITON_VENV) -name __pycache__ -prune -exec rm -rf {} +
	@folder=$$(mktemp -d) && trap 'rm -rf "$$folder"' EXIT && $(BIN)/shortlist run demo --runs "$$folder" > /dev/null
	@for environment in run:$(VENV) triton:$(TRITON_VENV); do \
	  find "$${environment#*:}/lib" -name '*.pyc' | sed 's#.*/site-packages/##; s#__pycache__/##; s#\.cpython-[0-9]*\.pyc$$#.py#' \
	    | LC_ALL=C sort > $(LOCK)/$${environment%%:*}-modules.txt; done

.PHONY: bench canary-status check check-gpu clean container deploy-canary docs drill help images init lint loop \
  lock lock-gpu lock-modules manifests promote python rollback run schedule serve setup setup-catboost setup-gpu status stop submit test \
  test-cluster test-gpu test-long test-pages tests tune ui watch
