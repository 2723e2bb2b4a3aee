# Everything works from a fresh clone: each target sets up .venv by itself.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
# Triton's server as its wheel has it needs an older NumPy than the rest.
TRITON_VENV  := .venv-triton
TRITON_BIN   := $(TRITON_VENV)/bin
TRITON_STAMP := $(TRITON_VENV)/.installed
# Dynamo names packages that only its planner needs, and NIXL torch and CUDA: none of them are taken.
DYNAMO_VENV  := .venv-dynamo
DYNAMO_BIN   := $(DYNAMO_VENV)/bin
DYNAMO_STAMP := $(DYNAMO_VENV)/.installed
# onnxruntime-gpu has files of the same names as onnxruntime.
GPU_VENV  := .venv-gpu
GPU_BIN   := $(GPU_VENV)/bin
GPU_STAMP := $(GPU_VENV)/.installed
# By itself, so that another wheel can be named: a CPU one is enough, and far smaller.
TORCH  ?= torch==2.13.0

PYTEST := $(BIN)/python -m pytest --numprocesses 2 --dist worksteal

.PHONY: setup demo test test-slow fuzz fuzz-short fuzz-http-short fuzz-http soak real-model real-model-quality first-hour test-rtx rtx-matrix test-triton test-dynamo planted-faults lint types check train-vault train-untaught goldens retrieval plugins gpu-check gpu-bench performance cluster scale memory plan-memory clean

setup: $(STAMP)

$(STAMP): pyproject.toml
	$(PYTHON) tools/require_python.py
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet $(TORCH)
	$(BIN)/pip install --quiet --editable '.[cpu,build,eval,serve,rtx,dev]'
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

$(GPU_STAMP): pyproject.toml
	$(PYTHON) tools/require_python.py
	$(PYTHON) -m venv $(GPU_VENV)
	$(GPU_BIN)/python -m pip install --quiet --upgrade pip
	$(GPU_BIN)/pip install --quiet $(TORCH)
	$(GPU_BIN)/pip install --quiet --editable '.[gpu,build]'
	touch $@

demo: $(STAMP)           ## the bundled checkpoint answers a long prompt
	$(BIN)/snapexport demo

# Compiled modules are kept, whatever the environment says: workers and started processes load them.
test: export PYTHONDONTWRITEBYTECODE =
test: $(STAMP)           ## all tests but the slow ones
	$(PYTEST) -m "not slow" --ignore tests/rtx --ignore tests/real_model

# Of several ranks, of commands as processes, of hostile requests; and of what few builds have: experts,
# latents, quantized checkpoints, sliding layers, head groups, several tokens a step, hand-over.
test-slow: export PYTHONDONTWRITEBYTECODE =
test-slow: $(STAMP)      ## the slow tests
	$(PYTEST) -m slow --ignore tests/rtx --ignore tests/real_model

test-rtx: $(STAMP)       ## the real TensorRT for RTX parses and builds every graph, on a CPU
	$(PYTEST) tests/rtx

rtx-matrix: $(STAMP)     ## every graph of 144 builds by TensorRT for RTX: an hour; WORDS="gemma2" for some
	PYTHONPATH=. $(BIN)/python -m tests.rtx.matrix $(WORDS)

REAL_MODEL := build/real-model

real-model: export OMP_WAIT_POLICY = passive
real-model: $(STAMP)     ## SmolLM2-135M from its GGUF file against transformers, 4 minutes, 93 MB fetched once
	mkdir -p $(REAL_MODEL)
	$(BIN)/python tools/fetch_real_model.py $(REAL_MODEL)
	$(BIN)/python -m pytest tests/real_model

first-hour: $(STAMP)     ## docs/get-started/first-hour.md: what the commands print, on idle cores, 8 minutes
	mkdir -p $(REAL_MODEL)
	$(BIN)/python tools/fetch_real_model.py $(REAL_MODEL)
	tools/real_documents.sh $(TEXTS)
	$(BIN)/python tools/first_hour.py $(REAL_MODEL)/SmolLM2-135M-Instruct.Q4_1.gguf $(TEXTS)/debian-faq.txt

QUALITY := $(BIN)/snapexport eval $(REAL_MODEL)
BUILT := $(BIN)/snapexport build --model $(REAL_MODEL)/SmolLM2-135M-Instruct.Q4_1.gguf --baseline --overwrite
TEXTS := $(REAL_MODEL)/documents
# The documents that go on for pages, unlike the quotations.
LONG_TEXTS := $(patsubst %,$(TEXTS)/%.txt,autoconf-manual debian-faq debian-policy developers-reference \
	filesystem-hierarchy jargon-file maintainers-guide)
