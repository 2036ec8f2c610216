# Two targets do everything on a fresh machine: `make demo` and `make test`. Both set up .venv themselves.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/ready
DEMO := runs/demo

.PHONY: demo test check benchmark clean

demo: $(READY)
	rm -rf $(DEMO)
	$(BIN)/bats-rl data collect maze2d-umaze --rows 100000 --seed 0 --out $(DEMO)/umaze.hdf5
	$(BIN)/bats-rl validate $(DEMO)/umaze.hdf5
	$(BIN)/bats-rl solve $(DEMO)/umaze.hdf5 --save $(DEMO)/mdp
	@echo "No state of a continuous log is met twice, so there is nothing to choose yet. In a grid there is:"
	$(BIN)/bats-rl data collect grid --seed 0 --out $(DEMO)/grid.hdf5
	$(BIN)/bats-rl solve $(DEMO)/grid.hdf5

test: $(READY) check
	$(BIN)/python -m pytest -n 2

check: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

benchmark: $(READY)
	for script in solve read collect dynamics planner; do $(BIN)/python -m benchmarks.$$script || exit 1; done

$(READY): pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --editable '.[dev]'
	touch $@

clean:
	rm -rf .venv runs
