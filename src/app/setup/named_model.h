#pragma once
// Finds the files of a model from the name that a user typed, and pulls them where they are not. All commands use this.

#include "app/options/options.h"
#include "app/setup/terminal.h"
#include "hub/model_name.h"
#include "hub/pull.h"

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace nibble::app {

struct NamedModel {
  std::string path;
  std::vector<std::string> names;  // under which it is served; the first says enough
};

// What hub::parse_name() says. Throws Error(kInvalidRequest) for an address that is not the Hub's.
[[nodiscard]] std::optional<hub::ModelName> parsed(const std::string& asked, const hub::Settings& settings);

// As hub::find_model() finds it; pulled first if the options or the user say so. A path that does not exist is left to
// whoever opens it. Throws Error(kIo) with the places searched and how to get the model, Error(kInvalidRequest) without
// a name, and what pull_model() throws.
[[nodiscard]] NamedModel find_named(const ModelOptions& options, Terminal& terminal);
// The small model that comes with nibble. Throws Error(kIo) if it is not next to the program.
[[nodiscard]] NamedModel own_model();

// The folders in which the program may lie, its own first: of a build, of the sources, of an installation.
[[nodiscard]] std::vector<std::filesystem::path> folders_of_program();

// The path of --speculative draft's model instead of its name; others' is one already.
void find_draft(ModelOptions& options, Terminal& terminal);
// The options with the model's path instead of its name, with the draft model's, and with ModelOptions::name set.
[[nodiscard]] ModelOptions with_files(ModelOptions options, Terminal& terminal);
// The path for a name, for commands that take more than models (a tokenizer.json, a file of tensors).
[[nodiscard]] std::filesystem::path path_of(const std::filesystem::path& name, const hub::Settings& settings);

// Pulls a model of the Hub into the cache, with what the user sees of it. What was pulled or already there; none if the
// user, whom `ask` asks first, said no. Throws what hub::pull() throws, and Interrupted.
[[nodiscard]] std::optional<hub::PullPlan> pull_model(hub::PullRequest request, const hub::Settings& settings,
                                                      Terminal& terminal, bool ask = false);

}  // namespace nibble::app
