# make demo | test | lint | native | clean.   The environment lives in .venv, pinned by constraints.txt.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
NATIVE := CMakeLists.txt $(wildcard csrc/*)

.PHONY: demo test lint native clean

demo: $(READY)
	$(BIN)/python examples/01_digits_side_by_side.py --out runs/demo

test: $(READY) lint
	$(BIN)/python -m pytest

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/mypy

$(READY): pyproject.toml constraints.txt $(NATIVE)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo 'Paceline needs Python 3.11 or newer; set PYTHON=/path/to/python3.11'; exit 2; }
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv || { echo 'No venv here: apt-get install python3-venv, then again'; rm -rf .venv; exit 2; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[train,dev]'
	@touch $(READY)

# The codecs' extension into src/paceline, for PYTHONPATH=src. Takes .venv's Python, or PYTHON where there is no .venv.
native: NATIVE_PYTHON := $(shell $(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON)) -c 'import sys; print(sys.executable)')
native:
	@cmake -S . -B build/native -DPACELINE_INPLACE=ON -DPython_EXECUTABLE=$(NATIVE_PYTHON) >/dev/null
	@cmake --build build/native --parallel 2 -- --no-print-directory

clean:
	rm -rf .venv runs build dist src/paceline/_native*.so
