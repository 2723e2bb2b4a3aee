# Everything works from a fresh clone: each target sets up the environment that it needs.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
# Triton's wheel needs an older NumPy than the rest.
TRITON_VENV  := .venv-triton
TRITON_BIN   := $(TRITON_VENV)/bin
TRITON_STAMP := $(TRITON_VENV)/.installed
# Dynamo depends on packages that only its planner needs, and NIXL on torch and CUDA: none is installed.
DYNAMO_VENV  := .venv-dynamo
DYNAMO_BIN   := $(DYNAMO_VENV)/bin
DYNAMO_STAMP := $(DYNAMO_VENV)/.installed
# Other people's clients of the API want other releases of what the server imports.
CLIENTS_VENV  := .venv-clients
CLIENTS_BIN   := $(CLIENTS_VENV)/bin
CLIENTS_STAMP := $(CLIENTS_VENV)/.installed
CLIENTS       := tests/serving/clients
# onnxruntime-genai is a stranger's runtime: tests drive it from outside.
GENAI_VENV  := .venv-genai
GENAI_BIN   := $(GENAI_VENV)/bin
GENAI_STAMP := $(GENAI_VENV)/.installed
NPM_CLIENTS   := openai@7 zod@4 ai@7 @ai-sdk/openai@3 @ai-sdk/anthropic@3 @ai-sdk/openai-compatible@3
# The CPU wheel is enough, and far smaller: make TORCH=URL.
TORCH  ?= torch==2.13.0

PYTEST := $(BIN)/python -m pytest --numprocesses 2 --dist worksteal
FUZZ   := $(BIN)/python -m tests.fuzz_http
REAL_MODEL := build/real-model
TEXTS  := $(REAL_MODEL)/documents
SERVED := build/served.build

.PHONY: help setup demo test test-slow test-all architectures test-rtx rtx-matrix test-triton test-dynamo test-clients test-genai \
	real-model real-model-long fuzz fuzz-short fuzz-http fuzz-http-short soak soak-servers test-memory planted-faults lint types check studies plugins \
	gpu-check goldens clean

setup: $(STAMP)          ## the environment of everything but Triton's and Dynamo's tests

help:                    ## this list
	@sed -nE 's/^([a-z-]+):.*## (.*)/\1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 18

demo: $(STAMP)           ## the bundled checkpoint answers a long prompt; the first time with the set-up, 3 to 10 minutes
	@echo "the demo fetches nothing more: it builds a bundled checkpoint of 2 MB, about a minute"
	$(BIN)/snapexport demo

# Compiled modules are kept, whatever the environment says: workers and started processes load them.
test: export PYTHONDONTWRITEBYTECODE =
test: $(STAMP)           ## all tests but the slow ones
	$(PYTEST) --junitxml build/$@.xml -m "not slow and not architectures" --ignore tests/rtx --ignore tests/real_model

test-slow: export PYTHONDONTWRITEBYTECODE =
test-slow: $(STAMP)      ## the slow tests: ranks, processes, hostile requests, and what few builds have
	$(PYTEST) --junitxml build/$@.xml -m slow --ignore tests/rtx --ignore tests/real_model

test-all: export PYTHONDONTWRITEBYTECODE =
test-all: $(STAMP)       ## both in one run, as CI does: each worker loads the libraries once
	$(PYTEST) --junitxml build/$@.xml -m "not architectures" --ignore tests/rtx --ignore tests/real_model

architectures: export PYTHONDONTWRITEBYTECODE =
architectures: $(STAMP)  ## every decoder of transformers against it, and the page of results, 20 minutes
	$(PYTEST) tests/architectures tests/exporter/weights/test_conversion.py --junitxml build/architectures.xml
	$(BIN)/python tools/architectures.py build/architectures.xml

test-rtx: $(STAMP)       ## the real TensorRT for RTX parses and builds every graph, on a CPU
	$(PYTEST) tests/rtx

rtx-matrix: $(STAMP)     ## every graph of 144 builds by TensorRT for RTX: an hour; WORDS="gemma2" for some
	$(BIN)/python -m tools.studies.rtx_matrix $(WORDS)

# A failure is tried once more and reported (RERUN): real processes race for two cores.
test-triton: TESTS ?= tests/serving/triton
test-triton: export OMP_WAIT_POLICY = passive
test-triton: export SNAPEXPORT_TEST_BUILD = $(CURDIR)/$(SERVED)
test-triton: $(SERVED) $(TRITON_STAMP)  ## Triton's real server, in its own environment, 6 minutes
	$(TRITON_BIN)/python -m pytest --confcutdir=tests/serving --reruns 1 -rR $(TESTS)

test-dynamo: TESTS ?= tests/serving/dynamo
test-dynamo: export OMP_WAIT_POLICY = passive
test-dynamo: export SNAPEXPORT_TEST_BUILD = $(CURDIR)/$(SERVED)
test-dynamo: $(SERVED) $(DYNAMO_STAMP)  ## real Dynamo processes, in their own environment, 11 minutes
	timeout 1200 $(DYNAMO_BIN)/python -m pytest --confcutdir=tests/serving --reruns 1 -rR $(TESTS)

test-clients: export OMP_WAIT_POLICY = passive
test-clients: export SNAPEXPORT_TEST_PYTHON = $(abspath $(BIN))/python
test-clients: export SNAPEXPORT_TEST_MODEL ?= $(CURDIR)/$(REAL_MODEL)/SmolLM2-135M-Instruct.Q4_1.gguf
test-clients: $(STAMP) $(CLIENTS_STAMP) ## 16 clients of the API in an environment of theirs (npm's if it is there), 3 minutes
	mkdir -p $(REAL_MODEL)
	$(BIN)/python tools/fetch_real_model.py $(REAL_MODEL)
	$(CLIENTS_BIN)/python -m pytest --confcutdir=$(CLIENTS) --timeout 600 $(CLIENTS)

test-genai: export SNAPEXPORT_GENAI_PYTHON = $(abspath $(GENAI_BIN))/python
test-genai: $(STAMP) $(GENAI_STAMP)  ## stock onnxruntime-genai, in an environment of its own, 2 minutes
	timeout 900 $(BIN)/python -m pytest tests/genai

real-model real-model-long: export OMP_WAIT_POLICY = passive
real-model: $(STAMP)     ## SmolLM2-135M from its GGUF file against transformers, 4 minutes, 93 MB fetched once
	mkdir -p $(REAL_MODEL)
	$(BIN)/python tools/fetch_real_model.py $(REAL_MODEL)
	$(BIN)/python -m pytest -m "not slow" tests/real_model

real-model-long: real-model  ## the same after 4,000 and 8,000 tokens on both engines of a CPU, 4 minutes
	$(BIN)/python -m pytest -m slow tests/real_model

fuzz: $(STAMP)           ## mutated input files, and builds that are killed, 20 minutes
	$(BIN)/python -m tests.fuzz
	$(BIN)/python -m tests.fuzz.kills

fuzz-short: $(STAMP)     ## a few cases of each kind, and all that once failed, two minutes
	$(BIN)/python -m tests.fuzz --short

fuzz-http: $(SERVED)     ## hostile requests and large bodies, 5 minutes
	$(FUZZ).fuzz $(SERVED) --count 2000
	$(FUZZ).stall $(SERVED)
	$(FUZZ).idle $(SERVED)

fuzz-http-short: $(STAMP) ## a slice of the hostile requests, half a minute
	$(BIN)/python -m pytest tests/fuzz_http

test-memory: export OMP_WAIT_POLICY = passive
test-memory: SECONDS ?= 90
test-memory: SMOLLM2 = $(REAL_MODEL)/SmolLM2-135M-Instruct.Q4_1.gguf
test-memory: LIKE_SMOLLM2 = --L-max 4096 --kv-budget 1/4 --batch 8 --tokens-per-step 4 --extend --overwrite
test-memory: $(SERVED)   ## resident memory beside its bound, 200 clients, SmolLM2 and the bundled checkpoint, 10 minutes
	mkdir -p $(REAL_MODEL)
	$(BIN)/python tools/fetch_real_model.py $(REAL_MODEL)
	for target in onnxruntime openvino; do \
		$(BIN)/snapexport build --model $(SMOLLM2) $(LIKE_SMOLLM2) --target $$target --out build/memory-$$target.build && \
		$(BIN)/snapexport build --model src/snapexport/vault/checkpoint --L-max 2064 --kv-budget 128 --batch 8 \
			--prefill-chunk 256 --overwrite --target $$target --out build/small-$$target.build || exit 1; done
	$(BIN)/python -m tests.memory --seconds $(SECONDS) build/memory-onnxruntime.build onnxruntime 2080MiB \
		build/memory-openvino.build openvino 2850MiB
	$(BIN)/python -m tests.memory --seconds 30 --loose build/small-onnxruntime.build onnxruntime 450MiB \
		build/small-openvino.build openvino 640MiB

soak: REQUESTS ?= 10000
soak: $(SERVED)          ## requests of which a third are left, 5 minutes
	$(FUZZ).soak $(SERVED) --requests $(REQUESTS)

planted-faults: $(STAMP) ## plants faults in a copy, and sees that tests catch each, 15 minutes
	$(BIN)/python tools/planted_faults.py

lint: $(STAMP)           ## ruff, and the bounds of lines, pages and imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python tools/house.py --check

