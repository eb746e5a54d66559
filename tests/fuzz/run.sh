#!/usr/bin/env bash
# Fuzzes drayd's readers of foreign text, one after another, each for FUZZ_SECONDS (600 by default). FUZZ_RUNS=n ends
# each after n inputs instead, of a program that is built without optimisation: that is quicker. FUZZ_TARGET names a single one. What is found lies in findings/, what was learned
# in corpus/, both below the directory of build results. Needs a stable toolchain and a C++ compiler.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
results=${CARGO_TARGET_DIR:-$root/target}/fuzz
host=$(rustc -vV | sed -n 's/^host: //p')

# What cargo-fuzz would pass: the pass that counts branches and compares operands.
flags=(
    --cfg fuzzing
    -Cpasses=sancov-module
    -Cllvm-args=-sanitizer-coverage-level=4
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters
    -Cllvm-args=-sanitizer-coverage-pc-table
    -Cllvm-args=-sanitizer-coverage-trace-compares
    -Ccodegen-units=1
)
# The versions that drayd is built with, and the fuzzer's beside them.
cp "$root/Cargo.lock" "$here/Cargo.lock"
if [[ -n ${FUZZ_RUNS:-} ]]; then
    profile=dev program=$results/$host/debug/drayd-fuzz limit=(-runs="$FUZZ_RUNS")
else
    profile=release program=$results/$host/release/drayd-fuzz limit=(-max_total_time="${FUZZ_SECONDS:-600}")
fi
# With a target named, the flags stay away from build scripts and macros.
RUSTFLAGS="${flags[*]}" cargo build --quiet --profile "$profile" --target "$host" --target-dir "$results" \
    --manifest-path "$here/Cargo.toml"

mapfile -t targets < <(cd "$here/seeds" && ls)
[[ -z ${FUZZ_TARGET:-} ]] || targets=("$FUZZ_TARGET")
for target in "${targets[@]}"; do
    mkdir -p "$results/corpus/$target" "$results/findings/$target"
    echo "fuzz: $target"
    if ! FUZZ_TARGET=$target "$program" "$results/corpus/$target" "$here/seeds/$target" \
        "${limit[@]}" -max_len=8192 -timeout=10 -rss_limit_mb=1024 -print_final_stats=1 -verbosity=0 \
        -artifact_prefix="$results/findings/$target/" >"$results/$target.log" 2>&1; then
        tail -n 40 "$results/$target.log" >&2
        echo "fuzz: $target found something; the input lies in $results/findings/$target" >&2
        exit 1
    fi
    sed -n 's/^stat::number_of_executed_units: */fuzz:   inputs run: /p' "$results/$target.log"
done
