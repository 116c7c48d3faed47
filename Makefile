PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
COMPILE := $(BIN)/pip-compile --quiet --generate-hashes --no-emit-index-url --no-emit-find-links --no-emit-trusted-host --strip-extras --allow-unsafe

# Without the bytecode cache, every process of the tests would compile all modules again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup check test test-cluster test-node test-pythons test-arm64 node-up node-shell node-xid node-down demo bench bench-compare upgrade-try install-try matrix fuzz docs lock version release-dry-run clean

help: ## Show this list
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 17

setup: $(VENV)/installed ## Create a virtual environment with the locked dependencies

# Without a C compiler, one from PyPI builds the simulated driver.
$(VENV)/installed: requirements/dev.txt requirements/cc.txt pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --no-compile --disable-pip-version-check --require-hashes -r requirements/dev.txt
	for cc in "$$CC" cc gcc clang; do command -v "$$cc" >/dev/null && exit; done; \
	  $(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements/cc.txt
	PYTHONWARNINGS=ignore $(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $@

check: setup ## Lint, types, layers, generated files, alerts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/hadolint Dockerfile
	$(BIN)/python -m tools.manifests --check
	$(BIN)/python -m tools.docs --check
	$(BIN)/python -m tools.rules
	$(BIN)/python -m tools.structure
	$(BIN)/zizmor --offline --quiet .github

PYTEST := $(BIN)/pytest --max-worker-restart=0 --dist loadgroup --no-loadscope-reorder
test: setup ## Tests without a control plane, some minutes; of one folder: ONLY=checks
	$(PYTEST) -n 3 -m "not cluster and not real_node" $(if $(ONLY),tests/$(ONLY))

# Five processes: these tests wait for other programs half of the time.
test-cluster: setup ## Tests with a real kube-apiserver and containerd, and our programs as processes, killed at each write
	$(PYTEST) -n 5 -m "cluster and not real_node" -o cache_dir=.pytest_cache/cluster $(if $(ONLY),tests/$(ONLY))

test-node: setup ## Tests of our image and manifests on a real kubelet, containerd and runc (Debian, root, no other node up)
	$(BIN)/pytest -m real_node -s -o cache_dir=.pytest_cache/real_node tests/node

test-pythons: ## Tests that depend on the Python version, with each installed one of 3.11 to 3.14 (PYTHONS=/opt/python3.13/bin/python3)
	tools/test_pythons.sh $(PYTHONS)

test-arm64: setup ## Tests of checks, memory and kernel log as an arm64 process with qemu-user (Debian, root)
	tools/test_arm64.sh

node-up: setup ## Start the same node for manual tests
	$(BIN)/python -m sim.real_node up

# In one command with these, the node starts before the fault, and the fault is there before the shell opens.
node-xid: | $(filter node-up,$(MAKECMDGOALS))
node-shell: | $(filter node-up node-xid,$(MAKECMDGOALS))

node-shell: setup ## Open a shell on it, with kubectl, helm and gpu-healthcheck
	$(BIN)/python -m sim.real_node shell

node-xid: setup ## Simulate a fault on it: Xid 79 of GPU 3, or CODE=48
	$(BIN)/python -m sim.real_node xid $(CODE)

node-down: setup ## Remove it without leftovers
	$(BIN)/python -m sim.real_node down

demo: setup ## Show a GPU failure on a simulated node, and the writes to the API server with their times
	@$(BIN)/gpu-healthcheck demo

bench: setup ## Measure detection latency, CPU, memory and API calls (root, about 20 minutes)
	$(BIN)/python -m bench

bench-compare: setup ## Compare another commit with this tree: BASE=COMMIT (root, about 15 minutes)
	@test -n "$(BASE)" || { echo "bench-compare: BASE=COMMIT is missing" >&2; exit 2; }
	$(BIN)/python -m bench.compare $(BASE)

upgrade-try: setup ## Upgrade from another commit to this tree and back, with active faults: FROM=COMMIT (about 15 minutes)
	@test -n "$(FROM)" || { echo "upgrade-try: FROM=COMMIT is missing" >&2; exit 2; }
	$(BIN)/python -m tests.upgrade $(FROM)

install-try: setup ## Run the README's commands on a real kubelet with each installation method (Debian, root, 10 minutes)
	$(BIN)/python -m tests.newcomer $(WAYS)

matrix: setup ## Test manifests, policies and programs with other Kubernetes versions: MINORS="1.31 1.35" (the first build takes hours)
	$(BIN)/python -m tests.matrix $(MINORS)

SECONDS ?= 600
fuzz: setup ## Search for inputs that break a probe, a check, the memory or its file (SECONDS=600)
	$(BIN)/python -m tests.fuzz --seconds $(SECONDS)

docs: setup ## Regenerate docs/checks.md, causes.md and metrics.md, tables in README and other pages, the profiles, the PrometheusRule
	$(BIN)/python -m tools.docs
	$(BIN)/python -m tools.manifests

lock: setup ## Resolve the dependencies again and lock them with hashes
	$(COMPILE) --upgrade -o requirements/product.txt pyproject.toml
	$(COMPILE) --upgrade --extra dev --extra mcp -c requirements/product.txt -o requirements/dev.txt pyproject.toml
	$(COMPILE) --upgrade -c requirements/dev.txt -o requirements/build.txt requirements/build.in
	$(COMPILE) --upgrade -o requirements/cc.txt requirements/cc.in
	$(COMPILE) --upgrade -o requirements/go.txt requirements/go.in

version: setup ## Replace the version in the sources: VERSION=1.2.3
	@echo "$(VERSION)" | grep -qE '^[0-9]+(\.[0-9]+){2}(-(alpha|beta|rc)\.[0-9]+)?$$' || { echo "version: VERSION=1.2.3 is missing" >&2; exit 2; }
	before=$$($(BIN)/python -c 'from gpu_healthcheck.healthcheck import __version__; print(__version__.replace(".", "[.]"))'); \
	  git ls-files healthcheck/__init__.py Dockerfile ':(glob)*.md' ':(glob)docs/*.md' .github/SECURITY.md 'kubernetes/*.yaml' | xargs \
	  sed -i -E "s/(gpu-healthcheck:|newTag: |VERSION=|__version__ = \"|git checkout v)$$before([^0-9.]|$$)/\1$(VERSION)\2/g"

release-dry-run: setup ## Write the files of a release of HEAD to dist/dry-run: chart, manifests, packages, checksums
	rm -rf dist/dry-run
	$(BIN)/python -m tools.release files --repository dry-run.invalid/gpu-healthcheck --out dist/dry-run

clean: ## Remove all build results
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
