# Two commands are enough on a fresh machine: `make demo` and `make test`. Each first makes .venv where there is none.

# The system's own build of the same Python, where there is one: it is built for speed, as one that a version manager
# has compiled need not be, which takes a third more processor time for the tests
VERSION = $(shell python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')
PYTHON ?= $(shell /usr/bin/python$(VERSION) -c 'import ensurepip' 2>/dev/null && echo /usr/bin/python$(VERSION) || echo python3)
# Test processes: as many as a small machine has cores, as some tests measure on two
JOBS ?= 2
# Tests that mostly wait, for processes that they start, stop or kill: a process of its own runs them beside the others
WAITING := tests/backends/launching tests/backends/live_jobs tests/backends/session tests/scenarios/console/test_stopping.py \
	tests/scenarios/running/test_moving_experts.py tests/scenarios/workloads/test_executed_jobs.py
OUT ?= out

CALIBRATE ?= yes

BIN := .venv/bin
RUNS := .venv/.runs
STAMP := .venv/.installed
COMPILED := .venv/.compiled
INSTALL := $(BIN)/pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt
SIMULATE := $(BIN)/simulate
TINY := scenarios/library/tiny-gpt-two-stages.yaml
MEASURING := $(if $(filter yes,$(CALIBRATE)),--calibrate 20s --steps 2)
PROFILE := $(if $(MEASURING),--set cluster.profile=$(abspath $(OUT)/tiny/executed/this-machine.yaml))

# What is imported is compiled then, and kept: pip would compile all of torch first, on one core
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help setup demo test tests computing waiting validate lint style types layers format bench docs clean

help:  ## say what the targets do
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP)  ## make .venv with everything, torch included

$(BIN)/pip:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "meshtwin needs Python 3.11 or later")'
	$(PYTHON) -m venv .venv

$(RUNS): pyproject.toml constraints.txt | $(BIN)/pip
	$(INSTALL) -e '.[torch]'
	@touch $@

$(STAMP): pyproject.toml constraints.txt | $(BIN)/pip
	$(INSTALL) -e '.[torch,dev]'
	@touch $(RUNS) $@

# Once: else every test process would compile all tests, and what they import, at the same time
$(COMPILED): $(STAMP)
	-@$(BIN)/pytest --collect-only -qq >/dev/null
	@touch $@

demo: $(RUNS)  ## simulate the quickstart; run a tiny plan for real beside a calibration; simulate; compare (CALIBRATE=no)
	$(SIMULATE) scenarios/library/quickstart.yaml --out $(OUT)/quickstart
	$(SIMULATE) execute $(TINY) $(MEASURING) --check --out $(OUT)/tiny/executed
	$(SIMULATE) $(TINY) $(PROFILE) --out $(OUT)/tiny/simulated
	$(SIMULATE) compare $(OUT)/tiny/simulated/timeline.parquet $(OUT)/tiny/executed/timeline.parquet
	@echo
	@echo 'Reports (open them in a browser):'
	@find $(OUT)/quickstart $(OUT)/tiny -name report.html | sort | sed 's/^/  /'
	@echo 'Timelines (open them in Perfetto, https://ui.perfetto.dev):'
	@find $(OUT)/quickstart $(OUT)/tiny -name timeline.json.gz | sort | sed 's/^/  /'

# Types are checked beside the tests that compute and those that wait
test: setup  ## check style, types and layers, and run all tests
	@$(MAKE) --no-print-directory -j 3 style types tests layers

tests: computing waiting

computing: $(COMPILED)
	$(BIN)/pytest -n $(JOBS) --dist worksteal $(WAITING:%=--ignore=%)

# Shown at its end: nobody could read the lines of two runs at once
waiting: $(COMPILED)
	@$(BIN)/pytest $(WAITING) >.venv/.waiting 2>&1; status=$$?; cat .venv/.waiting; exit $$status

validate: setup  ## calibrate this machine, run plans on it, and compare with their simulation (8 min)
	$(SIMULATE) validate --here --out $(OUT)/here

lint: style types layers

style: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	nice $(BIN)/mypy

layers: setup
	$(BIN)/lint-imports

format: setup  ## bring the code into the one format
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .

bench: setup  ## measure speed, memory and agreement; the tables of BENCHMARKS.md
	@failed=0; for part in network scaling microbatches sweeps run; do \
		$(BIN)/python -m benchmarks.$$part || failed=1; done; exit $$failed

docs: setup  ## draw the pictures of the README and of docs/python.md and put today's results into the pages
	$(BIN)/python docs/refresh.py
	$(BIN)/python -m docs.run_blocks docs/recipes.md
	$(BIN)/python docs/run_notebooks.py notebooks/01-first-steps.ipynb

clean:  ## remove what the other targets made
	rm -rf .venv $(OUT) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
