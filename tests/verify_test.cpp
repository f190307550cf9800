// nibble verify finds what it is for: the level that should find a planted fault does, and nothing is found if nothing
// is wrong.

#include "app/setup/backend_choice.h"
#include "lab/verify/features.h"
#include "lab/verify/verify.h"
#include "backend/cpu/cpu_backend.h"
#include "base/error.h"
#include "engine/engine.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace nibble::app {
namespace {

using testing::HasSubstr;

const std::filesystem::path kTiny = std::filesystem::path(NIBBLE_SOURCE_DIR) / "models/nibble-tiny";

std::string failures(const VerifyChecks& checks) {
  std::string text;
  for (const VerifyCheck& check : checks.all())
    if (check.verdict == Verdict::kFail) text += fmt::format("{}: {}\n", check.name, check.found);
  return text;
}

class Verify : public testing::Test {
 protected:
  Verify() : options_(tiny()), source_(open_model(options_, terminal_)) {}

  static ModelOptions tiny() {
    ModelOptions options;
    options.model = kTiny;
    options.name = "nibble-tiny";
    options.run.backend = BackendKind::kCpu;
    options.run.threads = 2;
    options.run.activations = backend::Activations::kF32;
    return resolved_model(options);
  }
  [[nodiscard]] VerifySubject subject() const { return {source_, options_, make_}; }

  // Copies a weight's values, so that a test may damage them; from now on the source points to the copy.
  std::vector<std::byte>& copy_of(backend::WeightRole role, int layer) {
    const auto it = std::ranges::find_if(
        source_.weights, [&](const backend::HostWeight& w) { return w.role == role && w.layer == layer; });
    check(it != source_.weights.end(), "a weight of the model");
    damaged_.assign(it->values.bytes.begin(), it->values.bytes.end());
    it->values.bytes = damaged_;
    return damaged_;
  }