types: $(STAMP)          ## mypy
	$(BIN)/mypy

soak-servers: export SNAPEXPORT_SOAK_SECONDS = 120
soak-servers:            ## the same of Triton's and Dynamo's real servers, of which CI has 20 seconds each
	$(MAKE) test-triton TESTS=tests/serving/triton/test_soak.py
	$(MAKE) test-dynamo TESTS=tests/serving/dynamo/test_soak.py

check: lint types test-all ## before a change lands

studies: $(STAMP)        ## tests of the laboratory; its studies: make -f tools/studies/Makefile help
	$(PYTEST) tools/studies/tests

plugins: $(STAMP)        ## the TensorRT plugins, given TENSORRT_INCLUDE; without it only the launchers
	cmake -S plugins -B build/plugins -DSNAPEXPORT_TENSORRT_INCLUDE_DIR=$(TENSORRT_INCLUDE)
	cmake --build build/plugins --parallel 2

gpu-check: $(STAMP)      ## the plugins' kernels on a GPU: results, races, speed
	$(BIN)/python tools/studies/gpu_kernels.py --out build/gpu_kernels.json

goldens:                 ## what published implementations keep (tests/parity/golden), in its own environment
	PYTHON=$(PYTHON) tools/studies/goldens/make.sh build/goldens

clean:                   ## remove the environments
	rm -rf $(VENV) $(TRITON_VENV) $(DYNAMO_VENV) $(CLIENTS_VENV) $(GENAI_VENV) .venv-gpu

# Made each time: the code may have changed since.
.PHONY: $(SERVED)
$(SERVED): $(STAMP)
	$(BIN)/snapexport build --model src/snapexport/vault/checkpoint --L-max 2064 --kv-budget 128 \
		--batch 8 --prefill-chunk 256 --overwrite --out $@

$(STAMP): pyproject.toml
	@echo "setting up $(VENV): 2.7 GB of packages, of which torch is the largest; 3 to 10 minutes, once"
	$(PYTHON) tools/require_python.py
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet $(TORCH)
	$(BIN)/pip install --quiet --editable '.[cpu,build,eval,openvino,pdf,serve,rtx,dev]'
	touch $@

$(TRITON_STAMP): pyproject.toml
	$(PYTHON) tools/require_python.py
	$(PYTHON) -m venv $(TRITON_VENV)
	$(TRITON_BIN)/python -m pip install --quiet --upgrade pip
	$(TRITON_BIN)/pip install --quiet --editable '.[cpu,triton,serve]' 'numpy<2' 'pytest>=8' \
		'pytest-rerunfailures>=14' openai
	$(TRITON_BIN)/pip install --quiet --no-deps nvidia-pytriton==0.7.0
	touch $@

$(DYNAMO_STAMP): pyproject.toml
	$(PYTHON) tools/require_python.py
	$(PYTHON) -m venv $(DYNAMO_VENV)
	$(DYNAMO_BIN)/python -m pip install --quiet --upgrade pip
	$(DYNAMO_BIN)/pip install --quiet --editable '.[cpu,dynamo,serve]' 'pytest>=8' \
		'pytest-rerunfailures>=14' openai
	$(DYNAMO_BIN)/pip install --quiet --no-deps 'ai-dynamo>=1.6.1,<1.7' 'nixl>=1.5.1,<1.6' 'nixl-cu13>=1.5.1,<1.6'
	touch $@

$(GENAI_STAMP): pyproject.toml
	$(PYTHON) tools/require_python.py
	$(PYTHON) -m venv $(GENAI_VENV)
	$(GENAI_BIN)/python -m pip install --quiet --upgrade pip
	$(GENAI_BIN)/pip install --quiet --editable '.[cpu]' 'onnxruntime-genai>=0.18,<0.19' \
		'onnx>=1.22,<1.24' 'onnx-graphsurgeon>=0.6.1,<0.7'
	touch $@

$(CLIENTS_STAMP): $(wildcard $(CLIENTS)/*.txt)
	$(PYTHON) tools/require_python.py
	$(PYTHON) -m venv $(CLIENTS_VENV)
	$(CLIENTS_BIN)/python -m pip install --quiet --upgrade pip
	$(CLIENTS_BIN)/pip install --quiet $(TORCH) --requirement $(CLIENTS)/requirements.txt \
		--constraint $(CLIENTS)/constraints.txt
	$(CLIENTS_BIN)/pip install --quiet --no-deps --requirement $(CLIENTS)/without-dependencies.txt
	if command -v npm > /dev/null; then \
		npm install --no-audit --no-fund --loglevel=error --prefix $(CLIENTS_VENV) $(NPM_CLIENTS); \
	else echo "npm is not here: its clients are left out"; fi
	touch $@
