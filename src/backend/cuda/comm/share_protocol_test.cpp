// The protocol of shares (README.md) step by step, with the arithmetic of mailbox.h: all interleavings of few ranks,
// CTAs, chunks and rounds. A store may land late and in any order, a release only after what its CTA stored before.
// A chunk is one word that tells whose value it is: of which round, what a rank had or the sum. Nobody may read another
// than the round's, nobody may wait for ever. What the protocol rests on is taken away in turn, and each time some
// interleaving goes wrong.

#include "backend/cuda/comm/mailbox.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <unordered_set>
#include <vector>

namespace nibble::backend::cuda {
namespace {

struct Protocol {
  int ranks = 2, ctas = 1, chunks = 2, rounds = 2;
  bool releases = true;        // else a flag lands whenever it likes
  bool parts_awaited = true;   // before they are added up
  bool sums_awaited = true;    // before a launch ends
  bool launches_apart = true;  // no CTA begins a round before its rank's others have ended the one before
  bool sent_before = false;    // the parts by a launch of their own, before the sum's (PartPlaces)
  bool stores_end = true;      // such a launch ends with its last store; else with its last instruction
};

enum class Op : uint8_t { kSend, kEndSending, kFlagPart, kAwaitPart, kSum, kFlagSum, kAwaitSum };
struct Step {
  Op op;
  int chunk;
  int other;  // rank
};

struct Store {
  uint8_t cta, place, word;
  bool release;
};

struct State {
  std::vector<uint8_t> round, at;  // by CTA: the round, from 1, and the next of its steps
  std::vector<uint8_t> memory;
  std::vector<Store> stores;  // not landed, in the order of their issue

  [[nodiscard]] std::string key() const {
    std::string k(round.begin(), round.end());
    k.append(at.begin(), at.end()).append(memory.begin(), memory.end());
    for (const Store& s : stores)
      k += {static_cast<char>(s.cta), static_cast<char>(s.place), static_cast<char>(s.word),
            static_cast<char>(s.release ? 1 : 0)};
    return k;
  }
};

class Model {
 public:
  explicit Model(const Protocol& protocol) : p_(protocol) {
    const int dealt = (p_.chunks + p_.ranks - 1) / p_.ranks * p_.ranks;
    shape_ = {.chunks = dealt, .ranks = p_.ranks};
    for (int rank = 0; rank < p_.ranks; ++rank)
      for (int cta = 0; cta < p_.ctas; ++cta) programs_.push_back(program(rank, cta));
  }

  // Empty, or what goes wrong in some interleaving.
  std::string walk() {
    State begin;
    begin.round.assign(programs_.size(), 1);
    begin.at.assign(programs_.size(), 0);
    begin.memory.resize(static_cast<size_t>(p_.ranks * cells()));
    for (int rank = 0; rank < p_.ranks; ++rank) fill(begin, rank, 1);
    visit(begin);
    while (!open_.empty() && wrong_.empty()) {
      const State state = std::move(open_.back());
      open_.pop_back();
      any_ = false;
      for (size_t cta = 0; cta < programs_.size(); ++cta) advance(state, cta);
      land(state);
      const bool done = std::ranges::all_of(state.round, [&](int round) { return round > p_.rounds; });
      if (!any_ && !done && wrong_.empty()) wrong_ = "all wait for ever";
    }
    return wrong_;
  }
  [[nodiscard]] size_t states() const { return seen_.size(); }

 private:
  static uint8_t own(int round) { return static_cast<uint8_t>(2 * round); }
  static uint8_t sum(int round) { return static_cast<uint8_t>(2 * round + 1); }

  // A rank's memory: values [chunks], parts and their flags [ranks, chunks], sum flags [chunks].
  [[nodiscard]] int cells() const { return p_.chunks * (2 + 2 * p_.ranks); }
  [[nodiscard]] int value(int rank, int chunk) const { return rank * cells() + chunk; }
  [[nodiscard]] int part(int rank, int sender, int chunk) const {
    return rank * cells() + p_.chunks * (1 + sender) + chunk;
  }
  [[nodiscard]] int part_flag(int rank, int sender, int chunk) const {
    return part(rank, sender, chunk) + p_.chunks * p_.ranks;
  }
  [[nodiscard]] int sum_flag(int rank, int chunk) const {
    return rank * cells() + p_.chunks * (1 + 2 * p_.ranks) + chunk;
  }

