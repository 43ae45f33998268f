# Two commands matter: `make demo` and `make test`. Both do all the set-up themselves.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SEEDS ?= 10000
# Tests that run at once; as many as there are cores is about right.
WORKERS ?= 2
# With `pip install torchft` and `pip install 'ray[train]'`; what is missing is skipped, and that is said.
PEERS_PYTHON ?= $(BIN)/python
RAY_PYTHON ?= $(BIN)/python
INSTALLED := $(VENV)/.paceline-installed
STAMP := $(VENV)/.paceline-ready
# Folders of packages that pip was told; uv does not ask pip.
FOUND_BY_PIP = $$($(BIN)/pip config list | sed -n "s/.*\.find-links='\(.*\)'/\1/p" | xargs -r -n 1 printf -- '--find-links %s ')
PAGE := src/paceline/dashboard/page/app.js
# Targets are made at once, but apt-get does one thing at a time.
APT_GET := flock /var/lib/dpkg env DEBIAN_FRONTEND=noninteractive apt-get -qq
APT := $(APT_GET) install -y --no-install-recommends
# What the tests use beside Python; a target each, which installs it or says what is skipped without.
TOOLS := chromium shellcheck engine hosts aws-tools prometheus
# Where it is set, every process that a test starts compiles torch, Ray and TensorFlow anew: seconds each.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-fast check collect setup tools chromium shellcheck engine hosts aws-tools prometheus examples test-cluster soak bench bench-core bench-simulator bench-grid bench-target bench-gpu bench-bytes bench-data bench-cifar bench-failover bench-coordinator bench-lighthouse bench-checkpoints bench-recovery bench-hosts bench-ray bench-watch bench-dashboard screenshots page sim proto docs clean schemas

demo: $(INSTALLED)  ## train XOR under every mode with one 3x straggler, and compare
	$(BIN)/paceline demo

test:  ## everything a change must pass
	@$(MAKE) --no-print-directory -j3 WANTED=test check collect tools
	$(BIN)/pytest -n $(WORKERS) --dist worksteal

test-fast: setup  ## unit and in-process tests only: no containers, browsers, Ray or TensorFlow
	$(BIN)/pytest -n $(WORKERS) --dist worksteal -m "not soak and not slow"

check: setup  ## format, lint, types, import rules
	$(BIN)/ruff format --check src tests benchmarks docs infra
	$(BIN)/ruff check src tests benchmarks docs infra
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python scripts/ratchets.py

collect: setup  ## import every test once, beside the type checker: those who then run them find all compiled
	@$(BIN)/pytest --collect-only -q >/dev/null 2>&1 || true  # what is wrong with one, `pytest` says soon

tools: $(TOOLS)  ## what the tests use beside Python

chromium:  ## a browser for the tests of reports: as root on Debian it is installed, once
	@command -v chromium >/dev/null || command -v google-chrome >/dev/null || { \
	  test "$$(id -u)" = 0 && command -v apt-get >/dev/null && echo "installing chromium, once, for the tests of reports" && \
	  { $(APT) chromium || { $(APT_GET) update && $(APT) chromium; }; } >/dev/null 2>&1; } || \
	  echo "NOTE: no browser here, so tests that open a report in one are SKIPPED; install it with: apt-get install chromium"

shellcheck:  ## for the test of scripts/: as root on Debian it is installed, once
	@command -v shellcheck >/dev/null || { \
	  test "$$(id -u)" = 0 && command -v apt-get >/dev/null && echo "installing shellcheck, once, for the test of scripts" && \
	  { $(APT) shellcheck || { $(APT_GET) update && $(APT) shellcheck; }; } >/dev/null 2>&1; } || \
	  echo "NOTE: no shellcheck here, so the test that checks scripts/ with it is SKIPPED; install it with: apt-get install shellcheck"

# netavark and iptables: for containers with a network of their own. The mirror may say "too many requests": again.
ENGINE := podman runc skopeo docker-registry netavark aardvark-dns iptables
engine:  ## a container engine and a registry for the tests of images: as root on Debian they are installed, once
	@{ command -v podman && command -v runc && command -v skopeo && command -v docker-registry; } >/dev/null || { \
	  test "$$(id -u)" = 0 && command -v apt-get >/dev/null && echo "installing podman, skopeo and a registry, once, for the tests of images" && \
	  { $(APT) -o Acquire::Retries=8 $(ENGINE) || { $(APT_GET) -o Acquire::Retries=8 update && $(APT) -o Acquire::Retries=8 $(ENGINE); }; } >/dev/null 2>&1; } || \
	  echo "NOTE: no container engine here, so tests that build, run and push images are SKIPPED; install it with: apt-get install $(ENGINE)"

