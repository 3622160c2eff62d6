# Everything runs in .venv, which is built from the hashed locks in requirements/.
# A warm call costs nothing: the stamps are as new as the files they were made from.
PYTHON ?= python3
BIN := .venv/bin
LOCK := $(BIN)/uv pip compile -q -U --universal --python-version 3.10 --generate-hashes \
	--no-emit-index-url --no-emit-find-links --custom-compile-command 'make lock'
PYTEST := $(BIN)/python -m pytest -n 2 --dist loadfile --durations 40 -p no:randomly
ON_CLUSTER := $(BIN)/python -m pytest tests/cluster --cluster --durations 10 -p no:randomly
# What starts real servers, kills them and cuts their links may fail by the machine: whatever has
# failed is run once more, from a fresh start, and has to pass then. The log keeps both reports.
AGAIN := --lf --lfnf none
OF_CORE := $(addprefix tests/,core properties stages stores)
BESIDE_CORE := $(PYTEST) $(addprefix --ignore=,$(OF_CORE))
export UV_PYTHON := $(BIN)/python
export UV_NO_CONFIG := 1
# Every component is a process of its own; without byte code on disk each would compile Airflow anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: install demo up test cluster-tools test-cluster soak soak-cluster bench lint lock clean

install: .venv/dev.stamp

demo: .venv/demo.stamp
	$(BIN)/python -m ffdl_airflow.demo

up: .venv/demo.stamp
	$(BIN)/python -m ffdl_airflow.up

# Coverage is measured where the core is tested: tracing costs as much again, also where nobody asks.
test: install
	$(PYTEST) $(OF_CORE) --cov ffdl_airflow.core --cov-branch --cov-report term
	$(BESIDE_CORE) || $(BESIDE_CORE) $(AGAIN)

cluster-tools: install
	$(BIN)/python -m tests.cluster.tools

test-cluster: install cluster-tools
	$(ON_CLUSTER) || $(ON_CLUSTER) $(AGAIN)

soak: install
	$(BIN)/python -m pytest -m 'not bench' --soak --durations 20 -p no:randomly

soak-cluster: install cluster-tools
	$(BIN)/python -m pytest tests/cluster --cluster -m 'not bench' --soak --durations 20 -p no:randomly

bench: install
	$(BIN)/python -m pytest -m bench -s -p no:randomly

lint: install
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

lock: $(BIN)/uv
	$(LOCK) requirements/bootstrap.in -o requirements/bootstrap.txt
	$(LOCK) pyproject.toml --extra demo --group build -o requirements/demo.txt
	$(LOCK) pyproject.toml --extra demo --extra postgres --extra kubernetes --group dev -c requirements/demo.txt -o requirements/dev.txt

clean:
	rm -rf .venv build dist .coverage* .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/uv: requirements/bootstrap.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q --require-hashes -r $<
	touch $@

# What the demo needs is part of what the developer needs, so the first stamp serves for both.
.venv/dev.stamp: requirements/dev.txt pyproject.toml | $(BIN)/uv
	$(BIN)/uv pip sync -q --require-hashes requirements/bootstrap.txt $<
	$(BIN)/uv pip install -q --no-deps --no-build-isolation -e .
	touch .venv/demo.stamp $@

.venv/demo.stamp: requirements/demo.txt pyproject.toml | $(BIN)/uv
	$(BIN)/uv pip install -q --require-hashes -r $<
	$(BIN)/uv pip install -q --no-deps --no-build-isolation -e .
	touch $@
