# Everything a contributor needs; `make` alone lists it.
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.ready
PYTHON ?= python3

.DEFAULT_GOAL := help
.PHONY: help run test lint format bench simulate generate facts clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1|/' | column -t -s'|'

$(STAMP): pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable . --group dev
	@touch $@

run: $(STAMP)  ## start a broker on 127.0.0.1:9092 with its data in ./.moldau
	@$(BIN)/moldau up

test: $(STAMP)  ## run every test
	@tools/install-test-tools
	@$(BIN)/pytest -n 2 --dist worksteal

lint: $(STAMP)  ## ruff, mypy --strict and the import layers
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

format: $(STAMP)  ## rewrite the sources in the house format
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

bench: $(STAMP)  ## compare with Apache Kafka in one run, write bench/RESULTS.md
	@tools/install-test-tools
	@$(BIN)/python -m bench

SEEDS ?= 1000
simulate: $(STAMP)  ## transactions under crashes and power losses, SEEDS=1000 of each
	@$(BIN)/python -m moldau.testing.simulation --seeds $(SEEDS)
	@$(BIN)/python -m moldau.testing.simulation --seeds $(SEEDS) --kind power-losses

generate: $(STAMP)  ## write src/moldau/protocol/messages/ from the checked-in facts
	@$(BIN)/python -m tools.generator

facts: $(STAMP)  ## refresh the protocol's facts from Apache Kafka's jars
	@$(BIN)/python -m tools.generator.facts

clean:  ## remove the environment and caches
	@rm -rf $(VENV) .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis
