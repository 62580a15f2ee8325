# Everything a clone needs, one word each. Whatever is missing is set up first, in $(VENV) and nowhere else.

VENV ?= .venv
BIN := $(VENV)/bin
# Left empty, a suitable Python is looked for.
PYTHON ?=
USE_UV := $(if $(PYTHON),,$(shell command -v uv 2>/dev/null))

# The suite starts thousands of processes: none of them shall compile everything anew.
unexport PYTHONDONTWRITEBYTECODE

# The whole suite but the fault drills, which take long: make faults. The longest tests come first.
TESTS ?= tests/docs tests/unit tests/pg tests/model tests/e2e tests/cli tests/embedded tests/integrations tests/testing tests/web \
	tests/browser tests/faults/test_checker.py
# The major versions that `make servers` fetches; all that are pinned if empty.
SERVERS ?=
# What depends most on other packages, for `make lowest`. Old packages warn of what newer ones have deprecated, and the test
# client of an old Starlette leaves its streams unclosed when a request or a start fails.
LOWEST_TESTS ?= -W ignore::DeprecationWarning -W "ignore:Unclosed <MemoryObject:ResourceWarning" \
	tests/unit tests/pg/test_sending.py tests/e2e/test_one_task.py tests/cli/test_dev.py tests/web tests/integrations
# Set by `make lowest`: a file that holds each dependency at its lower bound.
CONSTRAINTS ?=
# What `python -m bench` is told, such as --quick.
BENCH ?=
# The interpreters for which `make release-check` installs the package; all that are found if empty.
PYTHONS ?=
# How long a soak lasts.
SOAK_MINUTES ?= 60
# How much larger the fault drills are than in CI, and how much is sent in the end.
FAULTS_SCALE ?= 3
FAULTS_SENDS ?= 1000000

# Servers with the packaged 100 connections cannot carry six test processes.
TEST_PROCESSES ?= $(if $(filter-out embedded 13 14 16 17,$(HORSIES_TEST_SERVER)),4,6)

.PHONY: help demo test servers lowest lint types docs bench faults soak dist release-check sbom clean
.DEFAULT_GOAL := help

help:
	@echo 'make demo    see tasks succeed, fail, retry, run late, time out, crash and expire'
	@echo 'make test    run the whole test suite on a PostgreSQL of its own, or on HORSIES_TEST_SERVER'
	@echo 'make servers fetch PostgreSQL 13, 14, 16 and 17; then HORSIES_TEST_SERVER=13 make test'
	@echo 'make lowest  test with the lowest versions of all dependencies, in an environment of its own'
	@echo 'make lint    style, import rules and spelling'
	@echo 'make types   type check, of the code and of what users see of it'
	@echo 'make docs    build the site into build/site; fails on a link that leads nowhere'
	@echo 'make bench   measure how fast it is on this machine, for two to three hours; BENCH=--quick for three minutes'
	@echo 'make faults  the fault drills at length, and how fast this machine recovers from what'
	@echo 'make soak    a load under fault after fault, for SOAK_MINUTES'
	@echo 'make dist    build the wheel and the source distribution in build/dist'
	@echo 'make release-check    build them, and install them on every CPython here, or on PYTHONS'
	@echo 'make sbom    list what is installed with the wheel, and the licences, in build/sbom.cdx.json'
	@echo 'make clean   remove everything that was set up or built here'

demo: $(VENV)/.runs
	$(BIN)/horsies demo --once

test: $(VENV)/.develops
	$(BIN)/pytest -n $(TEST_PROCESSES) $(TESTS)

servers: $(VENV)/.develops
	$(BIN)/python -m tests.support.fetch $(SERVERS)

lowest:
	@$(MAKE) --no-print-directory VENV=.venv-lowest .venv-lowest/bin/python
	.venv-lowest/bin/python tests/lowest.py >.venv-lowest/constraints.txt
	@$(MAKE) --no-print-directory test VENV=.venv-lowest CONSTRAINTS=.venv-lowest/constraints.txt TESTS='$(LOWEST_TESTS)'

