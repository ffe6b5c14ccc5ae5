PYTHON ?= python3
SEEDS ?= 2000
AGENT_SEEDS ?= 200
DEPTH ?=
ARGS ?=

BIN := .venv/bin
READY := .venv/.ready
# Every version and its SHA-256 is in a lock; what is not is refused. Wheels only: a build would fetch more packages.
LOCKED := install -qq --require-hashes --only-binary=:all: -r
# aimock, a model stub from another project, to check our own stub against.
NODE := .cache/node
NODE_READY := $(NODE)/.ready
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help venv run test test-servers check sim model mutants attack faults bench docs lock fmt clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | awk -F '\t' '{ printf "  make %-12s %s\n", $$1, $$2 }'

venv: $(READY) ## Build .venv with the package and all development tools

run: $(READY) ## Run everthread (make run ARGS="..."); without ARGS and without an API key, with the local model
	@$(if $(ARGS),,$(BIN)/everthread setup local --if-needed)
	@$(BIN)/everthread $(ARGS)

# The tests start thousands of processes; without cached bytecode each one compiles its imports again.
test test-servers: export PYTHONDONTWRITEBYTECODE :=

test: check ## Run the checks, then every test that needs no server
	$(BIN)/pytest -n auto --dist worksteal -m "not server"

test-servers: $(READY) $(NODE_READY) ## Run the tests that need real servers
	$(BIN)/pytest -n 2 --dist loadfile -m server tests/servers

check: $(READY) ## Lint, format, types and architecture
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright
	$(BIN)/lint-imports --no-logo
	$(BIN)/python -m requirements.locks --check

sim: $(READY) ## Run the simulation (make sim SEEDS=2000 AGENT_SEEDS=200)
	$(BIN)/python -m tests.simulator --seeds $(SEEDS)
	$(BIN)/python -m tests.simulator --agents --seeds $(AGENT_SEEDS)

model: $(READY) ## Explore all schedules up to a bound (make model DEPTH=5 for more steps)
	$(BIN)/python -m tests.explorer $(if $(DEPTH),--depth $(DEPTH))

mutants: $(READY) ## Apply each mutant and check that a test fails
	$(BIN)/python -m tests.mutants.run

attack: $(READY) ## Attack a running gateway with hostile inputs; fail if one succeeds
	$(BIN)/python -m tests.attacks

faults: $(READY) ## Inject every fault many times into real processes
	$(BIN)/python -m benchmarks.faults

bench: $(READY) ## Measure the core and the agent
	$(BIN)/python -m benchmarks.core
	$(BIN)/python -m benchmarks.turn
	$(BIN)/python -m benchmarks.terminal

docs: $(READY) ## Generate the reference pages and the picture of the terminal
	$(BIN)/python -m docs.generate
	$(BIN)/python -m docs.record

lock: $(READY) ## Update the locks to the newest allowed versions (needs the network)
	$(BIN)/python -m requirements.locks

fmt: $(READY) ## Format the code and sort its imports
	$(BIN)/ruff check --fix --select I
	$(BIN)/ruff format

clean: ## Remove .venv, caches and build output
	rm -rf .venv .cache build dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +

# uv is faster but ignores pip's settings (mirrors, certificates); if it fails, fall back to pip.
$(READY): pyproject.toml requirements/dev.lock requirements/installer.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed: make PYTHON=python3.12 ..."; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "This Python cannot create virtual environments. Install the venv module (on Debian and Ubuntu: apt install python3-venv)."; exit 1; }
	@echo "Setting up .venv ..."
	@$(PYTHON) -m venv .venv
	@{ $(BIN)/python -m pip $(LOCKED) requirements/installer.lock \
		&& $(BIN)/uv pip $(LOCKED) requirements/dev.lock --compile-bytecode --python $(BIN)/python; } \
		|| { echo "uv could not install; trying pip ..."; $(BIN)/python -m pip $(LOCKED) requirements/dev.lock; }
	@$(BIN)/python -m pip install -qq --no-deps --no-build-isolation --no-index -e .
	@touch $@

$(NODE_READY): requirements/node/package-lock.json
	@node -e 'const [a, b] = process.versions.node.split("."); process.exit(a > 20 || (a == 20 && b >= 15) ? 0 : 1)' 2>/dev/null && command -v npm >/dev/null \
		|| { echo "Node.js 20.15 or newer with npm is needed (on Debian and Ubuntu: apt install nodejs npm)."; exit 1; }
	@mkdir -p $(NODE)
	@cp requirements/node/package.json requirements/node/package-lock.json $(NODE)
	@npm ci --silent --no-audit --no-fund --ignore-scripts --prefix $(NODE)
	@touch $@
