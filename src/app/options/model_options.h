#pragma once
// The flags of ModelOptions, which several commands share: which model, where it runs, how much room it gets.

#include "app/options/flags.h"
#include "app/options/option_parts.h"
#include "app/options/options.h"
#include "engine/proposer.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace nibble::app {

// -m, or the model as a word of its own. With a `prompt`, that may follow as a word, too. `otherwise`: added to the
// end of the help.
void add_model_name(Flags flags, std::string& into, const std::string& otherwise, std::optional<Flag> prompt = {});
void add_revision(Flags flags, std::string& into);
void add_pull(Flags flags, WhenAbsent& into);  // -y
void add_load_format(Flags flags, LoadFormat& into);
// The name, the revision and the format.
void add_model(Flags flags, ModelOptions& options, std::optional<Flag> prompt = {});

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

// The flags of speculation, for commands that answer: where guesses come from, and how many.
void add_speculation(Flags flags, ModelOptions& into);
// Of `bench`, which makes up a head by itself, but no draft model. Returns --speculative, which says `about` that.
Flag add_bench_speculation(Flags flags, BenchOptions& into, const std::string& about);
// BenchOptions::acceptances.
Flag add_acceptances(Flags flags, std::vector<double>& into);
// Throws Error(kInvalidRequest) for flags that need each other, and Error(kUnsupported) for what does not go together.
void require_speculation(const ModelOptions& options);

// What --speculative draft runs beside the model, as a model of its own: on the same backend, in the same way.
[[nodiscard]] ModelOptions draft_options(const ModelOptions& options);

// For people: "no speculation", "speculation suffix, up to 8 tokens".
[[nodiscard]] std::string describe_speculation(const engine::SpeculationLimits& limits);

// Several processes as ranks: vLLM's flags for it, and what torchrun, LeaderWorkerSet, Slurm's scripts and Open MPI put
// into the environment.
void add_group(Flags flags, GroupOptions& options);

// The flags that the variables stand for, if they describe more than one rank or --nnodes is given. Throws
// Error(kInvalidRequest) for a size without a rank.
[[nodiscard]] std::vector<Setting> group_settings(Flags flags, const Variables& environment);

// What CUDA_VISIBLE_DEVICES is to be for a rank that shares a machine, and perhaps its list, with others; empty: as it
// is. Throws Error(kInvalidRequest) where the list is too short.
[[nodiscard]] std::string card_of(const Variables& environment);

// Once all settings are known: a process is one rank of --tensor-parallel-size, and has one card, of several that it
// sees the one that the variables choose. Throws Error(kInvalidRequest).
void take_group(Flags flags, const Variables& environment, ModelOptions& options);

}  // namespace nibble::app
