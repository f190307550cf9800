#include "app/inspect_plan.h"

#include "app/gguf_model.h"
#include "app/loaded_model.h"
#include "app/memory_budget.h"
#include "backend/cost.h"
#include "backend/cpu/plan.h"
#include "backend/cuda/program/program.h"
#include "base/error.h"
#include "model/gpt_oss.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <optional>
#include <span>
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
      throw Error(Code::kInvalidRequest, "want a depth (-d) and its step of at most {} tokens, found {}",
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
  if (scenarios.empty()) throw Error(Code::kInvalidRequest, "want -b or -p above 0, found nothing to plan");
  return scenarios;
}

// What cudaDeviceProp says of the cards.
backend::cuda::DeviceFacts known_card(CardChoice choice) {
  if (choice == CardChoice::kGb10) {
    return {.name = "GB10",
            .major = 12,
            .minor = 1,
            .multiprocessors = 48,
            .cta_smem_bytes = 101376,
            .sm_smem_bytes = 102400};
  }
  return {.name = choice == CardChoice::kH100 ? "H100 SXM" : "H200",
          .major = 9,
          .minor = 0,
          .multiprocessors = 132,
          .cta_smem_bytes = 232448,
          .sm_smem_bytes = 233472};
}

}  // namespace

backend::cuda::DeviceFacts card_of(CardChoice choice) {
  if (choice != CardChoice::kAuto) return known_card(choice);
  if (auto card = backend::cuda_plan_device()) return *card;
  backend::cuda::DeviceFacts card = known_card(CardChoice::kH200);
  card.name += ", taken for lack of a card";
  return card;
}

namespace {

class Planner {
 public:
  Planner(const InspectOptions& options, const model::ModelConfig& config, std::span<const backend::HostWeight> weights)
      : options_(options),
        config_(config),
        backend_config_(model::backend_config(config, {}, options.model.dense)),
        cost_{config.dims, stored_formats(options.model, weights)} {
    cost_.formats.kv_value_bytes = kv_value_bytes(options.model, config.dims);
    if (options.model.backend == BackendKind::kReference)
      throw Error(Code::kUnsupported, "want --backend cpu or cuda, found reference: it has plain loops only");
    refuse_foreign_flags(options.model, {options.model.backend});
    if (options.model.backend == BackendKind::kCuda) {
      card_ = card_of(options.card);
      conversions_ = card_conversions(weights, options.model.dense);
    } else if (options.card != CardChoice::kAuto) {
      throw Error(Code::kUnsupported, "--card: want --backend cuda, found another");
    }
  }

  [[nodiscard]] std::string device() const {
    return card_ ? fmt::format("cuda, {} ({} multiprocessors)", card_->name, card_->multiprocessors)
                 : fmt::format("cpu, {} threads", thread_count(options_.model));
  }

  [[nodiscard]] const std::string& conversions() const { return conversions_; }

  [[nodiscard]] Json json(const Scenario& scenario) const {
    const backend::StepShape step{.rows = scenario.rows, .logit_rows = static_cast<int64_t>(scenario.rows.size())};
    Json json = {{"step", scenario.name}, {"sequences", scenario.rows.size()}};
    std::vector<backend::PlannedStage> stages;
    if (card_) {
      const backend::cuda::Program program = backend::cuda::make_program(
          {.config = backend_config_, .options = cuda_options(options_.model), .step = step, .card = *card_});
      json["moe_kernel"] = name_of(program.moe);
      json["moe_activation"] = name_of(program.activations);
      json["attention_backend"] =
          name_of(program.flash ? backend::AttentionKernel::kFlash : backend::AttentionKernel::kReference);
      stages.assign(program.nodes.begin(), program.nodes.end());
    } else {
      stages = backend::cpu_plan(
          {.dims = config_.dims, .formats = cost_.formats, .step = step, .options = cpu_options(options_.model)});
    }
    json["stages"] = Json::array();
    for (const backend::PlannedStage& planned : stages) {
      json["stages"].push_back({{"stage", name_of(planned.stage)},
                                {"layers", layers(planned)},
                                {"kernel", planned.kernel},
                                {"launches", planned.launches},
                                {"tile", planned.tile},
                                {"shared_bytes", planned.shared_bytes},
                                {"bytes", static_cast<int64_t>(planned.cost.bytes)},
                                {"flops", static_cast<int64_t>(planned.cost.flops)}});
    }
    const backend::Cost all = cost_.of_step(config_.layer_kinds, step);
    json["bytes"] = static_cast<int64_t>(all.bytes);
    json["flops"] = static_cast<int64_t>(all.flops);
    return json;
  }

 private:
  [[nodiscard]] std::string layers(const backend::PlannedStage& planned) const {
    if (backend::outside_layers(planned.stage)) return "";
    const int64_t layers = backend::layers_of(planned, config_.layer_kinds);
    if (!planned.kind) return fmt::format("{}", layers);
    return fmt::format("{} {}", layers, *planned.kind == backend::LayerKind::kSliding ? "sliding" : "full");
  }

  const InspectOptions& options_;
  const model::ModelConfig& config_;
  backend::BackendConfig backend_config_;
  backend::CostModel cost_;
  std::optional<backend::cuda::DeviceFacts> card_;
  std::string conversions_;  // of weights while they are loaded
};

std::string text(const Json& plan, Terminal& terminal) {
  std::string out = terminal.bold(fmt::format("{}: {:.3f} GB, {:.2f} GFLOP", plan["step"].get<std::string>(),
                                              plan["bytes"].get<double>() / 1e9, plan["flops"].get<double>() / 1e9));
  if (plan.contains("moe_kernel")) {
    const auto activations = plan["moe_activation"].get<std::string>();
    out += fmt::format(" (--moe-kernel {}, --attention-backend {}; activations of experts {})",
                       plan["moe_kernel"].get<std::string>(), plan["attention_backend"].get<std::string>(),
                       activations == "exact" ? "exact" : "rounded to " + activations);
  }
  out += fmt::format("\n  {:<8}  {:<10}  {:>9}  {:>9}  {:<32}  {}\n", "stage", "layers", "MB/layer", "MFLOP", "kernel",
                     "tile");
  for (const Json& stage : plan["stages"]) {
    const bool none = stage["bytes"] == 0;
    const auto launches = stage["launches"].get<int64_t>();
    const auto number = [&](const char* name) {
      return none ? std::string() : fmt::format("{:.3f}", stage[name].get<double>() / 1e6);
    };
    out += fmt::format(
        "  {:<8}  {:<10}  {:>9}  {:>9}  {:<32}  {}\n", stage["stage"].get<std::string>(),
        stage["layers"].get<std::string>(), number("bytes"), number("flops"), stage["kernel"].get<std::string>(),
        (launches > 1 ? fmt::format("{} launches of ", launches) : "") + stage["tile"].get<std::string>());
  }
  return out;
}

}  // namespace

void print_plan(const InspectOptions& options, const model::ModelConfig& config,
                std::span<const backend::HostWeight> weights, Terminal& terminal) {
  const Planner planner(options, config, weights);
  Json json = {{"device", planner.device()}, {"weights", planner.conversions()}, {"plans", Json::array()}};
  for (const Scenario& scenario : scenarios_of(options, config)) json["plans"].push_back(planner.json(scenario));
  if (options.output.json) return terminal.print_json(json);
  terminal.print(fmt::format("{}\n", planner.device()));
  if (!planner.conversions().empty()) terminal.print(fmt::format("weights: {}\n", planner.conversions()));
  for (const Json& plan : json["plans"]) terminal.print(text(plan, terminal));
}

}  // namespace nibble::app
