#include "app/load_vocab.h"

#include "base/error.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cctype>
#include <utility>

namespace nibble::app {
namespace {

constexpr double kListPatience = 30;  // seconds for an answer that needs no model
constexpr int64_t kMostVocab = 1 << 24;
constexpr std::array<std::pair<std::string_view, int64_t>, 2> kVocabByName = {
    {{"gpt-oss", 199998}, {"nibble-tiny", 4086}}};  // tokens before the first special one in their tokenizer.json

int64_t listed_vocab(const client::Server& server, const std::string& model) {
  try {
    const client::PlainAnswer answer = client::get(server, server.endpoint.prefix + "/models", kListPatience);
    const auto json = nlohmann::json::parse(answer.body, nullptr, false);
    if (answer.status != 200 || !json.is_object() || !json.contains("data") || !json["data"].is_array()) return 0;
    for (const auto& entry : json["data"]) {
      if (!entry.is_object() || entry.value("id", nlohmann::json()) != model) continue;
      const auto size = entry.value("vocab_size", nlohmann::json());
      return size.is_number_unsigned() && size > 1 && size <= kMostVocab ? size.get<int64_t>() : 0;
    }
  } catch (const Error&) {  // no such page; if there is no server at all, the requests will show it
  }
  return 0;
}

}  // namespace

Vocab vocab_of(const client::Server& server, const std::string& model) {
  if (const int64_t size = listed_vocab(server, model); size > 0) return {size, "the server says so"};
  std::string name = model;
  std::ranges::transform(name, name.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  for (const auto& [part, size] : kVocabByName)
    if (name.find(part) != std::string::npos) return {size, "by the model's name"};
  return {};
}

}  // namespace nibble::app
