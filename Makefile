# make demo | test | lint | clean.   The environment lives in .venv, pinned by constraints.txt.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: demo test lint clean

demo: $(READY)
	$(BIN)/python examples/01_digits_side_by_side.py --out runs/demo

test: $(READY) lint
	$(BIN)/python -m pytest

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/mypy

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo 'Paceline needs Python 3.11 or newer; set PYTHON=/path/to/python3.11'; exit 2; }
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv || { echo 'No venv here: apt-get install python3-venv, then again'; rm -rf .venv; exit 2; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[train,dev]'
	@touch $(READY)

clean:
	rm -rf .venv runs build dist
