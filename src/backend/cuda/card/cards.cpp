#include "backend/cuda/card/cards.h"

#include "base/error.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace nibble::backend::cuda {
namespace {

// The share of a datasheet's bandwidth that reads reach where nobody measured: an H100 93 %, an H200 95 %
// (bench/results), a GB10 85 %.
constexpr double kReadShare = 0.92;
// Operations of mxf4 in a clock, beside those of mxf8f6f4: an instruction of either takes as long.
constexpr double kMxf4Rate = 2;
// Rate of mma.sync on e4m3, beside f16 and with as wide sums, from compute capability 8.9 on.
constexpr double kFp8Rate = 2;

constexpr int64_t gib(double count) { return static_cast<int64_t>(count * (int64_t{1} << 30)); }

struct Datasheet {
  double mma_tflop_per_s;  // f16 or bf16, sums in f32, not sparse
  double mxf8f6f4_tflop_per_s = 0;
  std::string_view link = "pcie4";
};

KnownCard from_datasheet(std::string word, DeviceFacts facts, double ghz, const Datasheet& sheet) {
  const int capability = 10 * facts.major + facts.minor;
  const double bytes_per_s = facts.memory_bytes_per_s;
  return {.word = std::move(word),
          .facts = std::move(facts),
          .ghz = ghz,
          .read_bytes_per_s = kReadShare * bytes_per_s,
          .read_from = fmt::format("{:.0f} % of the datasheet's {:.0f} GB/s", 100 * kReadShare, bytes_per_s / 1e9),
          .flops_per_s = {0, sheet.mma_tflop_per_s * 1e12, 0,
                          (capability >= 89 ? kFp8Rate : 0) * sheet.mma_tflop_per_s * 1e12,
                          sheet.mxf8f6f4_tflop_per_s * 1e12, kMxf4Rate * sheet.mxf8f6f4_tflop_per_s * 1e12},
          .flops_from = "the datasheet's",
          .link = sheet.link};
}

// memory_gib: what a driver reports of it, rounded down. gb_per_s: the datasheet's.
DeviceFacts facts_of(std::string name, int capability, int multiprocessors, double memory_gib, double gb_per_s) {
  const CardArch arch = card_arch(fmt::format("sm_{}", capability));
  return {.name = std::move(name),
          .major = capability / 10,
          .minor = capability % 10,
          .multiprocessors = multiprocessors,
          .memory_bytes = gib(memory_gib),
          .memory_bytes_per_s = gb_per_s * 1e9,
          .cta_smem_bytes = arch.cta_smem_bytes,
          .sm_smem_bytes = arch.sm_smem_bytes};
}

}  // namespace

std::vector<KnownCard> known_cards() {
  return {
      {.word = "gb10",
       .facts = facts_of("GB10", 121, 48, 119, 273),
       .ghz = 2.4,
       .read_bytes_per_s = 232e9,
       .read_from = "measured by others (231 to 234 of the datasheet's 273 GB/s)",
       // 48 multiprocessors, 2048 operations a clock of mxf8f6f4; others measured 91 to 92 of bf16's 119.
       .flops_per_s = {0, 92e12, 0, kFp8Rate * 92e12, 236e12, kMxf4Rate * 236e12},
       .flops_from = "mma.sync measured by others, mxf8f6f4 and mxf4 from their rates and the clock",
       .link = "connectx7"},
      {.word = "h100",
       .facts = facts_of("H100 SXM", 90, 132, 79, 3350),
       .ghz = 1.98,
       .read_bytes_per_s = 3.12e12,
       .read_from = "measured, bench/results/2026-11-23-h100-120b.json",
       .flops_per_s = {0, 638e12, 977e12, 0, 0, 0},
       .flops_from = "measured, the same",
       .link = "nvlink4"},
      {.word = "h200",
       .facts = facts_of("H200", 90, 132, 139, 4800),
       .ghz = 1.98,
       .read_bytes_per_s = 4.56e12,
       .read_from = "measured, bench/results/2026-11-23-h200-120b.json",
       .flops_per_s = {0, 638e12, 977e12, 0, 0, 0},
       .flops_from = "an H100's, measured (bench/results/2026-11-23-h100-120b.json)",
       .link = "nvlink4"},
      from_datasheet("a100", facts_of("A100 SXM 80 GB", 80, 108, 79, 2039), 1.41, {312, 0, "nvlink3"}),
      from_datasheet("a100-40gb", facts_of("A100 SXM 40 GB", 80, 108, 39, 1555), 1.41, {312, 0, "nvlink3"}),
      from_datasheet("3060", facts_of("RTX 3060", 86, 28, 11.6, 360), 1.777, {25.5}),
      from_datasheet("3090", facts_of("RTX 3090", 86, 82, 23.6, 936), 1.695, {71}),
      from_datasheet("4090", facts_of("RTX 4090", 89, 128, 23.6, 1008), 2.52, {165}),
      from_datasheet("5090", facts_of("RTX 5090", 120, 170, 31.3, 1792), 2.407, {209.5, 838}),
      from_datasheet("l4", facts_of("L4", 89, 58, 22, 300), 2.04, {121}),
      from_datasheet("l40s", facts_of("L40S", 89, 142, 44.4, 864), 2.52, {362}),
      from_datasheet("rtx-pro-6000", facts_of("RTX PRO 6000 Blackwell", 120, 188, 94.9, 1792), 2.617, {503.8, 1007}),
  };
}

