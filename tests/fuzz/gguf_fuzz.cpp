// Any bytes are either described as a GGUF file or refused by an Error; what is described can be read, bound and
// tokenised with, or is refused by an Error.

#include "base/error.h"
#include "checkpoint/gguf.h"
#include "convert/gguf.h"
#include "convert/inspect.h"
#include "text/tokenizer.h"

#include <cstring>
#include <string>
#include <vector>

namespace {

using nibble::checkpoint::GgufContent;
using nibble::checkpoint::GgufFields;
using nibble::checkpoint::GgufValue;
using nibble::checkpoint::TensorEntry;

// Runs what may refuse.
template <class Body>
void attempt(const Body& body) {
  try {
    body();
  } catch (const nibble::Error& e) {
    nibble::check(*e.what() != '\0', "an error says something");
  }
}

void read_values(const GgufFields& fields) {
  for (const auto& [key, value] : fields.metadata()) {
    nibble::check(!describe(value).empty(), "a value has a description");
    attempt([&] { static_cast<void>(fields.integer(key, INT64_MIN, INT64_MAX)); });
    attempt([&] { static_cast<void>(fields.number(key, -1e300, 1e300)); });
    attempt([&] { static_cast<void>(fields.boolean(key)); });
    attempt([&] { static_cast<void>(fields.string(key)); });
    attempt([&] { static_cast<void>(fields.strings(key)); });
    attempt([&] { static_cast<void>(fields.integers(key)); });
    attempt([&] { static_cast<void>(fields.booleans(key)); });
  }
}

void read_tensors(const std::vector<TensorEntry>& tensors, size_t file_bytes) {
  uint64_t sum = 0, bytes = 0;
  for (const TensorEntry& tensor : tensors) {
    for (const std::byte b : tensor.tensor.bytes) sum += static_cast<uint64_t>(b);
    bytes += tensor.tensor.bytes.size();
    nibble::check(reinterpret_cast<uintptr_t>(tensor.tensor.bytes.data()) % 8 == 0, "tensors are aligned");
  }
  nibble::check(bytes <= file_bytes, "tensors lie in the file");
  volatile uint64_t keep = sum;
  static_cast<void>(keep);
}

void read_model(const GgufContent& content, const GgufFields& fields) {
  const nibble::model::ModelConfig config = nibble::convert::config_from_gguf(fields);
  const auto weights = nibble::model::bind_weights(content.tensors, config);
  nibble::check(nibble::convert::numbers_of(config, weights).total.bytes > 0, "a bound model has weights");
}

void read_tokenizer(const GgufFields& fields) {
  nibble::text::TokenList list;
  for (const std::string_view token : fields.strings("tokenizer.ggml.tokens")) list.tokens.emplace_back(token);
  for (const int64_t kind : fields.integers("tokenizer.ggml.token_type"))
    list.kinds.push_back(static_cast<nibble::text::TokenKind>(kind));
  for (const std::string_view merge : fields.strings("tokenizer.ggml.merges")) list.merges.emplace_back(merge);
  const auto tokenizer = nibble::text::Tokenizer::from_list(list, "fuzz");
  const std::string text = "Hello, w\xC3\xB6rld 123";
  nibble::check(tokenizer.decode(tokenizer.encode(text)) == text, "text survives its tokens");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::vector<std::byte> file(size);  // aligned, as a mapping is
  if (size > 0) std::memcpy(file.data(), data, size);
  attempt([&] {
    const GgufContent content = nibble::checkpoint::parse_gguf(file, "fuzz");
    const GgufFields fields(content.metadata, "fuzz");
    read_values(fields);
    read_tensors(content.tensors, file.size());
    attempt([&] { read_model(content, fields); });
    attempt([&] { read_tokenizer(fields); });
  });
  return 0;
}
