// nibble inspect --plan: what a backend would run for a step, and what each stage must read and compute. On a card it
// is the program that the backend executes (make_program); on the CPU, a description of what its verbs run (cpu_plan).

#include "app/setup/backend_choice.h"
#include "app/setup/commands.h"
#include "app/setup/loaded_model.h"
#include "app/setup/memory_budget.h"
#include "backend/cost.h"
#include "backend/cpu/cpu_backend.h"
#include "backend/cuda/card/cards.h"
#include "backend/cuda/layout/mx_a_m16k32.h"
#include "backend/cuda/program/program.h"
#include "base/error.h"
#include "base/thread_pool.h"
#include "lab/predict/predictor.h"
#include "model/gpt_oss.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace nibble::app {
namespace {

using Json = nlohmann::ordered_json;
using backend::Stage;

constexpr int64_t kPlanContext = 4096;  // the context that must fit on a card if none is given

// A step to plan: some sequences that generate, or one that reads a prompt or a part of it.
struct Scenario {
  std::string name;
  std::vector<backend::Row> rows;
};

// A prompt is read in several steps, as in the engine: between the first and the last only the depth grows.
std::vector<Scenario> scenarios_of(const InspectOptions& options, const model::ModelConfig& config) {
  std::vector<Scenario> scenarios;
  const auto add = [&](const PredictShape& shape) {
    if (const int64_t most = shape.depth + std::max<int64_t>(shape.prompt, 1); most > config.dims.max_context)
      throw Error(Code::kInvalidRequest, "want a depth (-d) and its step of at most {} tokens, found {}",
                  config.dims.max_context, most);
    const auto steps = steps_of(shape, backend::with_defaults(options.model.run).max_num_batched_tokens);
    const std::string name = shape.prompt > 0 ? fmt::format("pp{} @ d{}", shape.prompt, shape.depth) : shape.name();
    if (steps.size() == 1) return scenarios.push_back({name, steps.front()});
    for (const size_t i : {size_t{0}, steps.size() - 1})
      scenarios.push_back(
          {fmt::format("{}, step {} of {}: {} tokens", name, i + 1, steps.size(), steps[i][0].tokens), steps[i]});
  };
  for (const int64_t depth : options.depths) {
    for (const int64_t batch : options.batches)
      if (batch > 0) add({.batch = static_cast<int>(batch), .depth = depth});
    for (const int64_t prompt : options.prompts)
      if (prompt > 0) add({.prompt = prompt, .depth = depth});
  }
  if (scenarios.empty()) throw Error(Code::kInvalidRequest, "want -b or -p above 0, found nothing to plan");
  return scenarios;
}

backend::cuda::DeviceFacts card_of(const std::string& word) {
  if (!word.empty()) return backend::cuda::card_named(word).facts;
  if (auto card = backend::cuda_plan_device()) return *card;
  backend::cuda::DeviceFacts card = backend::cuda::card_named("h200").facts;
  card.name += ", taken for lack of a card";
  return card;
}

// A card's choice of kernels depends on the MXFP4 scales. A safetensors checkpoint's are read, a sixteenth of its
// experts. In a GGUF file they lie between the values, so all of those would have to be read.
struct Scales {
  backend::cuda::layout::ModelScales codes{};
  bool read = false;
  [[nodiscard]] std::string text() const {
    if (!read) return "taken for at most 2^4, they are not read";
    return fmt::format("{}{}", codes.wide() ? "some above 2^4" : "at most 2^4",
                       codes.experts.fits_bytes() ? "" : ", the experts' too far apart for FP8");
  }
};

Scales scales_of(std::span<const backend::HostWeight> weights, ThreadPool& pool) {
  using backend::WeightFormat;
  if (std::ranges::find(weights, WeightFormat::kGgmlMxfp4, &backend::HostWeight::format) != weights.end()) return {};
  Scales scales;
  std::mutex mutex;
  pool.parallel_chunks(std::ssize(weights), 1, [&](IndexRange range) {
    for (const backend::HostWeight& weight :
         weights.subspan(static_cast<size_t>(range.begin), static_cast<size_t>(range.end - range.begin))) {
      if (weight.format != WeightFormat::kMxfp4) continue;
      std::array<bool, 256> seen{};
      for (const std::byte code : weight.scales.bytes) seen[static_cast<size_t>(code)] = true;
      const bool experts = weight.role == backend::WeightRole::kGateUp || weight.role == backend::WeightRole::kDown;
      const std::lock_guard lock(mutex);
      scales.read = true;
      for (size_t code = 0; code < seen.size(); ++code)
        if (seen[code]) (experts ? scales.codes.experts : scales.codes.dense).add(static_cast<int>(code));
    }
  });
  return scales;
}

class Planner {
 public:
  Planner(const InspectOptions& options, const model::ModelConfig& config, std::span<const backend::HostWeight> weights)
      : options_(options),
        config_(config),
        backend_config_(model::backend_config(config, {}, options.model.run.dense)),
        cost_(model::cost_of(config, stored_formats(options.model, weights))),
        reduce_(backend::cuda::planned_reduce(options.model.run.ranks)) {
    cost_.formats.kv_row_bytes = kv_row_bytes(options.model, config.dims);
    if (options.model.run.backend == BackendKind::kReference)
      throw Error(Code::kUnsupported, "want --backend cpu or cuda, found reference: it has plain loops only");
    if (options.model.run.backend == BackendKind::kCuda) {
      card_ = card_of(options.card);
      backend_config_ = backend::cuda_config(backend_config_, options.model.run.ranks);
      cost_.screened_bytes = backend::cuda::screened_bytes(backend_config_, options.model.run, *card_);
      conversions_ = weight_conversions(weights, options.model);
      ThreadPool pool(options.model.run.threads);
      scales_ = scales_of(weights, pool);
    } else if (!options.card.empty()) {
      throw Error(Code::kInvalidRequest, "--card {}: want --backend cuda, found {}", options.card,
                  name_of(options.model.run.backend));
    } else {
      backend::set_cpu_screen(cost_, options.model.run);
    }
  }

