#pragma once
// A head on a card, or on the emulated one, beside the host's loops: what both tests share.
//
// Tolerance: products read activations in bf16, which is off by up to 2^-9 of each; a residual may be off by 2^-5 of
// its length. A drafted token may have a logit that is below the likeliest's by this much of all logits' mean size,
// once for each token up to it: each row of a draft reads what the row before made, be it its token or its keys.

#include "backend/cuda/eagle3/card_runner.h"
#include "backend/cuda/eagle3/head_testing.h"
#include "base/thread_pool.h"
#include "checkpoint/safetensors.h"
#include "model/eagle3/head.h"
#include "model/eagle3/testing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace nibble::test {

inline constexpr double kEagle3Tolerance = 0x1p-5;
inline constexpr const char* kEagle3Variants[] = {"plain",       "norm_before_fc", "fc_norm",
                                                  "final_state", "two_layers",     "qkv_bias",
                                                  "speculators", "p_eagle",        "p_eagle_speculators"};

using backend::HeadRunner;
using backend::cuda::Eagle3Runner;
using backend::cuda::Eagle3Setup;
using backend::cuda::make_eagle3_runner;

// One sequence of the host's head.
class HostSequence {
 public:
  HostSequence(const model::eagle3::Head& head, ThreadPool& pool) : head_(head), pool_(pool) {}

  void read(std::span<const int32_t> tokens, std::span<const float> residuals, int64_t position) {
    step(tokens, head_.features(residuals, pool_), position);
  }
  // `residual` is what a card has for the last row.
  void expect_residual(std::vector<float> residual) const {
    const auto& weights = head_.weights();
    if (weights.norm_output) normalise(residual);
    double off = 0, size = 0;
    for (size_t i = 0; i < residual.size(); ++i) {
      off += std::pow(residual[i] - next_[i], 2);
      size += std::pow(next_[i], 2);
    }
    EXPECT_LE(std::sqrt(off), kEagle3Tolerance * std::sqrt(size)) << "after position " << position_;
  }
  // Of tokens that a card drafted from here, each as likely as the likeliest, or nearly.
  void expect_drafts(std::span<const int32_t> tokens) {
    const model::eagle3::Cache settled = cache_;
    const std::vector<float> normed = normed_, next = next_;
    const int64_t position = position_;
    const std::optional<int32_t> mask = head_.weights().mask_token;
    const std::vector<float> mask_feature =
        mask ? head_.features(head_.weights().mask_hidden, pool_) : std::vector<float>();
    for (size_t i = 0; i < tokens.size(); ++i) {
      const std::vector<float> logits = head_.logits(normed_, pool_);
      double size = 0;
      for (const float logit : logits) size += std::abs(logit) / static_cast<double>(logits.size());
      const float most = *std::ranges::max_element(logits);
      EXPECT_GE(logits[row_of(tokens[i])], most - kEagle3Tolerance * size * static_cast<double>(i + 1))
          << "draft " << i;
      if (i + 1 == tokens.size()) break;
      if (mask)
        step({&*mask, 1}, mask_feature, position_ + 1);
      else
        step(tokens.subspan(i, 1), next_, position_ + 1);
    }
    cache_ = settled, normed_ = normed, next_ = next, position_ = position;
  }

 private:
  void step(std::span<const int32_t> tokens, const std::vector<float>& features, int64_t position) {
    const model::eagle3::Head::Rows rows{
        .tokens = tokens, .features = features, .position = position, .cache = &cache_};
    const model::eagle3::Head::Read read = head_.read({&rows, 1}, pool_);
    const auto hidden = static_cast<std::ptrdiff_t>(head_.weights().dims.hidden);
    normed_.assign(read.normed.end() - hidden, read.normed.end());
    next_.assign(read.next.end() - hidden, read.next.end());
    position_ = position + std::ssize(tokens) - 1;
  }
  void normalise(std::vector<float>& row) const {
    double squares = 0;
    for (const float value : row) squares += double{value} * double{value};
    const double inverse = 1 / std::sqrt(squares / static_cast<double>(row.size()) + head_.weights().rms_eps);
    for (size_t i = 0; i < row.size(); ++i) row[i] *= static_cast<float>(inverse) * head_.weights().norm[i];
  }
  [[nodiscard]] size_t row_of(int32_t token) const {
    const std::vector<int32_t>& ids = head_.weights().target_ids;
    if (ids.empty()) return static_cast<size_t>(token);
    const auto found = std::ranges::find(ids, token);
    EXPECT_NE(found, ids.end()) << "a token of no row: " << token;
    return found == ids.end() ? 0 : static_cast<size_t>(found - ids.begin());
  }

