#include "text/tokenizer_parts.h"

#include "text/bpe.h"
#include "text/pretokenize.h"

#include "base/error.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace nibble::text {

// o200k_data.cpp
extern const char kRanksBegin[] asm("nibble_o200k_begin");
extern const char kRanksEnd[] asm("nibble_o200k_end");

namespace {

struct SpecialName {
  int32_t id;
  std::string_view name;
};

constexpr int32_t kFirstSpecial = 199998, kLastSpecial = 201087, kEndOfPrompt = 200018;
constexpr std::array<SpecialName, 10> kSpecialNames = {{{199998, "startoftext"},
                                                        {199999, "endoftext"},
                                                        {200002, "return"},
                                                        {200003, "constrain"},
                                                        {200005, "channel"},
                                                        {200006, "start"},
                                                        {200007, "end"},
                                                        {200008, "message"},
                                                        {200012, "call"},
                                                        {kEndOfPrompt, "endofprompt"}}};

using Json = nlohmann::ordered_json;

std::string quoted_token(std::string_view bytes) { return Json(to_byte_level(bytes)).dump(); }

std::string vocab_json(const std::vector<RankedToken>& ranks) {
  std::string out = "{";
  for (const RankedToken& token : ranks)
    out += fmt::format("{}{}:{}", out.size() > 1 ? "," : "", quoted_token(token.bytes), token.rank);
  return out + '}';
}

// Each token is merged from the pair that the merges of lower ranks leave of it.
std::string merges_json(const std::vector<RankedToken>& ranks, const Bpe& bpe) {
  std::string out = "[";
  std::vector<int32_t> parts;
  for (const RankedToken& token : ranks) {
    if (token.bytes.size() < 2) continue;
    parts.clear();
    bpe.merge_below(static_cast<uint32_t>(token.rank), token.bytes, parts);
    check(parts.size() == 2, "an o200k token that no merge makes");
    out += fmt::format("{}[{},{}]", out.size() > 1 ? "," : "", quoted_token(bpe.tokens().bytes(parts[0])),
                       quoted_token(bpe.tokens().bytes(parts[1])));
  }
  return out + ']';
}

Json added_tokens_json() {
  Json list = Json::array();
  for (const AddedToken& token : o200k_harmony_specials()) {
    if (!list.empty() && list.back()["id"] == token.id) continue;  // a second name
    list.push_back({{"id", token.id},
                    {"content", token.content},
                    {"single_word", false},
                    {"lstrip", false},
                    {"rstrip", false},
                    {"normalized", false},
                    {"special", true}});
  }
  return list;
}

Json frame_json() {
  Json frame = Json::parse(R"({
    "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
    "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
      {"type": "Split", "pattern": {"Regex": ""}, "behavior": "Isolated", "invert": false},
      {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}]},
    "post_processor": null,
    "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
    "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
              "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": true}})");
  frame["added_tokens"] = added_tokens_json();
  frame["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = kO200kPattern;
  return frame;
}

}  // namespace

std::string_view o200k_ranks() { return {kRanksBegin, static_cast<size_t>(kRanksEnd - kRanksBegin)}; }

std::vector<AddedToken> o200k_harmony_specials() {
  std::vector<AddedToken> tokens;
  size_t named = 0;
  for (int32_t id = kFirstSpecial; id <= kLastSpecial; ++id) {
    const bool has_name = named < kSpecialNames.size() && kSpecialNames[named].id == id;
    if (has_name) tokens.push_back({id, fmt::format("<|{}|>", kSpecialNames[named++].name)});
    if (!has_name || id == kEndOfPrompt) tokens.push_back({id, fmt::format("<|reserved_{}|>", id)});
  }
  return tokens;
}

std::string make_o200k_tokenizer_json() {
  const std::vector<RankedToken> ranks = parse_ranks(o200k_ranks(), "embedded o200k");
  TokenizerParts parts = parts_from_ranks(ranks, {}, "embedded o200k");
  const Bpe bpe(std::move(parts.tokens), parts.merges, parts.whole_piece);
  std::string out = frame_json().dump();
  check(out.ends_with("}}"), "the model is the last object of the file");
  out.resize(out.size() - 2);  // reopen it for the two big tables
  out += ",\"vocab\":" + vocab_json(ranks);
  out += ",\"merges\":" + merges_json(ranks, bpe);
  return out + "}}\n";
}

}  // namespace nibble::text