  [[nodiscard]] std::string device() const {
    const int ranks = options_.model.run.ranks.count;
    if (ranks > 1 && card_) return fmt::format("cuda, {} x {}; of the first:", ranks, card_->name);
    if (ranks > 1) return fmt::format("cpu, {} threads for {} ranks; of the first:", options_.model.run.threads, ranks);
    return card_ ? fmt::format("cuda, {} ({} multiprocessors)", card_->name, card_->multiprocessors)
                 : fmt::format("cpu, {} threads", options_.model.run.threads);
  }

  [[nodiscard]] Json ranks() const {
    const backend::RunConfig& run = options_.model.run;
    return ranks_json(cost_, config_, run.ranks, options_.depths.front(),
                      card_ ? std::optional(memory_of_a_card(card_->memory_bytes, run)) : std::nullopt);
  }
  [[nodiscard]] std::string host() const { return describe_host_layers(options_.model, cost_, config_.layer_kinds); }
  [[nodiscard]] const std::string& conversions() const { return conversions_; }
  // About the MXFP4 weights on a card; otherwise empty.
  [[nodiscard]] std::string scales() const { return card_ ? scales_.text() : ""; }
  // Nothing tells which code a named card that is not here would run.
  [[nodiscard]] std::string kernels() const {
    return card_ && card_->code == 0 ? "of a build with code for this card, whether or not this one has it" : "";
  }

  [[nodiscard]] Json json(const Scenario& scenario) const {
    const backend::StepShape step{.rows = scenario.rows, .logit_rows = static_cast<int64_t>(scenario.rows.size())};
    Json json = {{"step", scenario.name}, {"sequences", scenario.rows.size()}};
    std::vector<backend::PlannedKernel> stages;
    if (card_) {
      const backend::cuda::Program program = backend::cuda::make_program({.config = backend_config_,
                                                                          .run = options_.model.run,
                                                                          .step = step,
                                                                          .card = *card_,
                                                                          .reduce = reduce_ ? &*reduce_ : nullptr,
                                                                          .scales = scales_.codes,
                                                                          .screened = true});
      json["moe_kernel"] = name_of(program.family);
      json["moe_activation"] = name_of(program.activations);
      json["dense_activation"] = name_of(program.dense_activations);
      json["attention_backend"] =
          name_of(program.flash ? backend::AttentionKernel::kFlash : backend::AttentionKernel::kReference);
      stages.assign(program.nodes.begin(), program.nodes.end());
    } else {
      stages = backend::cpu_plan({.dims = config_.dims,
                                  .formats = cost_.formats,
                                  .step = step,
                                  .run = options_.model.run,
                                  .layer_experts = config_.layer_experts});
    }
    json["stages"] = Json::array();
    for (const backend::PlannedKernel& planned : stages) {
      json["stages"].push_back({{"stage", name_of(planned.stage)},
                                {"layers", layers(planned)},
                                {"kernel", planned.kernel},
                                {"launches", planned.launches},
                                {"tile", planned.tile},
                                {"shared_bytes", planned.shared_bytes},
                                {"bytes", static_cast<int64_t>(planned.cost.bytes)},
                                {"flops", static_cast<int64_t>(planned.cost.flops)}});
    }
    const backend::CostModel own = card_ ? of_a_card(cost_, options_.model.run.ranks) : cost_;
    const backend::Cost all = own.of_step(config_.layer_kinds, step);
    json["bytes"] = static_cast<int64_t>(all.bytes);
    json["flops"] = static_cast<int64_t>(all.flops);
    return json;
  }

