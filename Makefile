# `make run` and `make test` work in a fresh clone that has make and Python 3.11 to 3.13; the rest builds on them.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

VENV := .venv
BIN := $(VENV)/bin
# The tools that look at an installation are no part of it.
AUDIT := .venv-audit
# The first interpreter that pyproject.toml allows; empty where there is none.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null && echo $$p && break; done)

# The oldest and the newest version that pyproject.toml allows; `make test-pythons` tests what $(VENV) does not have.
PYTHONS := 3.11 3.13
# The unit tests that take longest, because they run models, fit, draw or rebuild tables: no other Python version changes
# them. Nor does it change what properties hold, so few examples are tried of each.
LONG_TESTS := backends/test_jax_operators predictor/test_model_resolution predictor/test_config_cost \
	predictor/test_traced_models predictor/test_train predictor/test_evaluate predictor/test_sharing \
	warehouse/test_validate warehouse/test_layers analysis/test_check reports/test_charts reports/test_documents

# Which build of torch is installed: cpu, cuda, or default, which is what pip gives. On Linux, PyPI's build brings CUDA
# libraries: 2.7 GB to download, where the one for processors takes 0.2 GB. So a host without an NVIDIA driver gets that.
TORCH_BUILD ?= $(shell [ "$$(uname -s)" != Linux ] || command -v nvidia-smi >/dev/null || [ -e /proc/driver/nvidia ] \
	&& echo default || echo cpu)
TORCH_CPU_INDEX := https://download.pytorch.org/whl/cpu

# Of pip's talk the progress, the large downloads, the unpacking and errors are shown; all of it is in $(VENV)/install.log.
define pip_install
PYTHONUNBUFFERED=1 $(BIN)/python -m pip install --disable-pip-version-check --no-input --no-compile $(1) 2>&1 \
	| tee -a $(VENV)/install.log \
	| awk '/^Collecting/ && ++found % 25 == 0 { print "  " found " packages looked up"; fflush() } \
		/Downloading .*([0-9][0-9]\.[0-9] MB|GB)\)/ || /^ERROR/ { print; fflush() } \
		/^Installing collected packages/ { print "  Unpacking " NF - 3 " packages"; fflush() }'
endef

# A third of the time, for files of which a few are ever loaded: Python compiles those then.
NOT_COMPILED := /(tests?|testing|transformers/models)/

define install
	@echo "Installing $(1) and what it needs into $(VENV), 1 to 5 minutes ..."
	@$(call pip_install,-c constraints.txt -e '$(1)') \
		|| { echo "That failed; the end of $(VENV)/install.log:"; tail -n 20 $(VENV)/install.log; exit 1; }
	@# pip would compile on one core. Packages bring files for newer Pythons, too: what cannot be compiled is left out.
	@# Our own as well: where Python is told to write no bytecode, every process would compile them anew.
	@# What a few tests load once compiles by itself.
	@[ $(VENV) != .venv ] || { echo "  Compiling to bytecode"; \
		$(BIN)/python -m compileall -q -j 0 -x '$(NOT_COMPILED)' $(VENV)/lib accel_platform assets migrations predictor \
			>> $(VENV)/install.log 2>&1 || true; }
endef

.PHONY: help run ui check check-style check-types check-walls check-tests test test-slow test-all test-pythons lint bench update audit sbom clean

help:
	@echo "make run    install and serve on http://127.0.0.1:8000, and measure this host beside it"
	@echo "make ui     the same service, with Dagster's pages on http://127.0.0.1:3000"
	@echo "make check  style, types, walls and the quick unit tests of what changed; under a minute"
	@echo "make test   install what tests need, and run the quick ones: unit, contract, graph, API, one run of the line"
	@echo "make test-all   those that take longer, too: real models, servers, browsers, kills"
	@echo "make test-pythons  the quick unit tests with each other Python version that this machine has"
	@echo "make lint   style, types and the walls between the packages"
	@echo "make bench  the figures of benchmarks/README.md"
	@echo "make update install the newest versions that pyproject.toml allows, and note them in constraints.txt"
	@echo "make audit  known vulnerabilities of what is installed (asks PyPI)"
	@echo "make sbom   sbom.cdx.json: what is installed, as a CycloneDX bill of materials"
	@echo "make clean  remove $(VENV) and caches; what was measured (.accel) stays"

