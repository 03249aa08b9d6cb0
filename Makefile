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
# Where stores are: PROFILE=cluster OBJECTS=s3://bucket/prefix, their addresses in the environment (docs/adr/0013).
PROFILE ?=
OBJECTS ?=
# What serves: TARGET=stack (this machine) or TARGET=cluster (KServe); by default what the spec says (runtime.target).
TARGET ?=
ON_TARGET = $(if $(TARGET),--target $(TARGET))
# make soak: replicas of a version, and for how long faults are done.
REPLICAS ?= 2
FAULT_SECONDS ?= 600
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
NAMES ?=
# make tune: one model, and how long it is searched.
MODEL ?=
MINUTES ?=
TRIALS ?=
# How many random specs or logs are tried.
CASES ?= 10000
# Of the cluster that make test-cluster tries: said with the command, never taken from the environment.
NAMED_CLUSTER = $(if $(findstring command,$(origin KUBECONFIG)),$(KUBECONFIG))
ON_CLUSTER = $(SPEC) $(if $(HOST),--host $(HOST)) $(if $(DATA),--data "$(DATA)") $(if $(SET),--set "$$SET") \
  $(if $(DRY_RUN),--dry-run) --runs $(RUNS)
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

run: $(READY) $(READY_TRITON) $(if $(filter cluster,$(PROFILE)),$(READY_CLUSTER)) ## set up, then run a spec's whole pipeline here: make run [SPEC=demo|kuairand|criteo|path.yaml] [DATA=path] [SET=key=value] [PROFILE=cluster OBJECTS=s3://bucket/prefix]
	@$(BIN)/shortlist run $(SPEC) $(if $(DATA),--data "$(DATA)") $(if $(SET),--set "$$SET") \
	  $(if $(PROFILE),--profile $(PROFILE)) $(if $(OBJECTS),--objects $(OBJECTS)) --runs $(RUNS)

init: $(READY) ## look at a log and write a first spec for it: make init DATA=path [SPEC=mine.yaml] [YES=1]
	@$(BIN)/shortlist init "$(DATA)" $(if $(filter-out demo,$(SPEC)),--out $(SPEC)) $(if $(YES),--yes)

# The linters run beside the tests, and either fails the target: one run says all that is wrong.
test: $(READY_TEST) $(READY_TRITON) ## set up, then pass the linters, the import contracts and the tests (ten minutes on 2 cores) [WORKERS=2]
	@$(MAKE) --no-print-directory --jobs 2 tests lint

# Several processes share the cores, so each computes with one thread: a sixth less processor time. The long tests, and
# what a user runs, have all threads.
tests: export OMP_NUM_THREADS = 1
tests: export POLARS_MAX_THREADS = 1
tests: $(READY_TEST) $(READY_TRITON)
	@$(BIN)/pytest -m "not gpu and not long and not browser" -n $(WORKERS) --maxprocesses 4 --durations 25

test-long: $(READY_TEST) $(READY_TRITON) ## the long tests: whole runs, rollouts with faults, drills, simulations (half an hour on 2 cores) [WORKERS=2]
	@$(BIN)/pytest -m "long and not gpu" -n $(WORKERS) --maxprocesses 2 --durations 25

test-pages: $(READY_TEST) $(READY_PAGES) ## every HTML page in Chromium, its controls used: axe, width, keyboard focus; skipped with the reason where Chromium or npm is missing
	@rm -rf build/pages && mkdir -p build/pages
	@SHORTLIST_PAGES=build/pages $(BIN)/pytest -q $$(grep -rlE 'page_rules import.*(problems_of|leave_for_browser)' --include='*.py' tests/unit | grep -v test_page_rules)
	@$(BIN)/pytest -q -rs -m browser tests/pages

test-gpu: $(READY_GPU) $(READY_TEST) ## the tests that need an NVIDIA GPU; skipped with the reason where there is none
	@$(BIN)/pytest -m gpu -rs

