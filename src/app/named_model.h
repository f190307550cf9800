#pragma once
// From what a user calls a model to its files: the one resolver of all commands.

#include "app/options.h"
#include "app/terminal.h"

#include <filesystem>
#include <string>
#include <vector>

namespace nibble::app {

struct NamedModel {
  std::string path;
  std::vector<std::string> names;  // under which it is served; the first says enough
};

// As hub::find_model() finds it, pulled first where the options say so or the user does; a path that is nowhere is left
// for who opens it. Throws Error(kIo) saying where it looked and how to get the model, Error(kInvalidRequest) without a
// name, and what pull_model() throws.
[[nodiscard]] NamedModel find_named(const ModelOptions& options, Terminal& terminal);
// The small model that comes with nibble. Throws Error(kIo) where it is not beside the program.
[[nodiscard]] NamedModel own_model();

// The folders that the program lies in, its own first: those of a build, of its sources, of an installation.
[[nodiscard]] std::vector<std::filesystem::path> folders_of_program();

// The options with the path for the name, and ModelOptions::name.
[[nodiscard]] ModelOptions with_files(ModelOptions options, Terminal& terminal);
// A path for the name; for what takes more than models (a tokenizer.json, a file of tensors).
[[nodiscard]] std::filesystem::path path_of(const std::filesystem::path& name, const hub::Settings& settings);

}  // namespace nibble::app
