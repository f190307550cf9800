#pragma once
// The points of a sweep as Markdown: rates over users, latencies, failures. Pure.

#include "client/load_summary.h"

#include <span>
#include <string>

namespace nibble::client {

[[nodiscard]] std::string throughput_table(std::span<const LoadSummary> points);
[[nodiscard]] std::string latency_table(std::span<const LoadSummary> points);
[[nodiscard]] std::string turn_table(std::span<const LoadSummary> points);     // empty: there was one turn each
[[nodiscard]] std::string failure_table(std::span<const LoadSummary> points);  // empty: there were none

}  // namespace nibble::client
