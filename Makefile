# make demo | test | test-long | test-all | test-torch | test-faults | coverage | lint | docs | native | sanitize | fuzz-nic | aarch64 | clean.   The environment lives in .venv, pinned by constraints.txt.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
# The pinned one where it is installed, else the system's.
CMAKE = $(if $(wildcard $(BIN)/cmake),$(BIN)/cmake,cmake)
NATIVE := CMakeLists.txt $(wildcard csrc/* csrc/nic/*)

# Workers and the programs that they start share compiled modules; without, each would compile all of them.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test tests test-long test-all test-torch test-faults coverage lint docs native sanitize fuzz-nic aarch64 clean

demo: $(READY)
	$(BIN)/python examples/01_digits_side_by_side.py --out runs/demo

# mypy has one core where nothing is cached; the tests begin beside it.
test: $(READY)
	@$(MAKE) --no-print-directory --jobs 2 lint tests

# One thread each: libraries that took both cores in two processes would wait for one another.
tests: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

# The only tests of something that are too long for every day. CI runs them on each pull request.
test-long: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -q -m 'long and not full'

# With the grids and studies, and other examples of every property. CI runs it every night.
test-all: $(READY) lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m ''

# The training tests on another release of torch, in an environment of its own; the rest is that of .venv. Several GB.
TORCH ?= 2.10.0
ELSEWHERE := build/torch-$(TORCH)
test-torch: $(READY)
	test -x $(ELSEWHERE)/bin/python || $(PYTHON) -m venv $(ELSEWHERE)
	$(ELSEWHERE)/bin/python -m pip install --quiet --disable-pip-version-check 'torch==$(TORCH)' numpy
	$(BIN)/python -c 'import site; print("$(CURDIR)/src", *site.getsitepackages(), sep="\n")' \
	  > $$($(ELSEWHERE)/bin/python -c 'import site; print(site.getsitepackages()[0])')/zz-rest.pth
	OMP_NUM_THREADS=1 $(ELSEWHERE)/bin/python -m pytest -q -p no:xdist tests/training

# Lines of the packages without torch that their own tests run, of this process alone; below the floor of pyproject.toml it fails.
LIGHT := $(addprefix tests/,strategy hardware calibration validation workload prediction planning scheduling market reporting)
coverage: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m coverage run -m pytest -q $(LIGHT)
	$(BIN)/python -m coverage report --skip-covered

# Every injected fault twenty times; an hour or more.
test-faults: $(READY)
	OMP_NUM_THREADS=1 FAULT_RUNS=20 $(BIN)/python -m pytest -n 2 -m '' tests/faults

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python tests/contracts/plain_language.py
	$(BIN)/mypy

# The site, into build/site. Serve it for the search: python3 -m http.server --directory build/site
docs: $(READY)
	@$(BIN)/python -c 'import material, mkdocstrings' 2>/dev/null || $(BIN)/python -m pip install --quiet --disable-pip-version-check \
	  --constraint constraints.txt $$($(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["docs"])')
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

$(READY): pyproject.toml constraints.txt $(NATIVE)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo 'Paceline needs Python 3.11 or newer; set PYTHON=/path/to/python3.11'; exit 2; }
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv || { echo 'No venv here: apt-get install python3-venv, then again'; rm -rf .venv; exit 2; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[train,dev]'
	@# Oracles of the tests: its optimizer files need torch alone, the package torchvision as well.
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --no-deps timm
	@touch $(READY)

# The extension into src/paceline, for PYTHONPATH=src. All build with .venv's Python, or PYTHON's where there is no .venv.
native sanitize fuzz-nic aarch64: NATIVE_PYTHON = $(shell $(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON)) -c 'import sys; print(sys.executable)')
native:
	@$(CMAKE) -S . -B build/native -DPACELINE_INPLACE=ON -DPython_EXECUTABLE=$(NATIVE_PYTHON) >/dev/null
	@$(CMAKE) --build build/native --parallel 2 -- --no-print-directory

# The kernels' tests under AddressSanitizer and UndefinedBehaviorSanitizer; libstdc++ too, so that exceptions are intercepted.
sanitize:
	@$(CMAKE) -S . -B build/sanitize -DCMAKE_CXX_FLAGS_RELEASE=-DNDEBUG -DPACELINE_SANITIZE=address,undefined \
	  -DPython_EXECUTABLE=$(NATIVE_PYTHON) >/dev/null
	@$(CMAKE) --build build/sanitize --parallel 2 -- --no-print-directory
	@PACELINE_NATIVE="$$(echo build/sanitize/_native.*so)" PYTHONPATH=src:tests ASAN_OPTIONS=detect_leaks=0 \
	  UBSAN_OPTIONS=print_stacktrace=1 LD_PRELOAD="$$(g++ -print-file-name=libasan.so) $$(g++ -print-file-name=libstdc++.so.6)" \
	  $(NATIVE_PYTHON) -m pytest -p sanitized -p no:cacheprovider -q tests/codecs tests/training/optimizers/test_native.py tests/slimming/methods/test_sparse_convolution_native.py -k native

# So many random and damaged packets through the network card, under the same sanitizers. SEED=N for others.
PACKETS ?= 10000000
SEED ?= 1
fuzz-nic:
	@$(CMAKE) -S . -B build/sanitize -DCMAKE_CXX_FLAGS_RELEASE=-DNDEBUG -DPACELINE_SANITIZE=address,undefined \
	  -DPython_EXECUTABLE=$(NATIVE_PYTHON) >/dev/null
	@$(CMAKE) --build build/sanitize --parallel 2 --target nic_card_fuzz -- --no-print-directory
	@UBSAN_OPTIONS=print_stacktrace=1 build/sanitize/nic_card_fuzz $(PACKETS) $(SEED)

# The kernels' tests on an emulated aarch64 processor; says what is missing where it cannot.
aarch64:
	@tests/aarch64.sh $(NATIVE_PYTHON)

clean:
	rm -rf .venv runs build dist src/paceline/_*.so
