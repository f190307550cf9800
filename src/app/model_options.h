#pragma once
// The flags of ModelOptions, which several commands share: which model, where it runs, how much room it gets.

#include "app/option_parts.h"
#include "app/options.h"

#include <cstdint>
#include <optional>
#include <string>

namespace nibble::app {

// -m, and the same as a word of its own; where there is a `prompt`, it may stand behind as a word, too. `otherwise`: a
// last word of the help.
void add_model_name(Flags flags, std::string& into, const std::string& otherwise, std::optional<Flag> prompt = {});
void add_pull(Flags flags, WhenAbsent& into);  // -y
void add_load_format(Flags flags, LoadFormat& into);
void add_model_source(Flags flags, ModelOptions& options);  // both, the model without a word of its own
void add_model(Flags flags, ModelOptions& options, std::optional<Flag> prompt = {});  // both, with one

// The backends, as --a and --b name them; --backend has auto as well.
[[nodiscard]] Choice<BackendKind> backends(BackendKind& into);
void add_backend(Flags flags, ModelOptions& options);

// What a step's plan depends on, on any backend or on a card.
enum class KernelFlags : uint8_t { kAll, kOfCards };
void add_kernels(Flags flags, ModelOptions& options, KernelFlags which = KernelFlags::kAll);
void add_ranks(Flags flags, ModelOptions& options);
void add_runtime(Flags flags, ModelOptions& options);  // and whatever else a step that runs does

// `usual` context as --help says it; `fits`: the word for kContextThatFits, of a command that finds it out.
struct ContextWords {
  std::string usual, fits;
};
void add_limits(Flags flags, ModelOptions& options, const ContextWords& context);

}  // namespace nibble::app
