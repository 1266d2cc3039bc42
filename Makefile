# Everything a contributor needs; `make` alone lists it.
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.ready
PYTHON ?= python3

# Test runs start processes by the hundred: what Python compiles is kept, also where the shell says otherwise.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help run test test-spark-4.3 lint format bench bench-spark simulate planted-bugs faults faults-spark faults-pipelines generate facts clean

help:  ## list the targets
	@grep -hE '^[a-z0-9.-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9.-]+):.*## /  make \1|/' | column -t -s'|'

$(STAMP): pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable . --group dev
	@touch $@

run: $(STAMP)  ## a broker on 127.0.0.1:9092 and in-stream analytics to look at on http://127.0.0.1:8080
	@tools/install-java
	@$(BIN)/moldau demo run

SPARK_4_3 := .cache/spark-4.3
test: $(STAMP) $(SPARK_4_3)/.ready  ## run every test
	@tools/install-test-tools
	@$(BIN)/pytest -n 3 --dist worksteal

$(SPARK_4_3)/.ready: pyproject.toml
	@$(PYTHON) -m venv $(SPARK_4_3)
	@$(SPARK_4_3)/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[spark]' 'pyspark==4.3.0'
	@touch $@

test-spark-4.3: $(SPARK_4_3)/.ready  ## source, sink and exactly once on pyspark 4.3
	@tools/install-java
	@$(SPARK_4_3)/bin/python -m tests.spark.smoke

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

bench-spark: $(STAMP)  ## compare with Spark's own connector in one run, ten minutes, into bench/RESULTS.md
	@tools/install-test-tools
	@$(BIN)/python -m bench spark

SEEDS ?= 1000
simulate: $(STAMP)  ## clusters, and transactions under crashes and power losses, SEEDS=1000 of each
	@$(BIN)/moldau simulate --seeds $(SEEDS) --jobs 2
	@$(BIN)/moldau simulate --seeds $(SEEDS) --jobs 2 --kind crashes
	@$(BIN)/moldau simulate --seeds $(SEEDS) --jobs 2 --kind power-losses

BUG_SEEDS ?= 2000
planted-bugs: $(STAMP)  ## break the broker on purpose, bug by bug: each must be found within BUG_SEEDS=2000 seeds
	@$(BIN)/python -m tests.simulation.find_bugs --seeds $(BUG_SEEDS)

ROUNDS ?= 3
faults: $(STAMP)  ## three brokers on hosts of their own, every fault ROUNDS=3 times, nothing may be lost; needs root
	@tools/install-test-tools
	@$(BIN)/python -m tests.faults.cluster_faults --rounds $(ROUNDS)

KILLS ?= 20
faults-spark: $(STAMP)  ## kill a Spark driver KILLS=20 times under load, exactly once must hold
	@tools/install-test-tools
	@$(BIN)/python -m tests.faults.spark_kills --kills $(KILLS)

faults-pipelines: $(STAMP)  ## break what a pipeline stands on KILLS=20 times for each sink, exactly once must hold
	@tools/install-test-tools
	@$(BIN)/python -m tests.faults.pipeline_kills --kills $(KILLS)

generate: $(STAMP)  ## write src/moldau/protocol/messages/ from the checked-in facts
	@$(BIN)/python -m tools.generator

facts: $(STAMP)  ## refresh the protocol's facts from Apache Kafka's jars
	@$(BIN)/python -m tools.generator.facts

clean:  ## remove the environment and caches
	@rm -rf $(VENV) .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis
