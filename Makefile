# Every target sets itself up: `make run` on a fresh clone needs python3 (>= 3.11) and nothing else.
.DELETE_ON_ERROR:
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# What says what is installed: the client with all for work on it, and the gateway, which needs just that client.
PROJECTS := pyproject.toml gateway/pyproject.toml gateway/hatch_build.py
ARGS ?=
# Side by side, since tests mostly wait; one more than CI's machine has cores. A part is run by one process, whose output
# is the plainer; `make test ARGS='-n 3 tests/e2e'` is not.
WORKERS ?= 3
PARALLEL := $(if $(ARGS),,-n $(WORKERS) --max-worker-restart 3 --dist loadfile --no-loadscope-reorder)
SUITE ?=

# Tests start hundreds of processes: none is to compile all of pgtrunk anew, though its bytecode was not to be kept.
test test-long deaths bench wan: export PYTHONDONTWRITEBYTECODE =

.PHONY: help run test test-long wan check format bench conformance conformance-asyncpg deaths venv clean

help:
	@echo 'make run         the demonstration: PostgreSQL, gateway, trunk, queries over QUIC (ARGS=--once: end after the table)'
	@echo 'make test        the test suite, some 14 minutes on 2 cores (ARGS=tests/quic: a part of it)'
	@echo 'make test-long   what takes longer'
	@echo 'make wan         each experiment of the laboratory in short (root; ARGS='"'ramp loss --link uml'"': some of them)'
	@echo 'make check       formatting, lint, types'
	@echo 'make format      put the formatting right'
	@echo 'make bench       CPU and throughput, beside a bare echo and PgBouncer'
	@echo 'make conformance tests that are not ours, from a checkout of PgBouncer (SUITE=/path), against the gateway'
	@echo 'make conformance-asyncpg   those of asyncpg, from a checkout of it (SUITE=/path), over QUIC, beside Postgres itself'
	@echo 'make deaths      who dies in which state, and what comes of it: all cells of the matrix, as a table'
	@echo 'make clean       remove $(VENV) and caches'

venv: $(STAMP)

# Runs its arguments while it holds a lock that their end, however they end, gives back: of two makes that find no
# $(VENV), one sets it up and the other waits, to see that it is there.
LOCKED := $(PYTHON) -c 'import fcntl, os, sys; lock = os.open("pyproject.toml", os.O_RDONLY); \
  os.set_inheritable(lock, True); fcntl.flock(lock, fcntl.LOCK_EX); os.execvp(sys.argv[1], sys.argv[1:])'

define SETUP
test -f $(STAMP) && test -z "$$(find $(PROJECTS) -newer $(STAMP))" && exit 0
# Without pip it is what an interrupted set-up left, or an interpreter that has since gone.
$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV) || {
  rm -rf $(VENV)
  echo 'No virtual environment could be made: the lines above say why. On Debian and Ubuntu it is mostly'
  echo 'the venv module, which has a package of its own: apt-get install python3-venv'
  exit 1
}
echo 'setting up $(VENV) ...'
$(BIN)/python -m pip --disable-pip-version-check install -q -e '.[dev]' -e ./gateway && touch $(STAMP)
endef

$(STAMP): export SETUP_SCRIPT = $(SETUP)
$(STAMP): $(PROJECTS)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo 'pgtrunk needs Python 3.11 or newer, which $(PYTHON) is not. Name another: make PYTHON=python3.12'; exit 1; }
	@$(LOCKED) sh -c "$$SETUP_SCRIPT"

run: $(STAMP)
	@exec $(BIN)/pgtrunk-demo $(ARGS)

test: $(STAMP)
	$(BIN)/python -m pytest $(PARALLEL) $(ARGS)

test-long: $(STAMP)
	$(BIN)/python -m pytest -m 'long or not long' --timeout 1800 --durations 10 $(PARALLEL) $(ARGS)

wan: $(STAMP)
	@exec $(BIN)/python -m netem run --quick --output build/wan $(or $(ARGS),all)

check: $(STAMP)
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/pyright

format: $(STAMP)
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

bench: $(STAMP)
	@exec $(BIN)/python tests/bench $(ARGS)

conformance: $(STAMP)
	@exec $(BIN)/python tests/conformance --suite '$(SUITE)' $(ARGS)

conformance-asyncpg: $(STAMP)
	@exec $(BIN)/python tests/conformance/asyncpg_suite --suite '$(SUITE)' $(ARGS)

deaths: $(STAMP)
	@exec $(BIN)/python tests/deaths $(ARGS)

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist
