#include "engine/step_builder.h"

#include "base/error.h"

#include <algorithm>
#include <numeric>

namespace nibble::engine {

using backend::kPageTokens;

StepBuilder::Result StepBuilder::build(const Batch& batch, Draws draws) {
  check(!batch.rows.empty(), "a step has rows");
  step_.token_ids.clear();
  step_.positions.clear();
  step_.rows.clear();
  step_.logit_tokens.clear();
  step_.sample_rows.clear();
  uses_.clear();
  outputs_.clear();
  for (model::Step::Kv& kv : step_.kv) kv.slots.clear();
  for (const Batch::Row& row : batch.rows) {
    const auto first_token = static_cast<int32_t>(step_.token_ids.size());
    step_.rows.push_back({.first_token = first_token,
                          .tokens = row.count,
                          .context = static_cast<int32_t>(row.from) + row.count,
                          .drafted = row.drafted});
    add_tokens(row);
    add_logits(row, first_token);
  }
  if (uses_.empty() && draws == Draws::kOneAtLeast) {
    step_.logit_tokens.push_back(static_cast<int32_t>(step_.token_ids.size()) - 1);
    step_.sample_rows.push_back({.params = &greedy_, .position = step_.positions.back() + 1});
    uses_.push_back({nullptr});
  }
  add_tables(batch);
  return {step_, uses_};
}

void StepBuilder::add_tokens(const Batch::Row& row) {
  const Sequence& s = *row.sequence;
  for (int64_t position = row.from; position < row.from + row.count; ++position) {
    const auto at = static_cast<size_t>(position);
    const size_t known = s.tokens.size();
    if (at < known) {
      step_.token_ids.push_back(s.tokens[at]);
    } else if (position >= row.from + row.count - row.drafted) {
      step_.token_ids.push_back(s.draft.tokens.at(at - known));
    } else {
      check(at == known && s.pending == 1, "a token is known, in flight or a guess");
      step_.token_ids.push_back(-1 - s.pending_row);
    }
    step_.positions.push_back(static_cast<int32_t>(position));
    for (const LayerKind kind : backend::kEachLayerKind) {
      if (s.pages.ids[kind].empty()) continue;  // the model has no such layers
      const int32_t page = s.pages.ids[kind][at / kPageTokens];
      step_.kv[static_cast<size_t>(kind)].slots.push_back(page * kPageTokens + static_cast<int32_t>(at % kPageTokens));
    }
  }
}

void StepBuilder::add_logits(const Batch::Row& row, int32_t first_token) {
  Sequence& s = *row.sequence;
  for (int64_t scored = row.score_from; scored < row.score_to; ++scored) {
    step_.logit_tokens.push_back(first_token + static_cast<int32_t>(scored - row.from));
    step_.sample_rows.push_back({.params = &greedy_,
                                 .position = scored + 1,
                                 .logprobs = s.request.prompt_logprobs,
                                 .given = s.tokens[static_cast<size_t>(scored) + 1]});
    uses_.push_back({&s, scored});
  }
  if (!row.draws) return;
  std::span<const int32_t> output = s.output();
  const size_t known = output.size();
  if (row.drafted > 0 && s.request.sampling.counts_tokens()) {
    std::vector<int32_t>& all = outputs_.emplace_back(output.begin(), output.end());
    all.insert(all.end(), s.draft.tokens.begin(), s.draft.tokens.end());
    output = all;
  }
  for (int32_t after = 0; after <= row.drafted; ++after) {
    const int32_t count = row.count - row.drafted + after;  // tokens before the one that is drawn
    const auto nth = static_cast<size_t>(after);
    step_.logit_tokens.push_back(first_token + count - 1);
    step_.sample_rows.push_back({.params = &s.request.sampling,
                                 .position = row.from + count,
                                 .prompt = s.prompt(),
                                 .output = output.first(std::min(output.size(), known + nth)),
                                 .mask = nth < s.masks.size() ? s.masks[nth] : std::span<const uint32_t>(),
                                 .logprobs = s.request.logprobs});
    uses_.push_back({.sequence = &s, .after = after, .guess = after < row.drafted ? s.draft.tokens.at(nth) : -1});
  }
}

void StepBuilder::add_tables(const Batch& batch) {
  int64_t longest = 0;
  for (const backend::Row& row : step_.rows) longest = std::max<int64_t>(longest, row.context);
  const auto width = static_cast<size_t>(pages_for(longest));
  for (const LayerKind kind : backend::kEachLayerKind) {
    model::Step::Kv& kv = step_.kv[static_cast<size_t>(kind)];
    kv.pages_per_row = kv.slots.empty() ? 0 : static_cast<int32_t>(width);
    kv.page_ids.resize(batch.rows.size() * static_cast<size_t>(kv.pages_per_row));
    if (kv.slots.empty()) continue;
    auto out = kv.page_ids.begin();
    for (size_t r = 0; r < batch.rows.size(); ++r, out += static_cast<std::ptrdiff_t>(width)) {
      const std::vector<int32_t>& ids = batch.rows[r].sequence->pages.ids[kind];
      const auto used = static_cast<std::ptrdiff_t>(pages_for(step_.rows[r].context));
      std::fill(std::copy_n(ids.begin(), used, out), out + static_cast<std::ptrdiff_t>(width), -1);
    }
  }
}

model::Step step_of(std::span<const StepPart> parts) {
  std::deque<Sequence> sequences;
  Batch batch;
  for (const StepPart& part : parts) {
    Request request{.prompt = std::vector<int32_t>(static_cast<size_t>(part.computed))};
    request.prompt.insert(request.prompt.end(), part.ids.begin(), part.ids.end());
    Sequence& s = sequences.emplace_back(0, std::move(request), Receiver(), Sequence::Time());
    for (const LayerKind kind : backend::kEachLayerKind) s.pages.ids[kind] = part.pages;
    batch.rows.push_back({.sequence = &s,
                          .from = part.computed,
                          .count = static_cast<int32_t>(part.ids.size()),
                          .score_from = 0,
                          .score_to = 0,
                          .draws = false});
  }
  return StepBuilder().build(batch).step;
}

model::Step step_alone(std::span<const int32_t> ids, int64_t computed) {
  StepPart part{{ids.begin(), ids.end()}, computed};
  part.pages.resize(static_cast<size_t>(pages_for(computed + std::ssize(ids))));
  std::iota(part.pages.begin(), part.pages.end(), 0);
  return step_of({&part, 1});
}

}  // namespace nibble::engine