KnownCard card_named(std::string_view word) {
  const std::vector<KnownCard> all = known_cards();
  if (const auto it = std::ranges::find(all, word, &KnownCard::word); it != all.end()) return *it;
  std::vector<std::string_view> words;
  for (const KnownCard& card : all) words.push_back(card.word);
  throw Error(Code::kInvalidRequest, "--card: want one of {}, found {}", fmt::join(words, ", "), word);
}

KnownCard as_sm80(KnownCard card) {
  card.facts = taken_for(card.facts, card_arch("sm_80"));
  for (const MatrixUnit unit : {MatrixUnit::kWgmma, MatrixUnit::kFp8, MatrixUnit::kMxf8f6f4, MatrixUnit::kMxf4})
    card.flops_per_s[static_cast<size_t>(unit)] = 0;
  return card;
}

std::vector<KnownLink> known_links() {
  return {
      {.word = "nvlink4",
       .name = "NVLink 4",
       .push_us = 2.6,
       .push_bytes_per_s = 280e9,
       .long_us = 7,
       .long_bytes_per_s = 320e9,
       .rank_us = 2,
       .from = "measured with two cards, bench/results/2026-11-26-h200-x2-sent.json; more assumed"},
      {.word = "nvlink3",
       .name = "NVLink 3",
       .push_us = 2.6,
       .push_bytes_per_s = 187e9,
       .long_us = 7,
       .long_bytes_per_s = 213e9,
       .rank_us = 2,
       .from = "assumed: NVLink 4's latency, two thirds of its bandwidth"},
      {.word = "pcie4",
       .name = "PCIe 4.0 x16 through the host's memory",
       .long_us = 20,
       .long_bytes_per_s = 11e9,
       .rank_us = 5,
       .from = "assumed: the driver lets these cards not reach each other's memory; NCCL copies twice"},
      {.word = "connectx7",
       .name = "ConnectX-7, 200 Gb/s through the host's memory",
       .long_us = 30,
       .long_bytes_per_s = 21.9e9,
       .rank_us = 15,
       .from = "bandwidth: what NVIDIA's check of two Sparks demands (175 Gb/s); latency assumed"},
  };
}

KnownLink link_named(std::string_view word) {
  std::vector<std::string> words;
  for (KnownLink& link : known_links()) {
    if (link.word == word) return std::move(link);
    words.push_back(link.word);
  }
  throw Error(Code::kInvalidRequest, "want a link: {}; found {}", fmt::join(words, ", "), word);
}

double sum_us(const KnownLink& link, const Sum& sum) {
  const double others = sum.ranks - 1, more = link.rank_us * (others - 1);
  if (link.push_bytes_per_s > 0 && !sum.longer)
    return link.push_us + 2 * sum.bytes * others / link.push_bytes_per_s * 1e6;
  return link.long_us + more + 2 * sum.bytes * others / sum.ranks / link.long_bytes_per_s * 1e6;
}

}  // namespace nibble::backend::cuda
