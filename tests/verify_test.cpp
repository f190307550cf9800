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
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
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

struct PlantedFault {
  int32_t rope_from = INT32_MAX;            // positions from here on are one too high
  float second_times = 1, second_plus = 0;  // of what attention adds: all of the second sequence; its first value
  bool pages_of_first = false;              // the second sequence's second page is the first one's
};

// A backend that does what another does, but for a fault; and says of itself what it is told to.
class Planted final : public backend::Backend {
 public:
  Planted(std::unique_ptr<backend::Backend> be, std::string modes, const PlantedFault& fault = {})
      : be_(std::move(be)), modes_(std::move(modes)), fault_(fault) {}

  [[nodiscard]] std::string_view name() const override { return be_->name(); }
  [[nodiscard]] std::string modes() const override { return modes_.empty() ? be_->modes() : modes_; }
  backend::WeightHandle upload(const backend::HostWeight& weight) override { return be_->upload(weight); }
  void copy_page(const backend::PageCopy& copy) override { be_->copy_page(copy); }
  void begin(const backend::StepArgs& step) override {
    rows_ = step.rows;
    be_->begin(step);
  }
  void embed(const backend::EmbedArgs& args) override { be_->embed(args); }
  void attn_in(const backend::AttnInArgs& args) override { be_->attn_in(args); }
  void attend(const backend::AttendArgs& args) override {
    std::vector<int32_t> positions(args.positions.begin(), args.positions.end());
    std::vector<int32_t> pages(args.pages.ids.begin(), args.pages.ids.end());
    for (int32_t& position : positions) position += position >= fault_.rope_from ? 1 : 0;
    const auto width = static_cast<size_t>(args.pages.pages_per_row);
    if (fault_.pages_of_first && rows_.size() > 1 && rows_[1].context > 64) pages[width + 1] = pages[1];
    backend::AttendArgs wrong = args;
    wrong.positions = positions;
    wrong.pages.ids = pages;
    be_->attend(wrong);
  }
  void attn_out(const backend::AttnOutArgs& args) override {
    be_->attn_out(args);
    if (rows_.size() < 2) return;
    const backend::SlotRows rows = be_->rows(backend::Slot::kDelta);
    const auto& delta = std::get<std::vector<std::span<float>>>(rows);
    for (int32_t t = 0; t < rows_[1].tokens; ++t)
      for (float& value : delta[static_cast<size_t>(rows_[1].first_token + t)]) value *= fault_.second_times;
    delta[static_cast<size_t>(rows_[1].first_token)][0] += fault_.second_plus;
  }
  void route(const backend::RouteArgs& args) override { be_->route(args); }
  void moe(const backend::MoeArgs& args) override { be_->moe(args); }
  void logits(const backend::LogitsArgs& args) override { be_->logits(args); }
  backend::Ticket sample(const backend::SampleArgs& args) override { return be_->sample(args); }
  [[nodiscard]] std::vector<backend::DrawnToken> wait(backend::Ticket ticket) override { return be_->wait(ticket); }
  [[nodiscard]] backend::SlotData peek(backend::Slot slot) override { return be_->peek(slot); }
  [[nodiscard]] std::vector<backend::KernelLaunches> launches() const override { return be_->launches(); }