lint: $(VENV)/.develops
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports
	$(BIN)/codespell README.md CHANGELOG.md CONTRIBUTING.md docs/*.md docs/reference horsies bench examples

types: $(VENV)/.develops
	$(BIN)/pyright
	$(BIN)/pyright --project tests/typing/pyrightconfig.json
	$(BIN)/mypy --strict --python-version 3.11 --follow-imports silent tests/typing/public.py

docs: $(VENV)/.documents
	$(BIN)/pytest tests/docs/test_pages.py tests/docs/test_reference.py -k 'not block_of_a_page'
	$(BIN)/zensical build --clean --strict

bench: $(VENV)/.develops
	$(BIN)/python -m bench $(BENCH)

faults: $(VENV)/.develops
	FAULTS_SCALE=$(FAULTS_SCALE) $(BIN)/pytest -n 2 tests/faults
	$(BIN)/python -m tests.faults
	$(BIN)/python -m tests.faults --sends $(FAULTS_SENDS)

soak: $(VENV)/.develops
	$(BIN)/python -m tests.faults --soak $(SOAK_MINUTES)

dist: $(VENV)/.develops
	rm -rf build/dist
	$(BIN)/python -m build --outdir build/dist

release-check: dist
	$(BIN)/python -m tests.release $(PYTHONS)

# What a user gets who installs the wheel without extras. pip and setuptools come with the environment, and not with horsies.
sbom: dist $(VENV)/.releases
	rm -rf build/sbom
	$(BIN)/python -m venv build/sbom
	build/sbom/bin/python -m pip install --quiet --disable-pip-version-check build/dist/*.whl
	build/sbom/bin/python -m pip uninstall --quiet --yes setuptools pip
	$(BIN)/cyclonedx-py environment --pyproject pyproject.toml --mc-type library --spec-version 1.6 --output-reproducible \
		--output-file build/sbom.cdx.json build/sbom

clean:
	rm -rf .venv .venv-3.* .venv-lowest .servers .bench build dist *.egg-info
	rm -rf .cache .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A file in the environment marks what is installed in it, so that only a changed pyproject.toml installs again.

$(VENV)/.runs: pyproject.toml | $(BIN)/python
	$(call install,-e '.[local]')
	@touch $@

# The test client of older Starlettes needs httpx.
$(VENV)/.develops: pyproject.toml | $(BIN)/python
	$(call install,-e '.[local]' --group dev $(if $(CONSTRAINTS),httpx --constraint $(CONSTRAINTS)))
	@touch $@ $(VENV)/.runs

$(VENV)/.documents: $(VENV)/.develops
	$(call install,--group docs)
	@touch $@

$(VENV)/.releases: $(VENV)/.develops
	$(call install,--group release)
	@touch $@

# pip knows dependency groups from 25.1 on.
ifdef USE_UV
install = uv pip install --quiet --python $(BIN)/python $(1)
else
install = $(BIN)/python -m pip install --quiet --disable-pip-version-check 'pip>=25.1' \
	&& $(BIN)/python -m pip install --quiet --disable-pip-version-check $(1)
endif

ifdef USE_UV
$(BIN)/python:
	uv venv --quiet --allow-existing --python '>=3.11' $(VENV)
else
$(BIN)/python:
	@for candidate in $(or $(PYTHON),python3 python3.14 python3.13 python3.12 python3.11 python); do \
		if "$$candidate" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
			echo "setting up $(VENV) with $$("$$candidate" --version)"; \
			exec "$$candidate" -m venv --clear $(VENV); \
		fi; \
	done; \
	echo 'error: no Python 3.11 or later with its venv module was found; install one (on Debian: python3 and' \
		'python3-venv), or name it: make PYTHON=/path/to/python3' >&2; \
	exit 1
endif
