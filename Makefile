# The commands a person types. CMake does the building (CMakePresets.json); this only names the common ways through it.
.PHONY: build wheel deps deps-cuda test test-cuda test-peers cuda-bundle quick test-long demo bench reproduce fuzz soak schedule harness format asan tsan asan-python
FUZZ_SECONDS ?= 60
FUZZ_LONG_SECONDS ?= 600
SOAK_TOKENS ?= 1000000
SCHEDULE_STEPS ?= 100000

build:
	@tools/install_deps.sh test
	@cmake --preset release >/dev/null
	cmake --build build/release

# The Python package, on the libraries of `make build`. `pip install .` makes it from nothing.
wheel: build
	@tools/install_deps.sh python
	tools/make_wheel.sh build/release build/wheel

# Only the packages; every target installs what it needs by itself.
deps:
	@tools/install_deps.sh test

# What the backend cuda is built with, where there is no CUDA toolkit; builds find it by themselves.
deps-cuda:
	@mkdir -p build
	@tools/install_cuda.sh build/cuda

# Everything that takes minutes. Without a browser or OpenAI's client tests are skipped, and say so.
test: build
	@tools/install_deps.sh browser || echo "no Chromium: the report is not opened in a browser"
	@tools/install_deps.sh clients || echo "no Python package openai: the server is not asked by OpenAI's client"
	@tools/install_deps.sh python || echo "no headers of Python: its package is not built"
	ctest --test-dir build/release -LE long --output-on-failure -j2

# The tests of parts alone: under a minute once built, for while one works.
quick: build
	ctest --test-dir build/release -L quick --output-on-failure -j2

# The suites that take a backend, on the GPU; without one they are skipped, and say so.
test-cuda: build
	HEADWISE_TESTS=$(CURDIR)/build/release/tests tools/cuda_tests.sh || [ $$? -eq 77 ]

# For GPU machines that cannot build: tests and bench in one file (tools/cuda_bundle.sh says how to use it).
cuda-bundle: build
	cmake --build build/release --target headwise_bench_cli
	tools/cuda_bundle.sh build/release build/cuda-bundle.tar.xz

# What takes hours, or packages of hundreds of megabytes: sanitizers, fuzzers, a stream of a million tokens, clients who
# do as they like, a harness.
test-long: asan tsan fuzz soak schedule harness

# lm-eval scores answers through the server, and through the Python package.
harness: build
	@tools/install_deps.sh harness || echo "no Python package lm-eval: it scores nothing through the server"
	ctest --test-dir build/release -R '^lm_eval(_package)?$$' --output-on-failure

# lm-eval's own class for transformers and headwise's on the same tasks, one behind the other: gigabytes of PyTorch.
test-peers: build
	@tools/install_deps.sh peers || echo "no PyTorch: nobody is there to compare with"
	ctest --test-dir build/release -R '^lm_eval_peers$$' --output-on-failure
	[ ! -e build/peers/bin/headwise-lm-eval ] || build/peers/bin/python tools/measure_lm_eval.py models/headwise-17m

# The smallest part that runs models, in the folder that `make test` goes on in: nothing is compiled twice.
demo:
	@tools/install_deps.sh core
	@[ -e build/release/build.ninja ] || cmake --preset core >/dev/null
	cmake --build build/release --target headwise_core_cli
	@tools/demo.py build/release/headwise-core .

bench: build
	build/release/headwise bench --model models/headwise-17m --plan models/headwise-17m-full.json \
	  --plan models/headwise-17m-two-heads.json --prefill 32768 --depth 32768

# Every task for every planner at equal KV bytes, and the report: about eight hours on two cores; goes on where it stopped.
reproduce: build
	tools/reproduce.py build/release/headwise . --out build/reproduce

asan tsan:
	@tools/install_deps.sh test
	cmake --preset $@
	cmake --build build/$@
	ctest --test-dir build/$@ -LE long --output-on-failure -j2

# What `make asan` has of the Python package, and no more: its tests, in an interpreter with the sanitizer.
asan-python:
	@tools/install_deps.sh test
	@tools/install_deps.sh python
	cmake --preset asan
	cmake --build build/asan --target headwise_cli headwise_evaluation
	tools/python_tests.sh build/asan build/asan/headwise

fuzz:
	@tools/install_deps.sh long
	cmake --preset fuzz
	cmake --build build/fuzz
	tools/run_fuzzers.sh build/fuzz $(FUZZ_SECONDS) $(FUZZ_LONG_SECONDS)

soak: build
	cmake --build build/release --target stream_soak
	build/release/tests/soak/stream_soak models/headwise-17m ARCHITECTURE.md $(SOAK_TOKENS)

schedule: build
	HEADWISE_SCHEDULE_STEPS=$(SCHEDULE_STEPS) build/release/tests/integration_test --gtest_filter='RandomSchedule.*'

format:
	@tools/install_deps.sh test
	tools/check_format.sh --write
