# Everything runs in .venv, which is made on first use: Python 3.11 or newer is all that a machine must have.
# Other targets than these are not needed; `make` alone explains them.

PYTHON ?= python3
PIP_VERSION := 26.3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
SITE_VENV := .venv-site
CHAOS_KILLS ?= 50
CHAOS_SEEDS ?= 10000
ARGS ?=
SPARK ?=
SPARKS := .spark-versions

# Python keeps what it has compiled, also where the environment forbids it: each process of a test run would compile everything again.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help setup demo check test test-all lint types bench chaos docs pictures docs-site clean flink-client oldest-spark s3-server test-spark-versions

help:  ## show this list
	@echo "penstock: make <target> [ARGS='...']"
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1\t\2/p' $(MAKEFILE_LIST) | expand -t 23

setup: $(READY)  ## make .venv with everything in it (the others do it by themselves)

demo: $(READY)  ## run the demonstration: a job that is killed and comes back exact
	@$(BIN)/penstock demo $(ARGS)

check: lint types  ## the inner loop, two minutes: lint, types, quick unit tests, docs, a smoke run of the protocol
	@echo "check: pytest"
	@$(BIN)/python -m pytest -q -n 2 --tier check tests/unit tests/docs tests/protocol/test_random_seeds.py $(ARGS)

test: lint types  ## lint, types and every kind of test, fewer cases of some: what CI runs
	@echo "test: pytest; its last lines say what is left to make test-all and make chaos"
	@$(BIN)/python -m pytest -q -n 3 --durations=20 --tier test $(ARGS)

test-all: oldest-spark flink-client s3-server lint types  ## lint, types and all tests but the long chaos runs
	@echo "test-all: pytest; its last lines say what is left to make chaos"
	@$(BIN)/python -m pytest -q -n 3 --durations=20 --tier all $(ARGS)

# One test runs on the oldest Spark. Its environment, half a GB to fetch once, is made beside the others; the test waits for it.
oldest-spark: $(READY)
	@mkdir -p $(SPARKS); nice $(BIN)/python tests/services/spark_versions.py prepare >$(SPARKS)/prepare.log 2>&1 &

# Tests run Flink's own command line and pages. Its jars, 329 MB to fetch once, come beside the others; the tests wait for them.
flink-client: $(READY)
	@mkdir -p $(SPARKS); nice $(BIN)/python tests/services/flink_client.py >$(SPARKS)/flink-client.log 2>&1 &

# Tests use a real S3 server. Go builds it, some minutes once, beside the others; without Go they use a simpler one.
s3-server: $(READY)
	@mkdir -p $(SPARKS); nice $(BIN)/python tests/services/s3_server.py >$(SPARKS)/s3-server.log 2>&1 &

test-spark-versions: $(READY)  ## run the tests on Spark in an environment for each version (SPARK=4.0: on one), and print a table
	@$(BIN)/python tests/services/spark_versions.py test $(SPARK) $(if $(ARGS),--pytest $(ARGS))

lint: $(READY)  ## check rules and formatting with ruff
	@echo "lint: ruff check, ruff format --check"
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --check .

types: $(READY)  ## check types with mypy: --strict in the package, and in the tests
	@echo "types: mypy, the package and the tests side by side"
	@$(BIN)/mypy --no-error-summary & package=$$!; \
	  $(BIN)/mypy --no-error-summary --config-file tests/mypy.ini; tests=$$?; \
	  wait $$package && exit $$tests

bench: $(READY)  ## measure every figure in one run, an hour and a half (ARGS=--quick: a few minutes, to see that it works)
	@$(BIN)/python benchmarks/run.py $(ARGS)

chaos: $(READY)  ## kill processes at random, CHAOS_KILLS times (50), while a ledger is kept; simulate CHAOS_SEEDS jobs (10000)
	@echo "chaos: $(CHAOS_KILLS) kills, $(CHAOS_SEEDS) seeds"
	@PENSTOCK_PRODUCTION_JVM=1 PENSTOCK_CHAOS_KILLS=$(CHAOS_KILLS) PENSTOCK_CHAOS_SEEDS=$(CHAOS_SEEDS) $(BIN)/python -m pytest -q --timeout=14400 --tier chaos -m "chaos or chaos_long" $(ARGS)

docs: $(READY)  ## check that the documentation agrees with the code and that its examples run
	@$(BIN)/python -m pytest -q tests/docs $(ARGS)

pictures: $(READY)  ## take the pictures of docs/pictures from a running dashboard (ARGS="ADDRESS JOB")
	@$(BIN)/python tests/services/pictures.py $(ARGS)

docs-site: $(SITE_VENV)/.ready  ## make a site of the pages, with search, in site/; check its links and that it loads nothing from elsewhere
	@$(SITE_VENV)/bin/python docs/make_site.py lay-out
	@$(SITE_VENV)/bin/zensical build --clean --strict
	@$(SITE_VENV)/bin/python docs/make_site.py check

clean:  ## remove the environments and what tools leave behind
	@rm -rf $(VENV) $(SPARKS) $(SITE_VENV) .site site .mypy_cache .ruff_cache .pytest_cache .hypothesis .demo spark-warehouse

# The stamp is written last, so an interrupted set-up is done again; it is also done again when versions change.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "setup: '$(PYTHON)' is not Python 3.11 or newer; install one, or name it: make PYTHON=/path/to/python" >&2; exit 1; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || { \
	  echo "setup: new environment in $(VENV)"; \
	  $(PYTHON) -m venv --clear $(VENV) || { \
	    echo "setup: the venv module does not work; on Debian and Ubuntu install python3-venv" >&2; exit 1; }; }
	@echo "setup: installing penstock and its tools (about 1 GB on disk, once)"
	@$(PIP) install pip==$(PIP_VERSION)
	@$(PIP) install -c constraints.txt -e . --group dev
	@$(BIN)/python -c 'from penstock.spark.java import find_java; find_java()' >/dev/null 2>&1 || { \
	  echo "setup: no Java 17 or newer here; installing one into $(VENV)"; \
	  $(PIP) install -c constraints.txt -e '.[java]'; }
	@touch $@

# The site's tools are large and nobody else needs them, so they have an environment of their own.
$(SITE_VENV)/.ready: pyproject.toml constraints.txt
	@echo "docs-site: new environment in $(SITE_VENV) (140 MB, once)"
	@$(PYTHON) -m venv --clear $(SITE_VENV)
	@$(SITE_VENV)/bin/python -m pip --quiet --disable-pip-version-check install pip==$(PIP_VERSION)
	@$(SITE_VENV)/bin/python -m pip --quiet --disable-pip-version-check install -c constraints.txt --group site
	@touch $@
