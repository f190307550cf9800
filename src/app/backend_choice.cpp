#include "app/backend_choice.h"

#include "app/fast.h"
#include "app/loaded_model.h"
#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/program/program.h"
#include "base/error.h"

#include <fmt/format.h>

namespace nibble::app {
namespace {

CardFacts card_facts(const ModelOptions& options, const LimitsOf& limits_of) {
  CardFacts card;
  if (const backend::CudaAvailable available = backend::cuda_available(); !available.yes) {
    card.why_not = available.reason;
    return card;
  }
  if (const auto facts = backend::cuda_plan_device()) card.name = facts->name;
  const model::ModelConfig config = open_config(options).config;
  const model::StepLimits limits = limits_of(options, config);
  const backend::CostModel cost{config.dims, stored_formats(options, {})};
  try {
    const Budget budget = budget_of(options, model::backend_config(config, limits, options.dense), cost);
    card.needs = budget.needs;
    card.room = budget.limit;
  } catch (const Error& why) {  // no kernels for the shapes, or for what the flags ask
    card.why_not = why.what();
  }
  return card;
}

}  // namespace

BackendChoice choose_backend(const CardFacts& card, std::string_view host_flag) {
  if (!host_flag.empty()) return {BackendKind::kCpu, fmt::format("backend cpu: {} is not for cards", host_flag)};
  if (!card.why_not.empty()) return {BackendKind::kCpu, fmt::format("backend cpu: {}", card.why_not)};
  if (card.needs.total() > card.room.bytes) {
    return {BackendKind::kCpu, fmt::format("backend cpu: too little memory on the card, {}: want {}; {}", card.name,
                                           describe(card.needs), card.room.where)};
  }
  return {BackendKind::kCuda, fmt::format("backend cuda: {} has room for the model", card.name)};
}

namespace {

ModelOptions with_backend_and_fast(const ModelOptions& options, const LimitsOf& limits_of,
                                   const std::optional<backend::cuda::DeviceFacts>& card) {
  if (options.backend != BackendKind::kAuto) return with_fast(options, card);
  ModelOptions with = options;
  with.backend = BackendKind::kCuda;
  const std::string host_flag = foreign_flag(options, {BackendKind::kCuda}).flag;
  BackendChoice choice =
      choose_backend(host_flag.empty() ? card_facts(with_fast(with, card), limits_of) : CardFacts(), host_flag);
  with.backend = choice.backend;
  with.backend_why = std::move(choice.why);
  return with_fast(with, card);
}

}  // namespace

ModelOptions with_backend(const ModelOptions& options, const LimitsOf& limits_of) {
  return with_backend_and_fast(options, limits_of, backend::cuda_plan_device());
}

ModelOptions with_backend(const ModelOptions& options, int64_t context,
                          const std::optional<backend::cuda::DeviceFacts>& card) {
  const auto limits_of = [context](const ModelOptions& o, const model::ModelConfig& config) {
    return engine::step_limits(one_sequence(o, context_length(o, config, context)), config.dims);
  };
  return with_backend_and_fast(options, limits_of, card ? card : backend::cuda_plan_device());
}

}  // namespace nibble::app
