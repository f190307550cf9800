# The front door; `make help` lists what it can do. Builds lie under build/<preset>.
JOBS ?= $(shell nproc)
SECONDS ?= 60
PRESET ?= cuda
PACKAGE ?= cpu
DIST ?= cpu arm cuda spark-cross
MODEL ?= models/nibble-tiny
PROMPT ?= Once upon a time

export NINJA_STATUS = [%f/%t] # kept: ninja prints the step after it
MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help
.PHONY: help setup demo build cuda package dist dist-try test test-arm test-arm-kernels test-serve test-agents test-foreign test-schemas test-page asan tsan fuzz lint format clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 16

setup: ## install the Debian packages that are missing (tools/packages.txt)
	@tools/setup.sh

build: setup ## build the CPU product and its tests
	$(call configure,cpu)
	$(call compile,cpu)

cuda: setup ## build the CUDA product (PRESET=cuda: every card from Ampere on, checks its kernels; h100, spark); wants nvcc, no GPU
	$(call configure,$(PRESET))
	$(call compile,$(PRESET),nibble cuda_benches)
	$(if $(filter cuda,$(PRESET)),$(call compile,cuda,nibble_cuda_sm121_twin))
	$(if $(filter cuda,$(PRESET)),@tools/check_spills.py build/cuda && tools/check_native.py build/cuda)

package: setup ## a .deb, a tarball and a Python wheel under build/packages (PACKAGE=cpu; cuda; arm; spark-cross: CUDA for a DGX Spark, made on x86-64); on Debian 12 they fit older systems, too
	$(if $(filter arm spark-cross,$(PACKAGE)),@tools/setup.sh arm)
	$(if $(filter spark-cross,$(PACKAGE)),@tools/cudart_arm.sh build/cudart-arm64)
	$(call configure,$(PACKAGE))
	$(call compile,$(PACKAGE),nibble)
	@tools/package.py build/$(PACKAGE) build/packages

dist: ## packages of every kind (DIST="cpu arm": these alone)
	@for kind in $(DIST); do $(MAKE) package PACKAGE=$$kind || exit 1; done

dist-try: ## install and run each of them in a clean Debian 12 and 13; wants root, debootstrap and, for arm64, qemu
	@tools/setup.sh try
	@tools/try_packages.sh build/packages build/try

demo: setup ## build, then let the small model of the repository tell a story
	$(call configure,cpu)
	$(call compile,cpu,nibble)
	@build/cpu/src/app/nibble run -m "$(MODEL)" -p "$(PROMPT)" -n 120

test: build ## build, all tests that need no GPU, lint
	$(call run_tests,cpu)
	@$(MAKE) lint

test-arm: setup ## the CPU product for 64-bit Arm and its tests under qemu, cross-compiled (Debian); not those that emulate a card
	@tools/setup.sh arm
	$(call configure,arm)
	$(call compile,arm)
	$(call run_tests,arm)

test-arm-kernels: setup ## of the same only the CPU backend's kernels
	@tools/setup.sh arm
	$(call configure,arm)
	$(call compile,arm,cpu_test)
	$(call run_tests,arm,-R 'Int8Products|arm_int8|CpuKernels|cpu_kernels')

test-serve: setup ## the openai and anthropic clients, llama-benchy and huggingface_hub against nibble (from PyPI, in .venv-serve)
	@tools/setup.sh python
	$(call configure,cpu)
	$(call compile,cpu,nibble)
	@tools/venv.sh .venv-serve tests/clients/requirements.txt
	@for part in openai anthropic benchy hub; do NIBBLE="$$PWD/build/cpu/src/app/nibble" .venv-serve/bin/python tests/clients/$${part}_test.py || exit; done

test-agents: setup ## Codex, Claude Code, openai-agents and Ollama's client against nibble (from PyPI, in .venv-agents), in a namespace without a network; as root
	@tools/setup.sh python
	$(call configure,cpu)
	$(call compile,cpu,nibble)
	@tools/venv.sh .venv-agents tests/agents/requirements.txt
	@scratch=$$(mktemp -d); trap 'rm -rf "$$scratch"' EXIT; tests/agents/in_namespace.sh "$$scratch" env NIBBLE="$$PWD/build/cpu/src/app/nibble" "$$PWD/.venv-agents/bin/python" -B "$$PWD/tests/agents/agents_test.py"

