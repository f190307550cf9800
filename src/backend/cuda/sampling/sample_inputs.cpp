#include "backend/cuda/sampling/sample.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace nibble::backend::cuda {
namespace {

// How often each token stands in `ids`: (token, count), by token.
std::vector<std::pair<int32_t, int>> counts_of(std::span<const int32_t> ids) {
  std::vector<int32_t> sorted(ids.begin(), ids.end());
  std::sort(sorted.begin(), sorted.end());
  std::vector<std::pair<int32_t, int>> counts;
  for (const int32_t id : sorted) {
    if (counts.empty() || counts.back().first != id) counts.emplace_back(id, 0);
    ++counts.back().second;
  }
  return counts;
}

// One shift per token that has any, as the row's own: bias first, then the penalties.
void add_shifts(const SampleRow& row, SampleInputs& into) {
  const SamplingParams& p = *row.params;
  const bool penalties = p.counts_tokens();
  if (p.logit_bias.empty() && !penalties) return;
  const size_t first = into.shifts.size();
  auto bias = p.logit_bias;
  std::stable_sort(bias.begin(), bias.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  for (const auto& [token, value] : bias) {
    if (into.shifts.size() == first || into.shifts.back().token != token)
      into.shifts.push_back({.token = token, .first_bias = static_cast<int32_t>(into.biases.size())});
    into.biases.push_back(value);
    ++into.shifts.back().biases;
  }
  if (!penalties) return;
  const auto biased_end = static_cast<std::ptrdiff_t>(into.shifts.size());
  const auto shift_of = [&](int32_t token) -> LogitShift& {
    const auto begin = into.shifts.begin() + static_cast<std::ptrdiff_t>(first), end = into.shifts.begin() + biased_end;
    const auto at = std::lower_bound(begin, end, token, [](const LogitShift& s, int32_t t) { return s.token < t; });
    return at != end && at->token == token ? *at : into.shifts.emplace_back(LogitShift{.token = token});
  };
  const auto output = counts_of(row.output);
  for (const auto& [token, count] : counts_of(row.prompt)) {
    const auto at = std::lower_bound(output.begin(), output.end(), std::pair(token, 0));
    if (at == output.end() || at->first != token) shift_of(token).seen = 1;
  }
  for (const auto& [token, count] : output) {
    LogitShift& shift = shift_of(token);
    shift.seen = 1;
    shift.subtract = p.presence_penalty + p.frequency_penalty * static_cast<float>(count);
    shift.has_subtract = 1;
  }
}

}  // namespace

void fill_sample_inputs(std::span<const SampleRow> rows, SampleInputs& into) {
  into.params.clear();
  into.shifts.clear();
  into.biases.clear();
  into.masks.clear();
  int32_t masks = 0;
  into.most_shifts = 0;
  into.filters = false;
  for (const SampleRow& row : rows) {
    const SamplingParams& p = *row.params;
    const auto first = static_cast<int32_t>(into.shifts.size());
    add_shifts(row, into);
    const auto shifts = static_cast<int32_t>(into.shifts.size()) - first;
    into.params.push_back({.seed = p.seed,
                           .position = static_cast<uint64_t>(row.position),
                           .numbers = words_of(p),
                           .log_min_p = p.min_p > 0 ? std::log(p.min_p) : 0.0f,
                           .first_shift = first,
                           .shifts = shifts,
                           .mask = row.mask.empty() ? -1 : masks++});
    into.masks.insert(into.masks.end(), row.mask.begin(), row.mask.end());
    into.most_shifts = std::max(into.most_shifts, static_cast<int>(shifts));
    into.filters = into.filters || p.filters();
  }
}

}  // namespace nibble::backend::cuda
