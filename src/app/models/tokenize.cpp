#include "app/setup/commands.h"
#include "app/setup/loaded_model.h"
#include "app/setup/named_model.h"
#include "app/setup/terminal.h"
#include "base/error.h"
#include "convert/gguf.h"
#include "text/text_stream.h"
#include "text/tokenizer.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <charconv>
#include <filesystem>

namespace nibble::app {
namespace {

text::Tokenizer open(const std::filesystem::path& path) {
  if (path.empty()) return text::Tokenizer::o200k_harmony();
  if (checkpoint::is_gguf(path)) {
    const auto gguf = convert::open_gguf(path);
    return tokenizer_from_gguf({gguf.metadata(), gguf.where()}, gguf.paths().front().string());
  }
  return text::Tokenizer::from_file(std::filesystem::is_directory(path) ? path / "tokenizer.json" : path);
}

// Ids, separated by anything that is not a digit: a JSON array and a plain list both work.
std::vector<int32_t> parse_ids(std::string_view text) {
  std::vector<int32_t> ids;
  const char* at = text.data();
  const char* end = at + text.size();
  while (at != end) {
    if (std::string_view(" \t\r\n,[]").find(*at) != std::string_view::npos) {
      ++at;
      continue;
    }
    int32_t id = 0;
    const auto [rest, error] = std::from_chars(at, end, id);
    if (error != std::errc() || id < 0)
      throw Error(Code::kInvalidRequest, "--decode: want token ids, found \"{}\" at byte {}",
                  std::string(at, std::min<size_t>(12, static_cast<size_t>(end - at))), at - text.data());
    ids.push_back(id);
    at = rest;
  }
  return ids;
}

}  // namespace

int execute(const TokenizeOptions& options) {
  Terminal terminal(options.output);
  const text::Tokenizer tokenizer = open(path_of(options.tokenizer, options.hub));
  const std::string input = read_text(options.input);
  if (options.decode) {
    const std::string text = tokenizer.decode(parse_ids(input));  // may end inside a character; JSON wants whole ones
    terminal.print(options.output.json ? nlohmann::ordered_json{{"text", text::valid_utf8(text)}}.dump() + "\n" : text);
    return kExitOk;
  }
  const std::vector<int32_t> ids =
      tokenizer.encode(input, options.special ? text::SpecialTokens::kAllowed : text::SpecialTokens::kAsText);
  if (options.count) {
    terminal.print(options.output.json ? nlohmann::ordered_json{{"count", ids.size()}}.dump() + "\n"
                                       : fmt::format("{}\n", ids.size()));
    return kExitOk;
  }
  if (options.output.json) {
    nlohmann::ordered_json json = {{"count", ids.size()}, {"ids", ids}, {"pieces", nlohmann::ordered_json::array()}};
    for (const int32_t id : ids) json["pieces"].push_back(text::valid_utf8(tokenizer.token_bytes(id)));
    terminal.print(json.dump() + "\n");
    return kExitOk;
  }
  std::string out;
  for (const int32_t id : ids)
    out += fmt::format("{:>7}  {}\n", id, nlohmann::ordered_json(text::valid_utf8(tokenizer.token_bytes(id))).dump());
  terminal.print(out);
  terminal.note(fmt::format("{} tokens", ids.size()));
  return kExitOk;
}

}  // namespace nibble::app
