// The protocol by which two ranks exchange their parts (README.md), step by step: all interleavings of a few sums, with
// stores that land late and in any order. A part is one word, the number of its sum. Nobody may read another sum's,
// nobody may wait for ever. What the protocol rests on is taken away in turn, and each time some interleaving goes
// wrong.

#include "backend/cuda/comm/mailbox.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <string>
#include <unordered_set>
#include <vector>

namespace nibble::backend::cuda {
namespace {

struct ExchangeProtocol {
  int sums = 5;                 // one after the other
  int places = kExchangedSums;  // that they take in turn
  bool stores_end = true;       // the launch that sends ends with its last store; else with its last instruction
  bool awaited = true;          // the other's word, before the parts are read
};

enum class ExchangeOp : uint8_t { kSend, kEndSending, kMeet, kAwait, kRead, kOps };

struct ExchangeStore {
  uint8_t from, to;  // ranks
  bool meets;        // a word of the meeting, else a part
  uint8_t sum;
};

struct ExchangeState {
  struct Rank {
    uint8_t sum = 1, op = 0;             // the next step
    std::array<uint8_t, 4> others = {};  // the other's part, by place
    std::array<uint8_t, 2> met = {};     // its word, by the two phases of a push
  };
  std::array<Rank, 2> ranks;
  std::vector<ExchangeStore> stores;  // not landed

  [[nodiscard]] std::string key() const {
    std::string k;
    for (const Rank& r : ranks) {
      k += {static_cast<char>(r.sum), static_cast<char>(r.op)};
      k.append(r.others.begin(), r.others.end()).append(r.met.begin(), r.met.end());
    }
    for (const ExchangeStore& s : stores)
      k += {static_cast<char>(s.from), static_cast<char>(s.meets ? 1 : 0), static_cast<char>(s.sum)};
    return k;
  }
};

class ExchangeModel {
 public:
  explicit ExchangeModel(const ExchangeProtocol& protocol) : p_(protocol) {}

  // Empty, or what goes wrong in some interleaving.
  std::string walk_exchanges() {
    visit({});
    while (!open_.empty() && wrong_.empty()) {
      const ExchangeState state = std::move(open_.back());
      open_.pop_back();
      any_ = false;
      for (uint8_t rank = 0; rank < 2; ++rank)
        if (state.ranks[rank].sum <= p_.sums) advance(state, rank);
      for (size_t i = 0; i < state.stores.size(); ++i) land(state, i);
      if (!any_ && (state.ranks[0].sum <= p_.sums || state.ranks[1].sum <= p_.sums)) wrong_ = "all wait for ever";
    }
    return wrong_;
  }
  [[nodiscard]] size_t states() const { return seen_.size(); }

 private:
  void visit(const ExchangeState& state) {
    any_ = true;
    if (seen_.insert(state.key()).second) open_.push_back(state);
  }
  [[nodiscard]] size_t place(uint8_t sum) const { return static_cast<size_t>(sum % p_.places); }

  void advance(const ExchangeState& state, uint8_t rank) {
    using enum ExchangeOp;
    const auto& own = state.ranks[rank];
    const auto other = static_cast<uint8_t>(1 - rank);
    ExchangeState next = state;
    switch (static_cast<ExchangeOp>(own.op)) {
      case kSend: next.stores.push_back({rank, other, false, own.sum}); break;
      case kEndSending:
        for (const ExchangeStore& store : state.stores)
          if (p_.stores_end && store.from == rank && !store.meets) return;
        break;
      case kMeet: next.stores.push_back({rank, other, true, own.sum}); break;
      case kAwait:
        if (p_.awaited && own.met[own.sum % 2U] != own.sum) return;
        break;
      case kRead:
        if (own.others[place(own.sum)] != own.sum)
          wrong_ = "want the part of sum " + std::to_string(own.sum) + ", read " +
                   std::to_string(own.others[place(own.sum)]);
        break;
      case kOps: break;
    }
    auto& after = next.ranks[rank];
    if (++after.op == static_cast<uint8_t>(kOps)) after.op = 0, ++after.sum;
    visit(next);
  }

  void land(const ExchangeState& state, size_t i) {
    ExchangeState next = state;
    const ExchangeStore store = state.stores[i];
    next.stores.erase(next.stores.begin() + static_cast<std::ptrdiff_t>(i));
    auto& to = next.ranks[store.to];
    (store.meets ? to.met[store.sum % 2U] : to.others[place(store.sum)]) = store.sum;
    visit(next);
  }

  const ExchangeProtocol p_;
  std::vector<ExchangeState> open_;
  std::unordered_set<std::string> seen_;
  bool any_ = false;  // some step was possible
  std::string wrong_;
};

std::string walk_exchanges(const ExchangeProtocol& protocol) {
  ExchangeModel model(protocol);
  const std::string wrong = model.walk_exchanges();
  EXPECT_TRUE(model.states() > 100 || !wrong.empty());
  return wrong;
}

TEST(exchange_protocol, takes_nothing_stale_in_any_interleaving) { EXPECT_EQ(walk_exchanges({}), ""); }

TEST(exchange_protocol, needs_each_of_its_parts) {
  EXPECT_NE(walk_exchanges({.places = 1}), "") << "a sum that takes the place of the one before";
  EXPECT_NE(walk_exchanges({.stores_end = false}), "") << "a meeting before what was sent has landed";
  EXPECT_NE(walk_exchanges({.awaited = false}), "") << "parts that nobody waits for";
}

}  // namespace
}  // namespace nibble::backend::cuda
