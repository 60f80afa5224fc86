# A fresh machine needs Python >= 3.11 and this file. Each target first makes .venv, updates it when a requirements file
# is newer, and makes it again when PYTHON names another interpreter. `compilers` does so with .venv-compilers.
VENV := .venv
COMPILERS_VENV := .venv-compilers
PYTHON ?=
ROOM := 1.2 GB
ARGS ?=
N ?= 2
PYTEST = $(VENV)/bin/python -m pytest -n logical --maxprocesses 8 --dist worksteal
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help train train-local live test test-all test-live test-compilers compilers bench bench-gpu docs lint clean FORCE
.DEFAULT_GOAL := help

help:  ## print this list
	@sed -n 's/^\([a-z-]*\):.*## /\1|/p' Makefile | while IFS='|' read -r name text; do \
		printf '  make %-14s %s\n' "$$name" "$$text"; done
	@echo; printf '  %-19s %s\n' 'ARGS="..."' "flags of train.py, of pytest, or of the benchmark" \
		N=2 "the number of processes of train-local" PYTHON=python3.12 "the interpreter of .venv"

train: $(VENV)/train-ready  ## train a config: make train ARGS="--config=configs/mnist.py --config.seed=1"
	@exec $(VENV)/bin/python train.py $(ARGS)

train-local: $(VENV)/train-ready  ## train a config with N processes on this machine: make train-local N=2 ARGS="..."
	@exec $(VENV)/bin/python -m launch --processes=$(N) $(ARGS)

live: $(VENV)/live-ready  ## train with worker processes, which really wait: make live ARGS="--config=..."
	@exec $(VENV)/bin/python train.py --live $(ARGS)

# Compiling takes most of the suite's time: half of that without LLVM's optimizations, and of jax 0.10 half of the rest
# without the new emitters of fusions (jax 0.12 has no others, and ignores the option) and in one piece. `make test-all`
# puts each reducer through its laws once more as users compile it. pytest exits with 5 if ARGS selects no test.
LAWS := tests/test_reducers.py
REAL_CLOCK := tests/test_claims.py::test_the_first_run_at_smoke_scale_ends_in_a_row[real_clock]
QUICK_XLA := --xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1 \
	--xla_backend_extra_options=xla_cpu_disable_new_fusion_emitters
test: lint  ## run lint, then every test and doctest that is not marked slow
	XLA_FLAGS="$(XLA_FLAGS) $(QUICK_XLA)" $(PYTEST) -m "not slow and not compilers" $(ARGS) || [ $$? -eq 5 ]

test-all: lint  ## run lint, then every test and doctest
	XLA_FLAGS="$(XLA_FLAGS) $(QUICK_XLA)" $(PYTEST) $(ARGS) || [ $$? -eq 5 ]
	$(PYTEST) -m "not slow" $(LAWS) $(ARGS) || [ $$? -eq 5 ]

test-live: $(VENV)/dev-ready $(VENV)/live-ready  ## run the tests of live runs, which need Ray and are skipped without it
	XLA_FLAGS="$(XLA_FLAGS) $(QUICK_XLA)" $(PYTEST) tests/test_live_ray.py "$(REAL_CLOCK)" $(ARGS) || [ $$? -eq 5 ]

test-compilers: VENV := $(COMPILERS_VENV)
test-compilers: compilers  ## compile for TPUs and GPUs that are not here; the largest: ARGS="-m compilers"
	JAX_PLATFORMS=cpu COMPILERS=required $(PYTEST) -m "compilers and not slow" $(ARGS) || [ $$? -eq 5 ]

compilers:  ## make .venv-compilers, an environment that has the compilers of TPUs and GPUs too (2.5 GB)
	@$(MAKE) --no-print-directory VENV=$(COMPILERS_VENV) ROOM="2.5 GB" $(COMPILERS_VENV)/compilers-ready

bench: $(VENV)/bench-ready  ## run the published benchmarks, and compare with their results (less than 20 minutes on 2 cores)
	$(VENV)/bin/python -m benchmarks run

bench-gpu: $(VENV)/bench-ready  ## measure one GPU (25 minutes at most): make bench-gpu ARGS="--only=bert"
	mkdir -p out/bench
	$(VENV)/bin/python -m benchmarks.gpu --json=out/bench/gpu.json $(ARGS)

