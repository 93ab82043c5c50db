# The commands of a contributor. Environments are made when first needed, in the user's cache: see tools/env.py.
#
#   make test ARGS="-k warmup"        arguments for pytest (for demo: for the script), with all rows of these tests
#   make test PYTHON=python3.12       the Python that the environments are made with

SHELL := /bin/bash
# pipefail: the status of a test run must survive the tee behind it.
.SHELLFLAGS := -o pipefail -c
.DEFAULT_GOAL := help
.PHONY: help demo quick test test-all test-deep test-python test-trainers test-xla test-cuda docs dist lint bench clean

PYTHON ?= python3
ARGS ?=
HYPOTHESIS_PROFILE ?= ci
export HYPOTHESIS_PROFILE
# The checkout is what runs, also in the subprocesses of tests.
export PYTHONPATH := $(CURDIR)

# pyenv runs python3.13 only if its variable names this version. Without pyenv the variable has no effect.
PYENV = $(if $(filter python3.%,$(PYTHON)),PYENV_VERSION=$(PYTHON:python%=%))

# In a recipe: stops it when there is no environment, else $$python is the Python of it.
use = python=$$($(PYENV) $(PYTHON) tools/env.py $(1)) || exit 1

help: ## list these targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1|\2/p' $(firstword $(MAKEFILE_LIST)) | \
	  while IFS='|' read -r target text; do printf '  make %-13s %s\n' "$$target" "$$text"; done

demo: ## train a small model with Composer on our schedules
	@$(call use,composer); "$$python" examples/composer_run.py $(ARGS)

# Two workers of one thread each: more threads of torch would only fight each other. The newest torch goes
# first, as its environment is there sooner. If one run fails, the other still runs.
test: export TEST_ROWS ?= $(if $(ARGS),all,part)
test: ## run the tests and doctests, on the newest torch and with Composer; one row in four of the slowest tests
	@logs=$$(mktemp -d) || exit 1; trap 'rm -rf "$$logs"' EXIT; failed=0; summary=; \
	for env in newest composer; do \
	  printf '\n== tests in the environment "%s"\n' "$$env"; \
	  echo 'no environment' >"$$logs/$$env"; word=passed; \
	  { python=$$($(PYENV) $(PYTHON) tools/env.py "$$env") && \
	    OMP_NUM_THREADS=1 "$$python" -m pytest -n 2 --dist loadgroup --ignore=tests/cuda --color=$(if $(MAKE_TERMOUT),yes,auto) $(ARGS) \
	      2>&1 | tee "$$logs/$$env"; } || { word=FAILED; failed=1; }; \
	  summary+=$$(printf '%-9s %s  %s' "$$env" "$$word" "$$(tail -n 1 "$$logs/$$env")")$$'\n'; \
	done; \
	printf '\n%s' "$$summary"; exit $$failed

quick: ## run the tests of what changed since main, without slow ones, in a minute
	@$(PYENV) $(PYTHON) tools/quick.py $(ARGS)

test-all: ## the same with all rows, as CI does
	@$(MAKE) --no-print-directory test TEST_ROWS=all

test-deep: ## the same with rows that are too slow for CI, and 5,000 new examples per property
	@$(MAKE) --no-print-directory test-all HYPOTHESIS_PROFILE=deep

# All tests run on Python 3.11; three minutes suffice for another Python, with 20 examples for a property.
test-python: HYPOTHESIS_PROFILE = quick
test-python: PYTHON = $(word $(shell echo $$(($$(date -u +%u) % 3 + 1))),python3.10 python3.12 python3.13)
test-python: ## run part of the tests on Python 3.10, 3.12 or 3.13, by the day of the week
	@$(PYENV) $(PYTHON) --version 2>/dev/null || \
	  { echo "$(PYTHON), the other Python of today, is not installed. Its tests are left out."; exit 0; }; \
	$(call use,newest); OMP_NUM_THREADS=1 "$$python" -m pytest -n 2 --dist loadgroup tests/laws tests/optim \
	  -k "not compile and not graph and not distributed" $(ARGS)

test-trainers: ## run the tests with transformers, TRL, accelerate, Lightning and torchtitan
	@$(call use,trainers); OMP_NUM_THREADS=1 "$$python" -m pytest tests/trainers timesched/integrations \
	  tests/docs/test_tutorials.py $(ARGS)

test-xla: ## run the tests on a lazily traced device, torch_xla's own CPU
	@$(call use,xla); OMP_NUM_THREADS=1 PJRT_DEVICE=CPU "$$python" -m pytest tests/xla $(ARGS)

test-cuda: ## count what steps launch on a CUDA GPU, on fake tensors: no GPU is needed
	@$(call use,newest); OMP_NUM_THREADS=1 "$$python" -m pytest -n 2 tests/cuda $(ARGS)

# -E: nothing of an earlier build is taken over, since a page depends on source files that Sphinx does not know of.
docs: ## build the documentation site in build/docs
	@$(call use,docs); "$$python" -m sphinx -b html -E -W --keep-going -n -q docs build/docs $(ARGS) && \
	echo "The site is in build/docs/index.html"

dist: ## build the sdist and the wheel in dist/, and check what they contain
	@$(call use,newest); rm -rf dist && "$$python" -m hatchling build -d dist && "$$python" -m pytest tests/packaging $(ARGS)

lint: ## ruff, mypy, and no import that goes up or in a circle
	@$(call use,newest); \
	"$$python" -m ruff check . && \
	"$$python" -m ruff format --check . && \
	"$$python" tools/imports.py && \
	"$$python" -m mypy timesched optim $(wildcard tools/*.py examples/*.py benchmarks/*.py docs/_ext/*.py tests/typing/*.py)

# The optimizers and the plain loop are compared on the newest torch, the schedules with Composer.
BENCH_NEWEST = $(addprefix benchmarks/,optimizer_step.py plain_loop.py gpu.py low_precision.py bf16_loss.py muon_ranks.py) \
  $(wildcard benchmarks/results_*.py)
bench: ## run the benchmarks, one after the other
	@set -- $(sort $(filter-out benchmarks/_% $(BENCH_NEWEST),$(wildcard benchmarks/*.py))); \
	step=0; all=$$(($$# + $(words $(BENCH_NEWEST)))); \
	run() { \
	  printf '\n== %s of %s, after %s s: %s\n' $$((step += 1)) $$all $$SECONDS "$$1"; PYTHONUNBUFFERED=1 "$$python" "$$1" $(ARGS); \
	}; \
	$(call use,composer); \
	for script; do run "$$script" || exit 1; done; \
	$(call use,newest); \
	for script in $(BENCH_NEWEST); do run "$$script" || exit 1; done

clean: ## delete what builds, tests and linters leave in the checkout
	@rm -rf build dist docs/reference/api .hypothesis .mypy_cache .pytest_cache .ruff_cache
	@find . -name .git -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +
