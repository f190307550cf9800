#pragma once
// `nibble verify`: the checks, what they run on, and the levels but the last (features.h).

#include "app/options/options.h"
#include "app/setup/loaded_model.h"
#include "app/setup/terminal.h"
#include "backend/backend.h"
#include "engine/engine.h"
#include "lab/bench/rows.h"
#include "lab/client/http_requests.h"
#include "lab/results/compare.h"
#include "server/engine_call.h"

#include <nlohmann/json.hpp>

#include <chrono>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace nibble::app {

// What was checked and found: a table, JSON, or a Markdown page that stands alone. Pure.

enum class Verdict : uint8_t { kPass, kFail, kSkipped };
[[nodiscard]] constexpr std::string_view name_of(Verdict verdict) {
  constexpr std::string_view kNames[] = {"pass", "FAIL", "skipped"};
  return kNames[static_cast<size_t>(verdict)];
}

struct VerifyCheck {
  VerifyLevel level;
  std::string name;
  Verdict verdict;
  std::string found;   // figures, or why it was skipped or failed
  double seconds = 0;  // since the check before it
};

class VerifyChecks {
 public:
  // `watch` sees each check as it ends.
  using Watch = std::function<void(const VerifyCheck&)>;
  explicit VerifyChecks(Watch watch = {}) : watch_(std::move(watch)) {}

  // Checks added from here on belong to this level.
  void begin(VerifyLevel level) { level_ = level; }
  void add(std::string name, bool holds, std::string found);
  // A check that holds where nothing is wrong; `found`: the figures of that case.
  void add_unless(std::string name, std::string wrong, std::string found);
  void skip(std::string name, std::string why) { put({level_, std::move(name), Verdict::kSkipped, std::move(why)}); }
  [[nodiscard]] const std::vector<VerifyCheck>& all() const { return checks_; }
  [[nodiscard]] bool failed() const;
  [[nodiscard]] bool failed(VerifyLevel level) const;

 private:
  void put(VerifyCheck check);

  Watch watch_;
  VerifyLevel level_ = VerifyLevel::kSmoke;
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
  std::vector<VerifyCheck> checks_;
};

// Benchmarks say nothing about a configuration if other kernels ran than expected.
inline constexpr std::string_view kInvalid = "INVALID: level 1.5 failed; ";

// A table in Markdown can be printed row by row: its columns are as wide as what checks are mostly called.
[[nodiscard]] std::string check_head();
[[nodiscard]] std::string check_row_of(const VerifyCheck& check);
[[nodiscard]] std::string verify_summary(std::span<const VerifyCheck> checks);  // "23 passed, 1 failed, 2 skipped"
[[nodiscard]] std::string verify_times(std::span<const VerifyCheck> checks);    // "80 s: level 1 3 s, level 2 77 s"
[[nodiscard]] nlohmann::ordered_json verify_json(std::span<const VerifyCheck> checks);
// `state`: what stands behind the numbers in the title.
[[nodiscard]] std::string verify_page(std::span<const VerifyCheck> checks, std::string_view state = {});

// What the levels run in this process.

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
// Its first layers, say.
struct ModelPart {
  model::ModelConfig config;
  std::vector<backend::HostWeight> weights;
};
[[nodiscard]] OnBackend load(const MakeBackend& make, const backend::RunConfig& run, const model::StepLimits& limits,
                             const ModelPart& part);

struct RunStep {
  std::vector<float> logits;     // [logit tokens, vocab]
  std::string not_finite;        // the first value that is a NaN or infinite, and where; empty: all are finite
  std::string modes;             // what the backend says it computes with
  std::set<std::string> called;  // called_by() of the backend
};
enum class Scan : uint8_t { kNone, kStages };  // kStages: every slot after every stage
[[nodiscard]] RunStep run_step(const OnBackend& on, const model::Step& step, Scan scan = Scan::kNone);
// A step of one sequence in which every token has logits.
[[nodiscard]] RunStep run_step(const VerifySubject& subject, const backend::RunConfig& run,
                               std::span<const int32_t> tokens);
// On a model that is loaded, with room for whole_step() of as many tokens. Writes the first pages.
[[nodiscard]] RunStep run_step(const OnBackend& on, std::span<const int32_t> tokens, Scan scan = Scan::kNone);
[[nodiscard]] model::StepLimits whole_step(int64_t tokens);

// How far the second distributions over tokens are from the first, in nats, and how often both have the same top token.
struct Divergence {
  double mean_kl = 0, largest_kl = 0, top1 = 0;
  int64_t largest_at = 0;  // row of the largest
};
[[nodiscard]] Divergence divergence(std::span<const float> exact, std::span<const float> other, int64_t vocab,
                                    int threads);

// The settings with nothing rounded beyond the weights' own formats: the comparison for lossy settings.
[[nodiscard]] backend::RunConfig exact_run(const backend::RunConfig& run);

// Settings that round in one way each beyond such a run.
[[nodiscard]] std::vector<backend::RunConfig> lossy_runs(const backend::RunConfig& exact);

// The flags of what such settings round, as reference.json spells them, whose losses may be known; empty: nothing.
[[nodiscard]] std::vector<std::string> lossy_flags(const backend::RunConfig& run);

// Token ids of a text that comes with the model (reference.json, heldout.txt); otherwise random ids.
[[nodiscard]] std::vector<int32_t> verify_tokens(const VerifySubject& subject, int64_t count);

