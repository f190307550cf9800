// nibble predict: decode and prompt speeds of a card that need not be in this machine.

#include "lab/predict/predictor.h"

#include "app/options/option.h"
#include "app/setup/commands.h"
#include "app/setup/loaded_model.h"
#include "app/setup/memory_budget.h"
#include "app/setup/named_model.h"
#include "app/setup/terminal.h"
#include "backend/cost.h"
#include "backend/cuda/comm/mailbox.h"
#include "backend/cuda/program/predict.h"
#include "backend/cuda/program/program.h"
#include "backend/kv_dtype.h"
#include "base/error.h"
#include "engine/engine.h"
#include "lab/bench/loop.h"
#include "model/gpt_oss.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace nibble::app {
namespace {

using backend::cuda::NodeTime;
using Step = std::vector<backend::Row>;

// Memory that graphs, staging and the driver take besides slots: about this much on an H100.
constexpr int64_t kOtherBytes = 1'000'000'000;
// From how many tokens on a host's experts are copied to the card, unless --expert-copy-tokens says: nobody knows the
// host's products.
constexpr int kCopiedTokens = 256;

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
  backend::RunConfig run = backend::resolved_cuda(backend_config, options.run);
  const auto reduce = backend::cuda::planned_reduce(ranks);
  const int64_t memory = card.facts.memory_bytes;
  PredictedRow row{.shape = shape, .room = device_limit(memory, memory, *run.gpu_memory_utilization)};
  const int layers = backend::host_layers(run, config.dims.layers), all = static_cast<int>(config.dims.layers);
  row.host_layers = ranks.count > 1 || card.facts.integrated || run.cpu_moe_layers >= 0
                        ? layers
                        : least_host_layers(row.room, all, [&](int count) { return needs(shape, count); }).value_or(0);
  row.needs = needs(shape, row.host_layers);
  run.cpu_moe_layers = row.host_layers;
  if (run.expert_copy_tokens < 0) run.expert_copy_tokens = kCopiedTokens;
  std::vector<Step> steps = steps_of(shape, run.max_num_batched_tokens);
  for (const Step& step : steps) {
    const bool last = &step == &steps.back();  // of a prompt, the last one draws
    const backend::StepShape of{.rows = step, .logit_rows = last ? static_cast<int64_t>(step.size()) : 0};
    const backend::cuda::Program program = backend::cuda::make_program({.config = backend_config,
                                                                        .run = run,
                                                                        .step = of,
                                                                        .card = card.facts,
                                                                        .reduce = reduce ? &*reduce : nullptr,
                                                                        .screened = true});
    const backend::cuda::StepTime time = backend::cuda::predict_step({.program = program,
                                                                      .dims = backend_config.dims,
                                                                      .layer_kinds = config.layer_kinds,
                                                                      .card = card,
                                                                      .between = {.ranks = ranks.count, .link = link},
                                                                      .host = host});
    row.seconds += time.us / 1e6;
    row.limit_seconds += time.floor_us / 1e6;
    for (const NodeTime& node : time.nodes) add(row.nodes, node);
  }
  return row;
}

backend::MemoryNeeds Predictor::needs(const PredictShape& shape, int host_layers) const {
  const engine::EngineLimits limits =
      engine_limits({.sequences = shape.batch,
                     .depth = shape.depth,
                     .prompt = shape.prompt,
                     .chunk_tokens = backend::with_defaults(options.run).max_num_batched_tokens,
                     .async_scheduling = true});
  const backend::Ranks& ranks = options.run.ranks;
  const backend::BackendConfig sized =
      backend::cuda_config(model::backend_config(config, engine::step_limits(limits, config.dims), dense), ranks);
  const backend::CostModel cost = of_a_card(model::cost_of(config, backend::StoredFormats::of({}, dense)), ranks);
  const int64_t logits = int64_t{sized.max_rows} * config.dims.vocab * static_cast<int64_t>(sizeof(float));
  const int64_t shared = ranks.count > 1 ? backend::cuda::comm_bytes(ranks.count) + logits : 0;
  return {.weights = cost.weight_bytes() - cost.expert_bytes(host_layers) +
                     backend::cuda::screened_bytes(sized, options.run, card.facts),
          .kv = backend::kv_bytes(sized, kv_row_bytes(options, config.dims)),
          .activations = backend::slot_bytes(sized, sizeof(float)) + kOtherBytes + shared};
}

