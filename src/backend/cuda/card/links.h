#pragma once
// How cards that share a step reach each other, by name: for predictions. Plain C++.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace nibble::backend::cuda {

struct KnownLink {
  std::string word;  // as flags name it
  std::string name;
  // A sum takes a fixed part and what a rank sends, at so much each way. Of a push, whose words carry rounds
  // (comm/push.h):
  double push_us = 0, push_bytes_per_s = 0;  // 0: cards do not reach each other's memory
  // Of long messages, and of all where nothing is pushed: a ring's bytes, 2 (ranks - 1) / ranks of the message.
  double long_us = 0, long_bytes_per_s = 0;
  double rank_us = 0;  // more for each rank above two
  std::string from;    // where that is from
};

[[nodiscard]] std::vector<KnownLink> known_links();
// Throws Error(kInvalidRequest) naming those that are known.
[[nodiscard]] KnownLink link_named(std::string_view word);
// What cards of this name (cards.h) usually have between them.
[[nodiscard]] KnownLink usual_link(std::string_view card);

// How long a sum over ranks takes of a message of so many bytes. `longer`: it is long enough for the other way.
struct Sum {
  int ranks = 2;
  double bytes = 0;
  bool longer = false;
};
[[nodiscard]] double sum_us(const KnownLink& link, const Sum& sum);

}  // namespace nibble::backend::cuda