  Terminal terminal_{{.quiet = true}};
  ModelOptions options_;
  ModelSource source_;
  MakeBackend make_ = [](const backend::RunConfig& run, const backend::BackendConfig& config) {
    return make_backend(run.backend, run, config);
  };
  std::vector<std::byte> damaged_;
};

TEST_F(Verify, finds_nothing_where_nothing_is_wrong) {
  VerifyChecks checks;
  verify_smoke(subject(), checks);
  verify_paths(subject(), checks);
  verify_correctness(subject(), checks);
  EXPECT_EQ(failures(checks), "");
  EXPECT_GT(checks.all().size(), 20U);
}

TEST_F(Verify, a_rounding_that_does_not_run_is_found_by_its_path) {
  make_ = [](const backend::RunConfig& run, const backend::BackendConfig& config) {
    backend::RunConfig forced = run;
    if (backend::in_mx_blocks(run.activations)) forced.activations = backend::Activations::kF32;
    return make_backend(run.backend, forced, config);
  };
  VerifyChecks checks;
  verify_paths(subject(), checks);
  EXPECT_TRUE(checks.failed(VerifyLevel::kPaths));
  EXPECT_THAT(failures(checks), HasSubstr("bit for bit"));
  EXPECT_EQ(failures(checks).find("activations f32"), std::string::npos) << failures(checks);
}

TEST_F(Verify, pages_of_another_type_are_found_by_their_path) {
  make_ = [](const backend::RunConfig& run, const backend::BackendConfig& config) {
    backend::RunConfig forced = run;
    forced.kv = backend::KvDtype::kBf16;
    return make_backend(run.backend, forced, config);
  };
  VerifyChecks checks;
  verify_paths(subject(), checks);
  EXPECT_THAT(failures(checks), HasSubstr("KV e4m3"));
}

TEST_F(Verify, a_wrong_instruction_set_is_found_by_its_path) {
  make_ = [](const backend::RunConfig& run, const backend::BackendConfig& config) {
    backend::RunConfig forced = run;
    forced.isa = backend::CpuIsa::kAuto;
    return make_backend(run.backend, forced, config);
  };
  if (backend::resolved_cpu({}).isa < backend::CpuIsa::kAvx512) GTEST_SKIP() << "wants an instruction set beyond AVX2";
  VerifyChecks checks;
  verify_paths(subject(), checks);
  EXPECT_THAT(failures(checks), HasSubstr("must not run avx"));
}

TEST_F(Verify, benchmarks_of_a_wrong_path_are_invalid) {
  VerifyChecks checks;
  checks.begin(VerifyLevel::kPaths);
  checks.add("planted", false, "");
  verify_performance(subject(), checks);
  EXPECT_THAT(failures(checks), HasSubstr("INVALID"));
}

TEST_F(Verify, another_setting_than_was_asked_for_is_found_when_it_starts) {
  make_ = [](const backend::RunConfig& run, const backend::BackendConfig& config) {
    backend::RunConfig forced = run;
    forced.activations = backend::Activations::kMxfp4;
    return make_backend(run.backend, forced, config);
  };
  VerifyChecks checks;
  verify_smoke(subject(), checks);
  EXPECT_THAT(failures(checks), HasSubstr("dispatch line: want "));
}

TEST_F(Verify, a_stage_that_differs_from_the_reference_is_found) {
  make_ = [](const backend::RunConfig& run, const backend::BackendConfig& config) {
    backend::BackendConfig coarse = config;
    coarse.dense.o = backend::WeightFormat::kMxfp8;
    return make_backend(run.backend, run, coarse);
  };
  VerifyChecks checks;
  verify_correctness(subject(), checks);
  EXPECT_THAT(failures(checks), HasSubstr("stage by stage against the reference: layer 0 attn_out"));
}

TEST_F(Verify, each_check_is_told_as_it_ends) {
  std::vector<std::string> told;
  VerifyChecks checks([&](const VerifyCheck& check) { told.push_back(check.name); });
  verify_smoke(subject(), checks);
  EXPECT_EQ(told, (std::vector<std::string>{"starts", "one request", "dispatch line"}));
  EXPECT_GT(checks.all()[0].seconds, 0);
  EXPECT_THAT(verify_times(checks.all()), HasSubstr(" s: level 1 "));
}

TEST_F(Verify, a_nan_is_found_in_its_stage) {
  const uint16_t nan = 0x7FC0;  // bf16
  std::memcpy(copy_of(backend::WeightRole::kMlpNorm, 3).data(), &nan, sizeof nan);
  VerifyChecks checks;
  verify_correctness(subject(), checks);
  EXPECT_THAT(failures(checks), HasSubstr("layer 3 route"));
  EXPECT_THAT(failures(checks), HasSubstr("nan"));
}

TEST_F(Verify, a_corrupted_weight_is_found) {
  std::vector<std::byte>& values = copy_of(backend::WeightRole::kO, 5);
  for (size_t i = 1; i < values.size(); i += 2) values[i] ^= std::byte{0x80};  // signs
  VerifyChecks checks;
  verify_correctness(subject(), checks);
  EXPECT_THAT(failures(checks), HasSubstr("perplexity"));
}

// Level 6 over two features; a test may have the backend made wrongly.
class VerifyFeatures : public Verify {
 protected:
  [[nodiscard]] VerifyChecks verify(const std::string& features) const {
    VerifyOptions o;
    o.model = options_;
    o.model.run = {};  // as if nothing had resolved it
    o.model.run.backend = BackendKind::kCpu;
    o.model.run.threads = 2;
    o.features = features;
    o.rounds = 1;
    Terminal terminal({.quiet = true});
    VerifyChecks checks;
    static_cast<void>(try_features(o, subject(), terminal, checks));
    return checks;
  }
};

TEST_F(VerifyFeatures, pass_where_nothing_is_wrong) {
  const VerifyChecks checks = verify("activation=f32/mxfp8,kv=bf16/fp8,kernel=auto/marlin");
  EXPECT_EQ(failures(checks), "");
  EXPECT_EQ(checks.all().size(), 5U) << "four that run, and one reason why others do not";
  EXPECT_THAT(checks.all().back().found, HasSubstr("--moe-kernel: want --backend cuda"));
}

// A large model takes seconds to load: once for each combination, besides the exact one, a warm-up and the first again.
TEST_F(VerifyFeatures, load_the_model_once_each) {
  int engines = 0, all = 0;
  make_ = [&](const backend::RunConfig& run, const backend::BackendConfig& config) {
    ++all;
    engines += config.kv_pages[0] > 16 ? 1 : 0;
    return make_backend(run.backend, run, config);
  };
  EXPECT_EQ(failures(verify("activation=f32,kv=bf16/fp8")), "");
  EXPECT_EQ(engines, 4);
  EXPECT_EQ(all, 6) << "and the logits of level 1.5's text, on a CPU";
}

TEST_F(VerifyFeatures, a_rounding_that_does_not_run_is_found) {
  make_ = [](const backend::RunConfig& run, const backend::BackendConfig& config) {
    backend::RunConfig forced = run;
    forced.kv = backend::KvDtype::kBf16;
    return make_backend(run.backend, forced, config);
  };
  EXPECT_THAT(failures(verify("activation=f32/mxfp8,kv=bf16/fp8")),
              HasSubstr("kv=fp8: the logits are those of the exact"));
}

TEST_F(VerifyFeatures, a_loss_beyond_what_is_known_of_the_parts_is_found) {
  make_ = [](const backend::RunConfig& run, const backend::BackendConfig& config) {
    backend::BackendConfig coarse = config;
    if (run.kv == backend::KvDtype::kE4m3) coarse.dense.qkv = coarse.dense.o = backend::WeightFormat::kMxfp4;
    return make_backend(run.backend, run, coarse);
  };
  const std::string found = failures(verify("activation=f32,kv=bf16/fp8"));
  EXPECT_THAT(found, HasSubstr("kv=fp8: KL "));
  EXPECT_THAT(found, HasSubstr("want at most"));
}

TEST_F(VerifyFeatures, a_text_that_changes_with_guesses_is_found) {
  int engines = 0;  // their backends have more pages than those of one step
  make_ = [&engines](const backend::RunConfig& run, const backend::BackendConfig& config) {
    backend::RunConfig forced = run;
    const bool of_engine = config.kv_pages[0] > 16;
    if (of_engine && ++engines > 2) forced.activations = backend::Activations::kMxfp4;  // behind warm-up and first
    return make_backend(run.backend, forced, config);
  };
  EXPECT_THAT(failures(verify("activation=f32,speculation=off/suffix")), HasSubstr("is another than without"));
}

TEST_F(VerifyFeatures, too_many_are_refused_with_their_number) {
  try {
    static_cast<void>(verify("activation,kv,mxfp4-layers,mxfp8-layers"));
    FAIL() << "want a refusal";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Code::kInvalidRequest);
    EXPECT_THAT(e.what(), HasSubstr("combinations would run, want at most 64"));
  }
}