namespace {

using Json = nlohmann::ordered_json;
using backend::cuda::KnownCard;
using backend::cuda::KnownLink;
using backend::cuda::MatrixUnit;

constexpr std::string_view kMeasuredOn = "h100";

std::string rate(double tokens_per_s) { return fmt::format("{:.{}f}", tokens_per_s, tokens_per_s < 1000 ? 1 : 0); }
std::string whole_percent(double share) { return fmt::format("{:.0f} %", 100 * share); }

// "moe_up 12 % (reads)": the kernel that loses the most time against the card's reads and matrix peak, and the share of
// the row's time that it loses.
std::string farthest(const Json& row) {
  const auto lost = [](const Json& kernel) { return kernel["us"].get<double>() - kernel["floor_us"].get<double>(); };
  const Json& kernel = *std::ranges::max_element(row["kernels"], {}, lost);
  const auto prompt = row["prompt"].get<int64_t>(), tokens = prompt > 0 ? prompt : row["batch"].get<int64_t>();
  const double seconds = static_cast<double>(tokens) / row["tokens_per_second"].get<double>();
  return fmt::format("{} {} ({})", kernel["kernel"].get<std::string>(), whole_percent(lost(kernel) / 1e6 / seconds),
                     kernel["held_by"].get<std::string>());
}

std::string memory_of(const Json& row) {
  const int layers = row["host_layers"].get<int>();
  return format_bytes(row["memory_bytes"].get<double>()) + (row["fits"] == true ? "" : ": too much") +
         (layers > 0 ? fmt::format(" + {} L", layers) : "");
}

Json matrix_of(const KnownCard& card) {
  Json matrix = Json::array();
  for (int u = 0; u < backend::cuda::kMatrixUnits; ++u) {
    const auto unit = static_cast<MatrixUnit>(u);
    if (card.peak(unit) > 0) matrix.push_back({{"type", name_of(unit)}, {"flops_per_s", card.peak(unit)}});
  }
  return matrix;
}

// The kernels of all rows, grouped by the source of their shares.
using BySource = std::map<std::string_view, std::set<std::string>>;
BySource kernels_by_source(const Json& result, bool measured) {
  BySource by_source;
  for (const Json& table : result["tables"])
    for (const Json& row : table["rows"])
      for (const Json& node : row["kernels"]) {
        if (node["held_by"] == name_of(backend::cuda::HeldBy::kLink) ||
            node["held_by"] == name_of(backend::cuda::HeldBy::kHost))
          continue;
        const auto kernel = node["kernel"].get<std::string>();
        const backend::cuda::KernelShare& share = backend::cuda::share_of(kernel);
        if (share.measured() == measured) by_source[share.from].insert(kernel);
      }
  return by_source;
}

struct Weights {
  std::string name;
  backend::DenseFormats dense;
};

std::vector<Weights> weights_of(const ModelOptions& options) {
  using Format = backend::WeightFormat;
  const backend::DenseFormats& asked = options.run.dense;
  if (asked.qkv || asked.o || asked.lm_head) return {{"experts MXFP4, the rest as asked", asked}};
  return {{"exact (experts MXFP4, the rest bf16)", {}},
          {"dense layers MXFP8", {Format::kMxfp8, Format::kMxfp8, Format::kMxfp8}},
          {"all MXFP4", {Format::kMxfp4, Format::kMxfp4, Format::kMxfp4}}};
}

// One sequence at every depth. Several sequences, and prompts, only at the smallest depth, as in bench.
std::vector<PredictShape> shapes_of(const PredictOptions& options) {
  std::vector<PredictShape> shapes;
  const int64_t least = options.depths.front();
  for (const int64_t batch : options.batches)
    for (const int64_t depth : options.depths)
      if (batch > 0 && (batch == 1 || depth == least))
        shapes.push_back({.batch = static_cast<int>(batch), .depth = depth});
  for (const int64_t prompt : options.prompts)
    if (prompt > 0) shapes.push_back({.prompt = prompt});
  if (shapes.empty()) throw Error(Code::kInvalidRequest, "want -b or -p above 0, found nothing to predict");
  return shapes;
}

}  // namespace

