#pragma once
// The draw: what it reads of each row, and its launch. Plain C++.

#include "backend/cuda/launch/launch.h"
#include "backend/sampling.h"

#include <bit>
#include <cstdint>
#include <vector>
#include <span>

namespace nibble::backend::cuda {

// SamplingParams of one row, as far as the device needs them.
struct SampleRowParams {
  uint64_t seed = 0;
  uint64_t position = 0;
  SamplingWords numbers{};              // get<&SamplingParams::top_p>() reads them
  float log_min_p = 0;                  // log(min_p) as the host rounds it; read where min_p acts
  int32_t first_shift = 0, shifts = 0;  // its part of the shifts
  int32_t mask = -1;                    // its row of the masks; -1: none

  template <auto kMember>
  [[nodiscard]] constexpr auto get() const {
    return std::bit_cast<MemberType<kMember>>(numbers[field_index(kMember)]);
  }
  [[nodiscard]] constexpr bool greedy() const { return get<&SamplingParams::temperature>() < kGreedyBelow; }
  friend bool operator==(const SampleRowParams&, const SampleRowParams&) = default;
};

// What bias and penalties do to one token's logit; a row names a token once.
struct LogitShift {
  int32_t token = 0;
  int32_t first_bias = 0, biases = 0;  // its part of the biases, added one after the other
  int32_t seen = 0;                    // repetition penalty applies
  float subtract = 0;                  // presence and frequency penalty
  int32_t has_subtract = 0;
};

struct Sample {
  static constexpr Kernel kMask{"any_sample_mask_f32"}, kAdjust{"any_sample_adjust_f32"},
      kFilter{"any_sample_filter_f32"}, kDraw{"any_sample_draw_f32"}, kPick{"any_sample_pick"};
  struct Args {
    float* logits = nullptr;                  // [rows, vocab]; unspecified afterwards
    const SampleRowParams* params = nullptr;  // [rows]
    const LogitShift* shifts = nullptr;       // of all rows
    const float* biases = nullptr;
    const uint32_t* masks = nullptr;  // [masks, mask_words(vocab)] bit t % 32 of word t / 32: token t may be drawn
    int32_t* tokens = nullptr;        // [rows] out; or kNotFinite, kNothingAllowed. Null: parts are for who picks
    uint64_t* threshold = nullptr;    // scratch [rows] the smallest key kept (sampling/sample.cuh)
    // [rows, kSampleParts], of each row sample_parts(rows): the best logit / T + noise of some of its tokens, and whose
    // it is, as before() of launch/warp.cuh ranks them; or kNotFinite, kNoToken
    float* part_value = nullptr;
    int32_t* part_token = nullptr;
    int rows = 0, vocab = 0;
    // A rank that draws from its columns alone: vocab is of these, masks are of `mask_vocab` tokens, and filters see
    // no more than the columns.
    int first = 0;  // the token of the first column, a multiple of 4
    int mask_vocab = 0;
    int most_shifts = 0;   // of any row; 0: none has any
    bool filters = false;  // some row has min_p, top_k or top_p
    bool masked = false;   // some row has a mask
  };
  static void launch(const Args& args, const Launch& on);
};
inline constexpr int kSampleParts = 128;
// The whole choice, however many parts, is the same.
[[nodiscard]] constexpr int sample_parts(int rows) {
  constexpr int kCtas = 512;  // about as many as fit on an H100 together
  const int parts = kCtas / rows;
  return parts < 1 ? 1 : parts < kSampleParts ? parts : kSampleParts;
}
// In place of a token: a logit is NaN or +infinity; all are -infinity; of a part, which others may outdo.
inline constexpr int32_t kNotFinite = -1, kNothingAllowed = -2, kNoToken = 0x7fffffff;

[[nodiscard]] constexpr int64_t mask_words(int64_t vocab) { return (vocab + 31) / 32; }

struct SampleInputs {
  std::vector<SampleRowParams> params;  // [rows]
  std::vector<LogitShift> shifts;
  std::vector<float> biases;
  std::vector<uint32_t> masks;  // of the rows that have one, all of the same length
  int most_shifts = 0;
  bool filters = false;
};

// Fills `into`, whose memory is used again.
void fill_sample_inputs(std::span<const SampleRow> rows, SampleInputs& into);

}  // namespace nibble::backend::cuda