  // As share_reduce in share.cuh deals chunks to CTAs.
  [[nodiscard]] std::vector<Step> program(int rank, int cta) const {
    std::vector<Step> steps;
    const auto others = [&](Op op, int chunk) {
      for (int other = 0; other < p_.ranks; ++other)
        if (other != rank) steps.push_back({op, chunk, other});
    };
    const auto others_chunks = [&](auto&& body, int dealt_to) {
      for (int chunk = dealt_to; chunk < p_.chunks; chunk += p_.ctas)
        if (shape_.owner(chunk) != rank) body(chunk);
    };
    const auto send = [&](int chunk) { steps.push_back({Op::kSend, chunk, shape_.owner(chunk)}); };
    const auto flag = [&](int chunk) { steps.push_back({Op::kFlagPart, chunk, shape_.owner(chunk)}); };
    if (p_.sent_before) {
      others_chunks(send, cta);
      steps.push_back({Op::kEndSending, 0, rank});
      others_chunks(flag, (cta + 1) % p_.ctas);  // two launches deal chunks each in its way
    } else {
      others_chunks([&](int chunk) { send(chunk), flag(chunk); }, cta);
    }
    for (int chunk = cta * p_.ranks + rank; chunk < p_.chunks; chunk += p_.ctas * p_.ranks) {
      if (p_.parts_awaited) others(Op::kAwaitPart, chunk);
      steps.push_back({Op::kSum, chunk, rank});
      others(Op::kFlagSum, chunk);
    }
    if (p_.sums_awaited)
      for (int chunk = cta; chunk < p_.chunks; chunk += p_.ctas)
        if (shape_.owner(chunk) != rank) steps.push_back({Op::kAwaitSum, chunk, shape_.owner(chunk)});
    return steps;
  }

  void visit(const State& state) {
    any_ = true;
    if (seen_.insert(state.key()).second) open_.push_back(state);
  }
  // What the kernel before leaves.
  void fill(State& state, int rank, int round) const {
    for (int chunk = 0; chunk < p_.chunks; ++chunk) state.memory[static_cast<size_t>(value(rank, chunk))] = own(round);
  }
  uint8_t read(const State& state, int place, uint8_t want) {
    const uint8_t found = state.memory[static_cast<size_t>(place)];
    if (found != want) wrong_ = "want " + std::to_string(want) + ", read " + std::to_string(found);
    return found;
  }

  void advance(const State& state, size_t cta) {
    const int round = state.round[cta], rank = static_cast<int>(cta) / p_.ctas;
    if (round > p_.rounds) return;
    if (state.at[cta] == programs_[cta].size()) return end(state, cta);
    const Step& step = programs_[cta][state.at[cta]];
    State next = state;
    ++next.at[cta];
    const auto store = [&](int place, int word, bool release) {
      next.stores.push_back(
          {static_cast<uint8_t>(cta), static_cast<uint8_t>(place), static_cast<uint8_t>(word), release && p_.releases});
    };
    const auto found = [&](int flag) { return state.memory[static_cast<size_t>(flag)] == round; };
    switch (step.op) {
      case Op::kSend:
        store(part(step.other, rank, step.chunk), read(state, value(rank, step.chunk), own(round)), false);
        break;
      case Op::kEndSending:
        if (!sending_ended(state, rank)) return;
        break;
      case Op::kFlagPart: store(part_flag(step.other, rank, step.chunk), round, true); break;
      case Op::kAwaitPart:
        if (!found(part_flag(rank, step.other, step.chunk))) return;
        break;
      case Op::kSum:
        for (int other = 0; other < p_.ranks; ++other)
          read(state, other == rank ? value(rank, step.chunk) : part(rank, other, step.chunk), own(round));
        for (int other = 0; other < p_.ranks; ++other)
          if (other != rank) store(value(other, step.chunk), sum(round), false);
        next.memory[static_cast<size_t>(value(rank, step.chunk))] = sum(round);
        break;
      case Op::kFlagSum: store(sum_flag(step.other, step.chunk), round, true); break;
      case Op::kAwaitSum:
        if (!found(sum_flag(rank, step.chunk))) return;
        break;
    }
    visit(next);
  }

  // Whether all CTAs of the rank's launch that sends are at its end, and what they stored has landed.
  [[nodiscard]] bool sending_ended(const State& state, int rank) const {
    for (int cta = rank * p_.ctas; cta < (rank + 1) * p_.ctas; ++cta) {
      const auto& steps = programs_[static_cast<size_t>(cta)];
      const auto end = std::ranges::find(steps, Op::kEndSending, &Step::op) - steps.begin();
      if (state.at[static_cast<size_t>(cta)] < end) return false;
      if (p_.stores_end && state.at[static_cast<size_t>(cta)] == end &&
          std::ranges::find(state.stores, cta, &Store::cta) != state.stores.end())
        return false;
    }
    return true;
  }