test-cluster: $(READY_TEST) ## server-side checks of all that is shipped or written, and rollouts with faults, on a cluster: make test-cluster KUBECONFIG=path
	@SHORTLIST_TEST_KUBECONFIG="$(NAMED_CLUSTER)" $(BIN)/pytest -n 0 -rs tests/cluster/real/test_real_cluster.py

check: lint ## lint, types, import contracts, compiled pipelines up to date
	@$(BIN)/mypy

lint: $(READY_TEST) ## lint, import contracts, compiled pipelines up to date: seconds
	@$(BIN)/ruff check -q . && $(BIN)/ruff format -q --check .
	@$(BIN)/lint-imports --no-cache > $(VENV)/lint-imports.log || { cat $(VENV)/lint-imports.log; exit 1; }
	@$(BIN)/shortlist compile --check

compile: $(READY) ## write pipelines/compiled/*.yaml from the pipelines' Python
	@$(BIN)/shortlist compile

manifests: ## write the cluster's PrometheusRule from deploy/monitoring/alert_rules.yaml
	@{ printf '%s\n' '# Written by make manifests from $(RULES), which is the one to edit.' \
	  'apiVersion: monitoring.coreos.com/v1' 'kind: PrometheusRule' 'metadata:' '  name: shortlist' 'spec:'; \
	  sed -n '/^groups:/,$$p' $(RULES) | sed 's/^\(.\)/  \1/'; } > deploy/k8s/base/prometheus-rule.yaml

serve: $(READY) $(READY_TRITON) ## serve SPEC's champion on this machine: Triton behind Envoy [PORT=8080; a free one by default]
	@$(BIN)/shortlist serve $(SPEC) --port $(PORT) --runs $(RUNS)

status: $(READY) ## say what is served, to whom, and what is wrong
	@$(BIN)/shortlist status $(SPEC) --runs $(RUNS)

stop: $(READY) ## stop serving SPEC
	@$(BIN)/shortlist stop $(SPEC) --runs $(RUNS)

replay: $(READY) ## play the newest days of SPEC's log through Envoy for half a minute
	@$(BIN)/shortlist replay $(SPEC) --runs $(RUNS)

deploy-canary: $(READY) $(if $(filter cluster,$(TARGET)),$(READY_CLUSTER),$(READY_TRITON)) ## roll the newest blessed candidate out beside the champion; promote it or roll it back on evidence
	@$(BIN)/shortlist deploy-canary $(SPEC) $(ON_TARGET) --runs $(RUNS)

canary-status: $(READY) ## show the rollout under way, or the last one
	@$(BIN)/shortlist canary-status $(SPEC) $(ON_TARGET) --runs $(RUNS)

promote: $(READY) ## make the newest blessed candidate the champion now, without waiting for evidence
	@$(BIN)/shortlist promote $(SPEC) $(ON_TARGET) --runs $(RUNS)

rollback: $(READY) ## abort the rollout under way; with none, return to the previous champion
	@$(BIN)/shortlist rollback $(SPEC) $(ON_TARGET) --runs $(RUNS)

watch: $(READY) ## look at SPEC's live traffic once, or again and again: make watch [EVERY=15m]; train again when drift asks for it
	@$(BIN)/shortlist watch $(SPEC) $(if $(DATA),--data "$(DATA)") $(if $(EVERY),--every $(EVERY)) --runs $(RUNS)

collect: $(READY) ## join SPEC's served rows with their outcomes, once those are due, and add them to the log
	@$(BIN)/shortlist collect $(SPEC) --runs $(RUNS)

refresh: $(READY) ## count what is new in SPEC's log and serve it, without a training: make refresh [DATA=path]; make watch does it by schedule.refresh
	@$(BIN)/shortlist refresh $(SPEC) $(if $(DATA),--data "$(DATA)") --runs $(RUNS)