std::vector<std::string> assumptions(const Json& result, const KnownCard& card, const KnownLink& link) {
  std::vector<std::string> lines, peaks;
  if (card.word != kMeasuredOn) lines.emplace_back("nothing here was measured on this card");
  lines.push_back(fmt::format("reads {:.0f} GB/s: {}", card.read_bytes_per_s / 1e9, card.read_from));
  for (const Json& peak : matrix_of(card))
    peaks.push_back(
        fmt::format("{} {:.0f} TFLOP/s", peak["type"].get<std::string>(), peak["flops_per_s"].get<double>() / 1e12));
  lines.push_back(
      fmt::format("{}: {}; multiprocessors at {:.2f} GHz", fmt::join(peaks, ", "), card.flops_from, card.ghz));
  for (const auto& [source, kernels] : kernels_by_source(result, false))
    lines.push_back(fmt::format("{}: {}", fmt::join(kernels, ", "), source));
  for (const auto& [source, kernels] : kernels_by_source(result, true))
    lines.push_back(fmt::format("shares of an H100 ({}): {}", source, fmt::join(kernels, ", ")));
  lines.push_back(fmt::format(
      "a launch's fixed part takes as long as on an H100{}",
      card.facts.major < 9 ? fmt::format(", and {} us more, as launches are not chained", backend::cuda::kUnchainedUs)
                           : std::string()));
  if (result["ranks"] > 1) {
    lines.push_back(fmt::format("link: {}: {}", link.name, link.from));
    const std::string longer = fmt::format("{} us and {:.0f} GB/s each way of 2 (n - 1) / n times it", link.long_us,
                                           link.long_bytes_per_s / 1e9);
    lines.push_back(
        link.push_bytes_per_s > 0
            ? fmt::format("a sum over cards takes {} us and {:.0f} GB/s each way of 2 (n - 1) times the "
                          "message, a long one {}",
                          link.push_us, link.push_bytes_per_s / 1e9, longer)
            : fmt::format("a sum over cards takes {}; {} us more for each card above two", longer, link.rank_us));
    lines.emplace_back(
        "all cards are as slow as the first, which has most of the model; they wait for nothing but sums");
  }
  lines.emplace_back("an even router; the clock holds under load; nothing else uses the memory");
  lines.emplace_back("an H200 predicted in this way from an H100 is within 10 % in every row (docs/predict.md)");
  return lines;
}

Json json_of(const PredictedRow& row) {
  Json json = {{"step", row.shape.name()},
               {"prompt", row.shape.prompt},
               {"batch", row.shape.batch},
               {"depth", row.shape.depth},
               {"tokens_per_second", row.tokens_per_second()},
               {"limit_tokens_per_second", row.limit_tokens_per_second()},
               {"of_limit", row.of_limit()},
               {"memory_bytes", row.needs.total()},
               {"fits", row.fits()},
               {"host_layers", row.host_layers},
               {"kernels", Json::array()}};
  for (const backend::cuda::NodeTime& node : row.nodes)
    json["kernels"].push_back({{"stage", name_of(node.stage)},
                               {"kernel", node.kernel},
                               {"launches", node.launches},
                               {"us", node.us},
                               {"floor_us", node.floor_us},
                               {"held_by", name_of(node.held)}});
  return json;
}

std::string predict_markdown(const Json& result) {
  const auto text = [&](const char* name) { return result[name].get<std::string>(); };
  const auto number = [](const Json& json, const char* name) { return json[name].get<double>(); };
  const auto ranks = result["ranks"].get<int>();
  std::string out = fmt::format(
      "{} on {}{}: predicted\n\n- {} multiprocessors, {} of memory; kernels {}; KV cache {}, at most {} prompt tokens per "
      "step\n",
      text("model"), ranks > 1 ? fmt::format("{} x ", ranks) : "", text("device"), result["multiprocessors"].get<int>(),
      format_bytes(number(result, "memory_bytes")), text("kernels"), text("kv_cache"),
      result["step_tokens"].get<int>());
  constexpr auto kLine = "| {:<22} | {:>8} | {:>8} | {:>8} | {:>18} | {:<44} |\n";
  for (const Json& table : result["tables"]) {
    out +=
        fmt::format("\n{}, {}\n\n", table["weights"].get<std::string>(), format_bytes(number(table, "weight_bytes")));
    out += fmt::format(kLine, "step", "tok/s", "limit", "of limit", "memory", "farthest from it");
    out += fmt::format("|{:-<24}|{:->9}:|{:->9}:|{:->9}:|{:->19}:|{:-<46}|\n", "", "", "", "", "", "");
    for (const Json& row : table["rows"])
      out += fmt::format(kLine, row["step"].get<std::string>(), rate(number(row, "tokens_per_second")),
                         rate(number(row, "limit_tokens_per_second")), whole_percent(number(row, "of_limit")),
                         memory_of(row), farthest(row));
    if (table.contains("ranks"))
      out +=
          fmt::format("\nMemory of each rank, activations not among it:\n\n```\n{}```\n", ranks_text(table["ranks"]));
  }
  out += "\n";
  for (const Json& line : result["assumptions"]) out += fmt::format("- {}\n", line.get<std::string>());
  return out;
}