  const model::eagle3::Head& head_;
  ThreadPool& pool_;
  model::eagle3::Cache cache_;
  std::vector<float> normed_, next_;  // of the last row
  int64_t position_ = -1;             // its
};

// The rows of the goldens, with their gaps, and the draft after them.
inline void check_eagle3_golden(const std::string& variant, const Eagle3Setup& setup) {
  const Eagle3Target target;
  const checkpoint::SafetensorsFile golden(kEagle3Data / (variant + ".safetensors"));
  const auto tokens64 = values<int64_t>(golden, "tokens"), positions = values<int64_t>(golden, "positions");
  const std::vector<int32_t> tokens(tokens64.begin(), tokens64.end());
  const auto residuals = values<float>(golden, "residuals");
  const size_t width = residuals.size() / tokens.size(), count = values<int64_t>(golden, "drafts").size();
  const std::unique_ptr<Eagle3Runner> runner = make_eagle3_runner(target.load(kEagle3Data / variant), setup);
  const model::eagle3::Head head(target.load(kEagle3Data / variant));
  ThreadPool pool(2);
  HostSequence host(head, pool);
  for (size_t first = 0, end = 0; first < tokens.size(); first = end) {  // rows whose positions follow each other
    for (end = first + 1; end < tokens.size() && positions[end] == positions[end - 1] + 1;) ++end;
    const auto of = std::span(tokens).subspan(first, end - first);
    const auto shown = std::span(residuals).subspan(first * width, (end - first) * width);
    const HeadRunner::Rows rows{.sequence = 7, .tokens = of, .residuals = shown, .position = positions[first]};
    runner->read({&rows, 1});
    host.read(of, shown, positions[first]);
    host.expect_residual(runner->residual(7));
  }
  for (int round = 0; round < (setup.graphs ? 4 : 2); ++round) {  // as it is, recorded, replayed: the same again
    std::vector<int32_t> drafted;
    const HeadRunner::Draft draft{.sequence = 7, .most = static_cast<int>(count), .tokens = &drafted};
    runner->draft({&draft, 1});
    ASSERT_EQ(drafted.size(), count);
    host.expect_drafts(drafted);
  }
}

