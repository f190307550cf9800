#pragma once
// Level 5 of `nibble verify`: what a run costs and how exact it is, beside a stored run of the same device, model and
// settings. Pure.

#include "app/result_compare.h"
#include "app/verify_report.h"
#include "app/verify_subject.h"

#include <nlohmann/json.hpp>

#include <string>

namespace nibble::app {

struct Figures {
  MeasuredSpeed speed;
  double perplexity = 0;    // of the same tokens
  double kl = 0, top1 = 0;  // against the same model with nothing rounded: nats; share of equal top tokens
};

// "rows", as nibble bench has them, "memory_bytes" and "accuracy", added to a result.
void add_figures(nlohmann::ordered_json& result, const Figures& figures);
// Throws Error(kInvalidRequest), naming the file, for what is no baseline or whose metadata has gaps.
[[nodiscard]] Figures figures_of(const NamedResult& baseline);

// The first thing that makes a baseline one of something else: `device.name: want "AMD EPYC", found "Xeon"`; empty: it
// is one of this run. Both are metadata (result_metadata.h).
[[nodiscard]] std::string mismatch(const nlohmann::ordered_json& baseline, const nlohmann::ordered_json& now);

// A check per row, memory and loss. What fails: a row more than 3 % slower wherever in its 95 % interval the change may
// be, 1 GB more memory, and a loss of accuracy.
void check_regression(const Figures& baseline, const Figures& now, VerifyChecks& checks);

}  // namespace nibble::app
