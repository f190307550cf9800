#pragma once
// Kinds of flags that several commands have.

#include "app/options/flags.h"
#include "app/options/options.h"
#include "backend/weights.h"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace nibble::app {

// A flag whose value is one of a few words; `take` gets the word's index.
struct Words {
  std::vector<std::string> names;
  std::string usual;
  std::function<void(size_t at)> take;
};
Flag add_words(Flags flags, const std::string& name, const Words& words, const std::string& help);

// The same, with one value per word.
template <class T>
struct Choice {
  T& into;
  std::vector<std::pair<std::string, T>> words;
};

// The same; the words are the values' name_of().
template <class T>
Choice<T> named(T& into, std::initializer_list<T> values) {
  Choice<T> choice{into, {}};
  for (const T value : values) choice.words.emplace_back(name_of(value), value);
  return choice;
}

template <class T>
Flag add_choice(Flags flags, const std::string& name, Choice<T> choice, const std::string& help) {
  Words words;
  for (const auto& [word, value] : choice.words) {
    words.names.push_back(word);
    if (words.usual.empty() && value == choice.into) words.usual = word;
  }
  words.take = [choice](size_t at) { choice.into = choice.words[at].second; };
  return add_words(flags, name, words, help);
}

// --report: the name's ending chooses Markdown or HTML.
Flag add_report(Flags flags, std::filesystem::path& into);

// CLI11 would read "-1" as the largest seed.
Flag add_seed(Flags flags, const std::string& name, uint64_t& into, const std::string& help);

// "1,2,4": whole numbers in a range, kept sorted.
struct NumberList {
  std::vector<int64_t>& into;
  int64_t least, most;
};
Flag add_list(Flags flags, const std::string& name, NumberList list, const std::string& help);

// A layer named for both formats is refused. Experts stay MXFP4.
void add_dense_format(Flags flags, const std::string& flag, backend::WeightFormat format,
                      backend::DenseFormats& options);

// How tokens are drawn, and the effort told to the model; `where`: the end of each help text.
void add_sampling(Flags flags, backend::SamplingParams& into, std::string_view where);
void add_effort(Flags flags, text::ReasoningEffort& into, std::string_view where);

// The flags of `nibble load`.

// For commands that talk to a server.
void add_trust(Flags flags, std::filesystem::path& cacert, bool& insecure);
void add_load_flags(Flags flags, LoadOptions& options);

// What --tools and --json-schema of nibble load name: files, or the built-in sets.
inline constexpr const char* kBuiltIn = "builtin";

// One line of JSON. Throws Error(kIo) for a file that cannot be read and Error(kInvalidRequest) for one that is not
// JSON.
[[nodiscard]] std::string tools_named(const std::string& name);
[[nodiscard]] std::string json_schema_named(const std::string& name);

// The flags of `nibble verify`.
[[nodiscard]] std::string_view name_of(VerifyLevel level);  // "1.5"

void add_verify_flags(Flags flags, VerifyOptions& options);

// The flags of `nibble serve` that no other command has.
void add_serve_flags(Flags flags, ServeOptions& options);

// Texts named on a command line, of at most 2^30 bytes. Throws Error(kIo) for what cannot be read.

// The value of an option that takes a text, a file or standard input.
[[nodiscard]] std::string read_text(const TextInput& input);
// Reads anything that has a path: a file, a pipe, a shell's <(…).
[[nodiscard]] std::string read_text(const std::filesystem::path& path);

}  // namespace nibble::app
