#include "app/inspect_plan.h"

#include "app/loaded_model.h"
#include "app/memory_budget.h"
#include "backend/cost.h"
#include "backend/cpu/plan.h"
#include "backend/cuda/plan.h"
#include "base/error.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

namespace nibble::app {
namespace {

using Json = nlohmann::ordered_json;
using backend::Stage;

// A step to plan: some sequences that generate, or one that reads a prompt.
struct Scenario {
  std::string name;
  std::vector<backend::Row> rows;
};

std::vector<Scenario> scenarios_of(const InspectOptions& options, const model::ModelConfig& config) {
  std::vector<Scenario> scenarios;
  const auto add = [&](std::string name, int64_t sequences, backend::Row row) {
    if (row.context > config.dims.max_context) {
      throw Error(Code::kInvalidRequest, "[plan] want a depth (-d) and its step of at most {} tokens, found {}",
                  config.dims.max_context, row.context);
    }
    Scenario scenario{std::move(name), {}};
    for (int64_t s = 0; s < sequences; ++s, row.first_token += row.tokens) scenario.rows.push_back(row);
    scenarios.push_back(std::move(scenario));
  };
  for (const int64_t depth : options.depths) {
    const auto context = static_cast<int32_t>(depth);
    for (const int64_t batch : options.batches) {
      if (batch > 0) add(fmt::format("tg @ d{}, batch {}", depth, batch), batch, {.tokens = 1, .context = context + 1});
    }
    for (const int64_t prompt : options.prompts) {
      const auto tokens = static_cast<int32_t>(prompt);
      if (prompt > 0) add(fmt::format("pp{} @ d{}", prompt, depth), 1, {.tokens = tokens, .context = context + tokens});
    }
  }
  if (scenarios.empty()) throw Error(Code::kInvalidRequest, "[plan] want -b or -p above 0, found nothing to plan");
  return scenarios;
}

// The card of this machine; where there is none, one that is named.
struct Device {
  std::string name;
  backend::cuda::AttendDevice facts;
};

Device card() {
  if (const auto device = backend::cuda_plan_device()) return {device->name, device->facts};
  // cudaDeviceProp of an H200: multiProcessorCount, sharedMemPerMultiprocessor.
  return {"H200, taken for lack of a card", {.sms = 132, .sm_smem_bytes = 233472}};
}

class Planner {
 public:
  Planner(const InspectOptions& options, const model::ModelConfig& config)
      : options_(options), config_(config), cost_{config.dims, backend::StoredFormats::of({}, options.model.dense)} {
    cost_.formats.kv_value_bytes = kv_value_bytes(options.model);
    if (options.model.backend == BackendKind::kReference)
      throw Error(Code::kUnsupported, "[plan] want --backend cpu or cuda, found reference: it has plain loops only");
    refuse_foreign_flags(options.model, {options.model.backend});
    if (options.model.backend != BackendKind::kCuda) return;
    const backend::DenseFormats& dense = options.model.dense;
    const auto moe = options.model.moe_kernel;
    if (dense.qkv || dense.o || dense.lm_head ||
        (moe != backend::MoeKernel::kAuto && moe != backend::MoeKernel::kReference))
      throw Error(Code::kUnsupported,
                  "[plan] cuda: want --moe-kernel reference and no requantised layers; plans of the "
                  "other kernels are not written yet");
    card_ = card();
  }

  [[nodiscard]] std::string device() const {
    return card_ ? fmt::format("cuda, {} ({} multiprocessors)", card_->name, card_->facts.sms)
                 : fmt::format("cpu, {} threads", thread_count(options_.model));
  }

