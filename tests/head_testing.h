#pragma once
// A head on a backend, step by step, against the goldens of tests/data/eagle3 and against another backend.

#include "backend/backend.h"
#include "checkpoint/safetensors.h"
#include "model/eagle3/head.h"
#include "model/testing/eagle3.h"
#include "model/gpt_oss.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace nibble::test {

inline constexpr const char* kHeadVariants[] = {"plain",       "norm_before_fc", "fc_norm",
                                                "final_state", "two_layers",     "qkv_bias",
                                                "speculators", "p_eagle",        "p_eagle_speculators"};

using MakeBackend = std::function<std::unique_ptr<backend::Backend>(const backend::BackendConfig&)>;

// Sequences of a head, each with pages of its own.
class HeadRun {
 public:
  static constexpr int kPages = 4, kSequences = 8;  // pages of a sequence

  HeadRun(const model::eagle3::Head& head, const MakeBackend& make)
      : head_(head),
        be_(make(model::eagle3::backend_config(
            head, {.max_tokens = 64, .max_rows = 64, .kv_pages = {kPages * kSequences, kPages * kSequences}}))),
        model_(model::load(*be_, head.config, head.weights)) {}

  // Rows of a sequence: `first` of them are in the cache.
  struct Rows {
    int sequence = 0;
    int64_t first = 0;
    std::vector<int32_t> tokens;  // below 0: as of EmbedArgs
    int64_t position = 0;         // of the first
  };
  struct Result {
    std::vector<int32_t> tokens;  // per row of all
    std::vector<float> logits;    // [rows, vocab]
  };
  // A step that draws after every row.
  Result step(std::span<const Rows> all, std::span<const float> taps) {
    model::Step step;
    step.taps = taps;
    const backend::SamplingParams greedy{.temperature = 0};
    for (const Rows& rows : all) {
      const auto count = static_cast<int32_t>(rows.tokens.size());
      step.rows.push_back({.first_token = static_cast<int32_t>(step.token_ids.size()),
                           .tokens = count,
                           .context = static_cast<int32_t>(rows.first) + count});
      for (int32_t i = 0; i < count; ++i) {
        step.token_ids.push_back(rows.tokens[static_cast<size_t>(i)]);
        step.positions.push_back(static_cast<int32_t>(rows.position) + i);
        step.logit_tokens.push_back(static_cast<int32_t>(step.logit_tokens.size()));
        step.sample_rows.push_back({.params = &greedy, .position = step.positions.back() + 1});
        for (model::Step::Kv& kv : step.kv)
          kv.slots.push_back(rows.sequence * kPages * backend::kPageTokens + static_cast<int32_t>(rows.first) + i);
      }
      for (model::Step::Kv& kv : step.kv) {
        kv.pages_per_row = kPages;
        for (int32_t page = 0; page < kPages; ++page) kv.page_ids.push_back(rows.sequence * kPages + page);
      }
    }
    const auto ticket = model::forward(*be_, model_, step);
    Result result;
    result.logits = be_->peek(backend::Slot::kLogits).values;
    for (const backend::DrawnToken& drawn : be_->wait(*ticket)) result.tokens.push_back(drawn.token);
    return result;
  }

  [[nodiscard]] int64_t width() const { return head_.reads.taps * head_.reads.target_hidden; }
  [[nodiscard]] int64_t vocab() const { return head_.config.dims.vocab; }

 private:
  const model::eagle3::Head& head_;
  const std::unique_ptr<backend::Backend> be_;
  const model::GptOss model_;
};

inline void expect_logits(std::span<const float> got, std::span<const float> want, double tolerance,
                          const std::string& of) {
  ASSERT_EQ(got.size(), want.size()) << of;
  double off = 0, size = 0, most = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    off += std::pow(got[i] - want[i], 2), size += std::pow(want[i], 2);
    most = std::max<double>(most, std::abs(got[i] - want[i]));
  }
  EXPECT_LE(std::sqrt(off), tolerance * std::sqrt(size)) << of << ", most off " << most;
}

