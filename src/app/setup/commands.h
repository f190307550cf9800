#pragma once
// One function per command. They return the exit code and throw Error.

#include "app/options/options.h"
#include "app/setup/terminal.h"
#include "model/config.h"

namespace nibble::app {

int execute(const RunOptions& options);
int execute(const ChatOptions& options);
int execute(const ServeOptions& options);
int execute(const InspectOptions& options);
int execute(const TokenizeOptions& options);
int execute(const PerplexityOptions& options);
int execute(const CompareOptions& options);
int execute(const SynthOptions& options);
int execute(const ConvertOptions& options);
int execute(const QuantizeOptions& options);
int execute(const BenchOptions& options);
int execute(const PredictOptions& options);
int execute(const LoadOptions& options);
int execute(const VerifyOptions& options);
int execute(const PullOptions& options);
int execute(const ListOptions& options);
int execute(const PsOptions& options);
int execute(const LaunchOptions& options);
int execute(const RemoveOptions& options);
int execute(const FeaturesOptions& options);
int execute(const ManOptions& options);
int execute(const CompletionOptions& options);
int execute(const GreetOptions& options);
// What the command's options become before anything is loaded: the model found, the backend chosen, each setting
// resolved. Commands that run a model begin with it, and --print-config shows it. Throws as the command would.
[[nodiscard]] RunOptions resolved_options(const RunOptions& options, Terminal& terminal);
[[nodiscard]] ChatOptions resolved_options(const ChatOptions& options, Terminal& terminal);
[[nodiscard]] ServeOptions resolved_options(const ServeOptions& options, Terminal& terminal);
[[nodiscard]] PerplexityOptions resolved_options(const PerplexityOptions& options, Terminal& terminal);
[[nodiscard]] BenchOptions resolved_options(const BenchOptions& options, Terminal& terminal);
[[nodiscard]] VerifyOptions resolved_options(const VerifyOptions& options, Terminal& terminal);

int inspect_plan(const InspectOptions& options, const model::ModelConfig& config, Terminal& terminal);  // its --plan

}  // namespace nibble::app
