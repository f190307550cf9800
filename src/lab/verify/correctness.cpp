// Level 2: values are finite everywhere, equal to the reference's, and no more lossy than is known of each option.

#include "base/error.h"
#include "base/read_json.h"
#include "lab/results/metadata.h"
#include "lab/verify/verify.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

namespace nibble::app {
namespace {

using backend::Activations;
using backend::RunConfig;
using Reference = nlohmann::json;

constexpr int64_t kPromptTokens = 24, kSeedTokens = 24, kLossTokens = 256, kTextTokens = 2048, kWindow = 512;
constexpr const char* kScoredText = "perplexity of its text's first 2048 tokens";
constexpr int64_t kMostReferenceBytes = int64_t{1} << 28;  // of weights: its loops are slow

std::string loss_text(const Divergence& d) {
  return fmt::format("KL {:.2e} (largest {:.2e}), same top token {:.1f} %", d.mean_kl, d.largest_kl, 100 * d.top1);
}

class Correctness {
 public:
  Correctness(const VerifySubject& subject, VerifyChecks& checks)
      : subject_(subject),
        checks_(checks),
        exact_(exact_run(subject.model.run)),
        reference_(reference_of(subject.model)),
        vocab_(subject.source.config.dims.vocab) {}

  // A failure in one check does not stop the next.
  void verify() {
    const auto each = [&](const char* name, void (Correctness::*check)()) {
      try {
        (this->*check)();
      } catch (const Error& e) {
        checks_.add(name, false, e.what());
      }
    };
    each("files", &Correctness::files);
    each("steps of several sequences", &Correctness::stages);
    each("tokens of the reference", &Correctness::same_tokens);
    each(kScoredText, &Correctness::perplexity);
    each("lossy options", &Correctness::losses);
  }

 private:
  void stages() { verify_stages(subject_, checks_); }
  void files() {
    const std::string name = "weights are those of reference.json";
    if (!reference_ || !reference_->contains("sha256")) return checks_.skip(name, "there is none, or no heldout.txt");
    const std::string found = hash_of(subject_.source.mapped_files()), want = (*reference_)["sha256"];
    checks_.add_unless(name, found == want ? "" : fmt::format("want sha256 {}, found {}", want, found),
                       "sha256 " + found);
  }

  // Why the reference cannot be used; empty: it can.
  [[nodiscard]] std::string no_reference() const {
    if (subject_.model.run.backend == BackendKind::kReference) return "this is the reference";
    if (!reference_is_fast(subject_))
      return fmt::format("its loops are slow: more than {} MB", kMostReferenceBytes >> 20);
    return {};
  }

  // Greedy, and with a seed.
  [[nodiscard]] std::vector<int32_t> generate(const MakeBackend& make) const {
    const engine::EngineLimits limits = one_sequence(subject_.model, kPromptTokens + kSeedTokens + 1);
    const OnBackend on = load(make, exact_, engine::step_limits(limits, subject_.source.config.dims),
                              {subject_.source.config, subject_.source.weights});
    engine::Loop loop(*on.backend, on.model, limits);
    std::vector<int32_t> tokens;
    for (const float temperature : {0.0F, 1.0F})
      loop.serve({.prompt = verify_tokens(subject_, kPromptTokens),
                  .max_tokens = kSeedTokens,
                  .sampling = {.temperature = temperature, .seed = 7}},
                 [&](const engine::TokenEvent& event) {
                   tokens.push_back(event.token);
                   return true;
                 });
    return tokens;
  }

  void same_tokens() {
    const std::string name = "the reference's tokens, greedy and with a seed";
    if (const std::string why = no_reference(); !why.empty()) return checks_.skip(name, why);
    const std::vector<int32_t> want = generate([](const RunConfig& run, const backend::BackendConfig& config) {
      return make_backend(BackendKind::kReference, run, config);
    });
    const std::vector<int32_t> found = generate(subject_.make);
    const auto parted = std::ranges::mismatch(want, found).in1;
    checks_.add_unless(name,
                       want == found ? "" : fmt::format("token {} of {} differs", parted - want.begin(), want.size()),
                       fmt::format("{} tokens", found.size()));
  }

  void perplexity() {
    if (!reference_) return checks_.skip(kScoredText, "no reference.json and heldout.txt beside the model");
    std::vector<int32_t> ids = verify_tokens(subject_, kTextTokens);
    Terminal quiet({.quiet = true});
    ModelOptions exact = subject_.model;
    exact.run = exact_;
    const double want = (*reference_)["perplexity"], tolerance = reference_->value("tolerance", 0.0005);
    const double found = score({subject_.source, exact, ids, kWindow}, quiet).perplexity();
    checks_.add(kScoredText, std::abs(found - want) <= tolerance * want,
                fmt::format("{:.4f}, want {:.4f} within {:g} %", found, want, 100 * tolerance));
  }