backfill: $(READY) ## count corrected days of SPEC's log again and say what changes; PUBLISH=1 serves it: make backfill FROM=2026-03-02 TO=2026-03-04 [DATA=path]
	@$(BIN)/shortlist backfill $(SPEC) $(FROM) $(TO) $(if $(DATA),--data "$(DATA)") $(if $(PUBLISH),--publish) --runs $(RUNS)

drill: $(READY) $(READY_TRITON) ## break a generated world on purpose and watch the loop close by itself (under ten minutes)
	@rm -rf $(RUNS)/drill
	@$(BIN)/shortlist drill --runs $(RUNS)/drill

images: $(READY) ## build the container images, and push them: make images [REGISTRY=host/path] [DRY_RUN=1]
	@$(BIN)/shortlist images $(if $(REGISTRY),--registry $(REGISTRY)) $(if $(DRY_RUN),--dry-run)

lock-images: $(READY) ## ask the registries for the digests of the images' bases: make lock-images [DRY_RUN=1]
	@$(BIN)/shortlist lock-images $(if $(DRY_RUN),--dry-run)

submit: $(READY_CLUSTER) ## start SPEC's training on a cluster, once: make submit HOST=http://... [DATA=s3://...] [AGAIN=2] [UNREAD=1] [DRY_RUN=1]
	@$(BIN)/shortlist submit $(ON_CLUSTER) $(if $(AGAIN),--again $(AGAIN)) $(if $(UNREAD),--unread)

schedule: $(READY_CLUSTER) ## make a cluster's recurring runs what SPEC's schedule says: make schedule HOST=http://... [DATA=s3://...] [DRY_RUN=1]
	@$(BIN)/shortlist schedule $(ON_CLUSTER)

# The warning that is left out says what docs/adr/0046 says: MkDocs 2 will not run this theme; both are pinned.
docs: $(READY_DOCS) ## build the documentation site in build/site; a dead link is an error
	@NO_MKDOCS_2_WARNING=1 $(DOCS_VENV)/bin/mkdocs build --quiet --strict
	@echo "Documentation: build/site/index.html"

tune: $(READY) ## search for better settings of SPEC's models on the last run's features: make tune [MODEL=xgboost] [MINUTES=20|TRIALS=50]
	@$(BIN)/shortlist tune $(SPEC) $(if $(MODEL),--model $(MODEL)) $(if $(MINUTES),--minutes $(MINUTES)) \
	  $(if $(TRIALS),--trials $(TRIALS)) $(foreach change,$(SET),--set $(change)) --runs $(RUNS)

compare-orderings: $(READY) ## compare formulas of SPEC's ordering.value by their slates on the validation days: VALUES=file, one a line [MODEL=xgboost] [DATA=path]
	@$(BIN)/shortlist compare-orderings $(SPEC) "$(VALUES)" $(if $(MODEL),--model $(MODEL)) $(if $(DATA),--data "$(DATA)") \
	  $(foreach change,$(SET),--set $(change)) --runs $(RUNS)

ui: $(READY) ## open MLflow on http://127.0.0.1:5000 with every run made here
	@$(BIN)/shortlist ui --runs $(RUNS)

bench: $(READY_TEST) $(READY_TRITON) ## the speed that is promised, against named peers in the same run, and a summary (under 20 minutes on 2 cores)
	@$(BIN)/python -m benchmarks

bench-summary: $(READY) ## the last results against what is asked, without measuring
	@$(BIN)/python -m benchmarks summary

bench-features: $(READY_TEST) ## text to ids and logs in Parquet, against text to Parquet alone, NVTabular (make peers) and facebookresearch/dlrm's design
	@$(BIN)/python -m benchmarks.features --all-peers

bench-loader: $(READY_TEST) ## rows per second to shuffled torch batches, from disk and from Parquet
	@$(BIN)/python -m benchmarks.loader

