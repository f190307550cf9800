#pragma once
// The flags of ModelOptions, which several commands share: which model, where it runs, how much room it gets.

#include "app/option_parts.h"
#include "app/options.h"

#include <cstdint>
#include <optional>
#include <string>

namespace nibble::app {

// -m, or the model as a word of its own. With a `prompt`, that may follow as a word, too. `otherwise`: added to the
// end of the help.
void add_model_name(Flags flags, std::string& into, const std::string& otherwise, std::optional<Flag> prompt = {});
void add_pull(Flags flags, WhenAbsent& into);  // -y
void add_load_format(Flags flags, LoadFormat& into);
void add_model(Flags flags, ModelOptions& options, std::optional<Flag> prompt = {});  // the name and the format

// The backends that --a and --b name; --backend has auto as well.
[[nodiscard]] Choice<BackendKind> backends(BackendKind& into);
void add_backend(Flags flags, ModelOptions& options);

// Flags that change a step's plan: on any backend, or on a card.
enum class KernelFlags : uint8_t { kAll, kOfCards };
void add_kernels(Flags flags, ModelOptions& options, KernelFlags which = KernelFlags::kAll);
void add_ranks(Flags flags, ModelOptions& options);
void add_runtime(Flags flags, ModelOptions& options);  // and whatever else a step that runs does

// `usual`: the context that --help shows. `fits`: the word for kContextThatFits, for a command that works it out.
struct ContextWords {
  std::string usual, fits;
};
void add_limits(Flags flags, ModelOptions& options, const ContextWords& context);

}  // namespace nibble::app