// Small, so that it lasts seconds.
class VerifyStress : public Verify {
 protected:
  VerifyStress() : be_(make_(options_.run, config())), model_(model::load(*be_, source_.config, source_.weights)) {
    engine_.emplace(*be_, model_, kLimits);
    port_ = server::port_of(*engine_);
  }
  static constexpr engine::EngineLimits kLimits{
      .max_context = 512, .max_sequences = 32, .max_batched_tokens = 128, .kv_tokens = 512, .async_scheduling = false};
  static constexpr int64_t kVocab = 4096;

  [[nodiscard]] backend::BackendConfig config() const {
    return model::backend_config(source_.config, engine::step_limits(kLimits, source_.config.dims));
  }
  [[nodiscard]] VerifyChecks verify(const server::EnginePort& port) const {
    VerifyChecks checks;
    verify_stress(
        port, {.vocab = kVocab, .context = kLimits.max_context, .kv_tokens = kLimits.kv_tokens, .exact = true}, checks);
    return checks;
  }

  std::unique_ptr<backend::Backend> be_;
  model::GptOss model_;
  std::optional<engine::Engine> engine_;
  server::EnginePort port_;
};

TEST_F(VerifyStress, an_engine_that_is_right_passes) {
  const VerifyChecks checks = verify(port_);
  EXPECT_EQ(failures(checks), "");
  EXPECT_GT(engine_->stats().preemptions, 0);  // the pages did run out
}

TEST_F(VerifyStress, a_token_that_changes_beside_others_is_found) {
  int running = 0;
  server::EnginePort port = port_;
  port.submit = [&](engine::Request request, engine::Receiver receiver) {
    const bool beside = ++running > 110;  // behind those that run one after another
    return port_.submit(std::move(request), [receiver, beside](const engine::Event& event) {
      if (const auto* token = std::get_if<engine::TokenEvent>(&event); token != nullptr && beside)
        return receiver(engine::TokenEvent{.token = (token->token + 1) % static_cast<int32_t>(kVocab)});
      receiver(event);
    });
  };
  EXPECT_THAT(failures(verify(port)), HasSubstr("32 requests at a time: request"));
}

TEST_F(VerifyStress, a_request_that_ends_early_is_found) {
  server::EnginePort port = port_;
  int number = 0;
  port.submit = [&](engine::Request request, engine::Receiver receiver) {
    if (++number == 50) request.max_tokens -= 1;
    return port_.submit(std::move(request), std::move(receiver));
  };
  EXPECT_THAT(failures(verify(port)), HasSubstr("7 of 8 tokens"));
}

// A real fault, seen from outside: somebody keeps pages after all requests have ended.
TEST_F(VerifyStress, a_page_that_does_not_come_back_is_found) {
  server::EnginePort port = port_;
  port.stats = [&] {
    engine::EngineStats stats = port_.stats();
    stats.kv_pages_used += 1;
    return stats;
  };
  EXPECT_THAT(failures(verify(port)), HasSubstr("all pages are back: 0 running, 0 waiting, 1 of"));
}

TEST_F(VerifyStress, a_cancel_that_is_lost_is_found) {
  server::EnginePort port = port_;
  port.cancel = [&](engine::RequestId) {};
  EXPECT_THAT(failures(verify(port)), HasSubstr("requests that are left"));
}

}  // namespace
}  // namespace nibble::app
