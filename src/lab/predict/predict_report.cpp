#include "lab/predict/predictor.h"

#include "app/setup/rank_memory.h"
#include "app/setup/terminal.h"
#include "backend/cuda/program/predict.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>
#include <set>
#include <string_view>

namespace nibble::app {
namespace {

using Json = nlohmann::ordered_json;
using backend::cuda::KernelShare;
using backend::cuda::KnownCard;
using backend::cuda::MatrixUnit;
using backend::cuda::NodeTime;

constexpr std::string_view kMeasuredOn = "h100";

std::string rate(double tokens_per_s) { return fmt::format("{:.{}f}", tokens_per_s, tokens_per_s < 1000 ? 1 : 0); }
std::string whole_percent(double share) { return fmt::format("{:.0f} %", 100 * share); }

std::string memory(const PredictedRow& row) {
  const std::string needs = format_bytes(static_cast<double>(row.needs.total()));
  return row.fits() ? needs : fmt::format("{}: too much", needs);
}

// "moe_up 12 % (reads)": the share of the row's time that this kernel takes beyond its least possible time.
std::string farthest(const PredictedRow& row) {
  const NodeTime& node = row.farthest();
  return fmt::format("{} {} ({})", node.kernel, whole_percent((node.us - node.floor_us) / 1e6 / row.seconds),
                     name_of(node.held));
}

std::string peaks(const KnownCard& card) {
  std::vector<std::string> parts;
  for (int u = 0; u < backend::cuda::kMatrixUnits; ++u) {
    const auto unit = static_cast<MatrixUnit>(u);
    if (card.peak(unit) > 0) parts.push_back(fmt::format("{} {:.0f} TFLOP/s", name_of(unit), card.peak(unit) / 1e12));
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

// The kernels of all rows, grouped by the source of their shares.
std::map<std::string_view, std::set<std::string>> kernels_by_source(const Prediction& prediction, bool measured) {
  std::map<std::string_view, std::set<std::string>> by_source;
  for (const PredictedTable& table : prediction.tables)
    for (const PredictedRow& row : table.rows)
      for (const NodeTime& node : row.nodes) {
        if (node.held == backend::cuda::HeldBy::kLink) continue;
        const KernelShare& share = backend::cuda::share_of(node.kernel);
        if (share.measured() == measured) by_source[share.from].insert(node.kernel);
      }
  return by_source;
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
               {"kernels", Json::array()}};
  for (const NodeTime& node : row.nodes)
    json["kernels"].push_back({{"stage", name_of(node.stage)},
                               {"kernel", node.kernel},
                               {"launches", node.launches},
                               {"us", node.us},
                               {"floor_us", node.floor_us},
                               {"held_by", name_of(node.held)}});
  return json;
}

}  // namespace

std::vector<std::string> assumptions(const Prediction& prediction) {
  const KnownCard& card = prediction.card;
  std::vector<std::string> lines;
  if (card.word != kMeasuredOn) lines.emplace_back("nothing here was measured on this card");
  lines.push_back(fmt::format("reads {:.0f} GB/s: {}", card.read_bytes_per_s / 1e9, card.read_from));
  lines.push_back(fmt::format("{}: {}; multiprocessors at {:.2f} GHz", peaks(card), card.flops_from, card.ghz));
  for (const auto& [source, kernels] : kernels_by_source(prediction, false))
    lines.push_back(fmt::format("{}: {}", fmt::join(kernels, ", "), source));
  for (const auto& [source, kernels] : kernels_by_source(prediction, true))
    lines.push_back(fmt::format("shares of an H100 ({}): {}", source, fmt::join(kernels, ", ")));
  lines.push_back(fmt::format(
      "a launch's fixed part takes as long as on an H100{}",
      card.facts.major < 9 ? fmt::format(", and {} us more, as launches are not chained", backend::cuda::kUnchainedUs)
                           : std::string()));
  if (prediction.ranks > 1) {
    const backend::cuda::KnownLink& link = prediction.link;
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

std::string predict_markdown(const Prediction& prediction) {
  const KnownCard& card = prediction.card;
  std::string out = fmt::format(
      "{} on {}{}: predicted\n\n- {} multiprocessors, {} of memory; kernels {}; KV cache {}, at most {} prompt tokens per "
      "step\n",
      prediction.model, prediction.ranks > 1 ? fmt::format("{} x ", prediction.ranks) : "", card.facts.name,
      card.facts.multiprocessors, format_bytes(static_cast<double>(card.facts.memory_bytes)), prediction.kernels,
      prediction.kv_cache, prediction.step_tokens);
  constexpr auto kLine = "| {:<22} | {:>8} | {:>8} | {:>8} | {:>18} | {:<44} |\n";
  for (const PredictedTable& table : prediction.tables) {
    out += fmt::format("\n{}, {}\n\n", table.weights, format_bytes(static_cast<double>(table.weight_bytes)));
    out += fmt::format(kLine, "step", "tok/s", "limit", "of limit", "memory", "farthest from it");
    out += fmt::format("|{:-<24}|{:->9}:|{:->9}:|{:->9}:|{:->19}:|{:-<46}|\n", "", "", "", "", "", "");
    for (const PredictedRow& row : table.rows)
      out += fmt::format(kLine, row.shape.name(), rate(row.tokens_per_second()), rate(row.limit_tokens_per_second()),
                         whole_percent(row.of_limit()), memory(row), farthest(row));
    if (!table.ranks.is_null())
      out += fmt::format("\nMemory of each rank, activations not among it:\n\n```\n{}```\n", ranks_text(table.ranks));
  }
  out += "\n";
  if (!prediction.tables.empty() && !prediction.tables.front().rows.empty())
    out += fmt::format("- memory: {}\n", prediction.tables.front().rows.front().room.where);
  for (const std::string& line : assumptions(prediction)) out += fmt::format("- {}\n", line);
  return out;
}

Json predict_json(const Prediction& prediction) {
  const KnownCard& card = prediction.card;
  Json json = {{"model", prediction.model},
               {"card", card.word},
               {"device", card.facts.name},
               {"multiprocessors", card.facts.multiprocessors},
               {"memory_bytes", card.facts.memory_bytes},
               {"ranks", prediction.ranks},
               {"ghz", card.ghz},
               {"read_bytes_per_s", card.read_bytes_per_s},
               {"matrix", Json::array()},
               {"kernels", prediction.kernels},
               {"kv_cache", prediction.kv_cache},
               {"step_tokens", prediction.step_tokens},
               {"tables", Json::array()},
               {"assumptions", assumptions(prediction)}};
  for (int u = 0; u < backend::cuda::kMatrixUnits; ++u) {
    const auto unit = static_cast<MatrixUnit>(u);
    if (card.peak(unit) > 0) json["matrix"].push_back({{"type", name_of(unit)}, {"flops_per_s", card.peak(unit)}});
  }
  for (const PredictedTable& table : prediction.tables) {
    json["tables"].push_back(
        {{"weights", table.weights}, {"weight_bytes", table.weight_bytes}, {"rows", Json::array()}});
    for (const PredictedRow& row : table.rows) json["tables"].back()["rows"].push_back(json_of(row));
    if (!table.ranks.is_null()) json["tables"].back()["ranks"] = table.ranks;
  }
  if (prediction.ranks > 1) {
    const backend::cuda::KnownLink& link = prediction.link;
    json["link"] = {{"name", link.word},
                    {"push_us", link.push_us},
                    {"push_bytes_per_s", link.push_bytes_per_s},
                    {"long_us", link.long_us},
                    {"long_bytes_per_s", link.long_bytes_per_s},
                    {"rank_us", link.rank_us}};
  }
  return json;
}

}  // namespace nibble::app
