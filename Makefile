PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.PHONY: demo test test-slow test-flower chromium check docs bench format clean help

help:            ## this list
	@grep -E '^[a-z-]+: .*##|^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 14

demo: $(READY)   ## a target, a private, encrypted run on the built-in federation, the verdict and its price
	@mkdir -p results
	@$(BIN)/privfair train examples/target.toml --set run.ledger=sqlite:///results/demo-ledger.sqlite --out results/demo-$$(date +%Y%m%d-%H%M%S)

test: $(READY)   ## the tests (about five minutes on two cores)
	OMP_NUM_THREADS=1 $(BIN)/pytest -n auto --durations=10 -m "not slow"

test-slow: $(READY) chromium ## long fault, deployment and browser tests
	$(BIN)/pytest -n 2 --dist loadfile --durations=15 -m slow

chromium:        ## a browser for the tests of pages, where there is none (Debian, as root)
	@command -v chromium || command -v chromium-browser || command -v google-chrome || \
	  { apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install --yes chromium; } || \
	  { echo "The tests of pages need Chromium: install it (Debian: apt install chromium)." >&2; exit 1; }

test-flower: $(READY) ## those with a SuperLink and SuperNodes alone, a part of test-slow
	$(BIN)/pytest -n 2 -m slow tests/flower

check: $(READY) docs ## formatting, lint, types, layers, documentation
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

docs: $(READY)   ## the documentation, into results/site, with warnings as errors; open results/site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet --site-dir results/site

bench: $(READY)  ## the benchmarks: speeds as ratios inside one run
	$(BIN)/python -m benchmarks

format: $(READY) ## rewrite the code in the project's format, and the reference pages from the program
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/python docs/generate/pages.py

clean:           ## forget the environment and the results
	rm -rf $(VENV) results .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis

# The environment is rebuilt when the requirements change. Everything is pinned in constraints.txt.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), "privfair needs Python 3.11 or newer; found " + sys.version'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $(READY)
