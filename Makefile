# Every target sets up .venv by itself; a second call finds it done.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

OUT ?= bench
REPORT ?= reproduction

.PHONY: demo test lint docs bench bench-peers bench-rows reproduce-quick faults audit lock clean

demo: $(READY)
	$(BIN)/metavrf demo

test: $(READY)
	$(BIN)/python -m pytest -n 2 -rs

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(READY)
	$(BIN)/python docs/reference.py site

bench: $(READY)
	mkdir -p $(OUT)
	$(BIN)/python benchmarks/bench.py --save $(OUT)/bench.json --chart $(OUT)/bench.png
	$(BIN)/python benchmarks/adapt.py --save $(OUT)/adapt.json
	$(BIN)/python benchmarks/page.py --save $(OUT)/page.json

bench-peers: $(READY)
	mkdir -p $(OUT)
	$(BIN)/python benchmarks/peers/measure.py --save $(OUT)/peers.json --chart $(OUT)/peers.png

# The rivals and tables of rows stand in an environment of their own; a run that was stopped goes on.
bench-rows: $(READY)
	mkdir -p $(OUT)
	$(PYTHON) -m venv .venv-rows
	.venv-rows/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable . \
		--requirement benchmarks/rows-requirements.txt
	.venv-rows/bin/python benchmarks/rows.py --cache $(OUT)/rows.jsonl --save $(OUT)/rows.json

reproduce-quick: $(READY)
	$(BIN)/metavrf reproduce sine-figure omniglot-table --budget minutes --jobs 2 --out $(REPORT)

faults: $(READY)
	$(BIN)/python benchmarks/faults/run.py --save results/faults.json

audit: $(READY)
	$(BIN)/pip install --quiet --disable-pip-version-check pip-audit || true
	$(BIN)/python benchmarks/audit.py

# The sums of what constraints.txt pins, from the package index.
lock: $(READY)
	$(BIN)/python benchmarks/lock.py

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "metavrf needs Python 3.11 or newer: make PYTHON=...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev,deep,onnx,serve,slurm,sweep,tensorboard]'
	touch $@

clean:
	rm -rf $(VENV) .venv-peers .venv-rows .venv-tabpfn demo bench reproduction site
