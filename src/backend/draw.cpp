#include "backend/draw.h"

#include <algorithm>
#include <cmath>

namespace nibble::backend {
namespace {

void apply_mask(std::span<float> logits, std::span<const uint32_t> mask) {
  for (size_t id = 0; id < logits.size(); ++id)
    if (!mask_allows(mask, static_cast<int32_t>(id))) logits[id] = -INFINITY;
}

}  // namespace

Error not_finite(std::string_view found) {
  return {Code::kCorrupt, "want finite logits, found {}: the weights hold NaN or infinity", found};
}

Error nothing_allowed(int64_t position) {
  return {Code::kInvalidRequest, "position {}: want a mask that allows a token, found none", position};
}

TokenLogprobs logprobs_of(std::span<const float> logits, int32_t token, int top) {
  const float largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(double{logit} - largest);
  const double log_sum = largest + std::log(sum);
  const auto value_of = [&](double logit) { return logit - log_sum; };
  TokenLogprobs result{.value = value_of(logits[static_cast<size_t>(token)]), .top = {}};
  std::vector<Logprob>& best = result.top;  // few: kept in order, logits first
  for (size_t id = 0; id < logits.size() && top > 0; ++id) {
    const bool full = best.size() == static_cast<size_t>(top);
    if (full && logits[id] <= best.back().value) continue;
    if (full) best.pop_back();
    const auto at = std::find_if(best.begin(), best.end(), [&](const Logprob& l) { return l.value < logits[id]; });
    best.insert(at, {static_cast<int32_t>(id), logits[id]});
  }
  for (Logprob& l : best) l.value = value_of(l.value);
  return result;
}

DrawnToken draw(std::span<float> logits, const SampleRow& row) {
  DrawnToken drawn;
  try {
    check_logits(logits);
    std::vector<float> raw;
    if (row.logprobs >= 0 && row.given < 0) raw.assign(logits.begin(), logits.end());
    drawn.token = row.given;
    if (row.given < 0) {
      if (!row.mask.empty()) {
        apply_mask(logits, row.mask);
        if (*std::max_element(logits.begin(), logits.end()) == -INFINITY) throw nothing_allowed(row.position);
      }
      drawn.token = sample_row(logits, row);
    }
    if (row.logprobs >= 0) {
      const std::span<const float> before_all = row.given < 0 ? std::span<const float>(raw) : logits;
      drawn.logprobs = logprobs_of(before_all, drawn.token, row.logprobs);
    }
  } catch (const Error& error) {
    drawn.token = -1;
    drawn.error = error;
  }
  return drawn;
}

}  // namespace nibble::backend
