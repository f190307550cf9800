// The push protocol (README.md) step by step, with the arithmetic of mailbox.h: all interleavings of few ranks, rounds
// and words. Every store may land late and in any order; a thread does its steps in any order that the kernel allows.
// Nobody may take a word of another round, nobody may wait for ever. What the protocol rests on is taken away in turn,
// and each time some interleaving goes wrong.

#include "backend/cuda/comm/mailbox.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <unordered_set>
#include <vector>

namespace nibble::backend::cuda {
namespace {

struct PushProtocol {
  int ranks = 2;
  std::vector<int> message;  // words, by round; a thread per word, which change places now and then
  int phases = kPhases;
  uint32_t last_round = kLastRound;  // after which rounds begin anew
  bool flags = true;                 // are looked at
  bool whole_words = true;           // else data and flag land apart
  bool rounds_apart = true;          // no thread begins a round before its rank's others have ended the one before
  bool sweeps = true;
};

// A word as it lies in memory: of which step its data and its flag are, by the count of steps from 1; 0: zeros.
struct Word {
  uint8_t data = 0;
  uint8_t flag = 0;  // as it is compared, of a count that begins anew
};

struct PushStore {
  uint8_t place = 0;  // in PushModel::words
  Word word;
  bool data = true, flag = true;  // what lands
};

struct Thread {
  uint8_t step = 1;           // the round that it is in, from 1
  uint8_t sent = 0, got = 0;  // by rank, a bit each
  bool swept = false;
};

struct PushState {
  std::vector<Thread> threads;    // [ranks, threads]
  std::vector<Word> words;        // [ranks, phases, senders, words]
  std::vector<PushStore> stores;  // not landed, in the order of their issue

  [[nodiscard]] std::string key() const {
    std::string k;
    for (const Thread& t : threads) {
      k += static_cast<char>(t.step);
      k += static_cast<char>(t.sent | (t.swept ? 0x80 : 0));
      k += static_cast<char>(t.got);
    }
    for (const Word& w : words) {
      k += static_cast<char>(w.data);
      k += static_cast<char>(w.flag);
    }
    std::string late;
    for (const PushStore& s : stores) {
      late += static_cast<char>(s.place);
      late += static_cast<char>(s.word.data);
      late += static_cast<char>(s.word.flag);
      late += static_cast<char>((s.data ? 1 : 0) + (s.flag ? 2 : 0));
    }
    return k + late;
  }
};

class PushModel {
 public:
  explicit PushModel(const PushProtocol& protocol)
      : p_(protocol), threads_(*std::ranges::max_element(p_.message)), steps_(static_cast<int>(p_.message.size())) {
    uint32_t round = kFirstRound;
    for (int s = 0; s <= steps_; ++s, round = round_after(round, p_.last_round)) rounds_.push_back(round);
  }

  // Walks through every state that can be reached. Empty, or what goes wrong in some.
  std::string walk_pushes() {
    PushState begin;
    begin.threads.resize(static_cast<size_t>(p_.ranks * threads_));
    begin.words.resize(static_cast<size_t>(p_.ranks * p_.phases * p_.ranks * threads_));
    visit(begin);
    while (!open_.empty() && wrong_.empty()) {
      const PushState state = std::move(open_.back());
      open_.pop_back();
      any_ = false;
      for (int rank = 0; rank < p_.ranks; ++rank)
        for (int t = 0; t < threads_; ++t) advance(state, rank, t);
      land(state);
      const bool done = std::ranges::all_of(state.threads, [&](const Thread& t) { return t.step > steps_; });
      if (!any_ && !done && wrong_.empty()) wrong_ = "all wait for ever";
    }
    return wrong_;
  }
  [[nodiscard]] size_t states() const { return seen_.size(); }

 private:
  void visit(const PushState& state) {
    any_ = true;
    if (seen_.insert(state.key()).second) open_.push_back(state);
  }

  [[nodiscard]] uint32_t round(int step) const { return rounds_[static_cast<size_t>(step - 1)]; }
  [[nodiscard]] int phase(int step) const { return static_cast<int>(round(step) % static_cast<uint32_t>(p_.phases)); }
  [[nodiscard]] size_t place(int rank, int step, int sender, int word) const {
    return static_cast<size_t>(((rank * p_.phases + phase(step)) * p_.ranks + sender) * threads_ + word);
  }

  // Every next step of a thread.
  void advance(const PushState& state, int rank, int t) {
    const auto own = static_cast<size_t>(rank * threads_ + t);
    const Thread& thread = state.threads[own];
    if (thread.step > steps_ || !may_run(state, rank, thread)) return;
    const int word = (t + thread.step / 2) % threads_, message = p_.message[static_cast<size_t>(thread.step - 1)];
    const unsigned others = ((1u << p_.ranks) - 1u) & ~(1u << rank);
    if (word >= message) {
      if (p_.sweeps && !thread.swept) {
        PushState next = state;
        for (int sender = 0; sender < p_.ranks; ++sender) next.words[place(rank, thread.step, sender, word)] = {};
        next.threads[own].swept = true;
        return visit(next);
      }
      return end_step(state, own);
    }
    if (thread.sent != others) {
      for (int to = 0; to < p_.ranks; ++to)
        if ((others & ~thread.sent & 1u << to) != 0) send(state, own, {rank, to, word});
      return;
    }
    if (thread.got == others) return end_step(state, own);
    for (int from = 0; from < p_.ranks; ++from)
      if ((others & ~thread.got & 1u << from) != 0) receive(state, own, {from, rank, word});
  }

  // A kernel begins when the one before has ended.
  [[nodiscard]] bool may_run(const PushState& state, int rank, const Thread& thread) const {
    if (!p_.rounds_apart) return true;
    for (int t = 0; t < threads_; ++t)
      if (state.threads[static_cast<size_t>(rank * threads_ + t)].step < thread.step) return false;
    return true;
  }

