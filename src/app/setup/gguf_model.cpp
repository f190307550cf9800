#include "app/setup/gguf_model.h"

#include "app/setup/interrupt.h"
#include "base/error.h"
#include "checkpoint/gguf.h"
#include "checkpoint/strict_json.h"
#include "text/tokenizer_parts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace nibble::app {
namespace {

using checkpoint::GgufFields;

constexpr std::string_view kPrefix = "tokenizer.ggml.";
constexpr std::string_view kModel = "tokenizer.ggml.model", kPre = "tokenizer.ggml.pre";
constexpr std::string_view kTokens = "tokenizer.ggml.tokens", kKinds = "tokenizer.ggml.token_type",
                           kMerges = "tokenizer.ggml.merges";
// Keys that are read here, or that do not affect the tokens of a text; ids of single tokens (…_token_id) are accepted
// too. The add_… keys tell llama.cpp what to put around a prompt; here Harmony's rendering decides that.
constexpr std::array<std::string_view, 9> kKnown = {kModel,
                                                    kPre,
                                                    kTokens,
                                                    kKinds,
                                                    kMerges,
                                                    "tokenizer.ggml.scores",
                                                    "tokenizer.ggml.add_bos_token",
                                                    "tokenizer.ggml.add_eos_token",
                                                    "tokenizer.ggml.add_sep_token"};

void require(const GgufFields& fields, std::string_view key, std::string_view want) {
  const std::string_view found = fields.string(key);
  if (found == want) return;
  throw Error(Code::kUnsupported, "{}: metadata key {}: want \"{}\", found \"{}\"", fields.where(), key, want,
              checkpoint::printable(found));
}

// The keys that tokenizer_from_gguf reads.
std::vector<checkpoint::GgufEntry> gguf_entries(text::TokenList list) {
  std::vector<int32_t> kinds;
  for (const text::TokenKind kind : list.kinds) kinds.push_back(static_cast<int32_t>(kind));
  std::vector<checkpoint::GgufEntry> entries;
  entries.push_back({std::string(kModel), std::string("gpt2")});
  entries.push_back({std::string(kPre), std::string("gpt-4o")});
  entries.push_back({std::string(kTokens), std::move(list.tokens)});
  entries.push_back({std::string(kKinds), std::move(kinds)});
  entries.push_back({std::string(kMerges), std::move(list.merges)});
  return entries;
}

}  // namespace

text::Tokenizer tokenizer_from_gguf(const GgufFields& fields, const std::string& path) {
  require(fields, kModel, "gpt2");  // byte-level BPE
  require(fields, kPre, "gpt-4o");  // llama.cpp's name of the o200k split
  for (const auto& [key, value] : fields.metadata()) {
    if (!key.starts_with(kPrefix) || key.ends_with("_token_id")) continue;
    if (std::ranges::find(kKnown, key) != kKnown.end()) continue;
    throw Error(Code::kUnsupported, "{}: metadata key {}: not known here, found {}", fields.where(), key,
                checkpoint::describe(value));
  }
  text::TokenList list;
  for (const std::string_view token : fields.strings(kTokens)) list.tokens.emplace_back(token);
  for (const int64_t kind : fields.integers(kKinds)) {
    if (kind != static_cast<int32_t>(kind)) {
      throw Error(Code::kCorrupt, "{}: metadata key {}: want kinds of tokens, found {}", fields.where(), kKinds, kind);
    }
    list.kinds.push_back(static_cast<text::TokenKind>(kind));
  }
  for (const std::string_view merge : fields.strings(kMerges)) list.merges.emplace_back(merge);
  return text::Tokenizer::from_list(list, path);
}

std::string card_conversions(std::span<const backend::HostWeight> weights, const backend::DenseFormats& dense) {
  using backend::WeightFormat;
  std::vector<std::pair<std::string, std::vector<std::string_view>>> roles;  // by conversion, as they come
  for (const backend::HostWeight& w : weights) {
    const WeightFormat to = dense.of(w.role).value_or(WeightFormat::kBf16);
    const bool experts = w.role == backend::WeightRole::kGateUp || w.role == backend::WeightRole::kDown;
    if (experts || w.format == to) continue;  // for experts, at most the order of their nibbles changes
    const std::string conversion = fmt::format("{} to {}", backend::name_of(w.format), backend::name_of(to));
    auto it = std::ranges::find(roles, conversion, &decltype(roles)::value_type::first);
    if (it == roles.end()) it = roles.insert(it, {conversion, {}});
    if (std::ranges::find(it->second, backend::name_of(w.role)) == it->second.end())
      it->second.push_back(backend::name_of(w.role));
  }
  std::vector<std::string> parts;
  for (const auto& [conversion, names] : roles)
    parts.push_back(fmt::format("{}: {}", conversion, fmt::join(names, ", ")));
  return fmt::format("{}", fmt::join(parts, "; "));
}

void write_gguf_model(const model::ModelConfig& config, const text::TokenizerParts& tokenizer,
                      const convert::TensorSource& source, const GgufOutput& output, Terminal& terminal) {
  const auto start = std::chrono::steady_clock::now();
  const auto vocab = static_cast<size_t>(config.dims.vocab);
  const std::vector<checkpoint::GgufEntry> entries = gguf_entries(text::list_from_parts(tokenizer, vocab));
  int64_t bytes = 0;
  const Interrupt interrupt(kEndings);
  const auto paths = convert::export_gguf(
      config, source, output.destination,
      {.dense = output.dense, .part_bytes = output.part_bytes, .tokenizer = entries, .pool = output.pool},
      [&](const convert::ExportProgress& p) {
        interrupt.throw_if_requested();
        bytes = p.done_bytes;
        terminal.progress("writing", static_cast<double>(p.done_bytes) / static_cast<double>(p.total_bytes),
                          fmt::format("{} of {} ({})", format_bytes(static_cast<double>(p.done_bytes)),
                                      format_bytes(static_cast<double>(p.total_bytes)), p.file));
      });
  terminal.end_progress();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  nlohmann::ordered_json json = {{"files", nlohmann::json::array()}, {"bytes", bytes}, {"seconds", seconds}};
  for (const std::filesystem::path& path : paths) json["files"].push_back(path.string());
  if (output.json) terminal.print_json(json);
  terminal.note(fmt::format("{}{}: {} in {:.1f} s", paths.front().string(),
                            paths.size() > 1 ? fmt::format(" and {} more", paths.size() - 1) : "",
                            format_bytes(static_cast<double>(bytes)), seconds));
}

}  // namespace nibble::app