  void losses() {
    const std::vector<int32_t> ids = verify_tokens(subject_, kLossTokens);
    const std::vector<float> exact = run_step(subject_, exact_, ids).logits;
    for (const RunConfig& lossy : lossy_runs(exact_)) {
      const std::string flag = lossy_flags(lossy).front();
      std::vector<float> logits;
      try {
        logits = run_step(subject_, lossy, ids).logits;
      } catch (const Error& e) {
        if (e.code() != Code::kUnsupported) throw;
        checks_.skip(flag, e.what());
        continue;
      }
      const Divergence d = divergence(exact, logits, vocab_, thread_count(subject_.model));
      const Reference* const bound =
          reference_ && (*reference_)["losses"].contains(flag) ? &(*reference_)["losses"][flag] : nullptr;
      if (bound == nullptr) {
        checks_.skip(flag, "no bound is known of this model; " + loss_text(d));
        continue;
      }
      const double kl = (*bound)["kl"], top1 = (*bound)["top1"];
      checks_.add(flag, d.mean_kl <= kl && d.top1 >= top1,
                  fmt::format("{}; want at most {:g}, at least {:g} %", loss_text(d), kl, 100 * top1));
    }
  }

  const VerifySubject& subject_;
  VerifyChecks& checks_;
  const RunConfig exact_;
  const std::optional<Reference> reference_;
  const int64_t vocab_;
};

}  // namespace

bool reference_is_fast(const VerifySubject& subject) {
  int64_t bytes = 0;
  for (const backend::HostWeight& w : subject.source.weights)
    bytes += static_cast<int64_t>(w.values.bytes.size() + w.scales.bytes.size() + w.odd.bytes.size());
  return bytes <= kMostReferenceBytes;
}

std::vector<RunConfig> lossy_runs(const RunConfig& exact) {
  std::vector<RunConfig> all;
  for (const Activations a : {Activations::kInt8, Activations::kMxfp8, Activations::kMxfp6, Activations::kMxfp4}) {
    if (!backend::type_of(a).on.has(exact.backend)) continue;
    all.push_back(exact);
    all.back().activations = a;
  }
  for (const backend::KvType& kv : backend::kKvTypes) {
    if (!kv.lossy || !kv.on.has(exact.backend)) continue;
    all.push_back(exact);
    all.back().kv = kv.dtype;
  }
  for (const auto format : {backend::WeightFormat::kMxfp4, backend::WeightFormat::kMxfp8}) {
    all.push_back(exact);
    all.back().dense = {.qkv = format, .o = format, .lm_head = format};
  }
  return all;
}

std::vector<std::string> lossy_flags(const backend::RunConfig& run) {
  std::vector<std::string> flags;
  if (backend::rounds(run.activations)) flags.push_back(fmt::format("--moe-activation {}", name_of(run.activations)));
  if (backend::type_of(run.kv_type()).lossy)
    flags.push_back(fmt::format("--kv-cache-dtype {}", backend::type_of(run.kv_type()).word));
  for (const auto format : {backend::WeightFormat::kMxfp4, backend::WeightFormat::kMxfp8})
    if (run.dense.qkv == format || run.dense.o == format || run.dense.lm_head == format)
      flags.push_back(fmt::format("--{}-layers all", backend::name_of(format)));  // some cost less than all
  if (backend::in_mx_blocks(run.dense_activations))
    flags.push_back(fmt::format("--dense-activation {}", name_of(run.dense_activations)));
  if (run.fp8_attention()) flags.emplace_back("--attention-activation fp8");
  if (!run.sinks) flags.emplace_back("--attention-sinks off");
  return flags;
}

std::optional<nlohmann::json> reference_of(const ModelOptions& model) {
  const std::filesystem::path folder = model.model;
  std::ifstream file(folder / "reference.json");
  if (!file || !std::filesystem::exists(folder / "heldout.txt")) return std::nullopt;  // it is of that text
  nlohmann::json json = read_json(std::string(std::istreambuf_iterator<char>(file), {}));
  if (!json.is_object() || !json.contains("perplexity") || !json.contains("losses"))
    throw Error(Code::kCorrupt, "{}/reference.json: want perplexity and losses, found another text", model.model);
  return json;
}

void verify_correctness(const VerifySubject& subject, VerifyChecks& checks) {
  checks.begin(VerifyLevel::kCorrectness);
  Correctness(subject, checks).verify();
}

}  // namespace nibble::app
