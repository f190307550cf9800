#pragma once
// Imports results of other benchmarks as rows of nibble bench: llama-bench's JSON (llama.cpp; -o json or jsonl) and
// llama-benchy's (--format json). Pure.

#include "lab/results/result_compare.h"

#include <optional>
#include <string>

namespace nibble::app {

// A row becomes one of ours where both mean the same: what is computed behind how many tokens for how many sequences.
//
// llama-bench: n_prompt and n_gen at n_depth, one sequence. Without counterpart: a prompt and its answer in one time
// (-pg). llama-benchy: what it generates stands behind its context and its prompt, for `concurrency` sequences. A
// prompt stands behind its context where prefix caching is on; where it is off, the context is read again and counts as
// prompt. Without counterpart: prompts of several requests at a time, and the context's own rows.
//
// None where the text is neither's. Throws Error(kInvalidRequest), naming the file, for one of theirs with a broken
// row.
[[nodiscard]] std::optional<NamedResult> import_result(const std::string& name, const std::string& text);

}  // namespace nibble::app
