#include "engine/token_index.h"

#include "base/error.h"
#include "engine/pages.h"

#include <algorithm>
#include <bit>
#include <limits>

namespace nibble::engine {
namespace {

constexpr size_t kFirstTokens = 256;

}  // namespace

TokenIndex::TokenIndex(std::span<const int> lengths, int64_t most) : most_(most) {
  check(most >= 1 && std::has_single_bit(static_cast<uint64_t>(most)), "an index keeps a power of two");
  tokens_.resize(std::min(kFirstTokens, static_cast<size_t>(most)));
  for (const int length : lengths) chains_.push_back({.length = length, .newest = {}, .before = {}});
  for (Chain& chain : chains_) {
    chain.newest.resize(tokens_.size());
    chain.before.resize(tokens_.size());
  }
}

void TokenIndex::add(int32_t token) {
  if (end_ == std::numeric_limits<int32_t>::max()) {  // places have 32 bits
    for (Chain& chain : chains_) std::fill(chain.newest.begin(), chain.newest.end(), 0u);
    end_ = kept_ = 0;
  }
  if (kept_ == std::ssize(tokens_) && kept_ < most_) grow();
  tokens_[slot(end_)] = token;
  ++end_;
  kept_ = std::min(kept_ + 1, std::ssize(tokens_));
  link(end_ - 1);
}

// The n-grams that end at `last`.
void TokenIndex::link(int64_t last) {
  uint64_t hash = 0;
  int hashed = 0;  // of the tokens up to `last`, backwards
  const auto to = [&](int length) {
    for (; hashed < length; ++hashed) hash = engine::hashed(hash, static_cast<uint32_t>(at(last - hashed)));
    return hash;
  };
  for (auto chain = chains_.rbegin(); chain != chains_.rend(); ++chain) {  // the shortest first
    if (last + 1 - begin() < chain->length) return;
    uint32_t& newest = chain->newest[static_cast<size_t>(to(chain->length)) & (chain->newest.size() - 1)];
    chain->before[slot(last)] = newest;
    newest = static_cast<uint32_t>(last) + 1;
  }
}

void TokenIndex::grow() {
  const size_t size = 2 * tokens_.size();
  tokens_.resize(size);  // nothing was overwritten so far, so slots stay
  for (Chain& chain : chains_) {
    chain.newest.assign(size, 0);
    chain.before.assign(size, 0);
  }
  for (int64_t last = begin(); last < end_; ++last) link(last);
}

void TokenIndex::places(std::span<const int32_t> text, size_t which, size_t most, std::vector<int64_t>& found) const {
  found.clear();
  const Chain& chain = chains_[which];
  if (std::ssize(text) < chain.length) return;
  uint64_t hash = 0;
  for (int i = 1; i <= chain.length; ++i)
    hash = hashed(hash, static_cast<uint32_t>(text[text.size() - static_cast<size_t>(i)]));
  uint32_t place = chain.newest[static_cast<size_t>(hash) & (chain.newest.size() - 1)];
  for (int visited = 0; visited < kMostVisited && found.size() < most; ++visited) {
    const int64_t last = int64_t{place} - 1;
    if (last - chain.length + 1 < begin()) return;
    if (last + 1 < end_ && shared(text, last + 1, chain.length) == chain.length) found.push_back(last + 1);
    place = chain.before[slot(last)];
  }
}

int64_t TokenIndex::shared(std::span<const int32_t> text, int64_t position, int64_t most) const {
  most = std::min({most, std::ssize(text), position - begin()});
  int64_t count = 0;
  while (count < most && at(position - 1 - count) == text[text.size() - 1 - static_cast<size_t>(count)]) ++count;
  return count;
}

int64_t TokenIndex::bytes() const {
  size_t values = tokens_.size();
  for (const Chain& chain : chains_) values += chain.newest.size() + chain.before.size();
  return static_cast<int64_t>(values * sizeof(uint32_t));
}

}  // namespace nibble::engine
