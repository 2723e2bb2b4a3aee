# Everything works from a fresh clone: each target sets up .venv by itself.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
# By itself, so that another wheel can be named: a CPU one is enough, and far smaller.
TORCH  ?= torch==2.13.0

.PHONY: setup demo test lint types check train-vault vault-recall scale memory clean

setup: $(STAMP)

$(STAMP): pyproject.toml
	$(PYTHON) tools/require_python.py
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet $(TORCH)
	$(BIN)/pip install --quiet --editable '.[cpu,build,dev]'
	touch $@

demo: $(STAMP)           ## the bundled checkpoint answers a long prompt
	$(BIN)/snapexport demo

test: $(STAMP)           ## all tests, under 10 minutes on 2 cores
	$(BIN)/python -m pytest

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

check: lint types test

train-vault: $(STAMP)    ## train the bundled checkpoint again, into vault-checkpoint/, 30 minutes
	OMP_WAIT_POLICY=passive $(BIN)/python tools/train_vault --minutes 20 --seed 0 \
		--out vault-checkpoint/first
	OMP_WAIT_POLICY=passive $(BIN)/python tools/train_vault --minutes 8 --seed 1 --rate 1e-3 \
		--resume vault-checkpoint/first --out vault-checkpoint/last

vault-recall: $(STAMP)   ## what it remembers, by cache: the table of docs/vault.md
	$(BIN)/python tools/vault_recall.py

scale: $(STAMP)          ## time and memory of exporting a Llama-3.1-8B-shaped checkpoint
	$(BIN)/python tools/measure_scale.py

memory: $(STAMP)         ## memory and decode time of a running build, with and without prepacking
	$(BIN)/python tools/measure_memory.py

clean:
	rm -rf $(VENV)
