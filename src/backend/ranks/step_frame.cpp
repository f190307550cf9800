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

void write(BodyWriter& out, const SampleRow& row) {
  const SamplingParams& p = *row.params;
  for_each_field(p, [&](const SamplingField&, const auto value) { out.number(value); });
  out.number(p.seed);
  std::vector<int32_t> tokens;
  std::vector<float> biases;
  for (const auto& [token, bias] : p.logit_bias) {
    tokens.push_back(token);
    biases.push_back(bias);
  }
  out.array(std::span<const int32_t>(tokens));
  out.array(std::span<const float>(biases));
  out.number(row.position);
  const bool seen = p.counts_tokens();  // else nobody reads them, and they are long
  out.array(seen ? row.prompt : std::span<const int32_t>());
  out.array(seen ? row.output : std::span<const int32_t>());
  out.array(row.mask);
  out.number(int32_t{row.logprobs});
  out.number(row.given);
}

SamplingParams read_params(BodyReader& in, int64_t vocab) {
  SamplingParams p;
  for_each_field(p, [&]<class T>(const SamplingField&, T& value) { value = in.number<T>(); });
  p.seed = in.number<uint64_t>();
  const auto most = static_cast<size_t>(vocab);
  const auto tokens = in.array<int32_t>(most);
  const auto biases = in.array<float>(most);
  want(tokens.size() == biases.size(), "a bias for each token");
  for (size_t i = 0; i < tokens.size(); ++i) p.logit_bias.emplace_back(tokens[i], biases[i]);
  try {
    validate(p, vocab);
  } catch (const Error& error) {
    throw Error(Code::kCorrupt, "run frame: {}", error.what());
  }
  return p;
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

std::vector<std::byte> written_with_draws(const StepArgs& step) {
  BodyWriter out;
  out.bare(std::span<const std::byte>(written(step)));
  out.number(static_cast<uint32_t>(step.sample_rows.size()));
  for (const SampleRow& row : step.sample_rows) write(out, row);
  return {out.bytes().begin(), out.bytes().end()};
}

ReceivedStep::ReceivedStep(BodyReader& in, const BackendConfig& config, int64_t unread) {
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
  want(within(ids, -unread, config.dims.vocab), "ids of the vocabulary");
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

void require_pages(const PageCopy& copy, const BackendConfig& config) {
  const auto kind = static_cast<size_t>(copy.kind);
  const int32_t pages = kind < kLayerKinds ? config.kv_pages[kind] : 0;
  if (copy.from < 0 || copy.from >= pages || copy.to < 0 || copy.to >= pages)
    throw Error(Code::kCorrupt, "want pages below {}, found {} and {}", pages, copy.from, copy.to);
}

ReceivedDraws::ReceivedDraws(BodyReader& in, const BackendConfig& config, size_t logit_rows) {
  const int64_t vocab = config.dims.vocab;
  const auto most = static_cast<size_t>(config.dims.max_context), mask_words = static_cast<size_t>((vocab + 31) / 32);
  const auto count = in.number<uint32_t>();
  want(count == 0 || count == logit_rows, "a draw for each row of logits");
  for (uint32_t i = 0; i < count; ++i) {
    Draw& draw = draws_.emplace_back();
    draw.params = read_params(in, vocab);
    draw.row.position = in.number<int64_t>();
    draw.prompt = in.array<int32_t>(most);
    draw.output = in.array<int32_t>(most);
    draw.mask = in.array<uint32_t>(mask_words);
    draw.row.logprobs = in.number<int32_t>();
    draw.row.given = in.number<int32_t>();
    want(within(draw.prompt, 0, vocab) && within(draw.output, 0, vocab), "seen tokens of the vocabulary");
    want(draw.mask.empty() || draw.mask.size() == mask_words, "a mask of the vocabulary");
    want(draw.row.logprobs >= -1 && draw.row.logprobs <= vocab && draw.row.given >= -1 && draw.row.given < vocab,
         "tokens of the vocabulary");
  }
}

std::vector<SampleRow> ReceivedDraws::rows() const {
  std::vector<SampleRow> rows;
  for (const Draw& draw : draws_) {
    SampleRow& row = rows.emplace_back(draw.row);
    row.params = &draw.params;
    row.prompt = draw.prompt;
    row.output = draw.output;
    row.mask = draw.mask;
  }
  return rows;
}

void require_alike(Slot slot) {
  if (slot != Slot::kQkv && slot != Slot::kQ && slot != Slot::kAttn && slot != Slot::kExpertHidden) return;
  throw Error(Code::kUnsupported, "{} of ranks in several processes: want what all of them have alike", name_of(slot));
}

}  // namespace nibble::backend
