#pragma once
// Who guesses what comes next, for the model to verify. Guesses are copied from what was said before, which costs no
// model, or drafted by a model: another one, or a head that reads this one's residuals (draft_model_proposer.h).

#include "engine/request.h"
#include "engine/token_index.h"
#include "model/gpt_oss.h"

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace nibble::model::eagle3 {
struct Head;
}

namespace nibble::engine {

inline constexpr int kMostDrafted = 32;  // tokens of a draft
inline constexpr int kMostLookup = 16;   // of an n-gram

enum class DraftMethod : uint8_t { kOff, kNgram, kSuffix, kEagle3, kDraft };
[[nodiscard]] constexpr std::string_view name_of(DraftMethod method) {
  constexpr std::array<std::string_view, 5> kNames = {"off", "ngram", "suffix", "eagle3", "draft"};
  return kNames[static_cast<size_t>(method)];
}

// A model that drafts, on a backend of its own, which was made with `limits`, draft_step_limits() of the other's.
struct DraftModel {
  backend::Backend& be;
  const model::GptOss& model;
  model::StepLimits limits;  // of a head: head_step_limits()
  bool prefix_cache = true;
  const model::eagle3::Head* head = nullptr;  // that the model is; null: it is none
};

struct SpeculationLimits {
  DraftMethod method = DraftMethod::kOff;
  int most_tokens = 7;  // of a draft, 1 to kMostDrafted; with the token before them what decode kernels take
  // kNgram: how many last tokens are looked up, the longest first.
  int least_lookup = 2, most_lookup = 5;
  const model::eagle3::Head* head = nullptr;  // kEagle3: whose residuals the model's steps leave
  const DraftModel* draft_model = nullptr;    // kEagle3, kDraft: who drafts. Outlives the engine
  bool adaptive = true;                       // false: every draft is verified whole, whatever it costs
};

struct Draft {
  std::vector<int32_t> tokens;
  int matched = 0;  // last tokens of the text that stood before what was copied: the more, the better the guess
};

// One thread. Of a request the text only grows.
class Proposer {
 public:
  struct Text {
    RequestId id;
    std::span<const int32_t> tokens;  // at least one
    int64_t prompt_tokens;
    bool shares;                                        // it may take from other requests and leave something for them
    const backend::SamplingParams* sampling = nullptr;  // how its tokens are drawn; null: the likeliest
  };

  Proposer() = default;
  virtual ~Proposer() = default;
  Proposer(const Proposer&) = delete;
  Proposer& operator=(const Proposer&) = delete;

  // Boundaries of the model's residuals that it wants to be shown (model/gpt_oss.h, Taps), rising; none: it reads
  // tokens alone.
  [[nodiscard]] virtual std::span<const int> boundaries() const { return {}; }
  // Residuals of tokens of the text, the last one excepted: what a step has computed and verified. They come in order;
  // what the prefix cache gave never comes, and what is computed again comes again.
  struct Residuals {
    int64_t from;                   // position of the first
    int64_t count;                  // at least 1
    std::span<const float> values;  // [count, boundaries, hidden]
  };
  struct News {
    Text text;
    Residuals residuals;
    bool wanted = true;  // drafts pay, as far as is known: one is likely to be asked for next
  };
  virtual void saw(std::span<const News> /*all*/) {}  // each of another text

  // Tokens of the text that it has to read before it drafts; those that a draft reads on its way are not counted. Of
  // who reads residuals or looks tokens up: none. kNoDraft: nothing is read, and nothing would be drafted now.
  static constexpr int64_t kNoDraft = -1;
  [[nodiscard]] virtual int64_t unread(const Text& /*text*/) const { return 0; }
  // Reads on in texts that have such tokens, no more than one step of it takes. Returns how many it read; fewer than
  // there are, down to none, where it has no room for them.
  virtual int64_t read(std::span<const Text> /*texts*/) { return 0; }

  // At most `most` tokens that may come after the text; none where nothing is known.
  virtual void propose(const Text& text, int most, Draft& draft) = 0;
  struct Order {
    Text text;
    int most;
    Draft* draft;
  };
  // Proposes for several texts, each another.
  virtual void propose_all(std::span<const Order> all) {
    for (const Order& asked : all) propose(asked.text, asked.most, *asked.draft);
  }
  // Drafts are as long as they may be, whatever the text, and nothing is looked up for them. So it is decided how many
  // tokens pay before they are drafted, and drafting is a part of what they cost.
  [[nodiscard]] virtual bool drafts_to_order() const { return false; }
  virtual void ended(const Text& text) = 0;
};

// The tokens that followed the last ones when they occurred before in the same text: the longest n-gram that did, where
// it did last. What is copied may reach into the copy, so that what repeats goes on.
// A token costs most_lookup steps to add, a proposal as many n-grams to look up.
class NgramProposer final : public Proposer {
 public:
  NgramProposer(int least_lookup, int most_lookup);
  void propose(const Text& text, int most, Draft& draft) override;
  void ended(const Text& text) override { of_.erase(text.id); }

 private:
  std::vector<int> lengths_;  // falling
  std::unordered_map<RequestId, TokenIndex> of_;
  std::vector<int64_t> places_;
};

// Where the longest end of the text occurred before, in it or in the past answers of all requests: from there token by
// token what followed most often, as long as that is at least kLeastShare of those places. Of every length of n-grams
// the last kMostPlaces places are looked at, the longest that has any. A proposal takes at most
// kMostPlaces × (kMostMatched + kMostDrafted) steps for each of the two. Past answers take 9 MB.
class SuffixProposer final : public Proposer {
 public:
  explicit SuffixProposer(int64_t past_tokens = int64_t{1} << 18);
  void propose(const Text& text, int most, Draft& draft) override;
  void ended(const Text& text) override;

  static constexpr size_t kMostPlaces = 32;
  static constexpr int64_t kMostMatched = 64;
  static constexpr double kLeastShare = 0.1;
  static constexpr std::array<int, 4> kLengths = {16, 8, 4, 2};
  static constexpr int64_t kPromptBeforeAnswer = 16;  // tokens of it that are kept with a past answer
  static constexpr int32_t kSeparator = -1;           // between past answers

 private:
  struct Place {
    const TokenIndex* index;
    int64_t position;
  };
  void find(const TokenIndex& index, std::span<const int32_t> text);
  [[nodiscard]] int32_t token_after(const Place& place, std::span<const int32_t> drafted) const;

  TokenIndex past_;
  std::unordered_map<RequestId, TokenIndex> of_;
  int64_t matched_ = 0;
  std::vector<Place> best_;  // that share matched_ tokens
  std::vector<int64_t> places_;
};

// Null: kOff.
[[nodiscard]] std::unique_ptr<Proposer> make_proposer(const SpeculationLimits& limits);

}  // namespace nibble::engine
