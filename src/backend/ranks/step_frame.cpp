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
    throw Error(Code::kCorrupt, "step frame: {}", error.what());
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
  out.number(static_cast<uint32_t>(step.sample_rows.size()));
  for (const SampleRow& row : step.sample_rows) write(out, row);
  return {out.bytes().begin(), out.bytes().end()};
}

ReceivedStep::ReceivedStep(BodyReader& in, const BackendConfig& config, int64_t unread) {
  const auto most = static_cast<size_t>(config.max_tokens), most_rows = static_cast<size_t>(config.max_rows);
  constexpr size_t kMostPageIds = size_t{1} << 28;
  ids_ = in.array<int32_t>(most);
  positions_ = in.array<int32_t>(most);
  rows_ = in.array<Row>(most);
  logit_tokens_ = in.array<int32_t>(most_rows);
  for (size_t kind = 0; kind < kLayerKinds; ++kind) {
    kv_slots_[kind] = in.array<int32_t>(most);
    pages_per_row_[kind] = in.number<int32_t>();
    page_ids_[kind] = in.array<int32_t>(kMostPageIds);
    const bool read = std::ranges::find(config.layer_kinds, static_cast<LayerKind>(kind)) != config.layer_kinds.end();
    want(kv_slots_[kind].size() == ids_.size() || (!read && kv_slots_[kind].empty()), "a KV slot per token");
    want(
        pages_per_row_[kind] >= 0 && page_ids_[kind].size() == rows_.size() * static_cast<size_t>(pages_per_row_[kind]),
        "as many pages for each row");
    want(within(kv_slots_[kind], 0, int64_t{config.kv_pages[kind]} * kPageTokens), "KV slots of the cache");
    want(within(page_ids_[kind], -1, config.kv_pages[kind]), "pages of the cache");
  }
  sinks_ = in.number<uint8_t>() != 0;
  want(positions_.size() == ids_.size() && within(positions_, 0, config.dims.max_context), "a position per token");
  want(within(ids_, -unread, config.dims.vocab), "ids of the vocabulary");
  want(within(logit_tokens_, 0, static_cast<int64_t>(ids_.size())), "logits of the step's tokens");
  check_rows(rows_, ids_.size());
  read_draws(in, config);
}

StepArgs ReceivedStep::args(const Weights& weights) const {
  StepArgs step{.weights = &weights,
                .ids = ids_,
                .positions = positions_,
                .kv_slots = {},
                .pages = {},
                .rows = rows_,
                .logit_tokens = logit_tokens_,
                .sample_rows = sample_rows_,
                .sinks = sinks_};
  for (size_t kind = 0; kind < kLayerKinds; ++kind) {
    step.kv_slots[kind] = kv_slots_[kind];
    step.pages[kind] = {.ids = page_ids_[kind], .pages_per_row = pages_per_row_[kind]};
  }
  return step;
}

void require_pages(const PageCopy& copy, const BackendConfig& config) {
  const auto kind = static_cast<size_t>(copy.kind);
  const int32_t pages = kind < kLayerKinds ? config.kv_pages[kind] : 0;
  if (copy.from < 0 || copy.from >= pages || copy.to < 0 || copy.to >= pages)
    throw Error(Code::kCorrupt, "want pages below {}, found {} and {}", pages, copy.from, copy.to);
}

void ReceivedStep::read_draws(BodyReader& in, const BackendConfig& config) {
  const int64_t vocab = config.dims.vocab;
  const auto most = static_cast<size_t>(config.dims.max_context), mask_words = static_cast<size_t>((vocab + 31) / 32);
  const auto count = in.number<uint32_t>();
  want(count == 0 || count == logit_tokens_.size(), "a draw for each row of logits");
  draws_.reserve(count);  // rows point into them
  for (uint32_t i = 0; i < count; ++i) {
    Draw& draw = draws_.emplace_back();
    SampleRow& row = sample_rows_.emplace_back();
    draw.params = read_params(in, vocab);
    row.params = &draw.params;
    row.position = in.number<int64_t>();
    row.prompt = draw.prompt = in.array<int32_t>(most);
    row.output = draw.output = in.array<int32_t>(most);
    row.mask = draw.mask = in.array<uint32_t>(mask_words);
    row.logprobs = in.number<int32_t>();
    row.given = in.number<int32_t>();
    want(within(row.prompt, 0, vocab) && within(row.output, 0, vocab), "seen tokens of the vocabulary");
    want(row.mask.empty() || row.mask.size() == mask_words, "a mask of the vocabulary");
    want(row.logprobs >= -1 && row.logprobs <= vocab && row.given >= -1 && row.given < vocab,
         "tokens of the vocabulary");
  }
}

}  // namespace nibble::backend