 private:
  [[nodiscard]] std::string layers(const backend::PlannedKernel& planned) const {
    if (backend::outside_layers(planned.stage)) return "";
    const int64_t layers = backend::layers_of(planned, config_.layer_kinds);
    if (!planned.kind) return fmt::format("{}", layers);
    return fmt::format("{} {}", layers, name_of(*planned.kind));
  }

  const InspectOptions& options_;
  const model::ModelConfig& config_;
  backend::BackendConfig backend_config_;
  backend::CostModel cost_;
  std::optional<backend::cuda::Reduce> reduce_;  // between several cards
  std::optional<backend::cuda::DeviceFacts> card_;
  std::string conversions_;  // of weights while they are loaded
  Scales scales_;
};

std::string text(const Json& plan, Terminal& terminal) {
  std::string out = terminal.bold(fmt::format("{}: {:.3f} GB, {:.2f} GFLOP", plan["step"].get<std::string>(),
                                              plan["bytes"].get<double>() / 1e9, plan["flops"].get<double>() / 1e9));
  if (plan.contains("moe_kernel")) {
    out += fmt::format(" (--moe-kernel {}, --attention-backend {}; activations of experts {}, of dense layers {})",
                       plan["moe_kernel"].get<std::string>(), plan["attention_backend"].get<std::string>(),
                       plan["moe_activation"].get<std::string>(), plan["dense_activation"].get<std::string>());
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

int inspect_plan(const InspectOptions& asked, const model::ModelConfig& config, Terminal& terminal) {
  InspectOptions options = asked;
  if (!asked.card.empty() && asked.model.run.backend == BackendKind::kAuto)
    options.model.run.backend = BackendKind::kCuda;
  backend::validate(asked.model.run.ranks, config.dims, config.layer_experts);
  options.model = resolved_alone(options.model, kPlanContext, card_of(asked.card));
  for (const std::string& why :
       {options.model.backend_why, options.model.fast_why, options.model.offload_why, options.model.left_out})
    if (!why.empty() && !options.output.json) terminal.note(why);
  std::optional<ModelFiles> files;
  std::vector<backend::HostWeight> weights;
  const bool may_convert = options.model.run.backend == BackendKind::kCuda || is_gguf(options.model);
  if (options.model.load_format != LoadFormat::kDummy && may_convert) {
    files.emplace(options.model);
    weights = model::bind_weights(
        files->tensors(), config,
        {.where = options.model.model, .check_scales = false, .experts = options.model.expert_format});
  }
  const Planner planner(options, config, weights);
  Json json = {{"device", planner.device()}, {"kernels", planner.kernels()}, {"weights", planner.conversions()},
               {"scales", planner.scales()}, {"host", planner.host()},       {"plans", Json::array()}};
  const bool several = options.model.run.ranks.count > 1;
  if (several) json["ranks"] = planner.ranks();
  for (const Scenario& scenario : scenarios_of(options, config)) json["plans"].push_back(planner.json(scenario));
  if (options.output.json) {
    terminal.print_json(json);
    return kExitOk;
  }
  terminal.print(fmt::format("{}\n", planner.device()));
  if (!planner.kernels().empty()) terminal.print(fmt::format("kernels: {}\n", planner.kernels()));
  if (!planner.conversions().empty()) terminal.print(fmt::format("weights: {}\n", planner.conversions()));
  if (!planner.host().empty()) terminal.print(fmt::format("{}\n", planner.host()));
  if (!planner.scales().empty()) terminal.print(fmt::format("MXFP4 scales: {}\n", planner.scales()));
  if (several)
    terminal.print(terminal.bold(fmt::format("memory of each of {} ranks", json["ranks"].size())) + "\n" +
                   ranks_text(json["ranks"]));
  for (const Json& each : json["plans"]) terminal.print(text(each, terminal));
  return kExitOk;
}

}  // namespace nibble::app
