#pragma once
// What sampling means, for every backend; and the host's implementation of it.
//
// From a row of logits, in this order (vLLM's, v1/sample/sampler.py):
//   logprobs taken → what the mask forbids is dropped → logit_bias added → repetition penalty (prompt and output) →
//   presence and frequency penalty (output only) → temperature below kGreedyBelow: the largest logit, lowest id on a
//   tie → else logits / temperature → min_p (keep p >= min_p * p_max) → top_k → top_p (smallest set of the largest with
//     sum >= top_p, ties with the last one by lower id) → draw.
// The draw is the Gumbel maximum over what is kept: argmax(logit/T - log(-log(u))), u = philox(seed; id, position), so
// a token depends on its own row, seed and position only: not on neighbours, batch shape or the order of a sum.

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace nibble::backend {

inline constexpr float kGreedyBelow = 1e-6f;  // logits divided by less could leave the floats
inline constexpr float kMaxTemperature = 100;
inline constexpr double kTinyShare = 1e-6;  // as top_p: the likeliest token alone

// What a request asks of its draws. kSamplingFields below lists the numbers, with their ranges.
struct SamplingParams {
  float temperature = 1.0f;  // 0: greedy
  float top_p = 1.0f;
  float min_p = 0.0f;
  int top_k = 0;                    // 0: all
  float repetition_penalty = 1.0f;  // divides positive and multiplies negative logits of tokens seen
  float presence_penalty = 0.0f;
  float frequency_penalty = 0.0f;
  std::vector<std::pair<int32_t, float>> logit_bias{};  // token id, bias in [-100, 100]
  uint64_t seed = 0;

  // What was drawn before counts.
  [[nodiscard]] bool counts_tokens() const;
  // Fewer tokens than all may be drawn.
  [[nodiscard]] bool filters() const;
};

enum class SamplingUse : uint8_t {
  kScale,    // of all logits
  kFilter,   // keeps the likeliest tokens; the default keeps all
  kPenalty,  // for tokens seen; the default is none
};

struct SamplingRange {
  double least, most;
  bool above = false;  // `least` itself is no value

  [[nodiscard]] bool holds(double value) const { return (above ? value > least : value >= least) && value <= most; }
  [[nodiscard]] double smallest() const { return above ? kTinyShare : least; }
  [[nodiscard]] std::string text() const;  // "0 to 100"
};

// One number of SamplingParams: all there is to it but its formula (sampling.cpp and, on a card,
// cuda/sampling/sample.cuh). validate(), the JSON of requests, flags, frames between ranks and what a card reads are
// made from the list. What the host works out for the kernels (a logarithm) is a member of SampleRowParams
// beside it (sample_inputs.cpp). A test holds a card's draws against the host's with each field set.
struct SamplingField {
  std::string_view name;  // in JSON; of its flag with - for _
  std::variant<float SamplingParams::*, int SamplingParams::*> member;
  SamplingUse use;
  SamplingRange range;
  // JSON may say so little, else range.least; what `range` does not hold of that means its smallest value.
  std::optional<double> request_least = {};
  std::string_view help;  // of its flag

  [[nodiscard]] double of(const SamplingParams& params) const;
  // Whether it is another than the default, which changes no draw.
  [[nodiscard]] bool acts(const SamplingParams& params) const;
};

// In the order of --help.
inline constexpr std::array kSamplingFields = {
    SamplingField{.name = "temperature",
                  .member = &SamplingParams::temperature,
                  .use = SamplingUse::kScale,
                  .range = {0, kMaxTemperature},
                  .help = "0: greedy; at most 100"},
    SamplingField{.name = "top_k",
                  .member = &SamplingParams::top_k,
                  .use = SamplingUse::kFilter,
                  .range = {0, std::numeric_limits<int>::max()},
                  .request_least = -1,
                  .help = "Draw from the k most likely tokens; 0: all"},
    SamplingField{.name = "top_p",
                  .member = &SamplingParams::top_p,
                  .use = SamplingUse::kFilter,
                  .range = {0, 1, true},
                  .help = "Draw from the most likely tokens that make up this share"},
    SamplingField{.name = "min_p",
                  .member = &SamplingParams::min_p,
                  .use = SamplingUse::kFilter,
                  .range = {0, 1},
                  .help = "Drop tokens less likely than this share of the likeliest"},
    SamplingField{.name = "repetition_penalty",
                  .member = &SamplingParams::repetition_penalty,
                  .use = SamplingUse::kPenalty,
                  .range = {0, 100, true},
                  .request_least = 1e-3,
                  .help = "Divide the logits of tokens seen; 1: off"},
    SamplingField{.name = "presence_penalty",
                  .member = &SamplingParams::presence_penalty,
                  .use = SamplingUse::kPenalty,
                  .range = {-2, 2},
                  .help = "Subtract from the logits of tokens generated before"},
    SamplingField{.name = "frequency_penalty",
                  .member = &SamplingParams::frequency_penalty,
                  .use = SamplingUse::kPenalty,
                  .range = {-2, 2},
                  .help = "Subtract per time a token was generated before"},
};

// visit(field, params' own number) for every field.
template <class Params, class Visit>
constexpr void for_each_field(Params& params, const Visit& visit) {
  for (const SamplingField& field : kSamplingFields)
    std::visit([&](const auto member) { visit(field, params.*member); }, field.member);
}

// The numbers as 32-bit words, for devices, in the order of the list.
using SamplingWords = std::array<uint32_t, kSamplingFields.size()>;
[[nodiscard]] SamplingWords words_of(const SamplingParams& params);

template <auto kMember>
using MemberType = std::remove_cvref_t<decltype(std::declval<SamplingParams>().*kMember)>;

// Where the list has a member.
template <class T>
consteval size_t field_index(T SamplingParams::* member) {
  size_t at = 0;
  while (kSamplingFields[at].member != decltype(SamplingField::member)(member)) ++at;  // unlisted: no constant
  return at;
}

// Throws Error(kInvalidRequest) naming the first field out of range; vocab bounds the ids of logit_bias.
void validate(const SamplingParams& params, int64_t vocab);

struct SampleRow {
  const SamplingParams* params = nullptr;
  int64_t position = 0;               // of the token to be drawn
  std::span<const int32_t> prompt{};  // both may be empty when no penalty is set
  std::span<const int32_t> output{};
  std::span<const uint32_t> mask{};  // bit t % 32 of word t / 32: token t may be drawn; empty: all may
  int logprobs = -1;                 // -1: none; n: of the token and of the n likeliest
  int32_t given = -1;                // >= 0: nothing is drawn, this is the token (for its logprobs)
};
// Whether a mask lets a token be drawn.
[[nodiscard]] constexpr bool mask_allows(std::span<const uint32_t> mask, int32_t id) {
  return mask.empty() || (mask[static_cast<size_t>(id) / 32] >> id % 32 & 1) != 0;
}

// Steps whose logits were screened (RunConfig::screened_head), and the tiles of 16 rows that had candidates in them: a
// card computes all 16.
struct ScreenCounts {
  int64_t steps = 0, tiles = 0;
};

// Whether a step draws, and no draw has a filter or log-probabilities.
[[nodiscard]] bool draws_unfiltered(std::span<const SampleRow> rows);
// Whether, besides, no draw has a penalty, a bias or a mask.
[[nodiscard]] bool draws_by_temperature(std::span<const SampleRow> rows);

void sort_unique(std::vector<int32_t>& ids);
// The tokens whose logits have a bias or a penalty, rising.
[[nodiscard]] std::vector<int32_t> changed_tokens(const SampleRow& row);

// Throws Error(kCorrupt) when a row of logits holds NaN or infinity: the model's weights do.
void check_logits(std::span<const float> logits);

// The drawing alone: no mask, no logprobs. REQUIRES that no logit is NaN or +infinity and one is finite.
[[nodiscard]] int32_t sample_row(std::span<float> logits, const SampleRow& row);

// The noise of a token: of word `id` % 4 of philox(seed, id / 4, position).
[[nodiscard]] float gumbel(uint32_t word);
struct TokenLogit {
  float logit;
  int32_t id;
};
// sample_row() of a row whose other tokens cannot win, without those that the mask forbids. REQUIRES draws_unfiltered()
// and tokens in order; changes them.
[[nodiscard]] int32_t sample_among(std::span<TokenLogit> tokens, const SampleRow& row);

}  // namespace nibble::backend