HOSTS := iproute2 iptables libfaketime
hosts:  ## for tests on hosts that are network namespaces: as root on Debian what they need is installed, once
	@{ command -v ip && command -v tc && command -v iptables && test -e "$$(echo /usr/lib/*/faketime/libfaketimeMT.so.1)"; } >/dev/null || { \
	  test "$$(id -u)" = 0 && command -v apt-get >/dev/null && echo "installing iproute2, iptables and libfaketime, once, for the tests on hosts" && \
	  { $(APT) $(HOSTS) || { $(APT_GET) update && $(APT) $(HOSTS); }; } >/dev/null 2>&1; } || \
	  echo "NOTE: no iproute2, iptables or libfaketime here, so tests on hosts are SKIPPED; install them with: apt-get install $(HOSTS)"
	@test "$$(id -u)" = 0 || echo "NOTE: not root, so tests on hosts that are network namespaces are SKIPPED"

aws-tools: .venv-tools/.ready .venv-checkov/.ready  ## programs with pins of their own, for the tests of infra/ and of pushes: AWS CLI, MiniStack, cfn-lint, checkov

# By uv, which takes a quarter of pip's time; by pip where uv does not work. Without them tests are skipped, and say so.
UV := .venv-tools/bin/uv
.venv-tools/.ready: requirements-tools.txt
	@echo "making .venv-tools, once, for the tests of infra/"
	@{ test -x .venv-tools/bin/python || $(PYTHON) -m venv .venv-tools; } && \
	  { { .venv-tools/bin/pip install --no-compile --quiet --disable-pip-version-check uv && \
	      $(UV) pip install --quiet --python .venv-tools/bin/python --requirement $<; } >.venv-tools/log 2>&1 || \
	    .venv-tools/bin/pip install --no-compile --quiet --disable-pip-version-check --requirement $< >>.venv-tools/log 2>&1; } && \
	  touch $@ || echo "NOTE: .venv-tools could not be made, so tests that need it are SKIPPED; see .venv-tools/log, then: make aws-tools"

.venv-checkov/.ready: requirements-checkov.txt .venv-tools/.ready
	@echo "making .venv-checkov, once, for the tests of infra/"
	@mkdir -p .venv-checkov && \
	  { { $(UV) venv --quiet --allow-existing --python $(PYTHON) .venv-checkov && \
	      $(UV) pip install --quiet --python .venv-checkov/bin/python --requirement $<; } >.venv-checkov/log 2>&1 || \
	    { $(PYTHON) -m venv .venv-checkov && \
	      .venv-checkov/bin/pip install --no-compile --quiet --disable-pip-version-check --requirement $<; } >>.venv-checkov/log 2>&1; } && \
	  touch $@ || echo "NOTE: .venv-checkov could not be made, so the test that needs it is SKIPPED; see .venv-checkov/log, then: make aws-tools"

test-cluster: setup  ## jobs of every kind on the cluster of KUBECONFIG, in a namespace of their own; skipped without one
	$(BIN)/python -m tests.live_cluster $(if $(TEST_IMAGE),--image $(TEST_IMAGE)) $(if $(TEST_RAY_IMAGE),--ray-image $(TEST_RAY_IMAGE))

prometheus: setup  ## for the tests of metrics and alert rules: Prometheus and promtool out of Debian's package, once; no service is installed
	@{ command -v promtool && command -v prometheus; } >/dev/null || test -x $(BIN)/promtool -a -x $(BIN)/prometheus || { \
	  command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null && echo "fetching Prometheus, once, for the tests of metrics and alert rules" && \
	  folder=$$(mktemp -d) && ( cd $$folder && { $(APT_GET) download prometheus || { $(APT_GET) update && $(APT_GET) download prometheus; }; } && \
	  dpkg-deb --fsys-tarfile prometheus_*.deb | tar -xf - --strip-components=3 ./usr/bin/promtool ./usr/bin/prometheus && \
	  test -x promtool -a -x prometheus ) >/dev/null 2>&1 && \
	  mv $$folder/promtool $$folder/prometheus $(BIN) && rm -rf $$folder; } || \
	  echo "NOTE: no Prometheus here, so tests that start it, or check metrics and rules with promtool, are SKIPPED; both are in Debian's package prometheus"

bench-watch: setup  ## what watching costs a run, and what a custom metric costs a step
	$(BIN)/python -m benchmarks.watch_overhead

soak: setup aws-tools  ## long runs that do not belong into every test
	$(BIN)/pytest -m soak -n 0

bench: bench-core bench-simulator bench-grid bench-target  ## all benchmarks

bench-core: setup  ## ratios to peers measured in the same run; JSON in benchmarks/results
	$(BIN)/python -m benchmarks.core

bench-simulator: setup  ## the simulator's speed and its prediction error
	$(BIN)/python -m benchmarks.simulator

bench-grid: setup  ## is the advised mode the fastest? 50 clusters, really run; goes on where it was interrupted
	$(BIN)/python -m benchmarks.grid

bench-target: setup  ## how much sooner than ssgd does the best mode reach a target loss?
	$(BIN)/python -m benchmarks.time_to_target

bench-bytes: setup  ## bytes saved at equal quality, on digits and a character model
	$(BIN)/python -m benchmarks.bytes_at_quality

