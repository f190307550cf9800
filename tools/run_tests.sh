#!/usr/bin/env bash
# tools/run_tests.sh <build folder> [option of ctest …]: every test that needs no GPU. On a terminal one line of progress, elsewhere only what
# failed; then ctest's summary. The whole log stays in <build folder>/ctest.log.
set -uo pipefail
build=${1:?want a build folder}
shift
log=$build/ctest.log
view=(--quiet)
[ -t 1 ] && view=(--progress)
[ -t 1 ] || echo "testing $build"
ctest --test-dir "$build" --parallel "${JOBS:-$(nproc)}" --label-exclude '^gpu$' --no-tests=error --output-on-failure \
  --output-log "$log" "${view[@]}" "$@"
status=$?
[ -t 1 ] || grep -vE '^ *Start +[0-9]+:|^(Internal ctest|Test project|\[(HANDLER_OUTPUT|OUTPUT|ERROR_MESSAGE)\])|[. ]Passed +[0-9.]+ sec' "$log" | cat -s
grep -hs '^skipped: ' "$build/Testing/Temporary/LastTest.log"
exit "$status"