run: $(VENV)/.installed
	@exec $(BIN)/accel run

ui: $(VENV)/.installed
	@exec $(BIN)/accel ui

# Threads of linear algebra and of torch would only wait for each other, torch's busily: ten times the processor time of
# tiny models. Bytecode is written even where Python is told to write none, because each process would compile all tests
# anew, which takes it 8 s.
TESTING := PYTHONDONTWRITEBYTECODE= OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1
# It runs three by three, as much of it waits; in the order of the folders. A test that ends its process, as one that hangs
# does, ends the run: pytest-xdist would repeat it with a new process, twelve times.
PYTEST := $(TESTING) $(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder --max-worker-restart 0 --durations 15
test: $(VENV)/.installed-dev
	@$(PYTEST) -m 'not slow and not alone'

# Tests of measured times have the machine for themselves.
test-slow: $(VENV)/.installed-dev
	@failed=0; \
	$(PYTEST) -m 'slow and not alone' || failed=$$?; \
	$(BIN)/python -m pytest -m alone tests/e2e || failed=$$?; \
	exit $$failed

# The properties are tried with four times as many examples.
test-all: export ACCEL_TEST_PROFILE := thorough
test-all:
	@failed=0; $(MAKE) --no-print-directory test || failed=$$?; $(MAKE) --no-print-directory test-slow || failed=$$?; exit $$failed

# A pyenv shim stands on the PATH for versions that are not activated, so pyenv's own folders are looked at, too.
test-pythons: $(BIN)/python
	@own=$$($(BIN)/python -c 'import sys; print("%d.%d" % sys.version_info[:2])'); failed=0; \
	for version in $(PYTHONS); do \
		if [ $$version = $$own ]; then continue; fi; \
		found=; \
		for python in python$$version $$(ls -d $$(pyenv root 2>/dev/null)/versions/$$version.*/bin/python 2>/dev/null || true); do \
			if [ "$$($$python -c 'import ensurepip, sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)" = $$version ]; then \
				found=$$python; \
			fi; \
		done; \
		if [ -z "$$found" ]; then echo "Python $$version is not at hand: nothing was tested with it."; continue; fi; \
		$(MAKE) --no-print-directory VENV=.venv-$$version PYTHON=$$found .venv-$$version/.installed-dev \
			&& echo "The quick unit tests with Python $$version:" \
			&& ACCEL_TEST_PROFILE=few $(TESTING) .venv-$$version/bin/python -m pytest -q -m 'not slow and not alone' -n 3 --dist loadfile \
				$(LONG_TESTS:%=--ignore=tests/unit/%.py) tests/unit \
			|| failed=1; \
	done; \
	exit $$failed

# SINCE names the commit to compare with. What takes long is left to `make test`.
SINCE ?= HEAD
check: $(VENV)/.installed-dev
	@$(MAKE) --no-print-directory -j2 --output-sync=target check-style check-types check-walls check-tests

check-style:
	@$(BIN)/ruff check --quiet && $(BIN)/ruff format --quiet --check && echo "style: kept"

check-types:
	@$(BIN)/mypy

check-walls:
	@$(BIN)/lint-imports --no-logo 2>/dev/null | tail -n 2

check-tests:
	@tests=$$($(BIN)/python tests/changed.py $(SINCE)); \
	if [ -z "$$tests" ]; then echo "no unit test imports what changed"; else \
		$(TESTING) $(BIN)/python -m pytest -q -m 'not slow and not alone' $(LONG_TESTS:%=--ignore=tests/unit/%.py) $$tests; fi

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/mypy $(wildcard benchmarks/*.py)
	$(BIN)/lint-imports

bench: $(VENV)/.installed-dev
	@for file in $$(grep -l __main__ benchmarks/*.py | grep -v /gpu_); do echo "== $$file"; $(BIN)/python $$file; done

audit: $(VENV)/.installed $(AUDIT)/.installed
	@$(BIN)/python deploy/audit.py $(AUDIT)/bin/pip-audit $(BIN)/python

sbom: $(VENV)/.installed $(AUDIT)/.installed
	@$(AUDIT)/bin/cyclonedx-py environment $(BIN)/python --pyproject pyproject.toml --mc-type application \
		--output-reproducible --of JSON -o sbom.cdx.json
	@echo "sbom.cdx.json tells what is installed in $(VENV), runtime and, where it was installed, development."

clean:
	rm -rf $(VENV) $(AUDIT) $(PYTHONS:%=.venv-%) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache .tmp_dagster_home_*
	find . -name __pycache__ -prune -exec rm -rf {} +

$(BIN)/python:
	@[ -n "$(PYTHON)" ] || { echo "accel-platform needs Python 3.11, 3.12 or 3.13, and finds none of them:" \
		"python3 is $$(python3 --version 2>&1 || true). Install one, or name it: make PYTHON=/path/to/python3.12 run"; exit 1; }
	@echo "Creating $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV)

# Before all else, which is content with any build of torch in the range. Unless a build is named, one in the range stays,
# such as a ROCm build. PyPI's builds have no `+`, those of the index for processors end in `+cpu`.
$(VENV)/.torch-$(TORCH_BUILD): pyproject.toml | $(BIN)/python
	@rm -f $(VENV)/.torch-* $(VENV)/install.log
	@torch=$$(sed -n 's/^  "\(torch>=[^"]*\)",$$/\1/p' pyproject.toml); \
	there=$$($(BIN)/python -c 'import importlib.metadata as m; print(m.version("torch"))' 2>/dev/null || true); \
	case "$(TORCH_BUILD) $$there" in "cpu "*+cpu) again= ;; "cuda "*+*|"cpu "?*) again=--force-reinstall ;; *) again= ;; esac; \
	[ "$(origin TORCH_BUILD)" != file ] || again=; \
	case $(TORCH_BUILD) in \
		default) ;; \
		cuda) echo "Installing PyPI's build of $$torch (TORCH_BUILD=cuda) ..."; \
			$(call pip_install,$$again --no-deps "$$torch") ;; \
		cpu) [ -n "$$there" ] && [ -z "$$again" ] || \
				echo "Installing the CPU build of $$torch from $(TORCH_CPU_INDEX), as TORCH_BUILD=cpu ..."; \
			$(call pip_install,$$again --no-deps --index-url $(TORCH_CPU_INDEX) --retries 1 --timeout 15 "$$torch") || { \
				echo "It cannot be had there: going on with the build that pip finds, which may bring 2.7 GB of CUDA libraries."; \
				[ "$(origin TORCH_BUILD)" = file ] || { echo "TORCH_BUILD=default would accept that."; exit 1; }; } ;; \
		*) echo "TORCH_BUILD is cpu, cuda or default, not '$(TORCH_BUILD)'."; exit 2 ;; \
	esac
	@touch $@

$(VENV)/.installed: pyproject.toml constraints.txt $(VENV)/.torch-$(TORCH_BUILD)
	$(call install,.)
	@touch $@

# What the tests pass with is noted, so that a release of somebody else changes nothing here until it is tried. The build
# of torch is the host's.
update: $(VENV)/.installed-dev
	@$(call pip_install,--upgrade --upgrade-strategy eager -e '.[dev]')
	@$(BIN)/python -m pip freeze --exclude-editable | grep -v '^torch==' > constraints.txt
	@touch $(VENV)/.installed $(VENV)/.installed-dev
	@git --no-pager diff --stat constraints.txt

$(AUDIT)/.installed: pyproject.toml | $(BIN)/python
	@echo "Installing pip-audit and cyclonedx-bom into $(AUDIT) ..."
	@$(BIN)/python -m venv $(AUDIT)
	@$(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["audit"], sep="\n")' \
		| xargs -d '\n' $(AUDIT)/bin/python -m pip install --quiet --disable-pip-version-check --no-input
	@touch $@

# What tests need includes what running needs.
$(VENV)/.installed-dev: pyproject.toml constraints.txt $(VENV)/.torch-$(TORCH_BUILD)
	$(call install,.[dev])
	@touch $(VENV)/.installed $@