bench-data: setup  ## how long training waits for data that lies elsewhere
	$(BIN)/python -m benchmarks.stored_data

bench-cifar: setup  ## two workers against one on CIFAR-10's network, beside plain torch DDP; on an idle machine
	$(BIN)/python -m benchmarks.cifar_scaling

bench-failover: setup  ## how long without a leader after kill -9? 100 kills of real nodes; is anything lost?
	$(BIN)/python -m benchmarks.coordinator_failover

bench-coordinator: setup  ## commits, latency, heartbeats and memory of three coordinators, beside etcd and PySyncObj
	$(BIN)/python -m benchmarks.coordinator

bench-lighthouse: setup  ## torchft's own workers on three coordinators: kills of the leader, failed steps, longest gap
	$(BIN)/python -m benchmarks.lighthouse

bench-checkpoints: setup  ## how long a step pauses for a checkpoint, and what checkpoints cost a run
	$(BIN)/python -m benchmarks.checkpoints

bench-recovery: setup  ## kill -9 of one of three workers, beside torchft, torchrun and Ray Train; what --elastic costs
	$(BIN)/python -m benchmarks.recovery --peers-python $(PEERS_PYTHON) --ray-python $(RAY_PYTHON)
	$(BIN)/python -m benchmarks.elastic_cost

bench-hosts: setup hosts  ## elastic runs on four hosts (network namespaces, root) beside torchft, torchrun and torch DDP
	$(BIN)/python -m benchmarks.hosts

bench-ray: setup  ## ssgd and asgd on Ray beside Ray Train's TorchTrainer and the parameter server of Ray's documentation
	$(BIN)/python -m benchmarks.ray_train

bench-gpu: setup  ## what the GPU's own paths are worth; needs one
	$(BIN)/python -m benchmarks.gpu

sim: setup  ## whole Raft clusters in one process, from seeds; SEEDS=300 for a quick look
	$(BIN)/python -m tests.raft_simulation --seeds $(SEEDS)

proto: setup  ## write the Python of cluster.proto and torchft.proto anew
	$(BIN)/python -m grpc_tools.protoc -I src --python_out=src --pyi_out=src src/paceline/coordinator/proto/cluster.proto src/paceline/coordinator/proto/torchft.proto

examples: setup  ## write the manifests under examples anew
	$(BIN)/python -m docs.manifests

schemas: setup  ## write the schemas of custom Kubernetes kinds from their CRDs; CRDS=FOLDER of JSON files
	$(BIN)/python scripts/make_schemas.py $(CRDS)

docs: setup  ## write the generated reference pages anew
	$(BIN)/python -m docs.generate

.PHONY: site
site: setup  ## the documentation as a site that needs no network, in site/; a warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "open site/index.html"

setup: $(STAMP) $(PAGE)  ## create .venv and install everything the tests need

page: $(PAGE)  ## build the dashboard's page anew, if its sources changed

# Loud, but no failure: everything but the dashboard works without it, and its tests say that they were skipped.
$(PAGE): $(wildcard dashboard/src/*.* dashboard/src/pages/*.*) dashboard/package.json src/paceline/core/palette.json | $(STAMP)
	@$(BIN)/python dashboard/build.py || echo "NOTE: no page, so tests that open the dashboard are SKIPPED; they need npm and its registry"

screenshots: setup chromium  ## every page of the dashboard, light and dark, in screenshots/; look at them
	$(BIN)/python -m benchmarks.dashboard_screenshots

bench-dashboard: setup chromium  ## from a sample to its pixels, first load, what watching costs training, stalled viewers
	$(BIN)/python -m benchmarks.dashboard

# By uv, which is quicker and resolves the same versions; by pip where uv fails or pip has another index configured.
# Not compiled ahead: most of it is never imported, and the rest is compiled on its first import.
define INSTALL
	{ ! $(BIN)/pip config list | grep -q '\.index-url=' && \
	  $(BIN)/pip install --no-compile --quiet --disable-pip-version-check uv && \
	  $(BIN)/uv pip install --quiet --python $(BIN)/python $(FOUND_BY_PIP) --constraint constraints.txt --editable . $(1); } || \
	{ $(BIN)/pip install --no-compile --quiet --disable-pip-version-check 'pip>=25.1' && \
	  $(BIN)/pip install --no-compile --quiet --constraint constraints.txt --editable . $(1); }
endef

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "error: paceline needs Python 3.11 or newer, and $(PYTHON) is older"; echo "hint: make $(or $(WANTED),$(MAKECMDGOALS)) PYTHON=python3.11"; exit 4; }
	@echo "installing paceline into $(VENV)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(call INSTALL)
	@touch $(INSTALLED)

$(STAMP): $(INSTALLED)
	@echo "installing the development dependencies into $(VENV)"
	@$(call INSTALL,--group dev)
	@touch $(STAMP)

clean:  ## remove what was built; runs/ stays
	rm -rf $(VENV) .venv-tools .venv-checkov build dist site dashboard/node_modules src/paceline/dashboard/page .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
