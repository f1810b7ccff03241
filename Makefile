# Needs CPython 3.11 or newer with venv, make and g++.  Everything else is installed into .venv.
#
#   make demo      a real model writes text; installs what a user needs
#   make test      the test suite without what is marked slow
#   make check     format, lint, types, all tests with branch coverage: what CI runs
#   make mutate    tests under 300 random changes to Python code: hours; stops after MINUTES, and goes on
#   make attack    engines, files, records and a server of the bundled model under attack for MINUTES (3)
#   make check-no-torch  tests of the CPU in an environment without PyTorch
#   make sanitize  tests of the native code under AddressSanitizer and UndefinedBehaviorSanitizer
#   make sanitize-threads  tests of the thread pool and of engines under ThreadSanitizer
#   make equality  a million random rows through every form of the chains, 100,000 through decoders, and random models in Triton's interpreter: 35 minutes
#   make machines  aarch64, riscv64 and s390x under QEMU: tokens and bits of x86-64 (needs cross compilers)
#   make wheel     a wheel for this processor that needs no compiler, tried on every Python found here
#   make release   wheels and source, built twice and checked, up to the upload
#   make wasm      the native code for WebAssembly and the npm package, packed into build (needs emscripten, npm)
#   make pyodide   a wheel of the package for Pyodide, Python in a page, in build/pyodide (needs emscripten, npm)
#   make page      types of the playground's page (needs npm)
#   make count     instructions of the host chains against the recorded ones (needs valgrind)
#   make clients   the client packages that people use (openai, anthropic, lm-eval, ...) against aleator serve
#   make site      the documentation as a site, in build/site/html; after make wasm with the playground in it
#   make integrations  the adapters against the packages they are for, each in an environment of its own: gigabytes
#   make bench     the benchmarks (compiles llama.cpp the first time: about ten minutes)
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
NATIVE := $(shell find native -type f) pyproject.toml

.PHONY: site demo test attack check check-no-torch cover mutate sanitize sanitize-threads setup build format lint types stubs docs bench count equality machines wheel release page clients integrations wasm pyodide clean help

help:
	@sed -n '/^#   /s/^#   //p' Makefile

demo: $(VENV)/.built
	@$(BIN)/aleator generate -p "ROMEO:" -n 200 --seed 4

# Two processes, which divide the tests about evenly.  `make test` leaves out what is marked slow.
FIRST := tests/benchmarks tests/core tests/device tests/grammar tests/models tests/ops tests/playground tests/samplers \
         tests/server tests/threads
RUN := $(BIN)/python -m pytest -p no:cacheprovider
.PHONY: first rest
first:
	OMP_NUM_THREADS=1 $(RUN) $(MARKED) $(FIRST)
rest:
	OMP_NUM_THREADS=1 $(RUN) $(MARKED) tests $(FIRST:%=--ignore=%)

test: setup
	$(MAKE) --no-print-directory --jobs 2 MARKED='-m "not slow"' first rest

check: lint types cover

# What commands started by tests run is not counted.
cover: setup
	$(MAKE) --output-sync --jobs 2 covered

.PHONY: covered
covered: RUN = $(BIN)/python -m pytest -p no:cacheprovider -p branches --branches build/branches/$@.json
covered: first rest
	$(BIN)/python -m slipcover --merge build/branches/first.json build/branches/rest.json --out build/branches/all.json --skip-covered

MINUTES ?= 1000000
mutate: setup
	$(BIN)/python tools/mutate_python.py cache generate grammar models samplers text --number 300 --jobs 2 --minutes $(MINUTES)

attack: MINUTES = 3
attack: setup
	$(BIN)/python tools/attack.py --minutes $(MINUTES) $(ATTACK)

CLIENTS ?= --record --report benchmarks/results/clients.$(shell date +%F).md
clients: setup
	$(BIN)/python tools/clients.py $(CLIENTS)

INTEGRATIONS ?= --report benchmarks/results/integrations.$(shell date +%F).md
integrations: setup
	$(BIN)/python tools/integrations.py $(INTEGRATIONS)

check-no-torch: setup
	$(BIN)/python tools/check_no_torch.py $(TESTS)

sanitize: setup
	$(BIN)/python tools/sanitize.py

sanitize-threads: setup
	$(BIN)/python tools/sanitize.py --threads

setup: $(VENV)/.built $(VENV)/.dev

# What compiles the native module. --no-build-isolation: a build environment would fetch its own copies each time.
# --no-compile: Python compiles a file when it is first imported, and most never are.
$(VENV)/.tools:
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet --no-compile scikit-build-core nanobind cmake ninja
	@touch $@