docs: $(VENV)/dev-ready  ## build the manual and the pages of the package into out/docs; a warning is an error
	$(VENV)/bin/python -m sphinx --fail-on-warning --keep-going --quiet docs out/docs
	@echo "out/docs/index.html"

lint: $(VENV)/dev-ready  ## check formatting, style and types (to fix: .venv/bin/ruff format; .venv/bin/ruff check --fix)
	$(VENV)/bin/python -m ruff format --check .
	$(VENV)/bin/python -m ruff check .
	$(VENV)/bin/python -m mypy

clean:  ## remove the environments and caches, but no results
	rm -rf $(VENV) $(COMPILERS_VENV) .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# ---- the environment ----
# $(VENV)/unfinished exists while pip runs. If it was left behind, some packages may be incomplete: .venv is made again.
# pip shows its progress on a terminal; elsewhere, and in continuous integration, it is quiet.
install = echo "Installing $(1) into $(VENV), which takes minutes ..." && touch $(VENV)/unfinished && \
	if [ -t 1 ] && [ -z "$$CI" ]; then quiet=; else quiet=--quiet; fi && \
	$(VENV)/bin/python -m pip install $$quiet --no-input -r $(1) && rm $(VENV)/unfinished && touch $@

$(VENV)/train-ready: requirements.txt $(VENV)/interpreter
	@$(call install,requirements.txt)

$(VENV)/dev-ready: requirements-dev.txt $(VENV)/train-ready
	@$(call install,requirements-dev.txt)

$(VENV)/live-ready: requirements-live.txt $(VENV)/train-ready
	@$(call install,requirements-live.txt)

$(VENV)/compilers-ready: requirements-compilers.txt $(VENV)/dev-ready
	@$(call install,requirements-compilers.txt)

$(VENV)/bench-ready: requirements-bench.txt $(VENV)/train-ready
	@$(call install,requirements-bench.txt)

# Checked every time, but written only when .venv is made again; it is then newer than the stamps above, which follow.
$(VENV)/interpreter: FORCE
	@$(if $(fresh),:,$(new_venv))

new_venv = echo "Making $(VENV) with $(call identity,$(interpreter)) ($(ROOM)) ..." && \
	"$(interpreter)" -m venv --clear $(VENV) && $(VENV)/bin/python --version > $@

# Without PYTHON any working .venv is accepted; with PYTHON it must have that interpreter.
fresh = $(shell test -f $(VENV)/interpreter && test ! -f $(VENV)/unfinished && \
	test -n "$(have)" && test "$(have)" = "$(wanted)" && echo yes)
have = $(call identity,$(VENV)/bin/python)
wanted = $(if $(PYTHON),$(call identity,$(PYTHON)),$(have))
identity = $(shell "$(1)" -c 'import platform, sys; print("Python", platform.python_version(), "at", sys.base_prefix)' 2>/dev/null)

# Each name is tried by running it: an interpreter on the PATH may not run, or may lack venv.
interpreter = $(if $(PYTHON),$(named),$(found))
named = $(or $(call usable,$(PYTHON)),$(error PYTHON=$(PYTHON) $(if $(wanted),is $(wanted),does not run): \
	needs Python 3.11 or newer with venv and ensurepip, such as PYTHON=$(example)))
found = $(or $(call usable,python3),$(call usable,python3.13),$(call usable,python3.12),$(call usable,python3.11),$(error \
	no Python 3.11 or newer with venv and ensurepip found as python3, python3.13, python3.12 or python3.11: name one with \
	PYTHON=$(example)))
# A shim of pyenv is found but does not run unless its version is switched on; the interpreter itself always runs.
example = $(or $(lastword $(sort $(foreach minor,11 12 13,$(wildcard $(PYENV)/versions/3.$(minor).*/bin/python)))),...)
PYENV = $(or $(PYENV_ROOT),$(HOME)/.pyenv)
usable = $(if $(shell "$(1)" -c 'import ensurepip, sys, venv; sys.version_info >= (3, 11) and print(1)' 2>/dev/null),$(1))
