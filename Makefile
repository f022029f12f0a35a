# A fresh machine needs Python 3.11 or later and make; uv is used where it is on PATH, else venv and pip. Node comes as a
# Python package; `make test-all` installs a browser for the tests of the page if there is none (scripts/browser).
PYTHON ?= python3
VENV ?= .venv

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.PHONY: help demo test test-all test-cuda test-seeds coverage check fix docs constraints clean

# Many processors have AVX2 and no more, and torch computes with other code there: a training step, the paths of layers and
# convolutions of every kind are compared with float64 also kept to it, first: the last lines are those of the whole suite.
# A processor that has no more runs them once.
AVX2 := ONEDNN_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=avx2 MKL_ENABLE_INSTRUCTIONS=AVX2
AGAIN := -k "not compile" $(addprefix tests/,layers/test_execution.py lab/test_trainer.py \
  convert/certify/test_modules.py convert/layer/test_every_convolution.py \
  convert/layer/test_exact_borders.py convert/network/test_certified.py \
  functional/test_strided.py::test_it_computes_what_torch_does)

# Processes by cores and free memory (tests/machine.py), which take tests that lie together. What is compiled is kept, or
# each of the hundred processes that tests start would compile torch anew. What opens a browser or builds the site with its
# notebooks is in tests/viewer/browser: it is left to CI and `make test-all`.
OMP_NUM_THREADS ?= 1
PYTHON_FOR_TESTS = PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=$(OMP_NUM_THREADS) $(PY)
PYTEST = $(PYTHON_FOR_TESTS) -m pytest
WORKERS := --numprocesses=auto --dist=worksteal
FAST := -m "not slow" --ignore=tests/viewer/browser $(WORKERS)

PY := $(VENV)/bin/python
UV := $(shell command -v uv 2>/dev/null)
ifdef UV
  NEW_VENV = uv venv --python $(PYTHON) $(VENV)
  INSTALL = uv pip install --python $(PY) --constraint constraints.txt
else
  NEW_VENV = $(PYTHON) -m venv $(VENV)
  INSTALL = $(PY) -m pip install --constraint constraints.txt
endif

help:                    ## List the commands
	@sed -nE 's/^([a-z-]+):.*## (.*)$$/make \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 20

demo: $(VENV)/.demo      ## Convert, certify and measure on embedded data, and open a page
	$(VENV)/bin/convattn demo

ifeq ($(CI),true)
test: test-all
else
test: $(VENV)/.dev       ## Run the tests, but the slow ones and those of the browser and of the site
	$(PYTEST) $(FAST)
endif

test-all: $(VENV)/.dev $(VENV)/.browser node_modules/.stamp ## Run every test but the slow ones, as CI does
	[ "$$($(PY) -c 'import torch; print(torch.backends.cpu.get_cpu_capability())')" = AVX2 ] || \
	  $(AVX2) CI=true $(PYTEST) -m "not slow" $(WORKERS) $(AGAIN)
	CI=true DEVICE=cpu $(PYTEST) -m "not slow" $(WORKERS)

# One process on a card, which several would share.
test-cuda: $(VENV)/.dev  ## Run the tests for a CUDA device on one, or with DEVICE=cpu on the CPU
	$(PYTEST) -m cuda tests/cuda $(if $(filter cpu,$(DEVICE)),$(WORKERS))

RUNS ?= seeds.jsonl
test-seeds: $(VENV)/.dev ## Run the numeric tests with 20 other seeds, five of them also on other code of torch in four ways: takes hours
	$(PY) scripts/seeds.py -o $(RUNS) --numprocesses=auto --dist=worksteal

coverage: $(VENV)/.dev   ## Run the tests of make test, and list the statements of the package that none of them reaches
	$(PY) -m coverage erase
	$(PYTHON_FOR_TESTS) -m coverage run -m pytest $(FAST)
	$(PY) -m coverage combine --quiet
	$(PY) -m coverage report

check: $(VENV)/.dev node_modules/.stamp ## Format, lint, types, imports, sizes of rooms, JavaScript and prose
	VENV=$(VENV) scripts/check

fix: $(VENV)/.dev node_modules/.stamp ## Repair what can be repaired
	VENV=$(VENV) scripts/fix

docs: $(VENV)/.dev       ## Write docs/reference/commands.md, and build the site into build/site
	$(PY) scripts/command_help.py
	OMP_NUM_THREADS=1 $(PY) -m sphinx -b html -nW --keep-going docs build/site

constraints:             ## Pin today's versions in constraints.txt (needs uv)
	@command -v uv >/dev/null || { echo "make constraints needs uv" >&2; exit 1; }
	{ head -n 1 constraints.txt; \
	  uv pip compile pyproject.toml --universal --python-version 3.11 --upgrade --quiet \
	    --extra dev --extra all --no-header --no-annotate; } > constraints.txt.new
	mv constraints.txt.new constraints.txt

clean:                   ## Remove the environment and everything that is written by tools
	rm -rf $(VENV) node_modules build dist .coverage* demo demo-* bench-layers* bench-networks* bench-sequences* .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find src tests examples benchmarks evidence -name __pycache__ -type d -prune -exec rm -rf {} +

# A stamp says which extras the environment holds; newer requirements make it stale.
$(VENV)/.dev $(VENV)/.demo: pyproject.toml constraints.txt | $(PY)
	$(INSTALL) --editable ".[$(if $(filter %.dev,$@),dev,view)]"
	touch $@

$(VENV)/.browser: scripts/browser | $(VENV)/.dev
	VENV=$(VENV) scripts/browser --install
	touch $@

node_modules/.stamp: package.json package-lock.json .npmrc | $(VENV)/.dev
	VENV=$(VENV) scripts/node npm ci
	touch $@

$(PY):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "convattn needs Python 3.11 or later: make PYTHON=python3.11 ...")'
	$(NEW_VENV)