FIVE := full snapstream streaming snapkv sage
# A passage of each of 60 documents.
TEXT := --documents $(TEXTS) $(TEXTS)/more --passages 60 --continuation 48 --policies $(FIVE)
ASKED := $(QUALITY)/batch1.build --documents $(TEXTS) --continuation 0 --tasks niah_single \
	--depths .1 .3 .5 .7 .9 --samples 4
NEEDLES := $(ASKED) --modes aware
AGNOSTIC := $(ASKED) --modes agnostic --policies $(FIVE) snapstream:vote_queries=pseudo
VARIANTS := $(BIN)/python tools/vote_variants.py $(REAL_MODEL)/SmolLM2-135M-Instruct.Q4_1.gguf \
	$(REAL_MODEL)/batch1.build --documents $(TEXTS)

real-model-quality: export OMP_WAIT_POLICY = passive
real-model-quality: $(STAMP) ## the tables of docs/real-model.md, on English from Debian's packages, some hours
	mkdir -p $(REAL_MODEL)
	$(BIN)/python tools/fetch_real_model.py $(REAL_MODEL)
	tools/real_documents.sh $(TEXTS)
	for batch in 1 8; do \
		$(BUILT) --L-max 8192 --kv-budget 1024 --batch $$batch --out $(REAL_MODEL)/batch$$batch.build; done
	$(BUILT) --L-max 4160 --kv-budget 1024 --batch 16 --out $(REAL_MODEL)/batch16.build
	$(QUALITY)/batch16.build $(TEXT) --lengths 1024 2048 --budgets 32 64 128 256 512 1024 --out $(REAL_MODEL)/text
	$(QUALITY)/batch16.build $(TEXT) --lengths 4096 --budgets 128 256 512 1024 2048 --out $(REAL_MODEL)/text4096
	$(QUALITY)/batch8.build $(TEXT) --lengths 8000 --budgets 256 512 1024 2048 4096 --out $(REAL_MODEL)/text8000
	$(QUALITY)/batch16.build $(TEXT) snapstream:L_recent=14 snapstream:L_recent=20 --lengths 1024 2048 --budgets 32 \
		--out $(REAL_MODEL)/ring32
	$(QUALITY)/batch8.build --documents $(LONG_TEXTS) --passages 16 --continuation 0 --lengths 2048 --budgets 256 512 \
		--instructions "Summarize this text in one paragraph." \
		"What is this text about, and for whom is it written?" --policies $(FIVE) --out $(REAL_MODEL)/answers
	$(QUALITY)/batch8.build --documents $(TEXTS)/excerpt --passages 1 --continuation 0 --lengths 2048 --budgets 256 512 \
		--instructions "Summarize this text in one paragraph." \
		"Summarize in three sentences what Debian is." "What are the main points of this text?" \
		"Who created the Debian Project, and when?" "How many software packages does Debian include?" \
		"For which computers was Linux originally designed?" \
		--policies $(FIVE) --out $(REAL_MODEL)/excerpt
	$(NEEDLES) --lengths 2048 --seed 200 --budgets 128 --policies full snapstream snapstream:vote=sum \
		snapstream:softmax=candidates snapstream:softmax=candidates,vote=sum snapstream:group=max \
		snapstream:L_obs=8 snapstream:L_obs=24 snapstream:L_obs=32 snapstream:L_recent=31 snapstream:L_recent=93,pool_kernel=31 \
		snapstream:pool_kernel=7 snapstream:pool_kernel=15 snapstream:pool_kernel=21 snapstream:pool_kernel=63 \
		snapstream:pool=max snapstream:budget=pyramid streaming snapkv snapkv:L_obs=32 sage \
		--out $(REAL_MODEL)/needles128
	$(NEEDLES) --lengths 2048 --seed 200 --budgets 64 512 --policies full streaming \
		snapstream snapstream:pool_kernel=31 snapstream:softmax=candidates,pool_kernel=31 \
		snapstream:softmax=candidates,vote=sum,pool_kernel=31 --out $(REAL_MODEL)/needles
	$(NEEDLES) --lengths 4096 --seed 900 --budgets 128 256 512 --policies $(FIVE) --out $(REAL_MODEL)/needles4096
	$(NEEDLES) --lengths 8000 --seed 1100 --budgets 256 512 1024 --policies $(FIVE) --out $(REAL_MODEL)/needles8000
	$(QUALITY)/batch1.build --documents $(TEXTS) --passages 24 --continuation 48 --lengths 2048 \
		--budgets 64 128 256 512 --policies full snapstream:pool_kernel=31 \
		snapstream:softmax=candidates,pool_kernel=31 snapstream:softmax=candidates,vote=sum,pool_kernel=31 \
		streaming --out $(REAL_MODEL)/text_votes
	$(VARIANTS) --out $(REAL_MODEL)/votes.json
	$(VARIANTS) --needles 6 --passages 24 --seed 7000 --budgets 64 128 --out $(REAL_MODEL)/votes64.json
	$(VARIANTS) --tasks phrase_4 phrase_12 --length 1024 --needles 2 --passages 1 --seed 7000 \
		--out $(REAL_MODEL)/votes_words.json
	$(QUALITY)/batch1.build --documents $(TEXTS) --continuation 0 --tasks passkey phrase_4 phrase_12 niah_multikey lines kv \
		vt niah_multivalue niah_multiquery phrase_32 --lengths 1024 --depths .25 .75 --samples 2 --seed 300 \
		--modes aware --policies full --out $(REAL_MODEL)/tasks
	$(QUALITY)/batch1.build --documents $(TEXTS) --continuation 0 --tasks passkey phrase_4 --lengths 1024 \
		--depths .1 .3 .5 .7 .9 --samples 4 --seed 400 --modes aware --budgets 128 256 --policies $(FIVE) \
		--out $(REAL_MODEL)/caches
	$(AGNOSTIC) --lengths 1024 --seed 500 --budgets 128 256 --out $(REAL_MODEL)/agnostic
	$(AGNOSTIC) --lengths 2048 --seed 2548 --budgets 256 512 --out $(REAL_MODEL)/agnostic2048
	$(AGNOSTIC) --lengths 4096 --seed 4596 --budgets 512 1024 --out $(REAL_MODEL)/agnostic4096
	$(BIN)/python tools/late_questions.py $(REAL_MODEL)/batch1.build --documents $(TEXTS)/*.txt \
		--out $(REAL_MODEL)/late.json
	$(QUALITY)/batch1.build --documents $(TEXTS) $(TEXTS)/more --passages 60 --continuation 48 --lengths 1024 \
		--budgets 128 256 --policies full snapstream streaming snapstream:vote_queries=pseudo \
		snapstream:vote_queries=repeat --out $(REAL_MODEL)/agnostic_text
	for narrow in "" "--cache-dtype int8" "--weights int4" "--weights int4 --cache-dtype int8"; do \
		of=narrow$$(echo $$narrow | tr -d " -"); \
		$(BUILT) --L-max 2304 --kv-budget 512 --batch 16 $$narrow --out $(REAL_MODEL)/$$of.build; \
		$(QUALITY)/$$of.build --documents $(TEXTS) --passages 16 --continuation 48 --lengths 2048 \
			--budgets 256 1024 --policies $(FIVE) --out $(REAL_MODEL)/$$of; \
		$(BIN)/python tools/real_model_tables.py $(REAL_MODEL)/$$of --against $(REAL_MODEL)/narrow; done
	for of in text text4096 text8000 ring32 needles128 needles needles4096 needles8000 answers excerpt tasks caches agnostic \
		agnostic2048 agnostic4096 agnostic_text; do \
		$(BIN)/python tools/real_model_tables.py $(REAL_MODEL)/$$of; done

# A failure is tried once more, and told (RERUN): real processes race for two cores.
test-triton: export OMP_WAIT_POLICY = passive
test-triton: export SNAPEXPORT_TEST_BUILD = $(CURDIR)/build/vault.build
test-triton: $(STAMP) $(TRITON_STAMP)  ## Triton's real server, in an environment of its own, 6 minutes
	$(BIN)/snapexport build --model src/snapexport/vault/checkpoint --L-max 2064 --kv-budget 128 \
		--batch 8 --prefill-chunk 256 --overwrite --out $(SNAPEXPORT_TEST_BUILD)
	$(TRITON_BIN)/python -m pytest --confcutdir=tests/serving/triton --reruns 1 -rR tests/serving/triton

test-dynamo: export OMP_WAIT_POLICY = passive
test-dynamo: export SNAPEXPORT_TEST_BUILD = $(CURDIR)/build/vault.build
test-dynamo: $(STAMP) $(DYNAMO_STAMP)  ## real Dynamo processes, in an environment of their own, 11 minutes
	$(BIN)/snapexport build --model src/snapexport/vault/checkpoint --L-max 2064 --kv-budget 128 \
		--batch 8 --prefill-chunk 256 --overwrite --out $(SNAPEXPORT_TEST_BUILD)
	timeout 1200 $(DYNAMO_BIN)/python -m pytest --confcutdir=tests/serving/dynamo --reruns 1 -rR tests/serving/dynamo

FUZZ := $(BIN)/python -m tests.fuzz_http
SERVED := build/served.build

$(SERVED): $(STAMP)
	$(BIN)/snapexport build --model src/snapexport/vault/checkpoint --L-max 2064 --kv-budget 128 \
		--batch 8 --prefill-chunk 256 --overwrite --out $@

fuzz-http-short: $(STAMP) ## a slice of the hostile requests, half a minute
	$(BIN)/python -m pytest tests/fuzz_http

fuzz-http: $(SERVED)     ## hostile requests and large bodies, 5 minutes
	$(FUZZ).fuzz $(SERVED) --count 2000
	$(FUZZ).stall $(SERVED)

soak: REQUESTS ?= 10000
soak: $(SERVED)          ## requests of which a third are left, 5 minutes
	$(FUZZ).soak $(SERVED) --requests $(REQUESTS)

planted-faults: $(STAMP) ## plant faults in a copy, and see that tests catch each, 15 minutes
	$(BIN)/python tools/planted_faults.py

fuzz: $(STAMP)           ## files from outside, mutated, and builds that are killed: 20 minutes
	$(BIN)/python -m tests.fuzz
	$(BIN)/python -m tests.fuzz.kills

fuzz-short: $(STAMP)     ## a few cases of each kind, and all that once failed: two minutes
	$(BIN)/python -m tests.fuzz --short

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

check: lint types test test-slow

train-vault: export OMP_WAIT_POLICY = passive
train-vault: $(STAMP)    ## train the bundled checkpoint again, into vault-checkpoint/, 30 minutes
	$(BIN)/python tools/train_vault --minutes 20 --seed 0 --window 0.1 \
		--out vault-checkpoint/first
	$(BIN)/python tools/train_vault --minutes 8 --seed 1 --rate 1e-3 --window 0.1 \
		--resume vault-checkpoint/first --out vault-checkpoint/last

train-untaught: export OMP_WAIT_POLICY = passive
train-untaught: $(STAMP) ## the same without being taught where to look, for docs/retrieval.md, an hour
	$(BIN)/python tools/train_vault --minutes 32 --seed 0 --silence 0.5 \
		--out vault-untaught/first
	$(BIN)/python tools/train_vault --minutes 12 --seed 1 --rate 1e-3 --silence 0.5 \
		--resume vault-untaught/first --out vault-untaught/second
	$(BIN)/python tools/train_vault --minutes 20 --seed 2 --rate 1.5e-3 --silence 0.2 \
		--resume vault-untaught/second --out vault-untaught/last

retrieval: $(STAMP)      ## what it retrieves, by cache: the tables of docs/retrieval.md, an hour
	OMP_WAIT_POLICY=passive $(BIN)/python tools/retrieval.py --checkpoint untaught
	OMP_WAIT_POLICY=passive $(BIN)/python tools/retrieval.py --checkpoint bundled table

plugins: $(STAMP)        ## the TensorRT plugins, given TENSORRT_INCLUDE; the launchers alone without
	cmake -S plugins -B build/plugins -DSNAPEXPORT_TENSORRT_INCLUDE_DIR=$(TENSORRT_INCLUDE)
	cmake --build build/plugins --parallel 2

gpu-check: $(STAMP)      ## the plugins' kernels on a GPU: right, free of races, how fast
	$(BIN)/python tools/gpu_check.py --out build/gpu_check.json

performance: export OMP_WAIT_POLICY = passive
performance: $(STAMP)    ## the tables of docs/performance.md, 35 minutes; peers by PEERS="--peers-python ..."
	$(BIN)/python -m snapexport.measure.bench all $(PEERS)
	$(BIN)/python -m snapexport.measure.bench tables --write docs/performance.md

DISAGGREGATION := --out docs/results/disaggregation

cluster: export OMP_WAIT_POLICY = passive
cluster: $(STAMP) $(DYNAMO_STAMP)  ## the tables of docs/concepts/disaggregation.md, with real Dynamo processes
	$(BIN)/python -m snapexport.measure.bench cluster simulate --dynamo-python $(DYNAMO_BIN)/python $(DISAGGREGATION)
	$(BIN)/python -m snapexport.measure.bench tables $(DISAGGREGATION) --write docs/concepts/disaggregation.md

gpu-bench: $(GPU_STAMP)  ## decode, throughput and prefill on a GPU, at Llama-3.1-8B's shape
	$(GPU_BIN)/python -m snapexport.measure.bench context equal_memory overhead --device cuda --resume \
		--work build/gpu_bench --out build/gpu_bench

goldens:                 ## what published implementations keep: tests/parity/golden, in an environment apart
	PYTHON=$(PYTHON) tools/goldens/make.sh build/goldens

scale: $(STAMP)          ## time and memory of exporting checkpoints of large models' shapes
	$(BIN)/python -m snapexport.measure.bench export --out build/bench

memory: $(STAMP)         ## memory and decode time of a running build, with and without prepacking
	$(BIN)/python -m snapexport.measure.bench prepack --out build/bench

plan-memory: $(STAMP)    ## what `snapexport plan` predicts against what a running build takes
	OMP_WAIT_POLICY=passive $(BIN)/python -m snapexport.measure.bench plan --out build/bench

clean:
	rm -rf $(VENV) $(TRITON_VENV) $(DYNAMO_VENV) $(GPU_VENV)
