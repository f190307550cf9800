#include "app/setup/commands.h"
#include "app/setup/loaded_model.h"
#include "app/setup/named_model.h"
#include "app/setup/terminal.h"
#include "convert/inspect.h"
#include "lab/predict/predictor.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>

namespace nibble::app {
namespace {

using Json = nlohmann::ordered_json;

struct ListedTensor {
  std::string name, dtype;
  Shape shape;
  int64_t bytes;
};

struct Inspection {
  std::vector<ListedTensor> rows;
  convert::ModelNumbers numbers;
  std::string conversions{};
};

// Reads the files if there are any: then the list shows what is really there, and bind() has found it complete.
Inspection inspect(const InspectOptions& options, const model::ModelConfig& config) {
  Inspection result{.rows = {}, .numbers = convert::numbers_of(config)};
  if (options.model.load_format == LoadFormat::kDummy) {
    for (const model::ManifestItem& item : model::manifest(config, model::Naming::kHuggingFace))
      result.rows.push_back({item.name, std::string(name_of(item.dtype)), item.shape, item.bytes()});
    return result;
  }
  const ModelFiles files(options.model);
  const auto weights = model::bind_weights(
      files.tensors(), config,
      {.where = options.model.model, .check_scales = false, .experts = options.model.expert_format});
  result.conversions = weight_conversions(weights, options.model);
  for (const auto& [name, tensor] : files.tensors())
    result.rows.push_back({name, std::string(name_of(tensor.dtype)), tensor.shape, std::ssize(tensor.bytes)});
  result.numbers = convert::numbers_of(config, weights);
  return result;
}

Json dims_json(const model::ModelConfig& config) {
  const backend::Dims& d = config.dims;
  Json json = {{"layers", d.layers},
               {"hidden", d.hidden},
               {"heads", d.heads},
               {"kv_heads", d.kv_heads},
               {"head_dim", d.head_dim},
               {"inter", d.inter},
               {"experts", d.experts},
               {"topk", d.topk},
               {"vocab", d.vocab},
               {"sliding_window", d.sliding_window},
               {"max_context", d.max_context}};
  if (d.wide_window > 0) json["wide_window"] = d.wide_window;
  for (const backend::LayerKind kind : config.layer_kinds)
    if (d.wide_window > 0) json["layer_kinds"].push_back(name_of(kind));
  if (!config.layer_experts.empty()) json["layer_experts"] = config.layer_experts;
  return json;
}

Json report(const model::ModelConfig& config, const convert::ModelNumbers& n, const std::vector<int64_t>& contexts) {
  Json json = {{"dims", dims_json(config)},
               {"tensors", n.total.tensors},
               {"bytes", n.total.bytes},
               {"parameters", n.total.parameters},
               {"active_parameters", n.active_parameters},
               {"bytes_per_expert", n.bytes_per_expert}};
  for (int c = 0; c < convert::kWeightClasses; ++c) {
    const auto weight_class = static_cast<convert::WeightClass>(c);
    const convert::ClassNumbers& k = n.of(weight_class);
    json["classes"][std::string(convert::name_of(weight_class))] = {
        {"tensors", k.tensors}, {"bytes", k.bytes}, {"parameters", k.parameters}};
  }
  json["decode_bytes_per_token"] = {{"experts", n.decode.experts},
                                    {"attention", n.decode.attention},
                                    {"unembedding", n.decode.unembedding},
                                    {"rest", n.decode.rest},
                                    {"total", n.decode.total()}};
  json["kv_bytes_per_token"] = n.kv_bytes_per_token;
  for (const int64_t context : contexts) {
    const int64_t kv = convert::kv_bytes(config, context);
    json["memory"].push_back({{"context", context}, {"kv_bytes", kv}, {"total_bytes", n.total.bytes + kv}});
  }
  return json;
}

// What one sequence of each context takes of a known card, as `nibble predict` counts it.
void add_card(Json& json, const InspectOptions& options, const model::ModelConfig& config) {
  const backend::cuda::KnownCard card = backend::cuda::card_named(options.card);
  ModelOptions on_card = options.model;
  on_card.run.backend = BackendKind::kCuda;
  on_card.run = backend::with_defaults(on_card.run);
  const Predictor predictor{on_card, config, on_card.run.dense, card};
  for (Json& memory : json["memory"]) {
    const auto context = memory["context"].get<int64_t>();
    if (context > config.dims.max_context) continue;
    const PredictedRow row = predictor.row({.depth = context - 1});
    memory["card_bytes"] = row.needs.total();
    memory["fits"] = row.fits();
    memory["host_layers"] = row.host_layers;
    json["card"] = {{"device", card.facts.name}, {"room_bytes", row.room.bytes}};
  }
}

// "18 sliding, 10 full": how often a list has each of its values, in the order of their first.
std::string counts_of(const Json& list) {
  std::vector<std::string> counts;
  for (auto at = list.begin(); at != list.end(); ++at)
    if (std::find(list.begin(), at, *at) == at)
      counts.push_back(fmt::format("{} {}", std::count(at, list.end(), *at),
                                   at->is_string() ? at->get<std::string>() : "of " + at->dump()));
  return fmt::format("{}", fmt::join(counts, ", "));
}

std::string text_report(const Json& j, Terminal& terminal) {
  std::string out;
  const auto line = [&](std::string_view name, const std::string& value) {
    out += fmt::format("  {:<24}{}\n", name, value);
  };
  const auto bytes = [](const Json& value) { return format_bytes(value.get<double>()); };
  const auto billions = [](const Json& value) {
    return value.get<double>() >= 1e9 ? fmt::format("{:.2f} B", value.get<double>() / 1e9)
                                      : fmt::format("{:.2f} M", value.get<double>() / 1e6);
  };
  out += terminal.bold("model") + "\n";
  for (const auto& [name, value] : j["dims"].items()) line(name, value.is_array() ? counts_of(value) : value.dump());
  line("parameters",
       fmt::format("{}, {} active per token", billions(j["parameters"]), billions(j["active_parameters"])));
  out += terminal.bold("weights") + "\n";
  for (const auto& [name, k] : j["classes"].items()) {
    line(name, fmt::format("{:>9}  {:>5} tensors  {:>9} parameters", bytes(k["bytes"]), k["tensors"].get<int64_t>(),
                           billions(k["parameters"])));
  }
  line("total", fmt::format("{} = {} bytes in {} tensors", fmt::format("{:.2f} GB", j["bytes"].get<double>() / 1e9),
                            j["bytes"].get<int64_t>(), j["tensors"].get<int64_t>()));
  if (j.contains("conversions")) line("become", j["conversions"].get<std::string>());
  out += terminal.bold("read per decoded token (batch 1, without KV)") + "\n";
  for (const auto& [name, value] : j["decode_bytes_per_token"].items())
    line(name, fmt::format("{:.3f} GB", value.get<double>() / 1e9));
  out += terminal.bold("memory (weights + bf16 KV of one sequence)") + "\n";
  for (const Json& m : j["memory"]) {
    std::string on_card;
    if (m.contains("fits")) {
      const int layers = m["host_layers"].get<int>();
      on_card = fmt::format("; with work space {} of a card{}: {}", bytes(m["card_bytes"]),
                            layers > 0 ? fmt::format(", the experts of {} layers on the host", layers) : "",
                            m["fits"].get<bool>() ? "fits" : "too much");
    }
    line(fmt::format("context {}", m["context"].get<int64_t>()),
         fmt::format("{} (KV {}){}", bytes(m["total_bytes"]), bytes(m["kv_bytes"]), on_card));
  }
  if (j.contains("card"))
    line("the card",
         fmt::format("{}, {} to use", j["card"]["device"].get<std::string>(), bytes(j["card"]["room_bytes"])));
  return out;
}

}  // namespace

int execute(const InspectOptions& asked) {
  InspectOptions options = asked;
  Terminal terminal(options.output);
  options.model = with_files(asked.model, terminal);
  const auto [config, notes] = open_config(options.model);
  if (options.plan) return inspect_plan(options, config, terminal);
  const auto [rows, numbers, becomes] = inspect(options, config);
  for (const std::string& note : notes) terminal.note(note);
  std::vector<int64_t> contexts = options.contexts;
  if (contexts.empty()) {
    for (const int64_t context : {4096, 32768, 131072})
      if (context <= config.dims.max_context) contexts.push_back(context);
  }
  Json json = report(config, numbers, contexts);
  if (!becomes.empty()) json["conversions"] = becomes;
  if (!options.card.empty()) add_card(json, options, config);
  if (options.output.json) {
    for (const ListedTensor& row : rows)
      if (options.tensors)
        json["tensor_list"].push_back(
            {{"name", row.name}, {"dtype", row.dtype}, {"shape", row.shape}, {"bytes", row.bytes}});
    terminal.print_json(json);
    return kExitOk;
  }
  if (options.tensors)
    for (const ListedTensor& row : rows)
      terminal.print(fmt::format("{:<5} {:<22} {:>13}  {}\n", row.dtype, fmt::format("[{}]", fmt::join(row.shape, ",")),
                                 row.bytes, row.name));
  terminal.print(text_report(json, terminal));
  return kExitOk;
}

}  // namespace nibble::app
