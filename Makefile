# The commands a person types. CMake does the building (CMakePresets.json); this only names the common ways through it.
.PHONY: deps build test demo bench reproduce fuzz format asan tsan
LAUNCHER := $(if $(shell command -v ccache),-DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
FUZZ_SECONDS ?= 60

deps:
	@tools/install_deps.sh

build: deps
	@cmake --preset release $(LAUNCHER) >/dev/null
	cmake --build build/release

# Without a browser one test is skipped, and says so.
test: build
	@tools/install_deps.sh browser || echo "no Chromium: the report is not opened in a browser"
	ctest --test-dir build/release --output-on-failure -j2

# Only the command itself: the tests take longer to build than to say hello.
demo: deps
	@cmake --preset release $(LAUNCHER) >/dev/null
	cmake --build build/release --target headwise_cli
	@tools/demo.py build/release/headwise .

bench: demo
	build/release/headwise bench --model models/headwise-17m --plan models/headwise-17m-full.json \
	  --plan models/headwise-17m-two-heads.json --prefill 32768 --depth 32768

# Every task for every planner at equal KV bytes, and the report: about three hours on two cores; goes on where it stopped.
reproduce: deps
	@cmake --preset release $(LAUNCHER) >/dev/null
	cmake --build build/release --target headwise_cli
	tools/reproduce.py build/release/headwise . --out build/reproduce

asan tsan: deps
	cmake --preset $@ $(LAUNCHER)
	cmake --build build/$@
	ctest --test-dir build/$@ --output-on-failure -j2

fuzz: deps
	cmake --preset fuzz $(LAUNCHER)
	cmake --build build/fuzz
	tools/run_fuzzers.sh build/fuzz $(FUZZ_SECONDS)

format:
	git ls-files '*.h' '*.cc' | xargs clang-format -i
