#pragma once
// How many guessed tokens a step verifies, 0 included: those that give most tokens per second, by what steps took and
// how often guesses were right; docs/decisions/0026 and 0044. Pure: it is told the times.

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
    bool late = false;  // without guesses, and enqueued only when the step before it was read, as that one had some
  };
  struct Seconds {
    double step = 0;       // without what follows
    double proposing = 0;  // that the host spent on guesses while nothing else went on
  };
  struct Candidate {
    const DraftRates* rates;
    int matched;     // as in Draft
    int length;      // of the draft
    int chosen = 0;  // the answer: how many of them are verified
  };

  explicit DraftController(const SpeculationLimits& limits) : adaptive_(limits.adaptive) {}

  // Whether drafts for such a step could be let through: kPays or kProbe, by what they would be; else nobody need
  // propose any.
  [[nodiscard]] Why outlook(const Step& step) const;
  // Fills in what is chosen, at most `room` together.
  [[nodiscard]] Why choose(const Step& step, int room, std::span<Candidate> candidates);
  // `right`: guesses of the step that were drawn.
  void took(const Step& step, Seconds seconds, int right);
  // `tried` guesses of a draft were compared with what was drawn, and the first `right` of them were that.
  void verified(DraftRates& rates, int matched, int tried, int right);

  // Whether whoever drafts may read a text of so many tokens first, beside `planned` tokens of others: drafts have won
  // what that is expected to cost. Before anything was read, one text may be.
  [[nodiscard]] bool may_read(int64_t planned, int64_t tokens) const;
  // It read so many tokens of texts, while nothing else went on.
  void took_reading(int64_t tokens, double seconds);

  // The last step that might have had guesses had some because they pay.
  [[nodiscard]] bool drafting() const { return !adaptive_ || drafting_; }

  // What the step's guesses are expected to cost, in steps without guesses, when none of them is right.
  [[nodiscard]] double price(const Step& step) const;
  // Seconds that drafts have won, less those they have lost, as far as they count: what may be lost from now on.
  [[nodiscard]] double balance() const { return balance_; }

 private:
  // The last values of things that are much alike, of which disturbances make some longer. One may look short: where a
  // step's end was seen late, the next one seems to begin late.
  template <size_t kKept>
  struct Recent {
    std::array<float, kKept> values{};
    int64_t count = 0;
    double usual = 0;  // their lower quartile, but of three or more never the least; 0: none
    void add(double value);
  };
  struct Plain {        // steps without guesses, of about as many sequences and as deep
    Recent<4> seconds;  // few: a machine gets slower and faster
    int drafts_since = 0;
  };
  static constexpr size_t kTokenBuckets = 29;
  // Steps with guesses, of about as many sequences: how many times as long they took as those without did just before.
  struct Verifying {
    std::array<Recent<16>, kTokenBuckets> by_drafted;
    Recent<16> late;
    double above = 0, shares = 0;  // sums, fading, of what was above 1, and of guesses per sequence
    int most = 0;                  // guesses seen
  };
  static constexpr size_t kMatchBuckets = 7;

  [[nodiscard]] const Plain* plain(const Step& step) const;
  [[nodiscard]] const Verifying* verifying(const Step& step) const;
  // Prices of the guesses, and of waiting for the step before, which a first draft pays, too.
  [[nodiscard]] static double price(const Verifying* verifying, const Step& step);
  [[nodiscard]] double price_of_late(const Verifying* verifying) const;
  void add_chances(const Candidate& candidate);
  void add_times(const Step& step, double seconds, int right, bool warm);
  void account(const Step& step, const Seconds& seconds, int right);

  const bool adaptive_;
  std::map<int64_t, Plain> plain_;                 // a few hundred at most
  std::map<int, Verifying> verifying_;             // some twenty
  std::map<int, int64_t> met_;                     // steps by tokens, a few hundred
  std::array<DraftRates, kMatchBuckets> rates_{};  // of all requests, by what was matched
  bool drafting_ = false;
  int in_vain_ = 0;  // steps until proposals are looked at again
  double balance_ = 0;
  bool began_ = false;
  double reading_balance_ = 0;                 // what drafts have won, less what was spent on reading
  double read_tokens_ = 0, read_seconds_ = 0;  // sums, fading
  // The tokens of all drafts: how likely each is drawn, how likely it may be as far as is known, whose it is; and
  // their order.
  std::vector<double> chances_, hopes_;
  std::vector<size_t> of_, order_;
};

}  // namespace nibble::engine