  [[nodiscard]] Json json(const Scenario& scenario) const {
    const backend::StepShape step{.rows = scenario.rows, .logit_rows = static_cast<int64_t>(scenario.rows.size())};
    Json json = {{"step", scenario.name}, {"sequences", scenario.rows.size()}, {"stages", Json::array()}};
    std::optional<std::pair<Stage, std::optional<backend::LayerKind>>> seen;
    for (const backend::PlannedStage& planned : plan(step)) {
      const bool more = seen && *seen == std::pair(planned.stage, planned.kind);  // the stage's cost is said once
      seen = {planned.stage, planned.kind};
      const backend::Cost cost =
          more ? backend::Cost{} : cost_.of(planned.stage, planned.kind.value_or(backend::LayerKind::kFull), step);
      json["stages"].push_back({{"stage", name_of(planned.stage)},
                                {"layers", layers(planned)},
                                {"kernel", planned.kernel},
                                {"tile", planned.tile},
                                {"bytes", static_cast<int64_t>(cost.bytes)},
                                {"flops", static_cast<int64_t>(cost.flops)}});
    }
    const backend::Cost all = cost_.of_step(config_.layer_kinds, step);
    json["bytes"] = static_cast<int64_t>(all.bytes);
    json["flops"] = static_cast<int64_t>(all.flops);
    return json;
  }

 private:
  [[nodiscard]] std::vector<backend::PlannedStage> plan(const backend::StepShape& step) const {
    if (card_) {
      return backend::cuda_plan({.dims = config_.dims,
                                 .step = step,
                                 .device = card_->facts,
                                 .kv_value_bytes = cost_.formats.kv_value_bytes,
                                 .flash = options_.model.attention_backend == AttentionBackend::kFlash ||
                                          options_.model.kv_cache_dtype == KvCacheDtype::kFp8});
    }
    return backend::cpu_plan({.dims = config_.dims,
                              .formats = cost_.formats,
                              .step = step,
                              .options = {.threads = thread_count(options_.model)}});
  }

  [[nodiscard]] std::string layers(const backend::PlannedStage& planned) const {
    if (planned.stage == Stage::kEmbed || planned.stage == Stage::kLogits) return "";
    if (!planned.kind) return fmt::format("{}", config_.dims.layers);
    return fmt::format("{} {}", config_.layers_of(*planned.kind),
                       *planned.kind == backend::LayerKind::kSliding ? "sliding" : "full");
  }

  const InspectOptions& options_;
  const model::ModelConfig& config_;
  backend::CostModel cost_;
  std::optional<Device> card_;
};

std::string text(const Json& plan, Terminal& terminal) {
  std::string out = terminal.bold(fmt::format("{}: {:.3f} GB, {:.2f} GFLOP", plan["step"].get<std::string>(),
                                              plan["bytes"].get<double>() / 1e9, plan["flops"].get<double>() / 1e9));
  out += fmt::format("\n  {:<8}  {:<10}  {:>9}  {:>9}  {:<32}  {}\n", "stage", "layers", "MB/layer", "MFLOP", "kernel",
                     "tile");
  for (const Json& stage : plan["stages"]) {
    const bool more = stage["bytes"] == 0;
    const auto number = [&](const char* name) {
      return more ? std::string() : fmt::format("{:.3f}", stage[name].get<double>() / 1e6);
    };
    out += fmt::format("  {:<8}  {:<10}  {:>9}  {:>9}  {:<32}  {}\n", stage["stage"].get<std::string>(),
                       stage["layers"].get<std::string>(), number("bytes"), number("flops"),
                       stage["kernel"].get<std::string>(), stage["tile"].get<std::string>());
  }
  return out;
}

}  // namespace

void print_plan(const InspectOptions& options, const model::ModelConfig& config, Terminal& terminal) {
  const Planner planner(options, config);
  Json json = {{"device", planner.device()}, {"plans", Json::array()}};
  for (const Scenario& scenario : scenarios_of(options, config)) json["plans"].push_back(planner.json(scenario));
  if (options.output.json) return terminal.print_json(json);
  terminal.print(fmt::format("{}\n", planner.device()));
  for (const Json& plan : json["plans"]) terminal.print(text(plan, terminal));
}

}  // namespace nibble::app