bench-xgboost: $(READY_TEST) ## XGBoost's matrices from our tables, against pandas: time and memory
	@$(BIN)/python -m benchmarks.xgboost_matrices

bench-train: $(READY_TEST) ## DLRM samples per second, loader included, against facebookresearch/dlrm's design
	@$(BIN)/python -m benchmarks.train

bench-serve: $(READY_TEST) $(READY_TRITON) ## rank and score through Envoy, server and Triton, against the same graph in-process and FastAPI
	@$(BIN)/python -m benchmarks.serve

bench-index: $(READY) ## the approximate index of items against an exact search, and usearch (make peers-recommend): time, memory, recall [SIZES="100000 1000000 5000000"]
	@OPENBLAS_NUM_THREADS=1 $(BIN)/python -m benchmarks.index $(SIZES)

bench-recommend: $(READY_TEST) $(READY_TRITON) ## a slate of 10 of a million items through Envoy and Triton, against ranking 500 [ITEMS=1000000]
	@$(BIN)/python -m benchmarks.recommend $(ITEMS)

bench-two-tower: $(READY) ## two-tower samples per second against a plain torch two-tower
	@$(BIN)/python -m benchmarks.two_tower

bench-candidates: $(READY) ## recall and nDCG of sources against ALS, BPR and EASE (make peers-recommend): make bench-candidates DATA=path/to/kuairand [VALIDATION=1]
	@$(BIN)/python -m benchmarks.candidates "$(DATA)" $(if $(VALIDATION),--validation)

bench-metrics: $(READY) ## metrics of lists against ranx and RecTools (make peers-recommend): make bench-metrics [DATA=path/to/kuairand]
	@$(BIN)/python -m benchmarks.list_metrics $(DATA)

simulate-slates: $(READY) ## random requests to SPEC's stages, none of which may break a rule [REQUESTS=100000] [DATA=path]
	@$(BIN)/python -m benchmarks.simulate_slates $(SPEC) --requests $(or $(REQUESTS),100000) $(if $(DATA),--data "$(DATA)")

bench-tiles: $(READY) ## time and memory of statistics by tiles of a day and of ten minutes, of a refresh and of a backfill
	@$(BIN)/python -m benchmarks.tile_costs

bench-memory: $(READY) ## peak memory of ingest, features and loader at one and at ten times the rows
	@$(BIN)/python -m benchmarks.memory

bench-overhead: $(READY) $(READY_TRITON) ## what a pipeline's task costs beyond its work, and a run with nothing changed
	@$(BIN)/python -m benchmarks.overhead

bench-gpu: $(READY_GPU) ## on an NVIDIA GPU: training, scoring, loading, features, against roofs of the same run [NAMES="roofs training"]
	@$(BIN)/python -m benchmarks.gpu $(NAMES)

peers: requirements/peers.txt ## install what make bench-features compares us with, in an environment of its own
	@$(ANY_PYTHON) -m venv .venv-peers
	@.venv-peers/bin/python -m pip install -q --disable-pip-version-check --no-input --no-deps -r requirements/peers.txt

peers-sequences: requirements/peers-sequences.txt ## install what make bench-sequences compares us with, in an environment of its own
	@$(ANY_PYTHON) -m venv .venv-peers-sequences
	@.venv-peers-sequences/bin/python -m pip install -q --disable-pip-version-check --no-input --no-deps -r requirements/peers-sequences.txt

peers-recommend: requirements/peers-recommend.txt ## install what make bench-metrics and bench-candidates compare us with, in an environment of its own
	@$(ANY_PYTHON) -m venv .venv-peers-recommend
	@.venv-peers-recommend/bin/python -m pip install -q --disable-pip-version-check --no-input --no-deps -r requirements/peers-recommend.txt

