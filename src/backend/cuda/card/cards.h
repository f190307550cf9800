#pragma once
// Cards by name, and the links between them, for programs and predictions where they are not in this machine: what
// cudaDeviceProp says of cards, how fast they are and how they reach each other. Plain C++.

#include "backend/cuda/card/device_facts.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace nibble::backend::cuda {

// Instructions that multiply matrices. kMma: mma.sync on f16 or bf16; kWgmma: the same operands, Hopper; kFp8: mma.sync
// on e4m3; kMxf8f6f4: mma.sync on block-scaled FP8, FP6 and FP4; kMxf4: on FP4 alone, twice as many operations. All sum
// in f32, no operand sparse.
enum class MatrixUnit : uint8_t { kNone, kMma, kWgmma, kFp8, kMxf8f6f4, kMxf4 };
inline constexpr int kMatrixUnits = 6;
[[nodiscard]] constexpr std::string_view name_of(MatrixUnit unit) {
  constexpr std::array<std::string_view, kMatrixUnits> kNames = {"none",          "mma.sync",          "wgmma",
                                                                 "mma.sync e4m3", "mma.sync mxf8f6f4", "mma.sync mxf4"};
  return kNames[static_cast<size_t>(unit)];
}

struct KnownCard {
  std::string word;  // as flags name it
  DeviceFacts facts;
  double ghz = 0;                                  // of the multiprocessors, boosted
  double read_bytes_per_s = 0;                     // of reads far larger than any cache
  std::string read_from;                           // where that is from
  std::array<double, kMatrixUnits> flops_per_s{};  // by MatrixUnit; 0: it has none
  std::string flops_from;
  std::string_view link;  // a KnownLink's word: what cards of this name usually have between them

  [[nodiscard]] double peak(MatrixUnit unit) const { return flops_per_s[static_cast<size_t>(unit)]; }
  // The peak of products that hold bf16 exactly: what `nibble bench` takes a limit of.
  [[nodiscard]] double exact_peak() const { return std::max(peak(MatrixUnit::kMma), peak(MatrixUnit::kWgmma)); }
};

[[nodiscard]] std::vector<KnownCard> known_cards();
// Throws Error(kInvalidRequest) naming those that are known.
[[nodiscard]] KnownCard card_named(std::string_view word);
// `card` with what sm_80 has: its instructions, no more shared memory.
[[nodiscard]] KnownCard as_sm80(KnownCard card);

// How cards that share a step reach each other.
struct KnownLink {
  std::string word;  // as flags name it
  std::string name;
  // A sum takes a fixed part and what a rank sends, at so much each way. Of a push, whose words carry rounds
  // (comm/sums.h):
  double push_us = 0, push_bytes_per_s = 0;  // 0: cards do not reach each other's memory
  // Long messages, and all where nothing is pushed: a ring's bytes, 2 (ranks - 1) / ranks of the message.
  double long_us = 0, long_bytes_per_s = 0;
  double rank_us = 0;  // more for each rank above two
  std::string from;    // where that is from
};

[[nodiscard]] std::vector<KnownLink> known_links();
// Throws Error(kInvalidRequest) naming those that are known.
[[nodiscard]] KnownLink link_named(std::string_view word);

// How long a sum over ranks takes of a message of so many bytes. `longer`: it is long enough for the other way.
struct Sum {
  int ranks = 2;
  double bytes = 0;
  bool longer = false;
};
[[nodiscard]] double sum_us(const KnownLink& link, const Sum& sum);

}  // namespace nibble::backend::cuda