  struct Path {
    int from, to, word;
  };
  void send(const PushState& state, size_t own, const Path& path) {
    PushState next = state;
    Thread& thread = next.threads[own];
    thread.sent = static_cast<uint8_t>(thread.sent | 1u << path.to);
    const PushStore store{.place = static_cast<uint8_t>(place(path.to, thread.step, path.from, path.word)),
                          .word = {thread.step, static_cast<uint8_t>(round(thread.step))}};
    if (p_.whole_words) {
      next.stores.push_back(store);
    } else {
      next.stores.push_back({store.place, store.word, true, false});
      next.stores.push_back({store.place, store.word, false, true});
    }
    visit(next);
  }

  void receive(const PushState& state, size_t own, const Path& path) {
    PushState next = state;
    Thread& thread = next.threads[own];
    const Word& word = state.words[place(path.to, thread.step, path.from, path.word)];
    if (p_.flags && word.flag != static_cast<uint8_t>(round(thread.step))) return;  // looks again later
    if (word.data != thread.step)
      wrong_ = "in round " + std::to_string(thread.step) + " data of round " + std::to_string(word.data);
    thread.got = static_cast<uint8_t>(thread.got | 1u << path.from);
    visit(next);
  }

  void end_step(const PushState& state, size_t own) {
    PushState next = state;
    next.threads[own] = {.step = static_cast<uint8_t>(state.threads[own].step + 1)};
    visit(next);
  }

  // Any store lands, but not before an earlier one to the same bits.
  void land(const PushState& state) {
    for (size_t i = 0; i < state.stores.size(); ++i) {
      const PushStore& store = state.stores[i];
      const bool behind = std::any_of(
          state.stores.begin(), state.stores.begin() + static_cast<std::ptrdiff_t>(i), [&](const PushStore& earlier) {
            return earlier.place == store.place && ((earlier.data && store.data) || (earlier.flag && store.flag));
          });
      if (behind) continue;
      PushState next = state;
      Word& word = next.words[store.place];
      if (store.data) word.data = store.word.data;
      if (store.flag) word.flag = store.word.flag;
      next.stores.erase(next.stores.begin() + static_cast<std::ptrdiff_t>(i));
      visit(next);
    }
  }

  const PushProtocol p_;
  const int threads_, steps_;
  std::vector<uint32_t> rounds_;  // by step
  std::vector<PushState> open_;
  std::unordered_set<std::string> seen_;
  bool any_ = false;  // some step was possible
  std::string wrong_;
};

std::string walk_pushes(const PushProtocol& protocol) {
  PushModel model(protocol);
  const std::string wrong = model.walk_pushes();
  testing::Test::RecordProperty("states", static_cast<int>(model.states()));
  EXPECT_TRUE(model.states() > 100 || !wrong.empty());
  return wrong;
}

TEST(push_protocol, loses_nothing_and_takes_nothing_stale_in_any_interleaving) {
  EXPECT_EQ(walk_pushes({.message = {2, 2, 2}}), "");
  EXPECT_EQ(walk_pushes({.message = {1, 1, 1, 1, 1}}), "");
  EXPECT_EQ(walk_pushes({.ranks = 3, .message = {1, 1, 1}}), "");
  EXPECT_EQ(walk_pushes({.message = {2, 1, 2, 2}}), "");
}

TEST(push_protocol, goes_on_when_rounds_begin_anew) {
  EXPECT_EQ(walk_pushes({.message = {1, 1, 1, 1, 1, 1}, .last_round = 5}), "");
}

TEST(push_protocol, words_that_no_message_reached_for_all_rounds_are_clear) {
  const std::vector<int> long_and_short = {2, 2, 1, 1, 1, 2};
  EXPECT_EQ(walk_pushes({.message = long_and_short, .last_round = 5}), "");
  EXPECT_EQ(walk_pushes({.message = long_and_short, .last_round = 5, .sweeps = false}), "in round 6 data of round 2");
}

TEST(push_protocol, needs_each_of_its_parts) {
  EXPECT_NE(walk_pushes({.message = {1, 1, 1}, .phases = 1}), "") << "one phase";
  EXPECT_NE(walk_pushes({.message = {1, 1, 1}, .flags = false}), "") << "a flag that nobody looks at";
  EXPECT_NE(walk_pushes({.message = {1, 1, 1}, .whole_words = false}), "") << "a flag that comes before its data";
  EXPECT_NE(walk_pushes({.message = {2, 2, 2}, .rounds_apart = false}), "") << "rounds that overlap on a rank";
}

TEST(push_protocol, rounds_take_turns_and_are_never_zero) {
  EXPECT_EQ(round_after(kFirstRound), 2u);
  EXPECT_EQ(round_after(kLastRound), 2u);
  EXPECT_NE(phase_of(kLastRound), phase_of(round_after(kLastRound)));
  EXPECT_FALSE(is_of(0, kFirstRound));
  EXPECT_TRUE(is_of(tagged(0xffffffffu, 7), 7));
  EXPECT_EQ(data_of(tagged(0xfffffff5u, 7)), 0xfffffff5u);
}

TEST(push_protocol, sweeps_pass_over_the_whole_of_both_phases) {
  constexpr int64_t kWords = 16 * kSweptWords;
  std::vector<int> swept(static_cast<size_t>(kPhases * 16));
  for (uint32_t round = 1; round <= 32; ++round)
    ++swept[static_cast<size_t>(phase_of(round) * 16 + first_swept(round, kWords) / kSweptWords)];
  for (const int times : swept) EXPECT_EQ(times, 1);
}

}  // namespace
}  // namespace nibble::backend::cuda
