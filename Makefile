# Two commands matter: `make demo` and `make test`. Both set up .venv first, on a bare machine too.
PYTHON ?= python3
# The version of torch. `make setup` uses the torch >= 2.11 that $(PYTHON) already has, if any; test-torch never does.
TORCH := 2.13.0

# Extras to install. With WHEELS=folder, all packages come from that folder and none from the network.
EXTRAS ?= all,dev
PACKAGES := $(if $(WHEELS),--no-index --find-links $(WHEELS),--constraint constraints.txt)

BIN := .venv/bin
HAS_TORCH := import torch; assert tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 11)
PACKAGES_FOLDER := import sysconfig; print(sysconfig.get_path("purelib"))
SOURCES := base proto checkpoint trainer_hooks agent daemon trainer cli
# Tests wait more than they compute, so two run at a time: tests/conftest.py says in which order. System tests of a file
# may share a run.
IN_PARALLEL := --numprocesses 2 --dist worksteal
BY_FILE := --numprocesses 2 --dist loadfile --no-loadscope-reorder
STUBS := proto/holdfast_proto/v1

# An exact torch in a venv of its own. A CUDA build takes 5 GB, and runs without a GPU.
TORCH_VENV := build/torch-$(TORCH)

# transformers, accelerate, lightning ... in a venv of their own, which sees the packages of .venv. torchtitan has another
# one: it needs older versions of datasets and fsspec. It imports triton, which the CPU build of torch does not bring.
FRAMEWORKS := build/frameworks
FRAMEWORK_PACKAGES := transformers accelerate lightning trl torchdata deepspeed "ray[train]" megatron-core
TORCHTITAN := build/torchtitan
TORCHTITAN_PACKAGES := torchtitan triton
SHOW_PACKAGES := import site; print("import site;", "; ".join(f"site.addsitedir({p!r})" for p in site.getsitepackages()))

# TORCH becomes the name of a folder, so it is checked before anything is made. words: make splits a name at spaces.
VERSION := [0-9]+(\.[0-9]+)+(rc[0-9]+)?(\.dev[0-9]+)?(\+[A-Za-z0-9]+([._-][A-Za-z0-9]+)*)?
ifneq ($(origin TORCH),file)
ifneq (1 yes,$(words $(TORCH)) $(shell printf '%s\n' '$(subst ','\'',$(TORCH))' | grep -Eqx '$(VERSION)' && echo yes))
$(error TORCH='$(TORCH)' is not a version of torch: give one such as TORCH=2.14.1)
endif
endif

.PHONY: help setup demo watch test gate test-system test-frameworks test-torch test-torch-all lint bench gpu soak proto check-proto clean

help:  ## Show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 24

setup: .venv/.ready  ## Make .venv and install Holdfast in it with everything that tests need

.venv/.ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "holdfast needs Python 3.11 or newer: name one with PYTHON=python3.11"; exit 1; }
	@rm -f $@
	@if $(PYTHON) -c '$(HAS_TORCH)' 2>/dev/null; \
	  then site=--system-site-packages; else site=; fi; \
	  $(PYTHON) -m venv $$site .venv \
	  || { echo "no venv: install it with: apt-get install python3-venv"; exit 1; }
	@# Where $(PYTHON) is of a venv itself, "system" means the packages below that venv: a path file shows its own.
	@if ! $(BIN)/python -c 'import torch' 2>/dev/null && $(PYTHON) -c '$(HAS_TORCH)' 2>/dev/null; then \
	  $(PYTHON) -c '$(PACKAGES_FOLDER)' >"$$($(BIN)/python -c '$(PACKAGES_FOLDER)')/outer_venv.pth"; fi
	@$(BIN)/python -c 'import torch' 2>/dev/null || $(BIN)/pip install --quiet $(PACKAGES) torch==$(TORCH)
	@# uv is faster where it exists. It does not see the torch of another Python, and would install a second one.
	@if command -v uv >/dev/null && [ -d .venv/lib/python*/site-packages/torch ]; \
	  then installer="uv pip install --compile-bytecode --python .venv/bin/python"; else installer="$(BIN)/pip install"; fi; \
	  $$installer --quiet $(PACKAGES) --editable '.[$(EXTRAS)]'
	@$(BIN)/python -m compileall -q -j 0 $(SOURCES) tests
	@touch $@