int execute(const PredictOptions& asked) {
  PredictOptions options = asked;
  Terminal terminal(options.output);
  KnownCard card = backend::cuda::card_named(options.card);
  if (options.neutral) card = backend::cuda::as_sm80(card);
  const int ranks = options.model.run.ranks.count;
  if (ranks == 1 && (!options.link.empty() || options.link_us >= 0))
    throw Error(Code::kInvalidRequest, "want --tensor-parallel-size of at least 2 with --link and --link-us, found 1");
  KnownLink link = backend::cuda::link_named(options.link.empty() ? card.link : options.link);
  if (options.link_us >= 0) {
    (link.push_bytes_per_s > 0 ? link.push_us : link.long_us) = options.link_us;
    link.from += fmt::format("; {} us asked for", options.link_us);
  }
  options.model.run.backend = BackendKind::kCuda;
  check_backends(options.model.run, {BackendKind::kCuda});
  options.model.run = backend::with_defaults(options.model.run);
  options.model = with_files(options.model, terminal);
  const auto [config, notes] = open_config(options.model);
  for (const std::string& note : notes) terminal.note(note);
  backend::validate(options.model.run.ranks, config.dims, config.layer_experts);
  std::vector<std::string_view> arches;
  for (const backend::cuda::Arch& arch : backend::cuda::Card(card.facts).arches) arches.emplace_back(arch.name);
  Json json = {{"model", options.model.name},
               {"card", card.word},
               {"device", card.facts.name},
               {"multiprocessors", card.facts.multiprocessors},
               {"memory_bytes", card.facts.memory_bytes},
               {"ranks", ranks},
               {"ghz", card.ghz},
               {"read_bytes_per_s", card.read_bytes_per_s},
               {"matrix", matrix_of(card)},
               {"kernels", fmt::format("{}", fmt::join(arches, ", "))},
               {"kv_cache", backend::type_of(options.model.run.kv_type()).word},
               {"step_tokens", options.model.run.max_num_batched_tokens},
               {"tables", Json::array()},
               {"assumptions", Json::array()}};
  for (const Weights& weights : weights_of(options.model)) {
    const Predictor predictor{
        options.model, config, weights.dense, card, {1e9 * options.host_read, 1e9 * options.host_link}, link};
    backend::CostModel whole = model::cost_of(config, backend::StoredFormats::of({}, weights.dense));
    Json table = {{"weights", weights.name},
                  {"weight_bytes", of_a_card(whole, options.model.run.ranks).weight_bytes()},
                  {"rows", Json::array()}};
    for (const PredictShape& shape : shapes_of(options)) {
      const PredictedRow row = predictor.row(shape);
      table["rows"].push_back(json_of(row));
      if (json["assumptions"].empty()) json["assumptions"].push_back("memory: " + row.room.where);
    }
    if (ranks > 1) {
      whole.formats.kv_row_bytes = kv_row_bytes(options.model, config.dims);
      table["ranks"] = ranks_json(whole, config, options.model.run.ranks, options.depths.front(),
                                  memory_of_a_card(card.facts.memory_bytes, options.model.run));
    }
    json["tables"].push_back(std::move(table));
  }
  const auto on_host = [](const Json& table) {
    return std::ranges::any_of(table["rows"], [](const Json& row) { return row["host_layers"] > 0; });
  };
  if (std::ranges::any_of(json["tables"], on_host))
    json["assumptions"].push_back(fmt::format(
        "L: layers whose experts the host computes, reading {:.0f} GB/s, or copies to the card at {:.0f} GB/s; from {} "
        "tokens on it copies",
        options.host_read, options.host_link,
        options.model.run.expert_copy_tokens < 0 ? kCopiedTokens : options.model.run.expert_copy_tokens));
  for (std::string& line : assumptions(json, card, link)) json["assumptions"].push_back(std::move(line));
  if (ranks > 1)
    json["link"] = {{"name", link.word},
                    {"push_us", link.push_us},
                    {"push_bytes_per_s", link.push_bytes_per_s},
                    {"long_us", link.long_us},
                    {"long_bytes_per_s", link.long_bytes_per_s},
                    {"rank_us", link.rank_us}};
  if (options.output.json)
    terminal.print_json(json);
  else
    terminal.print(predict_markdown(json));
  return kExitOk;
}

}  // namespace nibble::app