// What several sequences are to read, in turns of a random number of rows each; drafts of several lengths in between.
struct Eagle3Traffic {
  int sequences = 3, rounds = 3, most_rows = 5;
  std::vector<int> drafts = {1, 3, 7};  // of a sequence and its neighbours in turn
  bool unread = false;                  // what is read comes with the draft, but for every third sequence
};
inline void check_eagle3_traffic(const model::eagle3::Head& head, Eagle3Runner& runner, const Eagle3Traffic& traffic) {
  const backend::HeadDims& dims = head.weights().dims;
  const auto width = static_cast<size_t>(dims.taps * dims.target_hidden);
  ThreadPool pool(4);
  std::vector<HostSequence> hosts;
  std::vector<int64_t> positions;
  for (int s = 0; s < traffic.sequences; ++s) hosts.emplace_back(head, pool), positions.push_back(3 * s);
  uint64_t state = 12345;
  const auto below = [&](int64_t bound) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<int64_t>((state >> 33) % static_cast<uint64_t>(bound));
  };
  for (int round = 0; round < traffic.rounds; ++round) {
    SCOPED_TRACE(testing::Message() << "round " << round);
    std::vector<std::vector<int32_t>> tokens(hosts.size()), drafted(hosts.size());
    std::vector<std::vector<float>> residuals(hosts.size());
    std::vector<HeadRunner::Rows> rows;
    std::vector<HeadRunner::Draft> drafts;
    for (size_t s = 0; s < hosts.size(); ++s) {
      positions[s] += below(3);  // rows that are not known
      for (int64_t i = below(traffic.most_rows) + 1; i-- > 0;)
        tokens[s].push_back(static_cast<int32_t>(below(dims.vocab)));
      for (size_t i = 0; i < tokens[s].size() * width; ++i)
        residuals[s].push_back(static_cast<float>(below(2001) - 1000) * 0.004f);
      rows.push_back({.sequence = 10 + s, .tokens = tokens[s], .residuals = residuals[s], .position = positions[s]});
      drafts.push_back({.sequence = 10 + s,
                        .most = traffic.drafts[(s + static_cast<size_t>(round)) % traffic.drafts.size()],
                        .tokens = &drafted[s]});
    }
    if (traffic.unread) {
      for (size_t s = 0; s < rows.size(); ++s) {
        if (s % 3 == 2)
          runner.read({&rows[s], 1});
        else
          drafts[s].unread = &rows[s];
      }
    } else {
      runner.read(rows);
    }
    runner.draft(drafts);
    for (size_t s = 0; s < hosts.size(); ++s) {
      SCOPED_TRACE(testing::Message() << "sequence " << s);
      hosts[s].read(tokens[s], residuals[s], positions[s]);
      positions[s] += std::ssize(tokens[s]);
      hosts[s].expect_residual(runner.residual(10 + s));
      ASSERT_EQ(std::ssize(drafted[s]), drafts[s].most);
      hosts[s].expect_drafts(drafted[s]);
    }
  }
}

// Sequences that find no room draft nothing, the others as if alone; ends make room.
inline void check_eagle3_room(const model::eagle3::Head& head, const Eagle3Setup& setup) {
  constexpr int64_t kPage = backend::cuda::kEagle3PageRows;
  Eagle3Setup small = setup;
  small.rows = 2 * kPage, small.sequences = 2;
  const std::unique_ptr<Eagle3Runner> runner = make_eagle3_runner(head.weights(), small);
  const backend::HeadDims& dims = head.weights().dims;
  const auto width = static_cast<size_t>(dims.taps * dims.target_hidden);
  const std::vector<int32_t> tokens(kPage, 3);
  const std::vector<float> residuals(tokens.size() * width, 0.5f);
  std::vector<int32_t> drafted;
  const auto read = [&](uint64_t sequence, size_t count, int64_t position) {
    const HeadRunner::Rows rows{.sequence = sequence,
                                .tokens = std::span(tokens).first(count),
                                .residuals = std::span(residuals).first(count * width),
                                .position = position};
    runner->read({&rows, 1});
  };
  const auto drafts = [&](uint64_t sequence, int most) {
    const HeadRunner::Draft draft{.sequence = sequence, .most = most, .tokens = &drafted};
    runner->draft({&draft, 1});
    return std::ssize(drafted);
  };
  read(1, kPage, 0);
  read(2, kPage - 1, 0);
  EXPECT_EQ(drafts(1, 1), 1);
  EXPECT_EQ(drafts(1, 2), 0) << "its second row would need a page";
  EXPECT_EQ(drafts(2, 2), 2);
  read(3, 1, 0);
  EXPECT_EQ(drafts(3, 1), 0) << "no page, no row";
  read(1, 1, kPage);
  EXPECT_EQ(drafts(1, 1), 0) << "its last row was not read";
  runner->end(2);
  runner->end(99);
  read(1, 1, kPage + 1);
  EXPECT_EQ(drafts(1, 5), 5);
  runner->end(1);
  read(3, 2, 9);
  EXPECT_EQ(drafts(3, 4), 4);
}

}  // namespace nibble::test
