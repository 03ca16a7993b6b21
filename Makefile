# Penstock. A bare `make` prints what there is. Needs Python 3.11 or newer, git and make; no Java.

SHELL := /bin/bash
.DEFAULT_GOAL := help

PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo "$$p"; break; }; done)
# Spark 4 runs on Java 17 and newer; where there is none, a runtime is installed as a wheel.
JAVA_EXTRA := $(shell "$${JAVA_HOME:+$$JAVA_HOME/bin/}java" -version 2>&1 \
	| grep -qE 'version "(1[7-9]|[2-9][0-9])' || echo ,java)
EXTRAS := spark$(JAVA_EXTRA),dev,plots

VENV := .venv
BIN := $(VENV)/bin
comma := ,
# The extras are part of the name: when Java goes away, setup runs again and brings one.
STAMP := $(VENV)/.setup-$(subst $(comma),-,$(EXTRAS))

OLDEST := .venv-oldest
OLDEST_SPARK := 4.1.*
OLDEST_STAMP := $(OLDEST)/.setup-$(subst $(comma),-,$(EXTRAS))

NAME ?= keyed-count
TESTS := $(wildcard tests/unit tests/contract tests/scenario tests/spark tests/faults tests/test_architecture.py)
PIP_FLAGS := --quiet --disable-pip-version-check

.PHONY: help
help: ## Print this list
	@echo "Penstock: make <target>"
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## /\1\t/' \
		| while IFS=$$'\t' read -r name text; do printf '  %-12s %s\n' "$$name" "$$text"; done

.PHONY: setup
setup: $(STAMP) ## Create .venv with Penstock, Spark, the test tools and, where there is no Java, a Java runtime

$(STAMP): pyproject.toml
	@test -n "$(PYTHON)" || { echo "Penstock needs Python 3.11 or newer on PATH (or make PYTHON=/path/to/python)"; exit 1; }
	@echo "setting up $(VENV) with $(PYTHON) [$(EXTRAS)]"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install $(PIP_FLAGS) -e '.[$(EXTRAS)]'
	@touch $@

.PHONY: demo
demo: $(STAMP) ## Run a small exchange for about a minute: orders, matching, statistics, live in the terminal
	@$(BIN)/penstock demo

.PHONY: test
test: $(STAMP) ## Run all tests at small counts (under 15 minutes)
	@$(BIN)/python -m pytest -m "not long" --durations=12 $(TESTS)

.PHONY: test-long
test-long: $(STAMP) ## Run the tests that take too long for `make test` (under 15 minutes)
	@$(BIN)/python -m pytest -m long --durations=12 $(TESTS)

.PHONY: oracle
oracle: $(STAMP) ## Compare stateful processors with plain Spark on the same rows (about five minutes)
	@PENSTOCK_ORACLE=1 $(BIN)/python -m pytest -q tests/spark/test_processors.py tests/spark/test_pyspark_processors.py

.PHONY: check
check: $(STAMP) ## Lint, types (mypy --strict) and import directions
	@$(BIN)/ruff check src tests
	@$(BIN)/mypy --strict src
	@$(BIN)/python -m pytest -q tests/test_architecture.py

.PHONY: docs
docs: $(STAMP) ## Write the tables of the reference pages from the definitions in code
	@$(BIN)/python -m penstock.cli.reference docs

.PHONY: bench
bench: $(STAMP) ## Run a benchmark: NAME=keyed-count QUICK=1 JSON=out.json
	@$(BIN)/penstock bench $(NAME) $(if $(QUICK),--quick) $(if $(JSON),--json $(JSON))

.PHONY: torture
torture: $(STAMP) ## Run the reliability tests at full counts (an hour at most, resumable): ONLY=3,7 JSON=out.json
	@$(BIN)/python tests/torture/run.py $(if $(ONLY),--only $(ONLY)) $(if $(JSON),--json $(JSON))

.PHONY: soak
soak: $(STAMP) ## Run a query at 20,000 rows/s for an hour and see whether anything grows: MINUTES=60 JSON=out.json
	@$(BIN)/python tests/soak/run.py $(if $(MINUTES),--minutes $(MINUTES)) $(if $(JSON),--json $(JSON))

.PHONY: test-oldest
test-oldest: $(OLDEST_STAMP) ## Smoke-test the oldest supported Spark in an environment of its own
	@$(OLDEST)/bin/python -m pytest -q tests/spark/test_smoke.py

$(OLDEST_STAMP): pyproject.toml
	@test -n "$(PYTHON)" || { echo "Penstock needs Python 3.11 or newer on PATH (or make PYTHON=/path/to/python)"; exit 1; }
	@echo "setting up $(OLDEST) with $(PYTHON) and Spark $(OLDEST_SPARK)"
	@test -x $(OLDEST)/bin/python || $(PYTHON) -m venv $(OLDEST)
	@$(OLDEST)/bin/python -m pip install $(PIP_FLAGS) -e '.[$(EXTRAS)]' 'pyspark==$(OLDEST_SPARK)'
	@touch $@

.PHONY: clean
clean: ## Remove the environments, caches and build results
	@rm -rf $(VENV) $(OLDEST) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis spark-warehouse metastore_db
	@find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
