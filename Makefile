# All that is needed is make and a Python >= 3.11; every target makes .venv first.
#
#   make demo    a pipeline on three nodes of this machine, one of which dies
#   make check   lint, types, import contracts, core and property tests (under two minutes)
#   make test    every test, then the wheel in a fresh environment
#   make simulate  deployments in virtual time under faults: SECONDS=600 of it (SEED=1 to repeat)
#   make drill   real processes, killed and frozen, bad links: SECONDS=300 of it (SEED=1 to repeat)
#   make bench   how fast it is, as ratios to floors measured in the same run (a few minutes);
#                BENCH='placement starts' for some, BENCH='--output json' for programs
#   make docs    write docs/reference/ anew, from the code
#   make lock    resolve the dependencies again and rewrite requirements/
#   make clean   remove what the other targets made

VENV  := .venv
BIN   := $(VENV)/bin
STAMP := $(VENV)/.made
# Test processes side by side; the suites are safe for it.
JOBS  ?= 2

.DEFAULT_GOAL := help
.PHONY: help venv demo check static test wheel simulate drill bench docs lock clean
.NOTPARALLEL:

help:
	@sed -e '/^#/!q' -e 's/^# \{0,1\}//' Makefile

venv: $(STAMP)

$(STAMP): requirements/dev.txt pyproject.toml .ci/make-venv
	@PYTHON='$(PYTHON)' sh .ci/make-venv $(VENV)
	@touch $@

demo: $(STAMP)
	$(BIN)/slotbus demo

static: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

check: static
	$(BIN)/pytest -q -n $(JOBS) --dist worksteal tests/core tests/properties \
		tests/simulation/test_few.py

# One deployment serves all of tests/compose, so they run one after the other. They need a
# Docker engine: without one they say what was left out, and fail where CI is set. The same
# holds for the nats command line and a kube-apiserver, which are built once, beside the tests
# that can do without.
# Real processes against deadlines on a busy machine: what fails beside the others has to pass
# by itself, and both results are shown.
test: $(STAMP)
	.ci/go-binaries beside $(BIN)/pytest -q -n $(JOBS) --dist worksteal --ignore=tests/compose \
	|| { echo 'once more, alone: what failed beside the others'; \
	$(BIN)/pytest -q --last-failed --last-failed-no-failures none --ignore=tests/compose; }
	$(BIN)/pytest -q tests/compose
	$(BIN)/python tests/wheel/smoke.py

wheel: $(STAMP)
	$(BIN)/python tests/wheel/smoke.py

# The laws in virtual time: other seeds each time; SEED tells one again, with all it says.
simulate: $(STAMP)
	$(BIN)/python -m tests.simulation --seconds $(or $(SECONDS),600) --jobs $(JOBS) \
		$(if $(SEED),--seed $(SEED)) $(if $(FIRST),--first $(FIRST))

# The laws under real faults; a failed drill leaves its logs, recordings and story.
drill: $(STAMP)
	$(BIN)/python -m tests.drills --seconds $(or $(SECONDS),300) $(if $(SEED),--seed $(SEED))

# Each benchmark runs alone, in a process of its own; servers listen on loopback only.
BENCH ?=
bench: $(STAMP)
	$(BIN)/python -m bench $(BENCH)

docs: $(STAMP)
	$(BIN)/python -m controller.reference docs/reference

# uv resolves for every platform and Python at once; the files name no index and no path.
UV      := 0.13.8
COMPILE := $(VENV)/lock/bin/uv pip compile --universal --python-version 3.11 --generate-hashes \
	--no-header --no-annotate --no-emit-index-url --no-emit-find-links --quiet --upgrade

lock: $(STAMP)
	$(BIN)/python -m venv $(VENV)/lock
	$(VENV)/lock/bin/python -m pip install --quiet uv==$(UV)
	$(COMPILE) pyproject.toml --output-file requirements/run.txt
	$(COMPILE) pyproject.toml --extra test --group build --constraint requirements/run.txt \
		--output-file requirements/dev.txt
	$(COMPILE) --group pyproject.toml:image --constraint requirements/dev.txt \
		--output-file requirements/build.txt

clean:
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
