#include "backend/sampling.h"

#include "backend/draw.h"
#include "base/error.h"
#include "base/random.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <unordered_map>

namespace nibble::backend {
namespace {

constexpr bool before(const TokenLogit& a, const TokenLogit& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

// Calls change(id, term) for each term of a token's logit, in order; term(float&) applies it.
template <class Change>
void each_penalty(const SampleRow& row, const Change& change) {
  const SamplingParams& p = *row.params;
  for (const auto& [id, bias] : p.logit_bias) change(id, [bias = bias](float& logit) { logit += bias; });
  if (!p.counts_tokens()) return;
  std::unordered_map<int32_t, int> in_output;
  for (const int32_t id : row.output) ++in_output[id];
  const auto repeat = [&](int32_t id) {
    change(id, [by = p.repetition_penalty](float& logit) { logit = logit > 0 ? logit / by : logit * by; });
  };
  std::unordered_map<int32_t, bool> in_prompt;
  for (const int32_t id : row.prompt)
    if (!in_output.contains(id) && in_prompt.try_emplace(id, true).second) repeat(id);
  for (const auto& [id, count] : in_output) {
    repeat(id);
    const float less = p.presence_penalty + p.frequency_penalty * static_cast<float>(count);
    change(id, [less](float& logit) { logit -= less; });
  }
}

// The token whose logit, already divided by the temperature, and noise are the most.
int32_t noisiest(std::span<const TokenLogit> tokens, const SampleRow& row) {
  float best = -INFINITY;
  int32_t token = -1;
  for (const auto& [logit, id] : tokens) {
    const auto at = static_cast<uint32_t>(id);
    const float value = logit + gumbel(philox(row.params->seed, at / 4, static_cast<uint64_t>(row.position))[at % 4]);
    if (value > best || (value == best && id < token)) best = value, token = id;
  }
  check(token >= 0, "a row of finite logits keeps at least one");
  return token;
}

// What min_p, top_k and top_p keep; logits already divided by the temperature.
std::vector<TokenLogit> filtered(std::span<const float> logits, const SamplingParams& p) {
  const float top = *std::max_element(logits.begin(), logits.end());
  const float floor = p.min_p > 0 ? top + std::log(p.min_p) : -INFINITY;
  std::vector<TokenLogit> keep;
  for (size_t id = 0; id < logits.size(); ++id)
    if (logits[id] >= floor && logits[id] > -INFINITY) keep.push_back({logits[id], static_cast<int32_t>(id)});
  if (p.top_k > 0 && static_cast<size_t>(p.top_k) < keep.size()) {
    std::nth_element(keep.begin(), keep.begin() + p.top_k - 1, keep.end(), before);
    keep.resize(static_cast<size_t>(p.top_k));
  }
  if (p.top_p < 1.0f) {
    std::sort(keep.begin(), keep.end(), before);
    double total = 0, sum = 0;
    for (const TokenLogit& c : keep) total += std::exp(double{c.logit} - top);
    size_t count = 0;
    while (count < keep.size() && sum < double{p.top_p} * total) sum += std::exp(double{keep[count++].logit} - top);
    keep.resize(std::max<size_t>(count, 1));
  }
  return keep;
}

// Index of the first largest logit, like std::max_element, but by vectors: a row is 200,000 logits.
int32_t largest(std::span<const float> logits) {
  constexpr size_t kLanes = 32;
  std::array<float, kLanes> tops;
  tops.fill(-INFINITY);
  size_t i = 0;
  for (; i + kLanes <= logits.size(); i += kLanes)
    for (size_t j = 0; j < kLanes; ++j) tops[j] = logits[i + j] > tops[j] ? logits[i + j] : tops[j];
  float top = *std::max_element(tops.begin(), tops.end());
  for (; i < logits.size(); ++i) top = std::max(top, logits[i]);
  return static_cast<int32_t>(std::find(logits.begin(), logits.end(), top) - logits.begin());
}

void want(bool holds, std::string_view field, std::string_view range, double found) {
  if (!holds) throw Error(Code::kInvalidRequest, "{}: want {}, found {}", field, range, found);
}

// Converts to a member of any type.
struct AnyMember {
  template <class T>
  operator T() const;  // NOLINT(google-explicit-constructor)
};

template <class T, class... Members>
consteval size_t members_of() {
  if constexpr (requires { T{Members{}..., AnyMember{}}; })
    return members_of<T, Members..., AnyMember>();
  else
    return sizeof...(Members);
}
static_assert(members_of<SamplingParams>() == kSamplingFields.size() + 2, "kSamplingFields lists every number");

bool any_acts(const SamplingParams& params, SamplingUse use) {
  return std::ranges::any_of(kSamplingFields,
                             [&](const SamplingField& field) { return field.use == use && field.acts(params); });
}

}  // namespace

bool SamplingParams::counts_tokens() const { return any_acts(*this, SamplingUse::kPenalty); }

bool SamplingParams::filters() const { return temperature >= kGreedyBelow && any_acts(*this, SamplingUse::kFilter); }

std::string SamplingRange::text() const {
  return above ? fmt::format("more than {} and at most {}", least, most) : fmt::format("{} to {}", least, most);
}

double SamplingField::of(const SamplingParams& params) const {
  return std::visit([&](const auto at) { return static_cast<double>(params.*at); }, member);
}

bool SamplingField::acts(const SamplingParams& params) const { return of(params) != of(SamplingParams{}); }

SamplingWords words_of(const SamplingParams& params) {
  SamplingWords words{};
  size_t at = 0;
  for_each_field(params, [&](const SamplingField&, const auto value) { words[at++] = std::bit_cast<uint32_t>(value); });
  return words;
}

void validate(const SamplingParams& p, int64_t vocab) {
  for (const SamplingField& field : kSamplingFields)
    want(field.range.holds(field.of(p)), field.name, field.range.text(), field.of(p));
  for (const auto& [id, bias] : p.logit_bias) {
    want(id >= 0 && id < vocab, "logit_bias", "a token id below the vocabulary's size", id);
    want(std::abs(bias) <= 100, "logit_bias", "-100 to 100", bias);
  }
}

bool draws_unfiltered(std::span<const SampleRow> rows) {
  return !rows.empty() && std::ranges::all_of(rows, [](const SampleRow& row) {
    return row.logprobs < 0 && row.given < 0 && !row.params->filters();
  });
}

bool draws_by_temperature(std::span<const SampleRow> rows) {
  return draws_unfiltered(rows) && std::ranges::all_of(rows, [](const SampleRow& row) {
           return row.mask.empty() && row.params->logit_bias.empty() && !row.params->counts_tokens();
         });
}

void sort_unique(std::vector<int32_t>& ids) {
  std::ranges::sort(ids);
  const auto twice = std::ranges::unique(ids);
  ids.erase(twice.begin(), twice.end());
}

std::vector<int32_t> changed_tokens(const SampleRow& row) {
  std::vector<int32_t> ids;
  each_penalty(row, [&](int32_t id, const auto&) { ids.push_back(id); });
  sort_unique(ids);
  return ids;
}

void check_logits(std::span<const float> logits) {
  constexpr uint32_t kExponent = 0x7f800000;  // all of it set: NaN or infinity
  uint32_t bad = 0;                           // no way out of the loop: compilers make vectors of it
  for (const float logit : logits) bad |= (std::bit_cast<uint32_t>(logit) & kExponent) == kExponent;
  if (bad == 0) return;
  for (size_t id = 0; id < logits.size(); ++id)
    if (!std::isfinite(logits[id])) throw not_finite(fmt::format("{} for token {}", logits[id], id));
}

int32_t sample_row(std::span<float> logits, const SampleRow& row) {
  each_penalty(row, [&](int32_t id, const auto& what) { what(logits[static_cast<size_t>(id)]); });
  const SamplingParams& p = *row.params;
  if (p.temperature < kGreedyBelow) return largest(logits);
  for (float& logit : logits) logit /= p.temperature;
  return noisiest(filtered(logits, p), row);
}

float gumbel(uint32_t word) {
  const float u = (static_cast<float>(word >> 9) + 0.5f) * 0x1p-23f;  // never 0 or 1
  return -std::log(-std::log(u));
}

int32_t sample_among(std::span<TokenLogit> tokens, const SampleRow& row) {
  const auto forbidden = [&](const TokenLogit& token) { return !mask_allows(row.mask, token.id); };
  tokens = tokens.first(tokens.size() - std::ranges::remove_if(tokens, forbidden).size());
  each_penalty(row, [&](int32_t id, const auto& what) {
    const auto at = std::ranges::lower_bound(tokens, id, {}, &TokenLogit::id);
    if (at != tokens.end() && at->id == id) what(at->logit);
  });
  const float temperature = row.params->temperature;
  if (temperature < kGreedyBelow) return std::ranges::min_element(tokens, before)->id;
  for (TokenLogit& token : tokens) token.logit /= temperature;
  return noisiest(tokens, row);
}

}  // namespace nibble::backend
