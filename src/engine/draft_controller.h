#pragma once
// How many guessed tokens a step verifies, 0 included: those that give most tokens per second, by what steps took and
// how often guesses were right; docs/decisions/0026. Pure: it is told the times.

#include "engine/proposer.h"

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

namespace nibble::engine {

// How often a request's guesses were what was drawn, by place in the draft; old ones fade.
struct DraftRates {
  std::array<float, kMostDrafted> tried{}, right{};
};

class DraftController {
 public:
  enum class Why : uint8_t { kNothing, kLoses, kProbe, kPays };  // nothing: no drafts, or what they cost is not known
  // A step without prompts.
  struct Step {
    int decoding = 0;   // sequences
    int64_t depth = 0;  // tokens in the cache, of the average sequence
    int drafted = 0;    // guesses, of all together
    Why why = Why::kNothing;
  };
  struct Candidate {
    const DraftRates* rates;
    int matched;     // as in Draft
    int length;      // of the draft
    int chosen = 0;  // the answer: how many of them are verified
  };

  explicit DraftController(const SpeculationLimits& limits) : adaptive_(limits.adaptive) {}

  // Fills in what is chosen, at most `room` together.
  [[nodiscard]] Why choose(const Step& step, int room, std::span<Candidate> candidates);
  // `right`: guesses of the step that were drawn.
  void took(const Step& step, double seconds, int right);
  // Of a draft `tried` guesses were compared with what was drawn, and the first `right` of them were that.
  void verified(DraftRates& rates, int matched, int tried, int right);

  // What a step is expected to take; 0 where nothing like it was seen.
  [[nodiscard]] double seconds_of(const Step& step) const;
  // Seconds that drafts have won, less those they have lost, as far as they count: chances are paid from it.
  [[nodiscard]] double balance() const { return balance_; }

 private:
  // The last times of steps that are much alike.
  struct Times {
    std::array<float, 16> seconds{};
    int64_t count = 0;
    [[nodiscard]] double usual() const;
  };
  static constexpr size_t kTokenBuckets = 16;
  struct Like {  // steps with as many sequences, about as deep
    std::array<Times, kTokenBuckets> by_drafted;
    int drafts_since_plain = 0;
  };
  static constexpr size_t kMatchBuckets = 7;

  [[nodiscard]] static int64_t key_of(const Step& step);
  [[nodiscard]] const Like* like(const Step& step) const;
  [[nodiscard]] static double seconds_of(const Like& like, const Step& step);
  void add_chances(const Candidate& candidate);

  const bool adaptive_;
  std::map<int64_t, Like> likes_;                  // a few hundred at most
  std::array<DraftRates, kMatchBuckets> rates_{};  // of all requests, by what was matched
  bool drafting_ = false;
  double balance_ = 0;
  bool began_ = false;
  // Of the tokens of all drafts: how likely each is drawn, whose it is; and their order.
  std::vector<double> chances_;
  std::vector<size_t> of_, order_;
};

}  // namespace nibble::engine
