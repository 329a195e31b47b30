# Every verb does its own set-up: virtual environment, pinned packages, build of the extension. A second call skips what is
# already done (the stamp files below $(VENV)/.stamps say what that is).
#
#   make demo       train on real images, export one ONNX file, serve it, draw a picture
#   make test       the whole suite, lint included     make test-all   with the slow tests too
#   make bench      benchmarks beside their peers      make lint       style, types, links
#   make format     rewrite sources in house style     make docs       regenerate and check the documentation
#   make build      only the extension                 make clean      remove build products and the environment
#   make test-cuda-host  the CUDA kernels, run on the CPU and judged there: all sizes, sanitizers
#   make test-gpu, make bench-gpu  where a GPU is: built and run with the torch of PYTHON, without an environment of their own
#
# Variables: PYTHON (interpreter that makes the environment), VENV (its folder), PIP_ARGS (for example another package
# index), PYTEST_ARGS, TEST_JOBS (processes; 0 for none), BENCH_ARGS.
PYTHON ?= python3
VENV ?= .venv
PIP_ARGS ?=
PYTEST_ARGS ?=
TEST_JOBS ?= $(shell nproc 2>/dev/null | awk '{ print ($$1 > 8 ? 8 : $$1) }')
BENCH_ARGS ?=

PY := $(VENV)/bin/python
STAMPS := $(VENV)/.stamps
PIP := $(PY) -m pip --disable-pip-version-check -q

BUILD_INPUTS := CMakeLists.txt setup.py pyproject.toml $(wildcard cmake/*) $(shell find csrc -name '*.cpp' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh')

.DEFAULT_GOAL := help
.PHONY: help demo test test-all test-cuda-host test-gpu bench bench-gpu lint format docs build clean

help:
	@sed -n '1,/^PYTHON/s/^# \{0,1\}//p' Makefile

demo: build
	$(PY) examples/digits_retrieval.py

test: build
	$(PY) -m pytest -n $(TEST_JOBS) $(PYTEST_ARGS)

test-all: build
	$(PY) -m pytest -n $(TEST_JOBS) -m "" $(PYTEST_ARGS)

test-cuda-host: build
	$(PY) -m pytest -m "" tests/cuda_host $(PYTEST_ARGS)

# Where a GPU is, the torch is that machine's, and so are cmake, ninja, pybind11 and pytest.
GPU_BUILD = PAIRLOOM_CUDA=ON $(PYTHON) setup.py -q build_ext --inplace
test-gpu:
	$(GPU_BUILD)
	PYTHONPATH=pyext $(PYTHON) -m pytest -q tests/gpu $(PYTEST_ARGS)

bench-gpu:
	$(GPU_BUILD)
	PYTHONPATH=pyext:. $(PYTHON) -m benchmarks.gpu $(BENCH_ARGS)

bench: build $(STAMPS)/bench
	env -u OPENBLAS_CORETYPE $(PY) -m benchmarks $(BENCH_ARGS)

lint: build
	$(PY) tools/lint.py

format: $(STAMPS)/packages
	$(PY) tools/lint.py --fix

docs: build
	$(PY) tools/docs.py

build: $(STAMPS)/extension

clean:
	rm -rf build dist $(STAMPS) pyext/*.egg-info
	find pyext -name '*.so' -delete
	rm -rf pyext/pairloom/cmake
	test ! -f $(VENV)/.made-by-make || rm -rf $(VENV)

# --- set-up, in three steps -------------------------------------------------------------------------------------------
$(STAMPS)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "pairloom needs Python 3.10 or newer as PYTHON (now '$(PYTHON)'): make PYTHON=/path/to/python3 ..." >&2; exit 1; }
	@test -x $(PY) || { echo "creating the virtual environment $(VENV)"; $(PYTHON) -m venv $(VENV) && touch $(VENV)/.made-by-make; } || \
	  { echo "$(PYTHON) -m venv failed: install the venv module of this Python (Debian: python3-venv)" >&2; exit 1; }
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/packages: requirements/dev.txt | $(STAMPS)/python
	@echo "installing the pinned packages of requirements/dev.txt into $(VENV) (torch among them: some minutes)"
	@$(PIP) install $(PIP_ARGS) -r requirements/dev.txt
	@touch $@

# Peers that only benchmarks know; one that cannot be installed is left out there.
$(STAMPS)/bench: requirements/bench.txt | $(STAMPS)/packages
	@echo "installing the peers of requirements/bench.txt into $(VENV)"
	@$(PIP) install $(PIP_ARGS) -r requirements/bench.txt && touch $@ || \
	  echo "they could not be installed; the tables will say so" >&2

$(STAMPS)/extension: $(BUILD_INPUTS) | $(STAMPS)/packages
	@echo "building the extension"
	@$(PY) setup.py -q build_ext --inplace
	@test $(STAMPS)/installed -nt pyproject.toml || $(PIP) install --no-build-isolation --no-deps -e .
	@touch $(STAMPS)/installed $@