demo: setup  ## Train with eight ranks, kill one, hang another, watch the run come back
	@$(BIN)/holdfast demo

# COMMAND="holdfast run ..." watches another run than the demo.
watch: setup  ## Run the demo with a local Prometheus and Alertmanager
	@$(BIN)/python dashboards/watch.py $(COMMAND)

test: setup  ## Run all fast tests and a few with real processes
	$(BIN)/python -m pytest -m "(not system or slice) and not soak and not frameworks" $(IN_PARALLEL)

# A run of eight ranks on a machine with other work may take minutes.
test-system: setup  ## Run every test with real processes
	$(BIN)/python -m pytest -m "system and not soak and not frameworks" --timeout 600 $(BY_FILE)
	@[ $(BIN) != .venv/bin ] || $(BIN)/python -m tests.gate.affected --record  # not for another torch

# What .ci/run runs. It makes the environments of the frameworks itself, next to the tests.
gate: setup  ## Run what every change must pass
	@$(BIN)/python -m tests.gate

# Most of their time is imports and waiting, so two files run at a time. The tests of a file may share a run.
# No package, model or data set comes from a hub: tests build small models from their configurations.
test-frameworks: $(FRAMEWORKS)/.ready $(TORCHTITAN)/.ready  ## Run the tests with transformers, TRL, accelerate and other frameworks
	HF_HUB_OFFLINE=1 $(FRAMEWORKS)/bin/python -m pytest -m "frameworks and not soak" --timeout 300 \
	  $(BY_FILE) --ignore tests/frameworks/torchtitan tests/frameworks
	HF_HUB_OFFLINE=1 $(TORCHTITAN)/bin/python -m pytest -m "frameworks and not soak" --timeout 300 tests/frameworks/torchtitan

$(FRAMEWORKS)/.ready: NAMES = $(FRAMEWORK_PACKAGES)
$(FRAMEWORKS)/.ready: PINS = --constraint constraints.txt --constraint tests/frameworks/constraints.txt
$(TORCHTITAN)/.ready: NAMES = $(TORCHTITAN_PACKAGES)
$(TORCHTITAN)/.ready: PINS = --constraint tests/frameworks/torchtitan/constraints.txt

# The path file shows the venv all packages of .venv, torch and Holdfast among them. pip keeps what satisfies a pin, and
# the pin of torch is the version that is there. DeepSpeed comes as source: DS_BUILD_OPS=0 compiles none of its kernels.
$(FRAMEWORKS)/.ready: tests/frameworks/constraints.txt
$(TORCHTITAN)/.ready: tests/frameworks/torchtitan/constraints.txt
$(FRAMEWORKS)/.ready $(TORCHTITAN)/.ready: %/.ready: .venv/.ready constraints.txt
	@rm -f $@
	@$(BIN)/python -m venv $*
	@$(BIN)/python -c '$(SHOW_PACKAGES)' >"$$($*/bin/python -c '$(PACKAGES_FOLDER)')/outer_venv.pth"
	@DS_BUILD_OPS=0 $*/bin/pip install --quiet $(filter-out --constraint constraints.txt,$(PACKAGES)) $(PINS) $(NAMES) \
	  "torch==$$($(BIN)/python -c 'from importlib.metadata import version; print(version("torch"))')"
	@# The agent asks for py-spy next to its python, and pip leaves out what the path file shows.
	@ln -sf "$$(readlink -f $(BIN)/py-spy)" $*/bin/py-spy
	@touch $@

test-torch: $(TORCH_VENV)/.ready  ## Run the tests that show whether Holdfast works with another torch: TORCH=2.14.1
	$(TORCH_VENV)/bin/python -m pytest tests/contracts
	$(TORCH_VENV)/bin/python -m pytest -m "not soak" $(IN_PARALLEL) tests/trainer_hooks
	$(TORCH_VENV)/bin/python -m pytest -m "slice and not soak"

