# `make demo` and `make test` need Python 3.11 or newer and a network connection the first time, nothing else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TOOLS := .venv-tools
# What formats and checks the scripts and styles of the pages: packages of Node.js, which no page uses.
PAGE := tools/page
PAGE_BIN := $(PAGE)/node_modules/.bin
NODE_IS_NEW := node -e 'const [major, minor] = process.versions.node.split("."); process.exit(major > 18 || (major == 18 && minor >= 18) ? 0 : 1)'
# Only files whose SHA-256 is locked, and only wheels: what builds a source archive would not be locked.
INSTALL := -m pip install --quiet --disable-pip-version-check --only-binary :all: --require-hashes
# What is locked stays; `make lock UPGRADE=--upgrade` takes the newest within the bounds of pyproject.toml. For every platform, from PyPI itself.
COMPILE = $(TOOLS)/bin/uv --no-config --quiet pip compile --universal --python-version 3.11 --default-index https://pypi.org/simple \
	--generate-hashes --no-header --no-annotate $(UPGRADE)

.PHONY: demo test check check-page docs lock wheel audit clean

# The stamp is newer than what the environment was made from, or the environment is made again.
$(VENV)/.installed: requirements.lock pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Python 3.11 or newer is needed; set PYTHON=")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python $(INSTALL) -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-index --no-deps --no-build-isolation -e .
	touch $@

# What looks at the supply chain (docs/supply-chain.md) stays out of the environment it looks at.
$(TOOLS)/.installed: requirements-tools.lock
	test -x $(TOOLS)/bin/python || $(PYTHON) -m venv $(TOOLS)
	$(TOOLS)/bin/python $(INSTALL) -r requirements-tools.lock
	touch $@

# The lock holds exact versions and the SHA-512 of each package.
$(PAGE)/node_modules/.installed: $(PAGE)/package.json $(PAGE)/package-lock.json
	cd $(PAGE) && npm ci --loglevel=error
	touch $@

demo: $(VENV)/.installed
	$(BIN)/segunc demo --out demo

# A worker for each core (eight at most), a thread for each worker.
test: $(VENV)/.installed check
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --maxprocesses 8 --dist loadfile

check: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	@if ! $(NODE_IS_NEW) 2>/dev/null; then echo "the scripts of the pages are not checked: Node.js 18.18 or newer is not here"; \
	elif ! $(MAKE) --no-print-directory $(PAGE)/node_modules/.installed; then echo "the scripts of the pages are not checked: npm could not install the packages of $(PAGE)"; \
	else $(MAKE) --no-print-directory check-page; fi

check-page: $(PAGE)/node_modules/.installed
	$(PAGE_BIN)/prettier --config $(PAGE)/prettier.json --check --log-level warn 'segunc/gallery/assets/*' 'segunc/reporting/assets/*.css' '$(PAGE)/*.{json,mjs,ts}'
	$(PAGE_BIN)/eslint --config $(PAGE)/eslint.config.mjs --max-warnings 0 segunc/gallery/assets
	$(PAGE_BIN)/tsc --project $(PAGE)/tsconfig.json

docs: $(VENV)/.installed
	$(BIN)/python -m sphinx -q -W -b html docs docs/_build
	@echo "open docs/_build/index.html"

lock: $(TOOLS)/.installed
	$(COMPILE) pyproject.toml --extra dev --extra export --extra openvino --extra transformers --extra ray --extra cloud --extra gcs --extra recordings --extra rerun \
		--extra completion -o requirements.lock >/dev/null
	$(COMPILE) pyproject.toml --constraints requirements.lock -o requirements-default.lock >/dev/null
	$(COMPILE) --group pyproject.toml:tools -o requirements-tools.lock >/dev/null

wheel: $(VENV)/.installed
	tools/wheel.sh dist $(CURDIR)/$(BIN)/python

# Asks PyPI for known vulnerabilities; --strict: a package that it has no answer for is a failure.
audit: $(TOOLS)/.installed
	$(TOOLS)/bin/pip-audit --strict --disable-pip --require-hashes --progress-spinner off -r requirements.lock
	$(TOOLS)/bin/pip-audit --strict --disable-pip --require-hashes --progress-spinner off -r requirements-tools.lock

clean:
	rm -rf $(VENV) $(TOOLS) $(PAGE)/node_modules demo
