#include "model/compare.h"

#include "app/options/option.h"
#include "app/setup/commands.h"
#include "app/setup/loaded_model.h"
#include "app/setup/named_model.h"
#include "app/setup/terminal.h"
#include "base/error.h"
#include "engine/step_builder.h"
#include "model/gpt_oss.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>

namespace nibble::app {
namespace {

constexpr int64_t kMostCompared = 4096;  // one step holds all activations of all of them
constexpr std::string_view kDefaultPrompt = "The quick brown fox jumps over the lazy dog.";

// "[3, 17]" for a row-major element.
std::string index_of(int64_t element, const Shape& shape) {
  std::vector<int64_t> index(shape.size());
  for (size_t d = shape.size(); d-- > 0; element /= shape[d]) index[d] = element % shape[d];
  return fmt::format("[{}]", fmt::join(index, ", "));
}

std::string where(const model::StageDifference& d) {
  return d.layer < 0 ? std::string(name_of(d.stage)) : fmt::format("layer {} {}", d.layer, name_of(d.stage));
}

std::string line(const model::StageDifference& d) {
  return fmt::format("{:<18} {:<15} rms {:<10.4g} largest difference {:<9.2e} at {}{}\n", where(d),
                     backend::name_of(d.slot), d.rms, d.largest, index_of(d.element, d.shape),
                     d.near_tie ? " (near-tie)" : "");
}

}  // namespace

int execute(const CompareOptions& asked) {
  CompareOptions options = asked;
  Terminal terminal(options.output);
  options.model = with_files(asked.model, terminal);
  check_backends(options.model.run, {options.a, options.b}, "another");
  const ModelSource source = open_model(options.model, terminal);
  const std::vector<int32_t> prompt =
      source.tokenizer.encode(options.prompt.given ? read_text(options.prompt) : kDefaultPrompt);
  const int tokens = static_cast<int>(prompt.size());
  const int64_t most = std::min(kMostCompared, source.config.dims.max_context);
  if (tokens < 1 || tokens > most)
    throw Error(Code::kInvalidRequest, "want 1 to {} prompt tokens, found {}", most, tokens);
  const auto pages = static_cast<int32_t>(engine::pages_for(tokens));
  const model::StepLimits limits{.max_tokens = tokens, .max_rows = 1, .kv_pages = {pages, pages, pages}};
  const auto config = model::backend_config(source.config, limits, options.model.run.dense);
  const bool card = options.a == BackendKind::kCuda || options.b == BackendKind::kCuda;
  const auto exact = [&](BackendKind kind) {  // the reference rounds nothing, beside a card but to what that holds
    backend::RunConfig run = options.model.run;
    run.backend = card ? BackendKind::kCuda : kind;
    if (!run.kv) run.kv = backend::KvDtype::kF32;
    if (kind == BackendKind::kCpu && run.activations == backend::Activations::kAuto)
      run.activations = backend::Activations::kF32;
    return make_backend(kind, run, config);
  };
  const auto be_a = exact(options.a), be_b = exact(options.b);
  model::GptOss model_a = model::load(*be_a, source.config, source.weights);
  model::GptOss model_b = model::load(*be_b, source.config, source.weights);
  model_a.attention_sinks = model_b.attention_sinks = options.model.run.sinks;
  model::Step step = engine::step_alone(prompt);
  step.logit_tokens = {tokens - 1};
  const model::Comparison result = model::compare({*be_a, model_a}, {*be_b, model_b}, step, options.tolerance);

  nlohmann::ordered_json json = {{"a", be_a->name()},
                                 {"b", be_b->name()},
                                 {"tokens", tokens},
                                 {"tolerance", options.tolerance},
                                 {"differs", result.first_bad.has_value()},
                                 {"stages", nlohmann::ordered_json::array()}};
  for (const model::StageDifference& d : result.stages) {
    if (!options.output.json) terminal.print(line(d));
    json["stages"].push_back({{"stage", name_of(d.stage)},
                              {"layer", d.layer},
                              {"slot", backend::name_of(d.slot)},
                              {"rms", d.rms},
                              {"largest", d.largest},
                              {"at", index_of(d.element, d.shape)},
                              {"a", d.a},
                              {"b", d.b}});
  }
  if (options.output.json) {
    terminal.print_json(json);
  } else if (result.first_bad) {
    const model::StageDifference& d = result.stages[*result.first_bad];
    terminal.print(fmt::format("first difference: {}, {}{}: {} {} against {} {}{}\n", where(d),
                               backend::name_of(d.slot), index_of(d.element, d.shape), be_a->name(), d.a, be_b->name(),
                               d.b, d.near_tie ? "; the router logits agree, so this is a near-tie" : ""));
  } else {
    terminal.print(fmt::format("{} and {} agree within {:g} in all {} activations of {} tokens\n", be_a->name(),
                               be_b->name(), options.tolerance, result.stages.size(), tokens));
  }
  return result.first_bad ? kExitDiffers : kExitOk;
}

}  // namespace nibble::app
