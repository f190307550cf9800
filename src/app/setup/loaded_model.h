#pragma once
// From a model's name to something that generates: files, tokenizer, backend, engine. make_backend()
// is the only place that makes a concrete backend.

#include "app/options/options.h"
#include "app/setup/terminal.h"
#include "backend/backend.h"
#include "backend/cpu/host_watch.h"
#include "backend/measure.h"
#include "backend/cost.h"
#include "base/mmap_file.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/gguf.h"
#include "checkpoint/gguf_checkpoint.h"
#include "engine/loop.h"
#include "model/eagle3/head.h"
#include "model/gpt_oss.h"
#include "model/manifest.h"
#include "convert/synth.h"
#include "text/tokenizer.h"

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace nibble::app {

class GroupRank;  // rank_group.h

// A model's files of weights: GGUF, or safetensors, of which --load-format dummy opens none.
struct ModelFiles {
  explicit ModelFiles(const ModelOptions& options);
  [[nodiscard]] const std::vector<checkpoint::TensorEntry>& tensors() const {
    return gguf ? gguf->tensors() : checkpoint->entries();
  }

  std::optional<checkpoint::Checkpoint> checkpoint;
  std::optional<checkpoint::GgufCheckpoint> gguf;
};

// A model's description and weights, not yet on any backend.
struct ModelSource {
  model::ModelConfig config;
  text::Tokenizer tokenizer;
  ModelFiles files;
  std::optional<convert::DummyWeights> dummy{};  // whose bytes the weights are, if the files' are not
  std::vector<backend::HostWeight> weights{};
  std::unique_ptr<model::eagle3::Head> head{};  // of --speculative eagle3; null: none
  std::unique_ptr<ModelSource> draft{};         // of --speculative draft; null: none

  [[nodiscard]] std::vector<MappedSource> mapped_files() const;
};

// Whether the options name llama.cpp's files.
[[nodiscard]] bool is_gguf(const ModelOptions& options);

struct OpenedConfig {
  model::ModelConfig config;
  std::vector<std::string> notes;  // what is unusual about the files, one line each
};
// Reads config.json or the GGUF file's keys, or takes the preset.
[[nodiscard]] OpenedConfig open_config(const ModelOptions& options);
[[nodiscard]] ModelSource open_model(const ModelOptions& options, Terminal& terminal);

[[nodiscard]] int thread_count(const ModelOptions& options);
// Throws Error(kUnsupported) if this machine does not have the options' backend.
void require_backend(const ModelOptions& options);
// One line: how the model is computed and held, as flags, defaults and the backend resolved it.
[[nodiscard]] std::string describe_modes(const ModelOptions& options, const backend::Backend& be);
// One line for each setting in it that was given, and where it was given. REQUIRES resolved options.
[[nodiscard]] std::vector<std::string> decisions(const ModelOptions& options);
// What the options' backend can do at most, now; with several cards, all of them together.
[[nodiscard]] backend::DevicePeaks measured(const ModelOptions& options);
// What is given to a backend beside its settings.
struct BackendSetup {
  std::vector<MappedSource> files{};  // that weights will be mapped from
  std::vector<int> cards{};           // by rank; empty: the first
  backend::WatchedHost watched{};     // that computes experts; of one rank
};
// A backend of this kind, whatever run.backend says.
[[nodiscard]] std::unique_ptr<backend::Backend> make_backend(BackendKind kind, const backend::RunConfig& run,
                                                             const backend::BackendConfig& config,
                                                             BackendSetup setup = {});

// What the options' backend holds of these weights.
[[nodiscard]] backend::StoredFormats stored_formats(const ModelOptions& options,
                                                    std::span<const backend::HostWeight> weights);

using OnLoad = std::function<void(const model::LoadProgress&)>;
// Receives progress while a model is loaded.
struct LoadView {
  Terminal& terminal;
  OnLoad on_load;                                         // may be empty
  std::function<void(const std::string& why)> on_lost{};  // called if the group of ranks is lost; from any thread
  std::string_view whose{};                               // what its notes begin with
};

// A head on a backend of its own, of the options' kind, on their first card. The head outlives it.
struct LoadedHead {
  LoadedHead(const model::eagle3::Head& head, const ModelOptions& options, const model::StepLimits& of_model);
  std::unique_ptr<backend::Backend> be;
  model::GptOss model;
  engine::DraftModel drafts;
};
// What a head's backend is told of the model's: it has no settings of its own.
[[nodiscard]] backend::RunConfig head_run(const backend::RunConfig& run);

// A model on a backend, and what drafts for it, the source's head or draft model, on another. The source outlives it.
class LoadedModel {
 public:
  LoadedModel(const ModelSource& source, const ModelOptions& options, const model::StepLimits& limits,
              const LoadView& view);
  ~LoadedModel();
  LoadedModel(const LoadedModel&) = delete;
  LoadedModel& operator=(const LoadedModel&) = delete;
  [[nodiscard]] backend::Backend& backend() const { return *be_; }
  [[nodiscard]] const model::GptOss& model() const { return model_; }
  void end_group();  // ends the other ranks, if there are any
  // With what drafts for it, for one engine, which it outlives.
  [[nodiscard]] engine::EngineLimits with_draft(engine::EngineLimits limits);

 private:
  std::unique_ptr<GroupRank> rank_;  // the first of a group; null: all ranks are here
  std::unique_ptr<backend::Backend> be_;
  model::GptOss model_;
  std::unique_ptr<LoadedHead> head_;               // null: none
  std::unique_ptr<LoadedModel> draft_;             // null: none
  std::optional<engine::DraftModel> draft_model_;  // the same, for an engine
};

// A loaded model, and an engine's loop that generates with it.
class Runtime {
 public:
  Runtime(const ModelSource& source, const ModelOptions& options, const engine::EngineLimits& limits,
          Terminal& terminal);
  [[nodiscard]] engine::Loop& loop() { return loop_; }

 private:
  LoadedModel loaded_;
  engine::Loop loop_;
};

// What run and chat need: one sequence in `context` tokens.
[[nodiscard]] engine::EngineLimits one_sequence(const ModelOptions& options, int64_t context);

// The head for --speculative eagle3; null for other methods.
[[nodiscard]] std::unique_ptr<model::eagle3::Head> open_head(const ModelOptions& options, const ModelSource& source);
// The model for --speculative draft; null for other methods. Throws Error(kInvalidRequest) if its vocabulary is not the
// source's, and what open_model() throws.
[[nodiscard]] std::unique_ptr<ModelSource> open_draft(const ModelOptions& options, const ModelSource& source,
                                                      Terminal& terminal);
// With what it reads, for a backend that is planned before there is a source. Needs the head's config.json alone. Of
// a draft model nothing but its config is looked at, and refused as by open_draft().
[[nodiscard]] model::StepLimits with_taps(model::StepLimits limits, const ModelOptions& options,
                                          const model::ModelConfig& config);
// With the source's.
[[nodiscard]] engine::EngineLimits with_head(engine::EngineLimits limits, const ModelSource& source);

// The context to reserve: what was asked for, else `fallback`, never more than the model's.
[[nodiscard]] int64_t context_length(const ModelOptions& options, const model::ModelConfig& config, int64_t fallback);

// The bytes of a token; none for an id that the vocabulary leaves out (a model's vocabulary may be padded).
[[nodiscard]] std::string_view token_text(const text::Tokenizer& tokenizer, int32_t token);

// What of a GGUF file is no weight: its tokeniser, and what a card makes of its formats.

// Metadata keys of the tokeniser, as they are read and written.
inline constexpr std::string_view kGgufModel = "tokenizer.ggml.model", kGgufPre = "tokenizer.ggml.pre";
inline constexpr std::string_view kGgufTokens = "tokenizer.ggml.tokens", kGgufKinds = "tokenizer.ggml.token_type",
                                  kGgufMerges = "tokenizer.ggml.merges";

// Reads tokenizer.ggml.* of the file `path`. Throws Error(kUnsupported) for a tokeniser that is not of gpt-oss's kind
// and for an unknown key, and what Tokenizer::from_list and GgufFields throw.
[[nodiscard]] text::Tokenizer tokenizer_from_gguf(const checkpoint::GgufFields& fields, const std::string& path);

// What becomes of a file's formats where they are not kept: "Q4_K to bf16: o; Q5_0 to ggml q8_0, exactly: q, k". A card
// keeps fewer (docs/decisions/0012). Empty if everything is as it is in the file.
[[nodiscard]] std::string weight_conversions(std::span<const backend::HostWeight> weights, const ModelOptions& options);

}  // namespace nibble::app
