#include "app/options/feature_options.h"

#include "app/setup/backend_choice.h"
#include "app/setup/loaded_model.h"
#include "app/options/model_options.h"
#include "app/options/option_parts.h"
#include "backend/cuda/card/cards.h"
#include "backend/cuda/program/program.h"
#include "base/error.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

namespace nibble::app {
namespace {

// The flags that features have, as `nibble serve` declares them.
void declare(Flags flags, ServeOptions& options) {
  add_serve_flags(flags, options);
  add_backend(flags, options.model);
  add_runtime(flags, options.model);
  add_speculation(flags, options.model);
}

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

const Preset& known_preset(const std::string& name) {
  if (const Preset* const preset = preset_named(name)) return *preset;
  std::vector<std::string_view> names;
  for (const Preset& preset : presets()) names.push_back(preset.name);
  refuse_value("--preset", fmt::format("want one of {}, found {}", fmt::join(names, ", "), name));
}

}  // namespace

Flag add_presets(Flags flags, std::vector<std::string>& into, const std::string& help) {
  const auto take = [&into](const std::string& text) {
    into.clear();
    for (const std::string& name : split(text, ',')) into.emplace_back(known_preset(name).name);
  };
  return flags.take("--preset", take, help).type("LIST");
}

void add_preset(Flags flags, Settings& settings) {
  const auto take = [&settings](const std::string& name) {
    for (const FeatureWord& word : feature_words(known_preset(name).words))
      settings.implied.push_back({word.flag, word.value, "preset " + name});
  };
  flags.take("--preset", take, "Flags that belong together: B1, C1, C2, C3 or C4 (docs/feature-matrix.md)")
      .type("NAME");
}

std::vector<std::string> split(std::string_view text, char at) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(at, begin), text.size());
    parts.emplace_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

std::vector<FeatureWord> feature_words(std::string_view text) {
  const std::vector<std::string> parts = split(text, ' ');
  std::vector<FeatureWord> words;
  for (size_t i = 0; i + 1 < parts.size(); i += 2) words.push_back({parts[i], parts[i + 1]});
  return words;
}

std::vector<FeatureWord> words_of(const Feature& feature, std::string_view value) {
  if (feature.value_named(value) == nullptr && value == feature.usual) return {};
  return {{std::string(feature.flag), std::string(value)}};
}

ServeOptions with_words(const ServeOptions& options, std::span<const FeatureWord> words) {
  ServeOptions with = options;
  CommandLine line("");
  Flags flags = line.command("serve", "");
  declare(flags, with);
  for (const FeatureWord& word : words) {
    std::optional<Flag> flag = flags.find(word.flag);
    if (!flag) throw Error(Code::kInvalidRequest, "nibble serve has no {}", word.flag);
    flag->set({word.value}, "nibble serve");
  }
  return with;
}

CommandFacts feature_flags() {
  CommandLine line("");
  ServeOptions options;
  declare(line.command("serve", ""), options);
  return line.facts().front();
}

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

std::string fingerprint(const ServeOptions& o) {
  std::string text;
  for (const backend::RunSetting& setting : backend::settings_of(o.model.run))
    text += fmt::format("{} {} ", setting.flag, setting.value);
  const engine::SpeculationLimits& s = o.model.speculation;
  const std::string async = o.async_scheduling ? fmt::format("{}", *o.async_scheduling) : "open";
  return text + fmt::format("speculation {} {} {} {} {} {} prefix cache {} async {} priority {} replicas {}",
                            engine::name_of(s.method), s.most_tokens, s.most_lookup, s.least_lookup,
                            o.model.speculative_model.string(), static_cast<int>(o.model.tap_reading), o.prefix_cache,
                            async, o.by_priority, o.replicas);
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
