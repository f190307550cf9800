#pragma once
// Level 5 of `nibble verify`: compares a run's speed, memory and accuracy with a stored run of the same device, model
// and settings. Pure.

#include "app/result_compare.h"
#include "app/verify_report.h"
#include "app/verify_subject.h"

#include <nlohmann/json.hpp>

#include <string>

namespace nibble::app {

struct Figures {
  MeasuredSpeed speed;
  double perplexity = 0;    // of the same tokens
  double kl = 0, top1 = 0;  // against the same model with nothing rounded: KL divergence in nats, and the share of
                            // equal top tokens
};

// Adds "rows" (as nibble bench has them), "memory_bytes" and "accuracy" to a result.
void add_figures(nlohmann::ordered_json& result, const Figures& figures);
// In one line.
[[nodiscard]] std::string figures_text(const Figures& figures);
// Throws Error(kInvalidRequest), naming the file, if it is not a baseline or its metadata has gaps.
[[nodiscard]] Figures figures_of(const NamedResult& baseline);

// The first fact in which the baseline is not of this run: `device.name: want "AMD EPYC", found "Xeon"`; empty: it is.
// Both arguments are metadata (result_metadata.h).
[[nodiscard]] std::string mismatch(const nlohmann::ordered_json& baseline, const nlohmann::ordered_json& now);

// Adds one check per row, one for memory and one for the loss. A row fails if it is more than 3 % slower anywhere in
// the 95 % interval of the change; memory, if it takes 1 GB more; the loss, if accuracy got worse.
void check_regression(const Figures& baseline, const Figures& now, VerifyChecks& checks);

}  // namespace nibble::app