 private:
  const std::unique_ptr<backend::Backend> be_;
  const std::string modes_;
  const PlantedFault fault_;
  std::span<const backend::Row> rows_;  // of the step
};

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

  // Leaves the first layers only, which makes the reference fast.
  void keep_layers(int64_t layers) {
    source_.config = model::truncated(source_.config, layers);
    std::erase_if(source_.weights, [&](const backend::HostWeight& w) { return w.layer >= layers; });
  }
  [[nodiscard]] std::string failures_of_stages() const {
    VerifyChecks checks;
    verify_stages(subject(), checks);
    return failures(checks);
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
  EXPECT_THAT(failures(checks),
              HasSubstr("avxvnni, activations f32, KV bf16: asked for avxvnni: want functions of avx2"));
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

TEST_F(Verify, another_instruction_set_under_the_name_of_what_was_asked_for_is_found) {
  if (backend::resolved_cpu({}).isa < backend::CpuIsa::kAvx512) GTEST_SKIP() << "wants an instruction set beyond AVX2";
  make_ = [](const backend::RunConfig& run, const backend::BackendConfig& config) -> std::unique_ptr<backend::Backend> {
    backend::RunConfig less = run;
    if (backend::resolved_cpu(run).isa >= backend::CpuIsa::kAvx512) less.isa = backend::CpuIsa::kAvx2;
    return std::make_unique<Planted>(make_backend(run.backend, less, config), backend::describe_cpu(run));
  };
  VerifyChecks checks;
  verify_smoke(subject(), checks);
  EXPECT_THAT(failures(checks), HasSubstr(fmt::format("dispatch line: asked for {}: want functions of avx512 alone, "
                                                      "called were those of avx2",
                                                      name_of(backend::resolved_cpu({}).isa))));
  VerifyChecks paths;
  verify_paths(subject(), paths);
  EXPECT_THAT(failures(paths),
              HasSubstr("avx512, activations f32, KV bf16: asked for avx512: want functions of avx512"));
}

// A backend over the CPU's that errs in a stage of a step of several sequences.
class VerifyStages : public Verify {
 protected:
  VerifyStages() { keep_layers(2); }

  void plant(const PlantedFault& fault) {
    make_ = [fault](const backend::RunConfig& run, const backend::BackendConfig& config) {
      return std::make_unique<Planted>(make_backend(run.backend, run, config), "", fault);
    };
  }
  [[nodiscard]] static std::string against_reference(std::string_view what) {
    return fmt::format("stage by stage against the reference, exact: {}", what);
  }
};

TEST_F(VerifyStages, pass_where_nothing_is_wrong) {
  EXPECT_EQ(failures_of_stages(), "");
  options_.run.activations = backend::Activations::kAuto;
  options_ = resolved_model(options_);
  EXPECT_EQ(failures_of_stages(), "");
}

TEST_F(VerifyStages, a_window_of_129_is_found_at_its_first_position) {
  make_ = [](const backend::RunConfig& run, const backend::BackendConfig& config) {
    backend::BackendConfig wide = config;
    wide.dims.sliding_window += 1;
    return make_backend(run.backend, run, wide);
  };
  EXPECT_THAT(failures_of_stages(), HasSubstr(against_reference("layer 0 attend, attn of sequence 0, position 128: ")));
}

TEST_F(VerifyStages, rope_that_is_off_far_along_is_found) {
  plant({.rope_from = 3000});
  EXPECT_THAT(failures_of_stages(), HasSubstr(against_reference("layer 0 attend, q of sequence 3, position 4096: ")));
}

TEST_F(VerifyStages, a_limit_that_backends_and_reference_share_is_found_by_what_is_stored) {
  source_.config.swiglu_limit *= 1.1F;
  EXPECT_THAT(failures_of_stages(), HasSubstr("experts stop at their limit: layer 0 moe, expert_hidden of sequence 0, "
                                              "position 0: want 55.999625, found 66.98987"));
}

TEST_F(VerifyStages, a_second_sequence_of_zeros_is_found_and_that_its_logits_differ_from_those_alone) {
  plant({.second_times = 0});
  const std::string found = failures_of_stages();
  EXPECT_THAT(found, HasSubstr(against_reference("layer 0 attn_out, delta of sequence 1, position 0: want ")));
  EXPECT_THAT(found, HasSubstr("logits in company against those alone, exact: logits of sequence 1, position "));
}

TEST_F(VerifyStages, one_value_of_the_second_sequence_is_found) {
  plant({.second_plus = 0.01F});
  EXPECT_THAT(failures_of_stages(),
              HasSubstr(against_reference("layer 0 attn_out, delta of sequence 1, position 0: want ")));
}

TEST_F(VerifyStages, pages_of_another_sequence_are_found) {
  plant({.pages_of_first = true});
  EXPECT_THAT(failures_of_stages(), HasSubstr(against_reference("layer 0 attend, attn of sequence 1, position 64: ")));
}

TEST_F(Verify, a_stage_that_differs_from_the_reference_is_found) {
  keep_layers(2);
  make_ = [](const backend::RunConfig& run, const backend::BackendConfig& config) {
    backend::BackendConfig coarse = config;
    coarse.dense.o = backend::WeightFormat::kMxfp8;
    return make_backend(run.backend, run, coarse);
  };
  EXPECT_THAT(failures_of_stages(),
              HasSubstr("stage by stage against the reference, as asked: layer 0 attn_out, delta"));
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
  keep_layers(4);
  const uint16_t nan = 0x7FC0;  // bf16
  std::memcpy(copy_of(backend::WeightRole::kMlpNorm, 3).data(), &nan, sizeof nan);
  const std::string found = failures_of_stages();
  EXPECT_THAT(found, HasSubstr("layer 3 route, sequence 0, position 0: 0 of normed is nan"));
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
