# Two targets do everything on a fresh machine: `make demo` and `make test`. Both set up .venv themselves.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/ready
DEMO := runs/demo

.PHONY: demo test test-all test-long check benchmark clean

demo: $(READY)
	rm -rf $(DEMO)
	$(BIN)/bats-rl data collect maze2d-umaze --rows 250000 --seed 0 --out $(DEMO)/umaze.hdf5
	$(BIN)/bats-rl validate $(DEMO)/umaze.hdf5
	$(BIN)/bats-rl fit $(DEMO)/umaze.hdf5 --preset demo --out $(DEMO)/run
	$(BIN)/bats-rl solve $(DEMO)/run --goal 3,1 --radius 0.5 --steps 300
	$(BIN)/bats-rl evaluate $(DEMO)/run --task maze2d-umaze
	$(BIN)/bats-rl report $(DEMO)/run
	@echo "The run is in $(DEMO)/run (docs/runs.md says what is in it), its policy in $(DEMO)/run/policy.safetensors."
	@echo "Open $(DEMO)/run/report.html in a browser to see all of it."
	@$(BIN)/python -c "import json; \
	cloned = json.load(open('$(DEMO)/run/evaluation.json'))['cloned']; \
	print('score of the policy: {score:.1f}, 95% interval {score_low:.1f} to {score_high:.1f}'.format(**cloned))"

test: $(READY) check
	$(BIN)/python -m pytest -n 2 -m "not slow"

test-all: $(READY) check
	$(BIN)/python -m pytest -n 2 -m "not long"

test-long: $(READY)
	$(BIN)/python -m pytest -m long

check: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

benchmark: $(READY)
	for script in solve read collect model planner stitching all_pairs scaling bisimulation verdicts baselines; do $(BIN)/python -m benchmarks.$$script || exit 1; done

$(READY): pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --editable '.[dev]'
	touch $@

clean:
	rm -rf .venv runs
