#include "app/setup/feature_check.h"

#include "app/setup/backend_choice.h"
#include "app/setup/loaded_model.h"
#include "backend/cuda/card/cards.h"
#include "backend/cuda/program/program.h"
#include "base/error.h"

#include <array>
#include <string_view>

namespace nibble::app {
namespace {

ModelOptions model_shapes(BackendKind backend) {
  ModelOptions model;
  model.model = "gpt-oss-20b";
  model.load_format = LoadFormat::kDummy;
  model.run.backend = backend;
  return model;
}

BackendKind backend_named(std::string_view name) {
  for (const BackendKind kind : backend::kBackends)
    if (backend::name_of(kind) == name) return kind;
  check(false, "a backend's name");
  return {};
}

}  // namespace

ServeOptions resolved_features(ServeOptions options, const std::optional<backend::cuda::DeviceFacts>& card) {
  const auto one = [](const ModelOptions& o, const model::ModelConfig& config) {
    return engine::step_limits(one_sequence(o, backend::kPageTokens), config.dims);
  };
  options.model = resolved_model(with_backend(options.model, one, card));
  require_speculation(options.model);
  if (!card) return options;
  const std::array row = {backend::Row{.tokens = 1, .context = 1}};
  const backend::RunConfig& run = options.model.run;
  static_cast<void>(
      backend::cuda::make_program({.config = model::backend_config(open_config(options.model).config, {}, run.dense),
                                   .run = run,
                                   .step = {.rows = row, .logit_rows = 1},
                                   .card = *card}));
  return options;
}

std::string refusal_of(const Refusal& asked) {
  try {
    ServeOptions options;
    options.model = model_shapes(backend_named(asked.backend));
    std::optional<backend::cuda::DeviceFacts> card;
    if (!asked.card.empty()) card = backend::cuda::card_named(asked.card).facts;
    static_cast<void>(resolved_features(with_words(options, feature_words(asked.words)), card));
  } catch (const Error& e) {
    if (e.code() != Code::kUnsupported && e.code() != Code::kInvalidRequest) throw;
    return e.what();
  }
  return {};
}

}  // namespace nibble::app