test-torch-all: $(TORCH_VENV)/.ready  ## Run all tests but the long ones with another torch: TORCH=2.14.1
	$(MAKE) --old-file setup test test-system BIN=$(TORCH_VENV)/bin

$(TORCH_VENV)/.ready: pyproject.toml constraints.txt
	@rm -f $@
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "holdfast needs Python 3.11 or newer: name one with PYTHON=python3.11"; exit 1; }
	@$(PYTHON) -m venv $(TORCH_VENV)
	@# A release that does not exist leaves no environment. One that has a torch stays: it takes 5 GB to make again.
	@$(TORCH_VENV)/bin/pip install --quiet torch==$(TORCH) || { \
	  $(TORCH_VENV)/bin/python -c 'import torch' 2>/dev/null || rm -rf $(TORCH_VENV); \
	  echo "torch $(TORCH) cannot be installed: the lines above say why. Name another version with TORCH="; exit 1; }
	@$(TORCH_VENV)/bin/pip install --quiet --constraint constraints.txt --editable '.[all,dev]' torch==$(TORCH)
	@touch $@

soak: setup $(FRAMEWORKS)/.ready $(TORCHTITAN)/.ready  ## Run the tests that are long by nature
	$(BIN)/python -m pytest -m "soak and not frameworks"
	HF_HUB_OFFLINE=1 $(FRAMEWORKS)/bin/python -m pytest -m "soak and frameworks" --timeout 300 \
	  --ignore tests/frameworks/torchtitan tests/frameworks
	HF_HUB_OFFLINE=1 $(TORCHTITAN)/bin/python -m pytest -m "soak and frameworks" --timeout 300 tests/frameworks/torchtitan

bench: setup  ## Run the benchmarks beside their peers
	$(BIN)/python benchmarks/hook_overhead.py
	$(BIN)/python benchmarks/auto_overhead.py
	$(BIN)/python benchmarks/recovery.py
	$(BIN)/python benchmarks/detection.py
	$(BIN)/python benchmarks/controls.py
	$(BIN)/python benchmarks/training.py
	$(BIN)/python benchmarks/checkpoint.py
	$(BIN)/python benchmarks/checkpoint_memory.py
	$(BIN)/python benchmarks/goodput.py

gpu: setup  ## Prove the CUDA paths on a GPU and write docs/gpu.md (PART=name, FRESH=1, MINUTES=9)
	$(BIN)/python -m benchmarks.gpu $(PART:%=--part %) $(FRESH:%=--fresh) $(MINUTES:%=--minutes %)

lint: setup check-proto  ## Check style, types, imports and generated files
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy $(SOURCES) benchmarks examples tests dashboards docs
	$(BIN)/lint-imports --no-cache
	$(BIN)/python dashboards/metrics_page.py --check
	$(BIN)/python docs/include_examples.py --check
	$(BIN)/python dashboards/grafana/generate.py --check
	$(BIN)/python docs/check_prose.py
	$(BIN)/python docs/check_layout.py

proto: setup  ## Generate the message stubs from the .proto files
	$(call generate,.)

check-proto: setup
	@rm -rf build/proto && mkdir -p build/proto
	@$(call generate,../build/proto)
	@cd $(STUBS) && for stub in *_pb2*; do cmp -s $$stub ../../../build/proto/holdfast_proto/v1/$$stub \
	  || { echo "$(STUBS)/$$stub does not match its .proto file: run make proto"; exit 1; }; done

clean:  ## Remove .venv and everything built
	rm -rf .venv build .mypy_cache .ruff_cache .pytest_cache

define generate
cd proto && ../$(BIN)/python -m grpc_tools.protoc -I . --python_out=$(1) --pyi_out=$(1) holdfast_proto/v1/*.proto \
  && ../$(BIN)/python -m grpc_tools.protoc -I . --grpc_python_out=$(1) holdfast_proto/v1/session.proto holdfast_proto/v1/control.proto
endef
