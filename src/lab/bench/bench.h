#pragma once
// What `nibble bench` does instead of its tests: --speculative (speculation.h) and --tune.

#include "app/options/options.h"
#include "app/setup/terminal.h"
#include "lab/results/metadata.h"

#include <cstdint>
#include <span>
#include <string>

namespace nibble::app {

int bench_drafts(const BenchOptions& options);

// What both print in the end.
[[nodiscard]] Metadata bench_metadata(const BenchOptions& options, std::string warm_up, double startup_seconds,
                                      const ProcessRun& run);
[[nodiscard]] int bench_ended(bool interrupted, Terminal& terminal);

// --tune: which kernels serve a step of so many tokens sooner on this card.
void check_tune(const BenchOptions& options);  // throws Error for what tune() cannot do
int tune(const BenchOptions& options, std::string commit);

// Times of a step of `tokens`; rows rise.
struct TuneRow {
  int64_t tokens = 0;
  double tuned_us = 0;  // with the kernels for fewer tokens throughout
  double experts_gemm_us = 0, router_mma_us = 0;
};
// Beyond `above` and up to `upto` tokens the kernels for fewer lose least, in shares of the rows' times: of all ranges
// that begin and end with `least` or a row, where rows begin behind `least`; equal where the others always lose less.
struct TuneRange {
  int64_t above = 0, upto = 0;
  friend constexpr bool operator==(const TuneRange&, const TuneRange&) = default;
};
[[nodiscard]] TuneRange best_range(std::span<const TuneRow> rows, double TuneRow::* other, int64_t least);
// best_range() with `above` = least.
[[nodiscard]] int64_t crossover(std::span<const TuneRow> rows, double TuneRow::* other, int64_t least);

// The rows as a table, and the line of an Arch (Tuned, backend/cuda/card/device_facts.h) that they make.
struct TuneSubject {
  std::string device, model, commit;
  int major = 0, minor = 0;
  int64_t topk = 1, experts = 1;
};
[[nodiscard]] std::string tune_text(std::span<const TuneRow> rows, const TuneSubject& subject);

}  // namespace nibble::app