  // A launch has ended when all its CTAs have: then the next kernel reads the sums and leaves other values.
  void end(const State& state, size_t cta) {
    const size_t first = cta / static_cast<size_t>(p_.ctas) * static_cast<size_t>(p_.ctas);
    const int round = state.round[cta], rank = static_cast<int>(cta) / p_.ctas;
    State next = state;
    if (!p_.launches_apart) {
      ++next.round[cta];
      next.at[cta] = 0;
      for (int chunk = static_cast<int>(cta - first); chunk < p_.chunks; chunk += p_.ctas) {
        read(state, value(rank, chunk), sum(round));
        next.memory[static_cast<size_t>(value(rank, chunk))] = own(round + 1);
      }
      return visit(next);
    }
    for (size_t i = first; i < first + static_cast<size_t>(p_.ctas); ++i)
      if (state.at[i] != programs_[i].size()) return;
    for (int chunk = 0; chunk < p_.chunks; ++chunk) read(state, value(rank, chunk), sum(round));
    for (size_t i = first; i < first + static_cast<size_t>(p_.ctas); ++i) {
      ++next.round[i];
      next.at[i] = 0;
    }
    fill(next, rank, round + 1);
    visit(next);
  }

  // Any store lands, but not before an earlier one to the same place, and a release after its CTA's.
  void land(const State& state) {
    for (size_t i = 0; i < state.stores.size(); ++i) {
      const Store& store = state.stores[i];
      const bool behind = std::any_of(
          state.stores.begin(), state.stores.begin() + static_cast<std::ptrdiff_t>(i), [&](const Store& earlier) {
            return earlier.place == store.place || (store.release && earlier.cta == store.cta);
          });
      if (behind) continue;
      State next = state;
      next.memory[store.place] = store.word;
      next.stores.erase(next.stores.begin() + static_cast<std::ptrdiff_t>(i));
      visit(next);
    }
  }

  const Protocol p_;
  ShareShape shape_;
  std::vector<std::vector<Step>> programs_;  // by CTA
  std::vector<State> open_;
  std::unordered_set<std::string> seen_;
  bool any_ = false;  // some step was possible
  std::string wrong_;
};

std::string walk(const Protocol& protocol) {
  Model model(protocol);
  const std::string wrong = model.walk();
  testing::Test::RecordProperty("states", static_cast<int>(model.states()));
  EXPECT_TRUE(model.states() > 100 || !wrong.empty());
  return wrong;
}

TEST(share_protocol, loses_nothing_and_takes_nothing_stale_in_any_interleaving) {
  EXPECT_EQ(walk({.chunks = 2, .rounds = 4}), "");
  EXPECT_EQ(walk({.chunks = 3, .rounds = 2}), "");
  EXPECT_EQ(walk({.ctas = 2, .chunks = 3, .rounds = 2}), "");
  EXPECT_EQ(walk({.ranks = 3, .chunks = 2, .rounds = 2}), "") << "a rank has no chunk";
}
TEST(share_protocol, one_chunk_is_enough) { EXPECT_EQ(walk({.chunks = 1, .rounds = 8}), ""); }

TEST(share_protocol, parts_may_be_sent_by_a_launch_before) {
  EXPECT_EQ(walk({.chunks = 2, .rounds = 3, .sent_before = true}), "");
  EXPECT_EQ(walk({.ctas = 2, .chunks = 3, .rounds = 2, .sent_before = true}), "");
  EXPECT_EQ(walk({.ranks = 3, .chunks = 2, .rounds = 2, .sent_before = true}), "") << "a rank has no chunk";
  EXPECT_NE(walk({.ctas = 2, .chunks = 4, .rounds = 2, .sent_before = true, .stores_end = false}), "")
      << "a flag that comes before what another CTA has sent";
}

TEST(share_protocol, needs_each_of_its_parts) {
  EXPECT_NE(walk({.releases = false}), "") << "a flag that comes before its data";
  EXPECT_NE(walk({.parts_awaited = false}), "") << "parts that nobody waits for";
  EXPECT_NE(walk({.sums_awaited = false}), "") << "sums that nobody waits for";
  EXPECT_NE(walk({.ctas = 2, .chunks = 4, .rounds = 3, .launches_apart = false}), "") << "launches that overlap";
}

}  // namespace
}  // namespace nibble::backend::cuda
