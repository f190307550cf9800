#include "backend/ranks/step_frame.h"

#include "base/error.h"

#include <algorithm>
#include <string_view>
#include <utility>

namespace nibble::backend {
namespace {

// What is said of a step and of a draw, in this order, whether it is written or read. A reader's spans lie in the body:
// so all but what comes last has whole words of 32 bits.
template <class Body, class Step>
void step_fields(Body& body, Step& step) {
  body.field(step.ids);
  body.field(step.positions);
  body.field(step.rows);
  body.field(step.logit_tokens);
  for (size_t kind = 0; kind < kLayerKinds; ++kind) {
    body.field(step.kv_slots[kind]);
    body.field(step.pages[kind].pages_per_row);
    body.field(step.pages[kind].ids);
  }
}
struct Bias {
  int32_t token;
  float bias;
};
template <class Body, class Draw, class Params>
void draw_fields(Body& body, Draw& row, Params& params, std::span<const Bias>& biases) {
  for_each_field(params, [&](const SamplingField&, auto& value) { body.field(value); });
  body.field(params.seed);
  body.field(biases);
  body.field(row.position);
  body.field(row.prompt);
  body.field(row.output);
  body.field(row.mask);
  body.field(row.logprobs);
  body.field(row.given);
}

void want(bool holds, std::string_view what) {
  if (!holds) throw Error(Code::kCorrupt, "step frame: want {}, found others", what);
}

bool within(std::span<const int32_t> values, int64_t least, int64_t end) {
  return std::ranges::all_of(values, [&](int32_t value) { return value >= least && value < end; });
}

void check_rows(std::span<const Row> rows, int64_t tokens) {
  int64_t at = 0;
  for (const Row& row : rows) {
    want(row.first_token == at && row.tokens > 0 && row.context >= row.tokens && row.drafted >= 0 &&
             row.drafted <= row.tokens,
         "rows that cover the tokens in order");
    at += row.tokens;
  }
  want(at == tokens, "rows that cover the tokens in order");
}

void check_step(const StepArgs& step, const BackendConfig& config, int64_t unread) {
  const auto tokens = std::ssize(step.ids);
  want(tokens <= config.max_tokens, "no more tokens than a step holds");
  want(std::ssize(step.positions) == tokens && within(step.positions, 0, config.dims.max_context),
       "a position per token");
  want(within(step.ids, -unread, config.dims.vocab), "ids of the vocabulary");
  want(std::ssize(step.logit_tokens) <= config.max_rows && within(step.logit_tokens, 0, tokens),
       "logits of the step's tokens");
  check_rows(step.rows, tokens);
  for (size_t kind = 0; kind < kinds_of(config.dims).size(); ++kind) {
    const std::span<const int32_t> slots = step.kv_slots[kind];
    const auto& [ids, pages_per_row] = step.pages[kind];
    const bool read = std::ranges::find(config.layer_kinds, static_cast<LayerKind>(kind)) != config.layer_kinds.end();
    want(std::ssize(slots) == tokens || (!read && slots.empty()), "a KV slot per token");
    want(pages_per_row >= 0 && std::ssize(ids) == std::ssize(step.rows) * pages_per_row, "as many pages for each row");
    want(within(slots, 0, int64_t{config.kv_pages[kind]} * kPageTokens), "KV slots of the cache");
    want(within(ids, -1, config.kv_pages[kind]), "pages of the cache");
  }
}

void check_draw(const SampleRow& row, const Dims& dims) {
  const int64_t vocab = dims.vocab;
  try {
    validate(*row.params, vocab);
  } catch (const Error& error) {
    throw Error(Code::kCorrupt, "step frame: {}", error.what());
  }
  for (const std::span<const int32_t> seen : {row.prompt, row.output})
    want(std::ssize(seen) <= dims.max_context && within(seen, 0, vocab), "seen tokens of the vocabulary");
  want(row.mask.empty() || std::ssize(row.mask) == (vocab + 31) / 32, "a mask of the vocabulary");
  want(row.logprobs >= -1 && row.logprobs <= vocab && row.given >= -1 && row.given < vocab, "tokens of the vocabulary");
}

}  // namespace

std::vector<std::byte> written(const StepArgs& step) {
  BodyWriter out;
  step_fields(out, step);
  out.field(static_cast<uint32_t>(step.sample_rows.size()));
  for (SampleRow row : step.sample_rows) {
    if (!row.params->counts_tokens()) row.prompt = row.output = {};  // nobody reads them, and they are long
    std::vector<Bias> biases;
    for (const auto& [token, bias] : row.params->logit_bias) biases.push_back({token, bias});
    std::span<const Bias> all = biases;
    draw_fields(out, row, *row.params, all);
  }
  out.field(static_cast<uint8_t>(step.sinks));
  return {out.bytes().begin(), out.bytes().end()};
}

ReceivedStep::ReceivedStep(Frame frame, const BackendConfig& config, int64_t unread) : frame_(std::move(frame)) {
  BodyReader in(frame_);
  step_fields(in, step_);
  check_step(step_, config, unread);
  const auto count = in.number<uint32_t>();
  want(count == 0 || count == step_.logit_tokens.size(), "a draw for each row of logits");
  params_.resize(count);
  draws_.resize(count);
  for (uint32_t i = 0; i < count; ++i) {
    std::span<const Bias> biases;
    draw_fields(in, draws_[i], params_[i], biases);
    for (const auto& [token, bias] : biases) params_[i].logit_bias.emplace_back(token, bias);
    draws_[i].params = &params_[i];
    check_draw(draws_[i], config.dims);
  }
  step_.sample_rows = draws_;
  step_.sinks = in.number<uint8_t>() != 0;
  in.end();
}

StepArgs ReceivedStep::args(const Weights& weights) const {
  StepArgs step = step_;
  step.weights = &weights;
  return step;
}

void require_pages(const PageCopy& copy, const BackendConfig& config) {
  const auto kind = static_cast<size_t>(copy.kind);
  const int32_t pages = kind < kLayerKinds ? config.kv_pages[kind] : 0;
  if (copy.from < 0 || copy.from >= pages || copy.to < 0 || copy.to >= pages)
    throw Error(Code::kCorrupt, "want pages below {}, found {} and {}", pages, copy.from, copy.to);
}

}  // namespace nibble::backend