// What has run, by Backend::launches(): a card's kernels, a CPU's instruction sets.
[[nodiscard]] std::set<std::string> called_by(const backend::Backend& be);
// What is wrong with these on a CPU; empty: nothing.
[[nodiscard]] std::string wrong_calls(const backend::RunConfig& run, const std::set<std::string>& called);

// Level 1.5 for the model's options only: what is wrong with the kernels that run; empty: nothing, or it cannot be
// known. `on`: fresh, with the model's options and room for path_step(). `exact`: the result of exact_path() with the
// same instruction set.
[[nodiscard]] std::string wrong_path(const VerifySubject& subject, const OnBackend& on, std::span<const float> exact);
[[nodiscard]] model::StepLimits path_step(const VerifySubject& subject);
[[nodiscard]] std::vector<float> exact_path(const VerifySubject& subject);

// What is known about a model, from a file next to it: perplexity, and the losses of lossy flags; none if nobody has
// measured them.
[[nodiscard]] std::optional<nlohmann::json> reference_of(const ModelOptions& model);

// How well a model predicts a text.
struct Score {
  double nats = 0;     // -sum of the tokens' log probabilities
  int64_t scored = 0;  // tokens
  int64_t bytes = 0;   // of these tokens
  [[nodiscard]] double bits_per_byte() const { return nats / std::log(2.0) / static_cast<double>(bytes); }
  [[nodiscard]] double perplexity() const { return std::exp(nats / static_cast<double>(scored)); }
};
struct ScoreArgs {
  const ModelSource& source;
  const ModelOptions& model;     // resolved
  std::span<const int32_t> ids;  // of the text
  int64_t window;  // tokens; each but the first of a window is scored, given those before it in the window
};
// Shows its progress. REQUIRES two tokens in the text and in a window.
[[nodiscard]] Score score(const ScoreArgs& args, Terminal& terminal);

void verify_smoke(const VerifySubject& subject, VerifyChecks& checks);        // level 1
void verify_paths(const VerifySubject& subject, VerifyChecks& checks);        // level 1.5
void verify_correctness(const VerifySubject& subject, VerifyChecks& checks);  // level 2
// Whether the reference, whose loops are slow, can run all of the model.
[[nodiscard]] bool reference_is_fast(const VerifySubject& subject);
// Whether a token has the same bits whoever shares its step.
[[nodiscard]] bool alike_in_company(const backend::RunConfig& run);
// Its part on steps of several sequences.
void verify_stages(const VerifySubject& subject, VerifyChecks& checks);
void verify_performance(const VerifySubject& subject, VerifyChecks& checks);  // level 4, in short

// Level 3 in this process: many requests, long ones, more than the pages can hold, and cancelled ones. At the end
// nothing may be held any more.
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

// A model as a server lists it.
struct ListedModel {
  std::string id;
  int64_t vocab_size = 0;  // its ordinary tokens, as nibble serve tells; 0: the server does not say
};
// The one of this name, or the first. Throws Error(kIo) if there is none.
[[nodiscard]] ListedModel listed_model(const client::Server& server, std::string_view name = {});

// How fast a prompt is read and tokens are generated, alone and eight at a time, and the memory in use.
struct MeasuredSpeed {
  std::vector<BenchRow> rows;
  int64_t host_bytes = 0;               // the process's peak so far
  std::optional<int64_t> device_bytes;  // of the card, used by all programs
};
[[nodiscard]] MeasuredSpeed measure_speed(const VerifySubject& subject, int repetitions);

// Level 5: compares a run's speed, memory and accuracy with a stored run of the same device, model and settings. These
// figures are parts of a result: "rows" (as nibble bench has them), "memory_bytes", and "accuracy": the perplexity, and
// against the same model with nothing rounded the KL divergence in nats and the share of equal top tokens.

// Measures speed first, so that the peak of memory is the model's own.
[[nodiscard]] nlohmann::ordered_json measure_figures(const VerifySubject& subject);
[[nodiscard]] std::string figures_text(const nlohmann::ordered_json& figures);  // in one line
// Throws Error(kInvalidRequest), naming the file, if it is not a baseline or its metadata has gaps.
void require_baseline(const NamedResult& baseline);

// The first fact in which the baseline is not of this run: `device.name: want "AMD EPYC", found "Xeon"`; empty: it is.
// Both arguments are metadata (results/metadata.h).
[[nodiscard]] std::string mismatch(const nlohmann::ordered_json& baseline, const nlohmann::ordered_json& now);

struct BaselineSearch {
  std::optional<NamedResult> result;
  std::string why_none;
};
// The file; without one, the first baseline in the folders that is of this run. Throws Error(kInvalidRequest) if the
// file is not a baseline, or is of another device, model, backend or settings. In folders such files are skipped.
[[nodiscard]] BaselineSearch find_baseline(const std::filesystem::path& file,
                                           const std::vector<std::filesystem::path>& folders,
                                           const nlohmann::ordered_json& now);
// The folders of baselines that come with the program.
[[nodiscard]] std::vector<std::filesystem::path> baseline_folders();

// Adds one check per row, one for memory and one for the loss. A row fails if it is more than 3 % slower anywhere in
// the 95 % interval of the change; memory, if it takes 1 GB more; the loss, if accuracy got worse.
void check_regression(const NamedResult& baseline, const nlohmann::ordered_json& figures, VerifyChecks& checks);

}  // namespace nibble::app