# What a user needs, for the processor that is here: packages come while the compiler works.  Where tests have run the
# module keeps all instruction sets.
CLI := import tomllib; p = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
       print(*p["dependencies"], *p["optional-dependencies"]["cli"], sep="\n")
$(VENV)/.built: HERE = $(if $(wildcard $(VENV)/.dev),OFF,ON)
$(VENV)/.built: $(VENV)/.tools $(NATIVE)
	$(BIN)/python -c '$(CLI)' | $(PIP) install --quiet --no-compile --requirement /dev/stdin & packages=$$!; \
	SKBUILD_CMAKE_DEFINE=ALEATOR_HERE=$(HERE) $(PIP) install --quiet --no-compile --no-build-isolation --no-deps --editable .; \
	built=$$?; wait $$packages && exit $$built
	@touch $@

# What tests and checks need besides, and the instruction sets that a user's module has not.
$(VENV)/.dev: requirements/constraints.txt pyproject.toml | $(VENV)/.built
	$(PIP) install --quiet --constraint requirements/constraints.txt torch
	$(PIP) install --quiet --constraint requirements/constraints.txt --no-build-isolation --editable ".[dev]"
	@touch $@

build: setup

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/clang-format -i $$(find native -name '*.cpp' -o -name '*.hpp')

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/clang-format --dry-run --Werror $$(find native -name '*.cpp' -o -name '*.hpp')
	$(BIN)/lint-imports --no-cache pyproject.toml tools/import_circles.toml
	$(BIN)/python tools/stubs.py --check
	$(BIN)/python tools/docs.py --check
	$(BIN)/python tools/site_pictures.py --check

types: setup
	$(BIN)/mypy

docs: setup
	$(BIN)/python tools/docs.py
	$(BIN)/python tools/site_pictures.py

stubs: setup
	$(BIN)/python tools/stubs.py

site: setup
	$(PIP) install --quiet --constraint requirements/constraints.txt --requirement requirements/docs.txt
	$(BIN)/python tools/make_site.py $(PYODIDE:%=--pyodide %)

bench: setup
	$(PIP) install --quiet --constraint requirements/constraints.txt --no-build-isolation ".[bench]"
	$(BIN)/python benchmarks/bench_generate.py --quick
	$(BIN)/python benchmarks/bench_cache.py
	$(BIN)/python benchmarks/bench_host_chain.py --quick

equality: setup
	$(BIN)/python tools/equality.py
	$(BIN)/python tools/equality_decoder.py
	$(BIN)/python tools/equality_architectures.py

# Needs, by apt: g++-aarch64-linux-gnu g++-riscv64-linux-gnu g++-s390x-linux-gnu qemu-user-static.
machines: setup
	$(BIN)/python tools/machines.py $(MACHINES)

wheel:
	$(PYTHON) tools/build_wheel.py --try $(WHEELS)

# Needs, by apt: g++-aarch64-linux-gnu qemu-user-static.
release:
	$(PYTHON) tools/release.py

count: setup
	$(BIN)/python benchmarks/count_instructions.py

# Needs, by apt: emscripten.
wasm: setup
	PATH="$(CURDIR)/$(BIN):$$PATH" emcmake cmake -S native -B build/wasm -G Ninja -D ALEATOR_WASM=ON
	$(BIN)/cmake --build build/wasm --target aleator aleator-relaxed
	$(BIN)/python tools/javascript.py
	$(BIN)/python tools/relaxed_simd.py build/wasm/aleator-relaxed.wasm js/src/aleator-relaxed.wasm
	cp build/wasm/aleator.wasm js/src && cp LICENSE js
	cd js && npm pack --silent --pack-destination ../build

pyodide: setup
	npm install --silent --no-audit --no-fund --prefix build/pyodide pyodide@314.0.7
	$(BIN)/python tools/pyodide.py

# The modules of the page have types in JSDoc comments; tests of the page run axe-core where it is.
page: page-packages
	rm -rf build/page/src && cp -r src/aleator/server/playground/page build/page/src
	cp tools/page/vendor/*.d.mts build/page/src/vendor && cp tools/page/tsconfig.json build/page/src
	build/page/node_modules/.bin/tsc --project build/page/src/tsconfig.json
	cp js/site/transport.js js/site/kept.js build/page/src && build/page/node_modules/.bin/tsc --project build/page/src/tsconfig.json
	$(PYTHON) tools/vendor_browser.py --check

.PHONY: page-packages
page-packages:
	mkdir -p build/page && cp tools/page/package.json build/page
	npm install --silent --no-audit --no-fund --prefix build/page

clean:
	rm -rf build dist $(VENV) src/aleator/_native*.so
