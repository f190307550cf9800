#include "app/setup/loaded_model.h"

#include "base/error.h"
#include "checkpoint/gguf.h"
#include "checkpoint/strict_json.h"
#include "text/tokenizer_parts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace nibble::app {
namespace {

using checkpoint::GgufFields;

constexpr std::string_view kPrefix = "tokenizer.ggml.";
// Keys that are read here, or that do not affect the tokens of a text; ids of single tokens (…_token_id) are accepted
// too. The add_… keys tell llama.cpp what to put around a prompt; here Harmony's rendering decides that.
constexpr std::array<std::string_view, 9> kKnown = {kGgufModel,
                                                    kGgufPre,
                                                    kGgufTokens,
                                                    kGgufKinds,
                                                    kGgufMerges,
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

}  // namespace

text::Tokenizer tokenizer_from_gguf(const GgufFields& fields, const std::string& path) {
  require(fields, kGgufModel, "gpt2");  // byte-level BPE
  require(fields, kGgufPre, "gpt-4o");  // llama.cpp's name of the o200k split
  for (const auto& [key, value] : fields.metadata()) {
    if (!key.starts_with(kPrefix) || key.ends_with("_token_id")) continue;
    if (std::ranges::find(kKnown, key) != kKnown.end()) continue;
    throw Error(Code::kUnsupported, "{}: metadata key {}: not known here, found {}", fields.where(), key,
                checkpoint::describe(value));
  }
  text::TokenList list;
  for (const std::string_view token : fields.strings(kGgufTokens)) list.tokens.emplace_back(token);
  for (const int64_t kind : fields.integers(kGgufKinds)) {
    if (kind != static_cast<int32_t>(kind)) {
      throw Error(Code::kCorrupt, "{}: metadata key {}: want kinds of tokens, found {}", fields.where(), kGgufKinds,
                  kind);
    }
    list.kinds.push_back(static_cast<text::TokenKind>(kind));
  }
  for (const std::string_view merge : fields.strings(kGgufMerges)) list.merges.emplace_back(merge);
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

}  // namespace nibble::app
