# Two commands do everything on a machine with Python and make: `make demo` and `make test`.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# All directories of tests, three at a time on two cores: `training` and `examples` are busy, `ssh` and `slurm` mostly
# wait, and what only thinks comes last, in short pieces.
FIRST := training ssh slurm examples cli docker package
# Processes of these tests look like orphans, which the agents of all others would kill.
ALONE := orphans
NOT_TESTS := support __pycache__ $(ALONE)
TESTS := $(FIRST) $(filter-out $(FIRST) $(NOT_TESTS),$(notdir $(patsubst %/,%,$(wildcard tests/*/))))
RUN := TF_CPP_MIN_LOG_LEVEL=2 PATH="$(CURDIR)/$(BIN):$$PATH"

.PHONY: help demo test test-preload lint check fuzz simulate matrix nightly benchmark clean

help: ## Show this help.
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1: /' | sort

# The environment is made anew when its requirements change, and only then.
$(VENV)/.ready: pyproject.toml
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable ".[tensorflow,dev]"
	touch $@

demo: $(VENV)/.ready ## Train twice on this machine: two mirrored workers; chief, two workers and a ps.
	$(RUN) tflaunch up cluster_specs/mnist_multi_worker.json
	$(RUN) tflaunch up cluster_specs/mnist_parameter_server.json

test: $(VENV)/.ready lint ## Run all tests, three directories of them at a time.
	$(MAKE) test-$(ALONE)
	$(MAKE) --jobs 3 --output-sync=target --keep-going $(TESTS:%=test-%)

test-%: $(VENV)/.ready
	$(RUN) pytest tests/$*

lint: $(VENV)/.ready ## Check style, types and which package imports which.
	$(BIN)/ruff check --no-cache .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy benchmarks/*.py
	$(BIN)/lint-imports

test-preload: $(VENV)/.ready ## Run the tests once more, with every Python task forked instead of started.
	$(RUN) TFLAUNCH_TEST_PRELOAD=json,decimal pytest -m "(agent or cli or ssh) and not tensorflow"
	$(RUN) TFLAUNCH_TEST_PRELOAD=tensorflow pytest -m tensorflow

check: lint ## Run only the tests that need no TensorFlow, container or wheel.
	$(RUN) pytest -m "(unit or fuzz or simulator or agent or cli or ssh) and not tensorflow"

CASES ?= 100000
fuzz: $(VENV)/.ready ## Give every border CASES hostile inputs (100,000).
	$(RUN) PYTHONPATH=tests python -m fuzz --cases $(CASES) --jobs 2

simulate: $(VENV)/.ready ## Play 100,000 random histories of the real core in a simulated world.
	$(RUN) PYTHONPATH=tests python -m simulator --seeds 0:100000 --jobs 2

matrix: ## Train with every Python and TensorFlow that installs here, and write the table in docs/compatibility.md.
	$(PYTHON) tests/matrix.py

nightly: matrix simulate ## Run what takes a night: matrix, simulate, and all tests that `make test` shortens, in full.
	$(RUN) TFLAUNCH_TEST_RESTARTS=10000 pytest tests/cli/test_endurance.py
	$(RUN) TFLAUNCH_TEST_KILLS=20 pytest tests/examples/test_examples.py -k killed_again_and_again
	$(RUN) TFLAUNCH_TEST_KILLS=30 pytest tests/cli/test_orphans.py
	$(RUN) TFLAUNCH_TEST_LONG=1 TFLAUNCH_TEST_PRELOAD= pytest tests/training tests/examples tests/package tests/ssh tests/unit/test_walk.py tests/agent/test_warm_servers.py

benchmark: $(VENV)/.ready ## Measure tflaunch side by side with other launchers, and write docs/benchmarks.md.
	$(RUN) python benchmarks/run.py

clean: ## Remove the environment and what was built.
	rm -rf $(VENV) build dist launcher/*.egg-info worker/*.egg-info .import_linter_cache .mypy_cache .ruff_cache .pytest_cache .hypothesis