test-foreign: setup ## verify and load against llama-cpp-python's server, and its files of every type (from PyPI, built in .venv-foreign: minutes)
	@tools/setup.sh python
	$(call configure,cpu)
	$(call compile,cpu,nibble)
	@tools/venv.sh .venv-foreign tests/foreign/requirements.txt
	@for part in llama quants; do NIBBLE="$$PWD/build/cpu/src/app/nibble" .venv-foreign/bin/python tests/foreign/$${part}_test.py || exit; done

test-schemas: setup ## grammars of schemas beside the jsonschema package: its suite, and 4,000 random ones (from PyPI, in .venv-schemas)
	@tools/setup.sh python
	$(call configure,cpu)
	$(call compile,cpu,schemas_main)
	@tools/venv.sh .venv-schemas tests/schemas/requirements.txt
	@rm -rf build/schemas-suite && mkdir -p build/schemas-suite
	@.venv-schemas/bin/pip download -q --no-deps --no-binary :all: -d build/schemas-suite -r tests/schemas/requirements.txt
	@tar -xzf build/schemas-suite/jsonschema-*.tar.gz -C build/schemas-suite --strip-components 1
	@for part in suite fuzz; do NIBBLE_SCHEMAS="$$PWD/build/cpu/tests/schemas_main" NIBBLE_SUITE=build/schemas-suite/json/tests/draft2020-12 \
	  .venv-schemas/bin/python tests/schemas/schemas_test.py $$part || exit; done

asan: setup ## the tests under AddressSanitizer and UBSan (ROOMS="base text": these rooms' unit tests alone)
	$(call configure,asan)
	$(call compile,asan,$(ROOMS:%=%_test))
	$(if $(ROOMS),$(call run_room_tests,asan),$(call run_tests,asan))

tsan: setup ## the tests under ThreadSanitizer (ROOMS="engine server")
	$(call configure,tsan)
	$(call compile,tsan,$(ROOMS:%=%_test))
	$(if $(ROOMS),$(call run_room_tests,tsan),$(call run_tests,tsan))

fuzz: ## run each fuzz target for SECONDS (60)
	@tools/setup.sh fuzz
	$(call configure,fuzz)
	$(call compile,fuzz)
	@tools/fuzz.sh $(SECONDS)

test-page: setup ## the chat page (before a stub and nibble serve) and pages of --report in a headless Chromium
	@tools/setup.sh python page
	$(call configure,cpu)
	$(call compile,cpu,nibble)
	@tools/venv.sh .venv-page tests/page/requirements.txt
	@.venv-page/bin/python tests/page/page_test.py
	@NIBBLE=build/cpu/src/app/nibble .venv-page/bin/python tests/page/server_test.py
	@NIBBLE=build/cpu/src/app/nibble .venv-page/bin/python tests/page/report_test.py

lint: ## layers and house rules, formatting, naming
	@tools/setup.sh lint
	$(call configure,cpu)
	@JOBS=$(JOBS) tools/lint.sh build/cpu

format: ## rewrite the sources in the house format
	@tools/setup.sh lint
	@tools/lint.sh --format

clean: ## remove every build
	@rm -rf build

# Configuring speaks only when it fails; ninja re-runs it by itself when a CMake file changes.
define configure
	@test -e build/$(1)/build.ninja || { mkdir -p build/$(1) && echo "configuring $(1)" && \
	  cmake --preset $(1) >build/$(1)/configure.log 2>&1 || { cat build/$(1)/configure.log; exit 1; }; }
endef

# $(2): one target; all without it.
define compile
	@cmake --build build/$(1) --parallel $(JOBS) $(if $(2),--target $(2))
endef

# $(2): more for ctest.
define run_tests
	@JOBS=$(JOBS) tools/run_tests.sh build/$(1) $(2)
endef

define run_room_tests
	@for room in $(ROOMS); do JOBS=$(JOBS) tools/run_tests.sh build/$(1)/src/$$room || exit; done
endef
