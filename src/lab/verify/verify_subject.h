#pragma once
// What the levels of `nibble verify` run in this process.

#include "lab/bench/bench_report.h"
#include "app/setup/loaded_model.h"
#include "app/options/options.h"
#include "lab/verify/verify_report.h"
#include "backend/backend.h"
#include "lab/client/http_requests.h"
#include "engine/engine.h"
#include "server/engine_call.h"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace nibble::app {

// make_backend() without the files; tests pass their own.
using MakeBackend = std::function<std::unique_ptr<backend::Backend>(const backend::RunConfig& run,
                                                                    const backend::BackendConfig& config)>;

struct VerifySubject {
  const ModelSource& source;
  const ModelOptions& model;  // resolved
  MakeBackend make;
  std::function<void()> loaded = {};  // called while a model is loaded; may be empty

  [[nodiscard]] VerifySubject with(const ModelOptions& other) const { return {source, other, make, loaded}; }
};

// The model on a backend of its own.
struct OnBackend {
  backend::BackendConfig config;
  std::unique_ptr<backend::Backend> backend;
  model::GptOss model;
};
[[nodiscard]] OnBackend load(const VerifySubject& subject, const backend::RunConfig& run,
                             const model::StepLimits& limits);

// A step of one sequence in which every token has logits.
struct RunStep {
  std::vector<float> logits;  // [tokens, vocab]
  std::string not_finite;     // the first value that is a NaN or infinite, and where; empty: all are finite
  std::string modes;          // what the backend says it computes with
};
enum class Scan : uint8_t { kNone, kStages };  // kStages: every slot after every stage
[[nodiscard]] RunStep run_step(const VerifySubject& subject, const backend::RunConfig& run,
                               std::span<const int32_t> tokens, Scan scan = Scan::kNone);
// On a model that is loaded, with room for whole_step() of as many tokens. Writes the first pages.
[[nodiscard]] RunStep run_step(const OnBackend& on, std::span<const int32_t> tokens, Scan scan = Scan::kNone);
[[nodiscard]] model::StepLimits whole_step(int64_t tokens);

// How far the second distributions over tokens are from the first, in nats, and how often both have the same top token.
struct Divergence {
  double mean_kl = 0, largest_kl = 0, top1 = 0;
};
[[nodiscard]] Divergence divergence(std::span<const float> exact, std::span<const float> other, int64_t vocab,
                                    int threads);

// The settings with nothing rounded beyond the weights' own formats: the comparison for lossy settings.
[[nodiscard]] backend::RunConfig exact_run(const backend::RunConfig& run);

// Token ids of a text that comes with the model (reference.json, heldout.txt); otherwise random ids.
[[nodiscard]] std::vector<int32_t> verify_tokens(const VerifySubject& subject, int64_t count);

// Level 1.5 for the model's options only: what is wrong with the kernels that run; empty: nothing, or it cannot be
// known. `on`: fresh, with the model's options and room for path_step(). `exact`: the result of exact_path() with the
// same instruction set.
[[nodiscard]] std::string wrong_path(const VerifySubject& subject, const OnBackend& on, std::span<const float> exact);
[[nodiscard]] model::StepLimits path_step(const VerifySubject& subject);
[[nodiscard]] std::vector<float> exact_path(const VerifySubject& subject);

// What is known about a model, from a file next to it: perplexity, and the losses of lossy flags; none if nobody has
// measured them.
[[nodiscard]] std::optional<nlohmann::json> reference_of(const ModelOptions& model);

// How fast a prompt is read and tokens are generated, alone and eight at a time, and the memory in use.
struct MeasuredSpeed {
  std::vector<BenchRow> rows;
  int64_t host_bytes = 0;               // the process's peak so far
  std::optional<int64_t> device_bytes;  // of the card, used by all programs
};
[[nodiscard]] MeasuredSpeed measure_speed(const VerifySubject& subject, int repetitions);

void verify_smoke(const VerifySubject& subject, VerifyChecks& checks);        // level 1
void verify_paths(const VerifySubject& subject, VerifyChecks& checks);        // level 1.5
void verify_correctness(const VerifySubject& subject, VerifyChecks& checks);  // level 2
void verify_performance(const VerifySubject& subject, VerifyChecks& checks);  // level 4, in short

// Level 3 in this process: many requests, long ones, more than the pages can hold, and cancelled ones. At the end
// nothing may be held any more.

// A port to this engine, which must outlive it.
[[nodiscard]] server::EnginePort stress_port(engine::Engine& engine);

struct StressPlan {
  int64_t vocab = 0;
  int64_t context = 0;    // longest sequence, in tokens
  int64_t kv_tokens = 0;  // of the cache
  bool exact = false;     // results do not depend on batch neighbours, so texts must be the same however many run
};

// The port of an engine; tests pass one that loses events.
void verify_stress(const server::EnginePort& port, const StressPlan& plan, VerifyChecks& checks);

// Levels 1, 3 and 4 against any server with OpenAI's API.
struct ServerSubject {
  const client::Server& server;
  std::string model;  // the name to ask for
};

void verify_server_smoke(const ServerSubject& subject, VerifyChecks& checks);
void verify_server_stress(const ServerSubject& subject, VerifyChecks& checks);
void verify_server_performance(const ServerSubject& subject, VerifyChecks& checks);

// The first model that the server lists. Throws Error(kIo) if it lists none.
[[nodiscard]] std::string first_model(const client::Server& server);

}  // namespace nibble::app
