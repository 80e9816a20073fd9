# Each command does its own set-up on a machine with Python 3.10+ and make:
#   make demo   fit the city districts, print a summary, write demo/index.html
#   make check  before each push: style, import layers, types, and the tests of the core
#   make test   all tests that are neither slow nor need data, a browser or Ray
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Tests at a time.
WORKERS ?= 2
# Tests start many processes: without bytecode, each would compile the library again.
unexport PYTHONDONTWRITEBYTECODE
QUICK := not data and not browser and not ray and not slow
# A file's tests stay in one process, so that what they share is made once.
TOGETHER := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile

.PHONY: demo check core-tests test slow-tests wheel-test lint types docs docs-serve bench
.PHONY: data-tests browser-tests ray-tests ci-extras audit clean
.PRECIOUS: $(VENV)/.installed-%

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || (echo "snefy-ldl needs Python 3.10 or newer; set PYTHON=python3.x" && exit 1)
	@echo "Setting up $(VENV) once (PyTorch and a few others): about a minute, more on a slow line ..."
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[test,bench]'
	touch $@

demo: $(VENV)/.installed
	$(BIN)/snefy-ldl demo --out demo

# Before a push, in a few minutes.
check: lint types core-tests

# The promises that everything else stands on: closed forms against independent routes, the same seed and the same bits,
# guarantees of intervals, old model folders, clear errors, and the rules of the source.
CORE_TESTS := tests/test_house.py tests/test_imports.py tests/test_estimator.py tests/test_persistence.py tests/_internal/validation \
	tests/_internal/files/test_old_folders.py tests/distributions/test_distribution.py tests/distributions/test_contract.py \
	tests/training/test_training.py tests/conformal/test_intervals.py tests/conformal/test_regions.py \
	tests/active/test_query.py tests/metrics/test_metrics.py tests/learners/test_learner_objectives.py tests/votes
core-tests: $(VENV)/.installed
	$(TOGETHER) -m '$(QUICK)' $(CORE_TESTS)

test: $(VENV)/.installed
	$(TOGETHER) -m '$(QUICK)'

# Whole reports, studies that are killed, many folds: right, but not what one waits for after every change.
slow-tests: $(VENV)/.installed
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) -m 'slow and not data and not browser and not ray' $(TESTS)

data-tests: $(VENV)/.installed
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) -m data

# The explorer's page in Chromium (Debian: apt-get install chromium); without one the tests are skipped and say so.
browser-tests: browser-extra
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m browser -rs

# A real Ray cluster of two small nodes, started and stopped by the tests.
ray-tests: ray-extra
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m ray -rs tests/apps/cluster/test_ray.py

# Wheel and sdist, built and installed away from the checkout; WHEEL_TEST=full also fits on the oldest and newest Python here.
wheel-test: $(VENV)/.installed
	tools/check_wheel.sh $(BIN)/python

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell
	$(BIN)/python tools/check_words.py
	$(BIN)/lint-imports

types: $(VENV)/.installed
	$(BIN)/mypy

# What all of CI needs, in one call of pip instead of three.
ci-extras: $(VENV)/.installed
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[docs,browser,ray]'
	touch $(VENV)/.installed-docs $(VENV)/.installed-browser $(VENV)/.installed-ray

# An extra of the package, installed once: docs-extra, browser-extra, ray-extra.
%-extra: $(VENV)/.installed-%
	@true

$(VENV)/.installed-%: $(VENV)/.installed
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[$*]'
	touch $@

# The site: warnings are errors, and so are links that lead nowhere. Pages and pictures that did not change are kept between builds.
docs: docs-extra
	$(BIN)/python -m sphinx -q -W --keep-going -j 2 -b html -d docs/_build/doctrees docs docs/_build/html
	$(BIN)/python docs/check_site.py docs/_build/html

docs-serve: docs
	@echo "The site: http://127.0.0.1:8001 (Ctrl-C stops it)"
	$(BIN)/python -m http.server 8001 --bind 127.0.0.1 --directory docs/_build/html

# CPU benchmarks, a few minutes; results and pictures go to benchmarks/results/. The peer needs an interpreter that has it:
#   make bench PEER_PYTHON=peer/bin/python TENSORFLOW_PYTHON=peer_tf/bin/python
bench: $(VENV)/.installed
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/waits.py
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/scaling.py
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/peer.py $(if $(PEER_PYTHON),--peer-python $(PEER_PYTHON)) \
		$(if $(TENSORFLOW_PYTHON),--tensorflow-python $(TENSORFLOW_PYTHON))

# Known weaknesses of the packages that the lock names; asks a public data base, so it needs a network.
audit: $(VENV)/.installed
	$(BIN)/python -m pip install -q --disable-pip-version-check pip-audit
	$(BIN)/pip-audit --requirement requirements-dev.lock --require-hashes --disable-pip

clean:
	rm -rf $(VENV) demo build dist docs/_build docs/auto_gallery docs/reference docs/results docs/changelog.md docs/contributing.md
