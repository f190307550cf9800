#include "backend/ranks/step_frame.h"

#include "base/error.h"

#include <algorithm>
#include <string_view>

namespace nibble::backend {
namespace {

void want(bool holds, std::string_view what) {
  if (!holds) throw Error(Code::kCorrupt, "step frame: want {}, found others", what);
}

bool within(std::span<const int32_t> values, int64_t least, int64_t end) {
  return std::ranges::all_of(values, [&](int32_t value) { return value >= least && value < end; });
}

void check_rows(std::span<const Row> rows, size_t tokens) {
  int64_t at = 0;
  for (const Row& row : rows) {
    want(row.first_token == at && row.tokens > 0 && row.context >= row.tokens && row.drafted >= 0 &&
             row.drafted <= row.tokens,
         "rows that cover the tokens in order");
    at += row.tokens;
  }
  want(at == static_cast<int64_t>(tokens), "rows that cover the tokens in order");
}

}  // namespace

std::vector<std::byte> written(const StepArgs& step) {
  BodyWriter out;
  out.array(step.ids);
  out.array(step.positions);
  out.array(step.rows);
  out.array(step.logit_tokens);
  for (size_t kind = 0; kind < kLayerKinds; ++kind) {
    out.array(step.kv_slots[kind]);
    out.number(step.pages[kind].pages_per_row);
    out.array(step.pages[kind].ids);
  }
  out.number(static_cast<uint8_t>(step.sinks));
  return {out.bytes().begin(), out.bytes().end()};
}

ReceivedStep::ReceivedStep(BodyReader& in, const BackendConfig& config) {
  const auto most = static_cast<size_t>(config.max_tokens), most_rows = static_cast<size_t>(config.max_rows);
  constexpr size_t kMostPageIds = size_t{1} << 28;
  ids = in.array<int32_t>(most);
  positions = in.array<int32_t>(most);
  rows = in.array<Row>(most);
  logit_tokens = in.array<int32_t>(most_rows);
  for (size_t kind = 0; kind < kLayerKinds; ++kind) {
    kv_slots[kind] = in.array<int32_t>(most);
    pages_per_row[kind] = in.number<int32_t>();
    page_ids[kind] = in.array<int32_t>(kMostPageIds);
    want(kv_slots[kind].empty() || kv_slots[kind].size() == ids.size(), "a KV slot per token");
    want(pages_per_row[kind] >= 0 && page_ids[kind].size() == rows.size() * static_cast<size_t>(pages_per_row[kind]),
         "as many pages for each row");
    want(within(kv_slots[kind], 0, int64_t{config.kv_pages[kind]} * kPageTokens), "KV slots of the cache");
    want(within(page_ids[kind], -1, config.kv_pages[kind]), "pages of the cache");
  }
  sinks = in.number<uint8_t>() != 0;
  want(positions.size() == ids.size() && within(positions, 0, config.dims.max_context), "a position per token");
  want(within(ids, 0, config.dims.vocab), "ids of the vocabulary");
  want(within(logit_tokens, 0, static_cast<int64_t>(ids.size())), "logits of the step's tokens");
  check_rows(rows, ids.size());
}

StepArgs ReceivedStep::args(const Weights& weights) const {
  StepArgs step{.weights = &weights,
                .ids = ids,
                .positions = positions,
                .kv_slots = {},
                .pages = {},
                .rows = rows,
                .logit_tokens = logit_tokens,
                .sample_rows = {},
                .sinks = sinks};
  for (size_t kind = 0; kind < kLayerKinds; ++kind) {
    step.kv_slots[kind] = kv_slots[kind];
    step.pages[kind] = {.ids = page_ids[kind], .pages_per_row = pages_per_row[kind]};
  }
  return step;
}

}  // namespace nibble::backend
