# The newcomer's commands. PYTHON chooses the interpreter, VENV the environment's folder.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
BIOME := build/biome/node_modules/.bin/biome

# The environment with all optional packages: loggers, ONNX.
EXTRAS := $(VENV)-extras

.PHONY: demo deploy-demo test test-slow test-faults test-extras check format benchmark same-bits clean

demo: $(VENV)/ready
	$(BIN)/fedatlas demo

deploy-demo: $(VENV)/ready
	$(BIN)/fedatlas flower demo

# A process for each core, up to four; no test depends on another's having run.
test: $(VENV)/ready
	$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist worksteal

test-slow: $(VENV)/ready
	$(BIN)/python -m pytest --slow

# Lets writes, memory and processes fail, damages files, mutates configs and data, and sends what malicious nodes would.
test-faults: $(VENV)/ready
	$(BIN)/python -m pytest --faults --slow -m "faults or attack"

# What is logged and exported, read back by TensorBoard, MLflow, W&B, onnxruntime and transformers themselves.
test-extras: $(EXTRAS)/ready
	$(EXTRAS)/bin/python -m pytest --slow tests/training/test_callbacks.py tests/adapting tests/cli/test_adapt.py

check: $(VENV)/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q -rs tests/report/test_page_source.py

format: $(VENV)/ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	@! test -x $(BIOME) || $(BIOME) check --write

# Sets up pfl and Flower in environments of their own, and measures them beside fedatlas.
benchmark: $(VENV)/ready
	$(BIN)/python benchmarks/run.py --out runs/benchmark

# Trains every algorithm with the commit BASE and with this tree, and compares what they leave, byte for byte.
same-bits: $(VENV)/ready
	@test -n "$(BASE)" || { echo "Name the commit: make same-bits BASE=COMMIT"; exit 2; }
	$(BIN)/python benchmarks/same_bits.py --base $(BASE)

# torch comes first and pinned: asked for later, as a range, pip would take a build with gigabytes of CUDA.
$(VENV)/ready: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[hub,flower,dev]'
	touch $@

$(EXTRAS)/ready: pyproject.toml constraints.txt
	test -x $(EXTRAS)/bin/python || $(PYTHON) -m venv $(EXTRAS)
	$(EXTRAS)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(EXTRAS)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
		-e '.[hub,flower,onnx,tensorboard,wandb,mlflow,dev]'
	touch $@

clean:
	rm -rf $(VENV) $(EXTRAS) runs build *.egg-info src/*.egg-info
