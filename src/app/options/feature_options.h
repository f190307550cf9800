#pragma once
// Features as words of a command line, which the flags themselves read.

#include "app/options/features.h"
#include "app/options/flags.h"
#include "app/options/options.h"
#include "backend/cuda/card/device_facts.h"

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace nibble::app {

struct FeatureWord {
  std::string flag, value;
  friend bool operator==(const FeatureWord&, const FeatureWord&) = default;
};
// Of "--moe-kernel gemm --kv-cache-dtype fp8". REQUIRES flags and values in turn.
[[nodiscard]] std::vector<FeatureWord> feature_words(std::string_view text);
// At every such character; of "" one empty part.
[[nodiscard]] std::vector<std::string> split(std::string_view text, char at);
// None where the value is a word for saying nothing.
[[nodiscard]] std::vector<FeatureWord> words_of(const Feature& feature, std::string_view value);

// The options as if these flags had been given, too; of `model` what runs and guesses. Throws Error(kInvalidRequest)
// for what the flags refuse.
[[nodiscard]] ServeOptions with_words(const ServeOptions& options, std::span<const FeatureWord> words);
// What the flags of features say of themselves.
[[nodiscard]] CommandFacts feature_flags();

// --preset: of several with commas their names, each known.
Flag add_presets(Flags flags, std::vector<std::string>& into, const std::string& help);
// --preset: one, whose flags count where nobody gives them.
void add_preset(Flags flags, Settings& settings);

// With the backend's choices, as it would run; a step of it is planned where a card is named. Throws
// Error(kUnsupported) or Error(kInvalidRequest) with the validator's words. REQUIRES a backend.
[[nodiscard]] ServeOptions resolved_features(ServeOptions options,
                                             const std::optional<backend::cuda::DeviceFacts>& card = {});
// All that features set, of options as given or resolved: the same text, the same run.
[[nodiscard]] std::string fingerprint(const ServeOptions& options);

// gpt-oss-20b's shapes under these flags: why they are refused; empty where they are not.
[[nodiscard]] std::string refusal_of(const Refusal& asked);

}  // namespace nibble::app
