# The commands a person types. CMake does the building (CMakePresets.json); this only names the common ways through it.
.PHONY: deps build test demo bench fuzz format asan tsan
LAUNCHER := $(if $(shell command -v ccache),-DCMAKE_CXX_COMPILER_LAUNCHER=ccache)

deps:
	@tools/install_deps.sh

build: deps
	cmake --preset release $(LAUNCHER)
	cmake --build build/release

test: build
	ctest --test-dir build/release --output-on-failure -j2

asan tsan: deps
	cmake --preset $@ $(LAUNCHER)
	cmake --build build/$@
	ctest --test-dir build/$@ --output-on-failure -j2
