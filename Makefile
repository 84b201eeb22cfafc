# Two commands do everything on a machine with Python and make: `make demo` and `make test`.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CORES := $(shell $(PYTHON) -c 'import os; print(len(os.sched_getaffinity(0)))')
# All directories of tests, two at a time on each core and one more, as many tests wait: the longest come first, so that
# the short ones fill the end. Even so, five of them would end last by far: each of these gets a process for each core.
FIRST := ssh cli features training agent examples api simulator unit slurm docker chaos package
SPLIT := --numprocesses $(CORES) --dist loadfile
SPLIT_ssh := $(SPLIT)
SPLIT_training := $(SPLIT)
SPLIT_examples := $(SPLIT)
SPLIT_cli := $(SPLIT)
SPLIT_features := $(SPLIT)
# Processes of these tests look like orphans, which the agents of all others would kill.
ALONE := orphans
# A Kubernetes takes 8 minutes to build.
NIGHTLY := kubernetes
NOT_TESTS := support __pycache__ $(ALONE) $(NIGHTLY)
# A directory whose files have moved may still have a cache.
TESTS := $(FIRST) $(filter-out $(FIRST) $(NOT_TESTS),$(sort $(notdir $(patsubst %/,%,$(dir $(wildcard tests/*/*.py))))))
JOBS := $(shell expr 2 \* $(CORES) + 1)
UNTESTED := .pytest_cache/untested
INSTALL := $(BIN)/python -m pip install
# Without Python's cache of compiled modules, which some images turn off, every start of tflaunch compiles all of it.
RUN := PYTHONDONTWRITEBYTECODE= TF_CPP_MIN_LOG_LEVEL=2 PATH="$(CURDIR)/$(BIN):$$PATH"

define AFTER_DEMO

Two jobs have trained: two mirrored workers, which ended with the same weights, and a chief with two workers and a
parameter server. Try next:

  $(BIN)/tflaunch ls                                    the runs, how long they took and how far they came
  $(BIN)/tflaunch logs mnist_multi_worker worker:1      what a task has written
  $(BIN)/tflaunch drill cluster_specs/mnist_multi_worker.json
                                                     a worker dies, and the training goes on from its checkpoint
  $(BIN)/tflaunch init                                  a spec for your own program
endef
export AFTER_DEMO

.PHONY: help demo test test-thorough test-all test-preload docs pictures lint style types check fuzz simulate mutants chaos matrix nightly benchmark dist clean

help: ## Show this help.
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1: /' | sort

# The environment is made anew when its requirements change, and only then.
$(VENV)/.ready: pyproject.toml
	@echo "Installing tflaunch, TensorFlow and what the tests need into $(VENV); this takes a minute or two."
	@$(PYTHON) -m venv --clear $(VENV)
	@($(INSTALL) --upgrade pip && $(INSTALL) --editable ".[tensorflow,dev]") >$(VENV)/install.log 2>&1 \
		|| (tail -n 30 $(VENV)/install.log; echo "The installation failed; all it said is in $(VENV)/install.log."; exit 1)
	@touch $@

demo: $(VENV)/.ready ## Train twice on this machine: two mirrored workers; chief, two workers and a ps.
	@$(RUN) tflaunch up cluster_specs/mnist_multi_worker.json
	@echo
	@$(RUN) tflaunch up cluster_specs/mnist_parameter_server.json
	@echo "$$AFTER_DEMO"

test: MARKED := -m "not thorough"
test-thorough: MARKED := -m thorough
test test-thorough test-all: $(VENV)/.ready
	@mkdir -p $(dir $(UNTESTED)) && rm -f $(UNTESTED)
	@$(MAKE) --jobs 2 --output-sync=target style test-$(ALONE) MARKED='$(MARKED)'
	@$(MAKE) --jobs $(JOBS) --output-sync=target --keep-going types $(TESTS:%=test-%) MARKED='$(MARKED)'; code=$$?; \
		test ! -s $(UNTESTED) || (echo "Not tested on this machine:" && sort -u $(UNTESTED)); exit $$code

test: ## Run lint, and the tests of each promise: about 8 minutes on two cores.
test-thorough: ## Run what `make test` leaves out, but for a night: 11 minutes.
test-all: ## Run both at once: 20 minutes.

# All tests of a directory may be thorough: 5 says that there was none to run.
test-%: $(VENV)/.ready
	$(RUN) TFLAUNCH_TEST_UNTESTED=$(UNTESTED) pytest tests/$* $(SPLIT_$*) $(MARKED) || test $$? = 5

docs: $(VENV)/.ready ## Build the documents as a site in build/site, which can be read and searched without a server.
	$(RUN) NO_MKDOCS_2_WARNING=1 mkdocs build --quiet
	@echo "file://$(CURDIR)/build/site/index.html"

pictures: $(VENV)/.ready ## Draw the pictures of README and docs, as commands and page look now. Needs chromium.
	$(RUN) python docs/pictures.py
	$(RUN) python docs/web_pictures.py

lint: style types ## Check style, types and which package imports which.

style: $(VENV)/.ready
	$(BIN)/ruff check --no-cache .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: $(VENV)/.ready
	$(BIN)/mypy
	$(BIN)/mypy benchmarks/*.py

test-preload: $(VENV)/.ready ## Run the tests once more, with every Python task forked instead of started.
	$(RUN) TFLAUNCH_TEST_PRELOAD=json,decimal pytest -m "(agent or cli or api or ssh) and not tensorflow"
	$(RUN) TFLAUNCH_TEST_PRELOAD=tensorflow pytest -m tensorflow

check: lint ## Run only the tests that need no TensorFlow, container or wheel.
	$(RUN) pytest --ignore tests/mutants -m "(unit or fuzz or simulator or agent or cli or web or api or ssh) and not tensorflow"

CASES ?= 100000
fuzz: $(VENV)/.ready ## Give every border CASES hostile inputs (100,000).
	$(RUN) PYTHONPATH=tests python -m fuzz --cases $(CASES) --jobs 2

HISTORIES ?= 100000
simulate: $(VENV)/.ready ## Play HISTORIES (100,000) of the real core in a simulated world; write docs/reliability.md.
	$(RUN) PYTHONPATH=tests python -m simulator --seeds 0:$(HISTORIES) --jobs 2 --page docs/reliability.md
	$(RUN) TFLAUNCH_SLOW_JOBS=$(HISTORIES) pytest -o timeout=0 tests/features/*/test_slow_jobs.py

mutants: $(VENV)/.ready ## Plant bugs, find each by the simulator or by tests, and write them to docs/reliability.md.
	$(RUN) PYTHONPATH=tests python -m mutants --page docs/reliability.md

MINUTES ?= 5
SEED ?= 0
chaos: $(VENV)/.ready ## Train under real faults for MINUTES (5), beginning with drill SEED (0). Root only.
	$(RUN) PYTHONPATH=tests python -m chaos --minutes $(MINUTES) --seed $(SEED)

matrix: ## Train with every Python and TensorFlow that installs here, and write the table in docs/compatibility.md.
	$(PYTHON) tests/matrix.py

nightly: export PYTEST_TIMEOUT = 0
nightly: matrix fuzz simulate mutants chaos ## Run what takes a night: matrix, fuzz, simulate, mutants, and all tests that `make test` shortens, in full.
	@$(INSTALL) --editable ".[nightly]" >>$(VENV)/install.log
	$(RUN) TFLAUNCH_TEST_RESTARTS=10000 pytest tests/cli/test_slow_readers.py -k no_trace_in_memory
	$(RUN) TFLAUNCH_TEST_KILLS=30 pytest tests/cli/test_orphans.py
	$(RUN) TFLAUNCH_TEST_LONG=1 TFLAUNCH_WRITE_TABLE=1 TFLAUNCH_TEST_PRELOAD= pytest tests/simulator tests/training tests/examples tests/package tests/ssh tests/docker tests/slurm tests/unit/test_event_table.py tests/cli/test_up.py tests/agent/test_preload.py tests/features tests/without_features $(NIGHTLY:%=tests/%)
	$(RUN) TFLAUNCH_TEST_LONG=1 bash tests/support/newer_slurm.sh bash tests/support/with_apptainer.sh pytest tests/slurm
	$(RUN) TFLAUNCH_TEST_LONG=1 bash tests/support/newer_kubectl.sh pytest tests/kubernetes

benchmark: $(VENV)/.ready ## Measure tflaunch side by side with other launchers, and write docs/benchmarks.md.
	$(RUN) python benchmarks/run.py

dist: export SOURCE_DATE_EPOCH = $(shell git log -1 --format=%ct)
dist: $(VENV)/.ready ## Build wheel and source distribution in dist, the same bytes from the same commit.
	rm -rf build/source dist && mkdir -p build/source
	git archive HEAD | tar -x -C build/source
	$(BIN)/python -m build --outdir dist build/source >build/dist.log 2>&1 || (cat build/dist.log; exit 1)
	$(BIN)/twine check --strict dist/*

clean: ## Remove the environment and what was built.
	rm -rf $(VENV) build dist .import_linter_cache .mypy_cache .ruff_cache .pytest_cache .hypothesis
