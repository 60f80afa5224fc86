# Everything a fresh machine needs beside Python >= 3.11. Each target first sees to .venv: made where it is missing,
# brought up to date where a requirements file is newer, made anew where PYTHON names another interpreter.
VENV := .venv
PYTHON ?=
ARGS ?=
N ?= 2
PYTEST := $(VENV)/bin/python -m pytest -n logical --maxprocesses 8 --dist worksteal
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help train train-local test test-all bench lint clean FORCE
.DEFAULT_GOAL := help

help:  ## show this list
	@sed -n 's/^\([a-z-]*\):.*## /\1|/p' Makefile | while IFS='|' read -r name text; do \
		printf '  make %-11s %s\n' "$$name" "$$text"; done

train: $(VENV)/train-ready  ## train; flags in ARGS: make train ARGS="--config=configs/mnist.py --config.seed=1"
	@exec $(VENV)/bin/python train.py $(ARGS)

train-local: $(VENV)/train-ready  ## train as N processes on this machine: make train-local N=2 ARGS="..."
	@exec $(VENV)/bin/python -m launch --processes=$(N) $(ARGS)

# Compiling is most of the suite's time, and without LLVM's optimization half of it; `make test-all` tests with it.
test: lint  ## lint, then all tests and doctests that are not marked slow
	XLA_FLAGS="$(XLA_FLAGS) --xla_backend_optimization_level=0" $(PYTEST) -m "not slow" $(ARGS)

test-all: lint  ## lint, then every test and doctest
	$(PYTEST) $(ARGS)

bench: $(VENV)/bench-ready  ## measure what has a target, beside PyTorch, and say what moved: under 20 minutes on 2 cores
	$(VENV)/bin/python -m benchmarks run

lint: $(VENV)/dev-ready  ## formatting, style and types (mend with: .venv/bin/ruff format; .venv/bin/ruff check --fix)
	$(VENV)/bin/python -m ruff format --check .
	$(VENV)/bin/python -m ruff check .
	$(VENV)/bin/python -m mypy

clean:  ## remove .venv, caches and build folders; results stay
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache build dist *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# ---- the environment ----
# $(VENV)/unfinished exists while pip works. Where it was left behind, packages may be half there: .venv is made anew.
install = echo "Installing $(1) into $(VENV) ..." && touch $(VENV)/unfinished && \
	$(VENV)/bin/python -m pip install --quiet --no-input -r $(1) && rm $(VENV)/unfinished && touch $@

$(VENV)/train-ready: requirements.txt $(VENV)/interpreter
	@$(call install,requirements.txt)

$(VENV)/dev-ready: requirements-dev.txt $(VENV)/train-ready
	@$(call install,requirements-dev.txt)

$(VENV)/bench-ready: requirements-bench.txt $(VENV)/train-ready
	@$(call install,requirements-bench.txt)

# Asked every time, written only when .venv is made anew: then it is newer than the stamps above, and they follow.
$(VENV)/interpreter: FORCE
	@$(if $(fresh),:,$(new_venv))

new_venv = echo "Making $(VENV) with $(call identity,$(interpreter)) (1.2 GB; a minute or two) ..." && \
	"$(interpreter)" -m venv --clear $(VENV) && $(VENV)/bin/python --version > $@

# Without PYTHON any working .venv will do; with PYTHON it must be of that very interpreter.
fresh = $(shell test -f $(VENV)/interpreter && test ! -f $(VENV)/unfinished && \
	test -n "$(have)" && test "$(have)" = "$(wanted)" && echo yes)
have = $(call identity,$(VENV)/bin/python)
wanted = $(if $(PYTHON),$(call identity,$(PYTHON)),$(have))
identity = $(shell "$(1)" -c 'import platform, sys; print("Python", platform.python_version(), "at", sys.base_prefix)' 2>/dev/null)

# Names are tried by running them: one that is on the PATH may still not run, or lack what makes an environment.
interpreter = $(if $(PYTHON),$(named),$(found))
named = $(or $(call usable,$(PYTHON)),$(error PYTHON=$(PYTHON) $(if $(wanted),is $(wanted),does not run): \
	needs Python 3.11 or newer with venv and ensurepip))
found = $(or $(call usable,python3),$(call usable,python3.13),$(call usable,python3.12),$(call usable,python3.11),$(error \
	no Python 3.11 or newer with venv and ensurepip found as python3, python3.13, python3.12 or python3.11: name one with PYTHON=...))
usable = $(if $(shell "$(1)" -c 'import ensurepip, sys, venv; sys.version_info >= (3, 11) and print(1)' 2>/dev/null),$(1))
