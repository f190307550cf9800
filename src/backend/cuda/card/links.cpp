#include "backend/cuda/card/links.h"

#include "base/error.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace nibble::backend::cuda {

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

KnownLink usual_link(std::string_view card) {
  if (card == "gb10") return link_named("connectx7");
  if (card == "h100" || card == "h200") return link_named("nvlink4");
  if (card.starts_with("a100")) return link_named("nvlink3");
  return link_named("pcie4");
}

double sum_us(const KnownLink& link, const Sum& sum) {
  const double others = sum.ranks - 1, more = link.rank_us * (others - 1);
  if (link.push_bytes_per_s > 0 && !sum.longer)
    return link.push_us + 2 * sum.bytes * others / link.push_bytes_per_s * 1e6;
  return link.long_us + more + 2 * sum.bytes * others / sum.ranks / link.long_bytes_per_s * 1e6;
}

}  // namespace nibble::backend::cuda
