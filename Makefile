# Every step of working on drayd. Each target can be called on its own and brings what it needs first.

.DEFAULT_GOAL := help
.PHONY: help install peers build fmt lint unit suites test testbed-up testbed-down pages run memory bench bench-fetch bench-cri fuzz fuzz-short clean

# Release line of the containerd that testbed-up and run start: 1.6, 1.7 or 2.1.
RELEASE ?= 1.7
# Where the peers and the test images are kept between runs.
export DRAYD_TEST_CACHE ?= /var/cache/drayd-test

help: ## Show the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: ## Install the Debian packages that building and testing need (as root)
	tests/testbed/install.sh

peers: ## Bring the containerds and snapshotters that drayd is tested against
	tests/testbed/peers.sh

build: ## Build every program
	cargo build --workspace --bins

fmt: ## Format the sources
	cargo fmt --all

lint: ## Check format and lints
	cargo fmt --all -- --check
	cargo clippy --workspace --all-targets -- -D warnings

unit: ## Run the tests that need no server
	cargo test --workspace --lib --bins

suites: install peers build ## Run the suites against real servers (as root)
	cargo test --package drayd-tests --test '*'

test: install lint unit fuzz-short suites ## Run every check: lint, unit, fuzz-short, suites

testbed-up: install peers build ## Start a bed that stays, RELEASE=1.6, 1.7 or 2.1
	cargo run --quiet --package drayd-tests --bin testbed -- up --release $(RELEASE)

testbed-down: ## End the bed that stays
	cargo run --quiet --package drayd-tests --bin testbed -- down

pages: ## Make manual pages and shell completions, into target/pages
	cargo run --quiet --package drayd-pages -- "$$(realpath $${CARGO_TARGET_DIR:-target})/pages"

run: install peers build ## Pull an image through drayd on a fresh bed and show what happened, IMAGE=ref for another
	@cargo run --quiet --package drayd-tests --bin testbed -- run --release $(RELEASE) $(IMAGE)

memory: install peers ## Measure what a 700 MB layer costs drayd in memory (optimised build)
	cargo build --release --package drayd
	@DRAYD_BIN="$$(realpath $${CARGO_TARGET_DIR:-target})/release/drayd" cargo run --quiet --package drayd-tests --bin testbed -- memory $(RELEASE)

bench: install peers ## Measure cold pulls against containerd's own, into docs/performance.md (optimised build), BENCH_ROUNDS=3
	cargo build --release --package drayd --package drayd-tests --bins
	@DRAYD_BIN="$$(realpath $${CARGO_TARGET_DIR:-target})/release/drayd" cargo run --quiet --release --package drayd-tests --bin bench-pull -- docs/performance.md

bench-fetch: install peers ## Measure fetching against containerd's own client, into docs/performance.md (optimised build)
	cargo build --release --package drayd --package drayd-tests --bins
	@DRAYD_BIN="$$(realpath $${CARGO_TARGET_DIR:-target})/release/drayd" cargo run --quiet --release --package drayd-tests --bin bench-fetch -- docs/performance.md

bench-cri: install peers ## Measure CRI's image calls against containerd's own, into docs/performance.md (optimised build)
	cargo build --release --package drayd --package drayd-tests --bins
	@DRAYD_BIN="$$(realpath $${CARGO_TARGET_DIR:-target})/release/drayd" cargo run --quiet --release --package drayd-tests --bin bench-cri -- docs/performance.md

fuzz: install ## Fuzz the readers of foreign text, FUZZ_SECONDS=600 each
	tests/fuzz/run.sh

fuzz-short: install ## Run a fixed number of inputs through each of them, FUZZ_RUNS=20000
	FUZZ_RUNS="$${FUZZ_RUNS:-20000}" tests/fuzz/run.sh

clean: ## Remove what was built, and the peers and images of the tests
	cargo clean
	rm -rf -- "$(DRAYD_TEST_CACHE)"
