#pragma once
// The flags of ModelOptions, which several commands share: which model, where it runs, how much room it gets.

#include "app/option_parts.h"
#include "app/options.h"

#include <string>

namespace nibble::app {

void add_load_format(CLI::App& app, LoadFormat& into);
void add_model_source(CLI::App& app, ModelOptions& options);  // and --load-format

// The backends, as --a and --b name them; --backend has auto as well.
[[nodiscard]] Choice<BackendKind> backends(BackendKind& into);
void add_backend(CLI::App& app, ModelOptions& options);

void add_kernels(CLI::App& app, ModelOptions& options);  // what a step's plan depends on
void add_runtime(CLI::App& app, ModelOptions& options);  // and whatever else a step that runs does

// `usual` context as --help says it; `fits`: the word for kContextThatFits, of a command that finds it out.
struct ContextWords {
  std::string usual, fits;
};
void add_limits(CLI::App& app, ModelOptions& options, const ContextWords& context);

}  // namespace nibble::app
