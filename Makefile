.DEFAULT_GOAL := help
MINUTES ?= 10
MAKEFLAGS += --no-print-directory
SHELL := bash

VENV := $(CURDIR)/.venv

# Spark starts its Python workers with PYSPARK_PYTHON, or else with the first python3 on PATH, which lacks our packages.
export PYSPARK_PYTHON := $(VENV)/bin/python
export PYSPARK_DRIVER_PYTHON := $(VENV)/bin/python
export PATH := $(VENV)/bin:$(PATH)
# A SPARK_HOME would be used instead of the virtual environment's pyspark.
unexport SPARK_HOME
# Spark and the tests start hundreds of Pythons, each of which would compile all that it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup run test test-heavy test-azure test-matrix test-lowest sdk-tests bench chaos storm exhaustive lint format types check docs package clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' Makefile

setup: ## Check what is needed, make .venv and fetch Delta's jars (again only when something changed)
	@scripts/setup.sh

run: setup ## Run the job stream_to_delta, twice at once, on a hub of the emulator
	@.venv/bin/python scripts/run.py

# Three groups of tests keep the cores busy with Spark. With more at once Spark's Python takes longer to start than the
# ten seconds that Spark gives it.
test: setup ## Run the tests: make test ARGS="-k lease"
	@.venv/bin/python -m pytest --numprocesses=4 --dist=loadgroup --no-loadscope-reorder -m "not heavy" $(ARGS)

test-heavy: setup ## Tests that take minutes, which `make test` leaves out
	@.venv/bin/python -m pytest -m heavy $(ARGS)

test-azure: setup ## What can be run against a real event hub, which the environment names: CONTRIBUTING.md
	@EHBALANCE_TEST_AZURE=1 .venv/bin/python -m pytest tests/service $(ARGS)

test-matrix: setup ## What must work with each version of Spark, in environments of their own: make test-matrix ARGS="4.0 4.3"
	@.venv/bin/python -m nox $(if $(ARGS),-s $(foreach spark,$(ARGS),"spark($(spark))"),-t matrix)

test-lowest: setup ## Tests without Spark, with the lowest versions that pyproject.toml allows: make test-lowest ARGS=tests/lease_table
	@.venv/bin/python -m nox -s lowest -- $(ARGS)

sdk-tests: setup ## The SDKs' own live tests against the emulator; ARGS are for those in Python: make sdk-tests ARGS="-k send"
	@.venv/bin/python scripts/sdk_tests.py $(ARGS)
	@$(if $(ARGS),,.venv/bin/python scripts/go_sdk_tests.py)

bench: setup ## Measure speed, latency and cost beside their bars: make bench ARGS="--short"
	@.venv/bin/python -m bench $(ARGS)

chaos: setup ## Kill, pause and disturb queries, then count every event: make chaos MINUTES=10 SEED=1 ARGS="--scenario soak"
	@.venv/bin/python -m chaos --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(ARGS)

storm: setup ## Play groups of queries with faults in simulated time: make storm ARGS="--seconds 600"
	@.venv/bin/python -m storm $(ARGS)

exhaustive: setup ## Explore every course of the smallest groups, in 20 minutes on two cores
	@.venv/bin/python -m storm.exhaustive

lint: setup ## Check style, formatting and English
	@.venv/bin/ruff check .
	@.venv/bin/ruff format --check .
	@.venv/bin/ast-grep scan --rule scripts/english.yml --report-style short

format: setup ## Fix style and formatting
	@.venv/bin/ruff check --fix .
	@.venv/bin/ruff format .

types: setup ## Check types
	@.venv/bin/mypy

check: lint types ## lint and types

docs: setup ## Build the documentation's site in site/, links checked: make docs ARGS=serve shows it
	@NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs $(or $(ARGS),build) --strict

package: setup ## Build the package, check it, and try it in an empty environment
	@.venv/bin/python scripts/check_package.py

clean: ## Remove what builds, tests and Spark leave behind (.venv and .nox stay)
	@rm -rf build dist site *.egg-info .coverage .hypothesis .mypy_cache .pytest_cache .ruff_cache
	@rm -rf artifacts derby.log metastore_db spark-warehouse
	@find . -path './.venv*' -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +
