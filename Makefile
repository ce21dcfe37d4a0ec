# `make demo` and `make test` work on a fresh machine: they install what they need into .venv.
# They require only Python 3.10 or later and access to a package registry.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PYTEST := $(BIN)/python -m pytest

LAYERS := tests/unit tests/threads tests/integration tests/spec
# The versions of Python, nats-server and Spark for `test-all`, `test-servers` and `test-spark-matrix`.
PYTHONS ?= 3.10 3.11 3.12 3.13
SERVERS ?= 2.10.26 2.12.8 2.15.1
SPARKS ?= 4.0.4 4.1.4 4.2.1 4.3.0

.PHONY: demo test test-portable lint types reference dist test-all test-servers test-spark-matrix test-spark-cluster soak bench compare bench-spark clean

$(STAMP): setup.cfg pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "Python 3.10 or later is needed: make PYTHON=python3.11 …")'
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev,nkeys,spark]'
	$(BIN)/python -m jetstream_sync.spark.java --install
	touch $@

# Sends orders through JetStream and Spark and back, on an embedded server. CLUSTER=1: on a Spark standalone cluster
# of two workers, with an executor killed on the way.
demo: $(STAMP)
	$(BIN)/python examples/spark_pipeline.py $(if $(CLUSTER),--cluster)

# Test folders without faults run in two processes. Tests that measure time or kill servers run alone.
test: $(STAMP)
	$(PYTEST) -q -n 2 --dist loadfile $(LAYERS)
	$(PYTEST) -q tests $(LAYERS:%=--ignore=%) --ignore=tests/spark --ignore=tests/spark_cluster
	$(PYTEST) -q -n 2 --dist loadfile tests/spark

# The layers that provoke no faults once more, with the fallbacks for platforms that lack what Linux has.
test-portable: $(STAMP)
	JETSTREAM_SYNC_PLATFORM=portable $(PYTEST) -q -n 2 --dist loadfile $(LAYERS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Whether type checkers of users see complete types: pyright, in a venv of its own.
types: $(STAMP)
	$(BIN)/python .ci/types.py

# What is made from the code: the reference, and the types of keywords. Tests check that both are up to date.
reference: $(STAMP)
	$(BIN)/python -m tools.field_types
	$(BIN)/python -m tools.reference

# The wheel and the source distribution, with a check of what is in them. TEST=1 runs the tests of the latter.
dist: $(STAMP)
	$(BIN)/python .ci/dist.py $(if $(TEST),--test)

# The unit and integration tests on every installed interpreter of PYTHONS. Versions that are missing are reported.
test-all: $(STAMP)
	$(BIN)/python .ci/matrix.py pythons $(PYTHONS)

# The integration tests against several server versions.
test-servers: $(STAMP)
	$(BIN)/python .ci/matrix.py servers $(SERVERS)

# The Spark source and sink on several versions of Spark.
test-spark-matrix: $(STAMP)
	$(BIN)/python .ci/matrix.py sparks $(SPARKS)

# The Spark source and sink on a standalone cluster of two workers, with killed executors, and over Spark Connect.
test-spark-cluster: $(STAMP)
	$(BIN)/python .ci/spark_cluster.py

# Long runs: threads, file descriptors and memory must not grow over many connections and reconnects.
soak: $(STAMP)
	$(PYTEST) tests -m soak

bench: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check nats-py==2.16.0
	$(BIN)/python -m benchmarks

# Speed against another revision: make compare BASE=main [ROUNDS=30 | QUICK=1] [ONLY=push,messages*] [JSON=path]
compare: $(STAMP)
	$(if $(BASE),,$(error BASE=<revision> must say what to compare with))
	$(BIN)/python -m benchmarks.compare '$(BASE)' $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(QUICK),--quick) \
		$(if $(ONLY),--only '$(ONLY)') $(if $(JSON),--json '$(JSON)')

# The rates of the Spark source and sink beside Spark's own. MORE=5000000 compares the cost of a row among so many.
bench-spark: $(STAMP)
	$(BIN)/python -m benchmarks.spark_rates $(if $(MORE),--more $(MORE))

clean:
	rm -rf $(VENV) .venvs build dist *.egg-info
