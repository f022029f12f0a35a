# A fresh machine needs Python 3.11 or later and make; uv is used where it is on PATH, else venv and pip.
PYTHON ?= python3
VENV ?= .venv

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.PHONY: help demo test check fix docs constraints clean

# Many processors have AVX2 and no more, and torch computes with other code there: what trains or compares numbers runs
# again kept to it.
AVX2 := ONEDNN_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=avx2 MKL_ENABLE_INSTRUCTIONS=AVX2
AGAIN := $(addprefix tests/,$(addsuffix .py,layers/test_execution layers/test_fusion convert/layer/test_every_convolution \
  convert/network/test_certified convert/layer/test_there_and_back training/test_conversion training/test_trainer))

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
	@sed -nE 's/^([a-z]+):.*## (.*)$$/make \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 20

demo: $(VENV)/.demo      ## Convert, train and certify on embedded data, and write a page
	$(VENV)/bin/convattn demo

test: $(VENV)/.dev       ## Run every test but the slow ones
	OMP_NUM_THREADS=1 $(PY) -m pytest -m "not slow" --numprocesses=auto
	OMP_NUM_THREADS=1 $(AVX2) $(PY) -m pytest -m "not slow" --numprocesses=auto $(AGAIN)

check: $(VENV)/.dev      ## Format, lint, types, imports and the quickest tests, in under two minutes
	VENV=$(VENV) scripts/check

fix: $(VENV)/.dev        ## Repair what can be repaired
	VENV=$(VENV) scripts/fix

docs: $(VENV)/.dev       ## Write docs/commands.md out of the commands' help
	$(PY) scripts/command_help.py

constraints:             ## Pin today's versions in constraints.txt (needs uv)
	@command -v uv >/dev/null || { echo "make constraints needs uv" >&2; exit 1; }
	{ head -n 1 constraints.txt; \
	  uv pip compile pyproject.toml --universal --python-version 3.11 --upgrade --quiet \
	    --extra dev --extra all --no-header --no-annotate; } > constraints.txt.new
	mv constraints.txt.new constraints.txt

clean:                   ## Remove the environment and everything that is written by tools
	rm -rf $(VENV) build dist demo demo-* bench-layers* bench-networks* bench-sequences* .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find src tests examples benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

# A stamp says which extras the environment holds; newer requirements make it stale.
$(VENV)/.dev $(VENV)/.demo: pyproject.toml constraints.txt | $(PY)
	$(INSTALL) --editable ".[$(if $(filter %.dev,$@),dev,train)]"
	touch $@

$(PY):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "convattn needs Python 3.11 or later: make PYTHON=python3.11 ...")'
	$(NEW_VENV)
