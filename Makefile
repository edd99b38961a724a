# Every target sets itself up: `make run` on a fresh clone needs python3 (>= 3.11) and nothing else.
.DELETE_ON_ERROR:
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
ARGS ?=

.PHONY: help run test test-long check format bench venv clean

help:
	@echo 'make run         the demonstration: PostgreSQL, gateway, trunk, queries over QUIC (ARGS=--once: end after the table)'
	@echo 'make test        the test suite, under 10 minutes'
	@echo 'make test-long   what takes longer'
	@echo 'make check       formatting, lint, types'
	@echo 'make bench       CPU and throughput, beside a bare echo and PgBouncer'
	@echo 'make clean       remove .venv and caches'

venv: $(STAMP)

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo 'pgtrunk needs Python 3.11 or newer; $(PYTHON) is older. Name another: make PYTHON=python3.12'; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || \
	  { rm -rf $(VENV); echo '$(PYTHON) has no venv module. On Debian and Ubuntu: apt-get install python3-venv'; exit 1; }
	@echo 'setting up $(VENV) ...'
	@$(BIN)/python -m pip --disable-pip-version-check install -q -e '.[dev]'
	@touch $@

run: $(STAMP)
	@exec $(BIN)/pgtrunk-demo $(ARGS)

test: $(STAMP)
	$(BIN)/python -m pytest $(ARGS)

test-long: $(STAMP)
	$(BIN)/python -m pytest -m 'long or not long' --timeout 1800 $(ARGS)

check: $(STAMP)
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/pyright

format: $(STAMP)
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

bench: $(STAMP)
	@$(BIN)/python tests/bench $(ARGS)

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist
