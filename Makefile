# `make demo` and `make test` do everything on a machine with Python >= 3.11; `make help` lists the rest.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DOCS := $(VENV)/.docs-installed
# Where PYTHONDONTWRITEBYTECODE is set, each of the many processes that tests start would compile ablate anew.
RUN_ENV := OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE=
# Files in the order of tests/conftest.py: those that take long come first.
PYTEST := $(RUN_ENV) $(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder
PIP_QUIET := --quiet --disable-pip-version-check
TOOLS := .venv-tools
LOCK := $(TOOLS)/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
	--no-emit-index-url --no-emit-find-links

.PHONY: help install demo test quick slow all lint types imports unit coverage faults docs schema bench calibration lock sbom clean
.DEFAULT_GOAL := help

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(STAMP): pyproject.toml build.lock requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "ablate needs Python 3.11 or newer; $(PYTHON) is older. Try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing into $(VENV): about 5 GB with torch's CUDA libraries, two to ten minutes."
	$(BIN)/python -m pip install $(PIP_QUIET) --require-hashes --only-binary :all: --requirement build.lock
	$(BIN)/python -m pip install $(PIP_QUIET) --require-hashes --no-build-isolation --requirement requirements.lock
	$(BIN)/python -m pip install $(PIP_QUIET) --no-index --no-deps --no-build-isolation --editable .
	@touch $@
	@echo "Installed. Next: . $(VENV)/bin/activate, then ablate --help"

install: $(STAMP) ## create .venv and install the packages of requirements.lock, each checked against its hashes

demo: $(STAMP) ## search the digits data set: 48 trials, a confirmed front and its report
	$(RUN_ENV) $(BIN)/ablate search search_spaces/digits.yaml

test: $(STAMP) ## all checks side by side: ruff, mypy --strict, import-linter, pytest without its slow proofs
	$(MAKE) --no-print-directory --jobs 4 lint types imports unit

quick: $(STAMP) ## half of pytest, in two minutes: no engine/, no Ray, server or browser, no file of over five seconds
	$(PYTEST) -m "not services and not slow" --ignore=tests/engine

slow: $(STAMP) ## pytest: the slow proofs that `make test` leaves out
	$(PYTEST) -m slow

all: $(STAMP) $(DOCS) ## what .ci/run runs: `make test` and the documentation
	$(MAKE) --no-print-directory --jobs 4 lint types imports docs unit

lint: $(STAMP) ## ruff
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP) ## mypy --strict
	$(BIN)/mypy

imports: $(STAMP) ## the architecture's layers
	$(BIN)/lint-imports

unit: $(STAMP) ## pytest without its slow proofs
	$(PYTEST) -m "not slow"

coverage: $(STAMP) ## pytest without its slow proofs, and the share of lines that it runs: a table, htmlcov/index.html
	$(PYTEST) -m "not slow" --cov=ablate --cov-report=term:skip-covered --cov-report=html

faults: $(STAMP) ## every fault in its long form, and what deploy/ ships (time: docs/faults.md; root for some)
	$(RUN_ENV) $(BIN)/pytest tests/faults tests/kubernetes/test_pod.py tests/deploy --faults -rs

$(DOCS): $(STAMP) docs.lock
	$(BIN)/python -m pip install $(PIP_QUIET) --require-hashes --only-binary :all: --requirement docs.lock
	@touch $@

docs: $(DOCS) ## build the documentation into build/docs; a warning or a broken link is an error
	$(BIN)/python -m sphinx --builder html --fail-on-warning --keep-going --nitpicky --quiet docs build/docs
	@echo "Documentation: build/docs/index.html"

schema: $(STAMP) ## write search_spaces/schema.json and the pages of docs/reference from the code
	$(BIN)/ablate schema > search_spaces/schema.json
	$(BIN)/python docs/generated.py

bench: $(STAMP) ## the measured claims of docs/measured/benchmarks.md
	$(RUN_ENV) $(BIN)/python benchmarks/overhead.py
	$(RUN_ENV) $(BIN)/python benchmarks/training.py

calibration: $(STAMP) ## simulations with known answers: what intervals, tests and fits do (docs/measured/calibration.md)
	$(RUN_ENV) $(BIN)/python benchmarks/calibration.py
	$(RUN_ENV) $(BIN)/python benchmarks/outside_seeds.py
	$(RUN_ENV) $(BIN)/python benchmarks/judging_seeds.py

$(TOOLS)/.installed: tools.lock
	@test -x $(TOOLS)/bin/python || $(PYTHON) -m venv $(TOOLS)
	$(TOOLS)/bin/python -m pip install $(PIP_QUIET) --require-hashes --only-binary :all: --requirement tools.lock
	@touch $@

lock: $(TOOLS)/.installed ## write *.lock: the versions of constraints.txt with the hashes of their files
	printf 'pip\nsetuptools\n' | $(LOCK) --constraint constraints.txt --output-file build.lock -
	$(LOCK) --constraint constraints.txt --group dev --output-file requirements.lock pyproject.toml
	$(LOCK) --constraint constraints.txt --group docs --output-file docs.lock
	$(LOCK) --group tools --output-file tools.lock

sbom: $(STAMP) $(TOOLS)/.installed ## write sbom.cdx.json: what is installed in .venv, as CycloneDX
	$(TOOLS)/bin/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible --output-file sbom.cdx.json $(VENV)

clean: ## remove .venv and caches; runs/ stays
	rm -rf $(VENV) $(TOOLS) sbom.cdx.json htmlcov .coverage .mypy_cache .ruff_cache .pytest_cache build *.egg-info
