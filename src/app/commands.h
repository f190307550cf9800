#pragma once
// One function per command, each in a file of its name. They return the exit code and throw Error.

#include "app/options.h"

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
int execute(const PullOptions& options);
int execute(const ListOptions& options);
int execute(const PsOptions& options);
int execute(const RemoveOptions& options);
int tune(const BenchOptions& options, std::string commit);  // of it: bench_tune.h

}  // namespace nibble::app
