#include "lab/predict/predictor.h"

#include "app/setup/loaded_model.h"
#include "backend/cost.h"
#include "backend/cuda/comm/mailbox.h"
#include "backend/cuda/program/program.h"
#include "base/error.h"
#include "engine/engine.h"
#include "lab/bench/loop.h"
#include "model/gpt_oss.h"

#include <fmt/format.h>

#include <algorithm>

namespace nibble::app {
namespace {

using backend::cuda::NodeTime;
using Step = std::vector<backend::Row>;

// Memory that graphs, staging and the driver take besides slots: about this much on an H100.
constexpr int64_t kOtherBytes = 1'000'000'000;

void add(std::vector<NodeTime>& into, const NodeTime& node) {
  const auto it = std::ranges::find_if(
      into, [&](const NodeTime& own) { return own.stage == node.stage && own.kernel == node.kernel; });
  if (it == into.end()) {
    into.push_back(node);
    return;
  }
  if (node.us > it->us) it->held = node.held;
  it->launches += node.launches;
  it->us += node.us;
  it->floor_us += node.floor_us;
}

}  // namespace

std::vector<Step> steps_of(const PredictShape& shape, int64_t step_tokens) {
  std::vector<Step> steps;
  const auto depth = static_cast<int32_t>(shape.depth);
  if (shape.prompt == 0) {
    Step& step = steps.emplace_back();
    for (int32_t s = 0; s < shape.batch; ++s) step.push_back({.first_token = s, .tokens = 1, .context = depth + 1});
    return steps;
  }
  for (int64_t done = 0; done < shape.prompt; done += step_tokens) {
    const auto tokens = static_cast<int32_t>(std::min(step_tokens, shape.prompt - done));
    steps.push_back({{.first_token = 0, .tokens = tokens, .context = depth + static_cast<int32_t>(done) + tokens}});
  }
  return steps;
}

std::string PredictShape::name() const {
  if (prompt > 0) return fmt::format("pp{}{}", prompt, depth > 0 ? fmt::format(" @ d{}", depth) : "");
  return fmt::format("tg @ d{}, batch {}", depth, batch);
}

PredictedRow Predictor::row(const PredictShape& shape) const {
  const int64_t context = shape.depth + shape.prompt + 1;  // every request draws a token
  if (context > config.dims.max_context) {
    throw Error(Code::kInvalidRequest,
                "want a depth (-d), a prompt (-p) and a token to draw of at most {} tokens, found {}",
                config.dims.max_context, context);
  }
  const backend::Ranks& ranks = options.run.ranks;
  const backend::BackendConfig backend_config = backend::cuda_config(model::backend_config(config, {}, dense), ranks);
  const backend::RunConfig run = backend::resolved_cuda(backend_config, options.run);
  const auto reduce = backend::cuda::planned_reduce(ranks);
  PredictedRow row{.shape = shape, .needs = needs(shape)};
  const int64_t memory = card.facts.memory_bytes;
  row.room = device_limit(memory, memory, *run.gpu_memory_utilization);
  std::vector<Step> steps = steps_of(shape, run.max_num_batched_tokens);
  for (const Step& step : steps) {
    const bool last = &step == &steps.back();  // of a prompt, the last one draws
    const backend::StepShape of{.rows = step, .logit_rows = last ? static_cast<int64_t>(step.size()) : 0};
    const backend::cuda::Program program = backend::cuda::make_program(
        {.config = backend_config, .run = run, .step = of, .card = card.facts, .reduce = reduce ? &*reduce : nullptr});
    const backend::cuda::StepTime time = backend::cuda::predict_step({.program = program,
                                                                      .dims = backend_config.dims,
                                                                      .layer_kinds = config.layer_kinds,
                                                                      .card = card,
                                                                      .between = {.ranks = ranks.count, .link = link}});
    row.seconds += time.us / 1e6;
    row.limit_seconds += time.floor_us / 1e6;
    for (const NodeTime& node : time.nodes) add(row.nodes, node);
  }
  return row;
}

backend::MemoryNeeds Predictor::needs(const PredictShape& shape) const {
  const engine::EngineLimits limits =
      engine_limits({.sequences = shape.batch,
                     .depth = shape.depth,
                     .prompt = shape.prompt,
                     .chunk_tokens = backend::with_defaults(options.run).max_num_batched_tokens,
                     .async_scheduling = true});
  const backend::Ranks& ranks = options.run.ranks;
  const backend::BackendConfig sized =
      backend::cuda_config(model::backend_config(config, engine::step_limits(limits, config.dims), dense), ranks);
  const backend::CostModel cost = of_a_card({config.dims, backend::StoredFormats::of({}, dense)}, ranks);
  const int64_t logits = int64_t{sized.max_rows} * config.dims.vocab * static_cast<int64_t>(sizeof(float));
  const int64_t shared = ranks.count > 1 ? backend::cuda::comm_bytes(ranks.count) + logits : 0;
  return {.weights = cost.weight_bytes(),
          .kv = backend::kv_bytes(sized, kv_row_bytes(options, config.dims)),
          .activations = backend::slot_bytes(sized, sizeof(float)) + kOtherBytes + shared};
}

}  // namespace nibble::app