bench-sequences: $(READY) ## nDCG of next items against RecTools' SASRec (make peers-sequences first): make bench-sequences SEQUENCES=path/to/folder [LOGS="toys sports"] [OPTIONS=1]
	@$(BIN)/python -m benchmarks.sequences "$(SEQUENCES)" $(if $(LOGS),--data $(LOGS)) $(if $(OPTIONS),--options)

bench-sessions: $(READY) ## what the lists of live sequences of a million users take, 5 and 50 events each
	@$(BIN)/python -m benchmarks.sessions

bench-attention: $(READY) ## what a history of 50 items costs a request of 500 and of 1 000 candidates (two minutes)
	@$(BIN)/python -m benchmarks.attention

bench-soak: $(READY_TEST) $(READY_TRITON) ## 200 000 requests across promotions and rollbacks, none lost (several minutes)
	@$(BIN)/python -m benchmarks.soak

fuzz: $(READY_TEST) ## 200 000 wrong requests to a server, none of which may be its failure; 8 000 more through Envoy (minutes)
	@$(BIN)/python -m benchmarks.fuzz
soak: $(READY_TEST) $(READY_TRITON) ## rollouts while parts of the system die: what users lose per fault [REPLICAS=2] [FAULT_SECONDS=600]
	@$(BIN)/python -m benchmarks.soak_faults --replicas $(REPLICAS) --seconds $(FAULT_SECONDS)

bench-overload: $(READY_TEST) $(READY_TRITON) ## goodput, and what health and metrics do, at 1, 2 and 4 times the capacity (two minutes)
	@$(BIN)/python -m benchmarks.overload

bench-judge: $(READY) ## error rates of the canary analysis, by simulation (ten minutes)
	@$(BIN)/python -m benchmarks.judge

simulate: $(READY) ## rollouts with seeded faults under the real controller, thousands a minute (two minutes; SECONDS=600, SEED=1)
	@$(BIN)/python -m benchmarks.simulate --seconds $(or $(SECONDS),120) --seed $(or $(SEED),0)

bench-drift: $(READY) ## how often drift tests are wrong, and what they find, by simulation
	@$(BIN)/python -m benchmarks.drift

bench-freshness: $(READY) ## seconds from an event to a score that holds it, events per second of one core, servers killed (two minutes)
	@$(BIN)/python -m benchmarks.freshness

bench-event-restart: $(READY) ## start of a server with a million open events, with and without a checkpoint
	@$(BIN)/python -m benchmarks.event_restart

bench-retrain: $(READY_TEST) ## continued training against training from scratch: seconds and AUC
	@$(BIN)/python -m benchmarks.retrain

bench-tuning: $(READY_TEST) ## a search of 20 minutes from bad settings, against the best possible score [MINUTES=20|TRIALS=50]
	@$(BIN)/python -m benchmarks.tuning $(if $(MINUTES),--minutes $(MINUTES)) $(if $(TRIALS),--trials $(TRIALS))

fuzz-specs: $(READY_TEST) ## 10 000 random specs: each is read, or refused with a message [CASES=10000]
	@$(BIN)/python -m benchmarks.fuzz_specs --cases $(CASES)

fuzz-logs: $(READY_TEST) ## 10 000 random logs: each ends with rows, quarantine or a message (an hour) [CASES=10000]
	@$(BIN)/python -m benchmarks.fuzz_logs --cases $(CASES)

setup: $(READY) $(READY_TRITON) ## only set up [PYTHON=/path/to/python3.11] [TORCH=pip|uv|cuda]

check-gpu:
	@$(INSTALL) check-gpu

python: ## let uv download a Python that Triton's environment can use, into .python
	@$(INSTALL) python

container: ## on macOS, arm64 or an older Linux: run the same in a container, with this checkout: make container [COMMAND="make run"]
	@deploy/docker/laptop/container.sh $(COMMAND)

setup-gpu: check-gpu $(READY_GPU) ## add what runtime.engine: gpu needs: cuDF, and XGBoost and torch for CUDA 13 (gigabytes; Linux, driver 580 or later)

