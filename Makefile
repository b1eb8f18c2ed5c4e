# make train   trains Dual Q-DM on CartPole-v1 and prints what a random policy, the expert and the learner reach
# make test    lint, types, documentation and the test suite in both dependency worlds
# make fuzz    10,000 random demonstration sets for each property of the readers, 10 to 30 minutes
#
# PYTHON chooses the interpreter (>= 3.10), TORCH the build of torch, e.g.  make test TORCH=torch

PYTHON ?= python3
TORCH ?= torch==2.13.0

CURRENT := .venv/current
IMITATION := .venv/imitation
# imitation without its pins, to be put beside the current world
FORCED := .venv/forced
SOURCES := pyproject.toml setup.cfg constraints-imitation.txt $(wildcard startup/*)

# One thread for each process: the networks are small, and pytest runs two processes.
export OMP_NUM_THREADS ?= 1
PYTEST := -m pytest -q -n 2 --durations=10

.PHONY: train test test-current test-imitation test-forced lint types docs fuzz clean

train: $(CURRENT)/.installed
	$(CURRENT)/bin/python -m rl_zoo3.train --algo dual_qdm --env CartPole-v1 --seed 1 -f logs --eval-freq 5000 --eval-episodes 10
	$(CURRENT)/bin/python examples/report_returns.py --algo dual_qdm --env CartPole-v1 -f logs

test: lint types docs test-current test-imitation test-forced

test-current: $(CURRENT)/.installed
	$(CURRENT)/bin/python $(PYTEST)

test-imitation: $(IMITATION)/.installed
	$(IMITATION)/bin/python $(PYTEST) -m both

test-forced: $(FORCED)/.installed
	PYTHONPATH=$(CURDIR)/$(FORCED) $(CURRENT)/bin/python $(PYTEST) tests/test_imitation.py

lint: $(CURRENT)/.installed
	$(CURRENT)/bin/ruff check .

types: $(CURRENT)/.installed
	$(CURRENT)/bin/mypy

docs: $(CURRENT)/.installed
	$(CURRENT)/bin/python -m sphinx -q -W --keep-going -b html docs docs/_build/html

FUZZ_EXAMPLES ?= 10000

fuzz: $(CURRENT)/.installed
	FUZZ_EXAMPLES=$(FUZZ_EXAMPLES) $(CURRENT)/bin/python -m pytest -q tests/test_demonstrations_fuzz.py

# The current world: newest releases
$(CURRENT)/.installed: $(SOURCES)
	test -x $(CURRENT)/bin/python || $(PYTHON) -m venv $(CURRENT)
	$(CURRENT)/bin/python -m pip install -q --upgrade pip
	$(CURRENT)/bin/python -m pip install -q "$(TORCH)" "stable-baselines3>=2.9" "gymnasium>=1.0" "rl-zoo3>=2.9" \
		-e ".[zoo,mujoco,box2d,benchmark,ray,test,docs]"
	touch $@

# The older world, in which imitation 1.0.1 can be installed
$(IMITATION)/.installed: $(SOURCES)
	test -x $(IMITATION)/bin/python || $(PYTHON) -m venv $(IMITATION)
	$(IMITATION)/bin/python -m pip install -q --upgrade pip "setuptools<81"
	$(IMITATION)/bin/python -m pip install -q -c constraints-imitation.txt "$(TORCH)" -e ".[zoo,mujoco,imitation,test]"
	touch $@

# imitation 1.0.1 requires older releases than it works with: without its requirements, apart from what is missing
$(FORCED)/.installed: $(CURRENT)/.installed
	$(CURRENT)/bin/python -m pip install -q --upgrade --no-deps --target $(FORCED) \
		imitation==1.0.1 seals datasets dill multiprocess xxhash jsonpickle
	touch $@

clean:
	rm -rf build dist docs/_build .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage*
	find . -name __pycache__ -not -path "./.venv/*" -prune -exec rm -rf {} +
