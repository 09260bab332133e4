# `make demo` and `make test` need Python 3.11 or newer and a network connection the first time, nothing else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test check lock clean

# The stamp is newer than what the environment was made from, or the environment is made again.
$(VENV)/.installed: requirements.lock pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Python 3.11 or newer is needed; set PYTHON=")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -e .
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

# Newest versions within the bounds of pyproject.toml, for every platform; needs `pip install uv`.
lock:
	uv pip compile --universal --python-version 3.11 --no-header --no-annotate pyproject.toml --extra dev -o requirements.lock

clean:
	rm -rf $(VENV) demo