lock-gpu: $(READY) ## resolve requirements/gpu.txt anew, and write what each package asks for into requirements/gpu.json
	@folder=$$(mktemp -d) && trap 'rm -rf "$$folder"' EXIT \
	  && sed '/^xgboost-cpu==/d' requirements/run.txt > $$folder/run.txt && cp requirements/cluster.txt requirements/gpu.txt $$folder \
	  && sed -n 's/^torch==/torch===/p' requirements/gpu.txt > $$folder/exact.txt \
	  && $(BIN)/python -m pip install -q --no-input --dry-run --ignore-installed -c $$folder/exact.txt \
	    --report $$folder/report.json -r $$folder/cluster.txt -r $$folder/gpu.txt \
	  && $(BIN)/python requirements/gpu_lock.py $$folder/report.json

clean: ## delete all runs, models and stores made here (the log you gave is never touched)
	@if [ -x $(BIN)/shortlist ] && [ -d $(RUNS)/serving ]; then $(BIN)/shortlist stop --runs $(RUNS); fi
	rm -rf $(RUNS)

# --- set-up: once, skipped when up to date; locked with hashes (make lock) -----------------------------------------

UV := $(BIN)/uv
ANY_PYTHON := $(or $(PYTHON),$(shell command -v python3.11 || command -v python3 || command -v python3.12 || command -v python3.13))
LOCK := requirements/lock
# Looks at the machine before it downloads anything; says in one line what is missing (requirements/installer).
INSTALL = $(if $(ANY_PYTHON),,echo "Shortlist needs Python 3.11, 3.12 or 3.13 (found none on PATH)" >&2; exit 1;) \
  $(ANY_PYTHON) requirements/installer --venv $(VENV) --triton-venv $(TRITON_VENV) --docs-venv $(DOCS_VENV)
INSTALLER := $(wildcard requirements/installer/*.py)

$(READY): $(LOCK)/uv.txt $(LOCK)/run.txt $(LOCK)/torch-cuda.txt requirements/run.txt pyproject.toml $(INSTALLER)
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

$(READY_TEST): $(LOCK)/test.txt $(READY_CLUSTER)
	@$(INSTALL) test
	@touch $@

$(READY_GPU): requirements/gpu.txt $(INSTALLER) | $(READY_CLUSTER) $(READY_TEST)
	@$(INSTALL) gpu
	@touch $@

lock: $(READY) ## write requirements/lock/*.txt, the hashes of every package, from requirements/*.txt
	@for name in run cluster test triton docs gpu torch-cuda; do \
	  grep -v '^-r ' requirements/$$name.txt | if [ $$name = gpu ] || [ $$name = torch-cuda ]; then cat; else grep -v '^torch=='; fi \
	    | $(UV) pip compile --quiet --universal --no-deps --no-annotate --no-header --generate-hashes --python-version 3.11 - -o $(LOCK)/$$name.txt; done
	@echo 'uv==0.13.9' | $(UV) pip compile --quiet --no-deps --no-annotate --no-header --generate-hashes --python-version 3.11 - -o $(LOCK)/uv.txt

.PHONY: help run check-gpu python container init docs tune compare-orderings test tests test-long test-pages test-gpu test-cluster setup-gpu lock-gpu check lint compile manifests serve status stop replay deploy-canary canary-status promote rollback watch collect refresh backfill drill \
  images lock-images submit schedule ui bench bench-summary bench-features bench-loader bench-xgboost bench-train bench-serve \
  bench-index bench-recommend bench-two-tower bench-candidates bench-metrics simulate-slates bench-memory bench-tiles bench-overhead bench-gpu bench-soak soak bench-overload bench-judge simulate bench-drift bench-freshness bench-event-restart bench-retrain bench-tuning fuzz fuzz-specs fuzz-logs peers peers-sequences peers-recommend bench-sequences bench-attention bench-sessions setup clean lock