// What tools/eagle3_model.py computes of a published variant: the rows of the golden, with their gap, and the draft
// after them, twice: what was drafted leaves nothing behind. tolerance: of logits, as a share of their size. drafts: of
// backends as exact as the golden.
inline void check_head_golden(const std::string& variant, const MakeBackend& make, double tolerance, bool drafts) {
  const Eagle3Target target;
  const checkpoint::SafetensorsFile golden(kEagle3Data / (variant + ".safetensors"));
  const auto tokens64 = values<int64_t>(golden, "tokens"), positions = values<int64_t>(golden, "positions"),
             drafts64 = values<int64_t>(golden, "drafts");
  const auto residuals = values<float>(golden, "residuals");
  auto logits = values<float>(golden, "logits"), draft_logits = values<float>(golden, "draft_logits");
  const auto scale = static_cast<float>(model::eagle3::read_head_config(kEagle3Data / variant, {}).logit_scale);
  for (auto* of : {&logits, &draft_logits})
    for (float& logit : *of) logit /= scale;  // which changes no draft, so backends leave it out
  const std::vector<int32_t> drafted(drafts64.begin(), drafts64.end());
  const model::eagle3::Head head = target.load(kEagle3Data / variant);
  HeadRun run(head, make);
  const auto width = static_cast<size_t>(run.width()), vocab = static_cast<size_t>(run.vocab());
  // A head with a window sees nothing before the gap, and whoever runs it forgets that.
  const bool forgets = head.config.layer_kinds.front() == backend::LayerKind::kSliding;
  HeadRun::Rows rows;
  HeadRun::Result last;
  for (size_t first = 0, end = 0; first < tokens64.size(); first = end) {  // rows whose positions follow each other
    for (end = first + 1; end < tokens64.size() && positions[end] == positions[end - 1] + 1;) ++end;
    const bool fresh = forgets && first > 0;
    rows = {.sequence = fresh ? 1 : 0,
            .first = fresh ? 0 : static_cast<int64_t>(first),
            .tokens = {tokens64.begin() + static_cast<int64_t>(first), tokens64.begin() + static_cast<int64_t>(end)},
            .position = positions[first]};
    last = run.step({&rows, 1}, std::span(residuals).subspan(first * width, (end - first) * width));
    expect_logits(last.logits, std::span(logits).subspan(first * vocab, (end - first) * vocab), tolerance, "rows");
  }
  const auto shown = std::span(residuals).last(rows.tokens.size() * width);
  const int64_t behind = rows.first + std::ssize(rows.tokens), position = positions.back() + 1;
  for (int round = 0; round < 2; ++round) {
    if (head.mask_token) {
      std::vector<float> taps(shown.begin(), shown.end());
      HeadRun::Rows all = rows;
      for (size_t i = 1; i < drafted.size(); ++i) {
        all.tokens.push_back(*head.mask_token);
        taps.insert(taps.end(), head.mask_hidden.begin(), head.mask_hidden.end());
      }
      const HeadRun::Result made = run.step({&all, 1}, taps);
      expect_logits(std::span(made.logits).last(draft_logits.size()), draft_logits, tolerance, "mask");
      if (drafts) EXPECT_TRUE(std::ranges::equal(std::span(made.tokens).last(drafted.size()), drafted));
      continue;
    }
    last = run.step({&rows, 1}, shown);
    std::vector<int32_t> made = {last.tokens.back()};
    for (size_t i = 0; i < drafted.size(); ++i) {
      const HeadRun::Rows next{.sequence = rows.sequence,
                               .first = behind + static_cast<int64_t>(i),
                               .tokens = {-static_cast<int32_t>(last.tokens.size())},
                               .position = position + static_cast<int64_t>(i)};
      last = run.step({&next, 1}, {});
      if (made.back() != drafted[i]) break;  // another text from here on
      expect_logits(last.logits, std::span(draft_logits).subspan(i * vocab, vocab), tolerance, "draft");
      made.push_back(last.tokens.back());
    }
    if (drafts) {
      made.resize(drafted.size());
      EXPECT_EQ(made, drafted);
    }
  }
}

// Several sequences together, of random rows, which draft on to different lengths: logits as `exact` has them.
inline void check_head_traffic(const model::eagle3::Head& head, const MakeBackend& make, const MakeBackend& exact,
                               double tolerance, int64_t most_rows = 40) {
  HeadRun run(head, make), other(head, exact);
  uint64_t state = 12345;
  const auto below = [&](int64_t bound) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<int64_t>((state >> 33) % static_cast<uint64_t>(bound));
  };
  constexpr int kTogether = 3;
  std::vector<HeadRun::Rows> rows(kTogether);
  const auto both = [&](std::span<const HeadRun::Rows> all, std::span<const float> taps) {
    const HeadRun::Result got = run.step(all, taps);
    const HeadRun::Result want = other.step(all, taps);
    expect_logits(got.logits, want.logits, tolerance, std::to_string(all.size()) + " sequences");
    return got.tokens == want.tokens;
  };
  for (int round = 0; round < 4; ++round) {
    SCOPED_TRACE(testing::Message() << "round " << round);
    std::vector<float> taps;
    for (int s = 0; s < kTogether; ++s) {
      HeadRun::Rows& own = rows[static_cast<size_t>(s)];
      own = {.sequence = s,
             .first = own.first + std::ssize(own.tokens),
             .tokens = {},
             .position = own.position + std::ssize(own.tokens) + below(3)};
      const int64_t most = round == 1 && s == 0 ? most_rows : 5;
      for (int64_t i = below(most) + 1; i-- > 0;)
        own.tokens.push_back(static_cast<int32_t>(below(head.reads.target_vocab)));
      for (int64_t i = std::ssize(own.tokens) * run.width(); i-- > 0;)
        taps.push_back(static_cast<float>(below(2001) - 1000) * 0.004f);
    }
    bool alike = both(rows, taps);
    // Rows of the last step that the next one follows: the last of each sequence, then those that are left.
    std::vector<int32_t> follows;
    int32_t row = 0;
    for (const HeadRun::Rows& own : rows) follows.push_back((row += static_cast<int32_t>(own.tokens.size())) - 1);
    std::vector<int> left = {0, 1, 2};
    for (int64_t nth = 0; nth < 3 && alike; ++nth) {
      std::vector<HeadRun::Rows> next;
      for (size_t i = 0; i < left.size(); ++i) {
        const HeadRun::Rows& own = rows[static_cast<size_t>(left[i])];
        next.push_back({.sequence = own.sequence,
                        .first = own.first + std::ssize(own.tokens) + nth,
                        .tokens = {-1 - follows[i]},
                        .position = own.position + std::ssize(own.tokens) + nth});
      }
      alike = both(next, {});
      follows.clear();
      const auto shorter = left.begin() + (round + nth) % std::ssize(left);
      for (int32_t i = 0; i < std::ssize(left); ++i)
        if (i != shorter - left.begin()) follows.push_back(i);
      left.erase(shorter);
    }
  }
}

}  // namespace nibble::test
