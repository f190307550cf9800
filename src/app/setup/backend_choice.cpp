#include "app/setup/backend_choice.h"

#include "app/setup/fast.h"
#include "app/setup/loaded_model.h"
#include "app/setup/rank_group.h"
#include "app/setup/rank_group.h"
#include "app/options/option.h"
#include "app/options/settings.h"
#include "backend/cpu/cpu_backend.h"
#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/program/program.h"
#include "backend/reference/reference_backend.h"
#include "base/error.h"

#include <fmt/format.h>

namespace nibble::app {
namespace {

CardFacts card_facts(const ModelOptions& options, const LimitsOf& limits_of) {
  CardFacts card;
  if (const backend::CudaAvailable available = backend::cuda_available(); !available.yes) {
    card.why_not = available.reason;
    card.expected = available.expected;
    return card;
  }
  if (const auto facts = backend::cuda_plan_device()) card.name = facts->name;
  const model::ModelConfig config = open_config(options).config;
  const model::StepLimits limits = limits_of(options, config);
  const backend::CostModel cost{config.dims, stored_formats(options, {})};
  try {
    const Budget budget = budget_of(options, model::backend_config(config, limits, options.run.dense), cost);
    card.needs = budget.needs;
    card.room = budget.limit;
  } catch (const Error& why) {  // the card has no kernels for these shapes or flags
    card.why_not = why.what();
  }
  return card;
}

}  // namespace

BackendChoice choose_backend(const CardFacts& card, std::string_view host_flag) {
  if (!host_flag.empty()) return {BackendKind::kCpu, fmt::format("backend cpu: {} is not for cards", host_flag)};
  if (!card.expected) return {BackendKind::kCpu, ""};
  if (!card.why_not.empty()) return {BackendKind::kCpu, fmt::format("backend cpu: {}", card.why_not)};
  if (card.needs.total() > card.room.bytes) {
    return {BackendKind::kCpu, fmt::format("backend cpu: too little memory on the card, {}: want {}; {}", card.name,
                                           describe(card.needs), card.room.where)};
  }
  return {BackendKind::kCuda, fmt::format("backend cuda: {} has room for the model", card.name)};
}

ModelOptions with_backend(const ModelOptions& options, const LimitsOf& limits_of,
                          const std::optional<backend::cuda::DeviceFacts>& card) {
  const auto fast = [&card](const ModelOptions& o) {
    const bool ask = o.run.fast && !card && o.run.backend == BackendKind::kCuda;
    return with_fast(o, ask ? backend::cuda_plan_device() : card);
  };
  const bool may_be_a_card = options.run.backend == BackendKind::kAuto || options.run.backend == BackendKind::kCuda;
  if (in_a_group(options) && may_be_a_card) take_own_card(options.group);
  if (options.run.backend != BackendKind::kAuto) return fast(options);
  if (options.run.ranks.count > 1 && !in_a_group(options) &&
      backend::cuda_available().yes)  // who has cards did not mean the CPU
    backend::require_cards(options.run.ranks.count, fmt::format("--tensor-parallel-size {}", options.run.ranks.count));
  ModelOptions with = options;
  with.run.backend = BackendKind::kCuda;
  const auto of_a_host = first_misfit(options.run, {BackendKind::kCuda});
  const std::string host_flag = of_a_host ? of_a_host->asked() : "";
  BackendChoice choice = choose_backend(host_flag.empty() ? card_facts(fast(with), limits_of) : CardFacts(), host_flag);
  with.run.backend = choice.backend;
  with.backend_why = std::move(choice.why);
  return fast(with);
}

ModelOptions resolved_model(ModelOptions options) {
  const backend::RunConfig& run = options.run;
  check_backends(run, {run.backend}, options.backend_why);
  if (run.backend == BackendKind::kCuda && in_a_group(options)) require_card_of_a_rank(options.group);
  if (run.ranks.count > 1) backend::validate(run.ranks, open_config(options).config.dims);
  options.run =
      run.backend == BackendKind::kCpu ? backend::resolved_cpu(run)
      : run.backend == BackendKind::kReference
          ? backend::resolved_reference(run)
          : backend::resolved_cuda(
                backend::cuda_config(model::backend_config(open_config(options).config, {}, run.dense), run.ranks),
                run);
  for (const RunSetting& setting : run_settings(options.run))
    if (setting.given && setting.on.has(run.backend)) note_resolved(options.settings, setting.flag, setting.value);
  return options;
}

ModelOptions resolved_alone(const ModelOptions& options, int64_t context,
                            const std::optional<backend::cuda::DeviceFacts>& card) {
  const auto limits_of = [context](const ModelOptions& o, const model::ModelConfig& config) {
    return with_taps(engine::step_limits(one_sequence(o, context_length(o, config, context)), config.dims), o, config);
  };
  return resolved_model(with_backend(options, limits_of, card));
}

}  // namespace nibble::app
