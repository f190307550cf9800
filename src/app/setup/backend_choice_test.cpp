#include "app/setup/backend_choice.h"

#include "app/options/option.h"
#include "backend/cpu/cpu_backend.h"
#include "backend/cuda/cuda_backend.h"
#include "backend/reference/reference_backend.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>

namespace nibble::app {
namespace {

CardFacts card(int64_t needs, int64_t room) {
  return {.name = "H200",
          .why_not = {},
          .needs = {.weights = needs},
          .room = {.bytes = room, .where = "the card has 8.00 GB free of 24.0 GB"}};
}

TEST(backend_choice, takes_a_card_that_has_room) {
  for (const int64_t room : {14'000'000'000, 140'000'000'000}) {
    const BackendChoice choice = choose_backend(card(14'000'000'000, room), "");
    EXPECT_EQ(choice.backend, BackendKind::kCuda);
    EXPECT_EQ(choice.why, "backend cuda: H200 has room for the model");
  }
}

TEST(backend_choice, says_what_is_wanted_where_the_card_has_too_little) {
  const BackendChoice choice = choose_backend(card(14'000'000'000, 8'000'000'000), "");
  EXPECT_EQ(choice.backend, BackendKind::kCpu);
  EXPECT_EQ(choice.why,
            "backend cpu: too little memory on the card, H200: want 14 GB: weights 14 GB; the card has 8.00 GB free "
            "of 24.0 GB");
}

TEST(backend_choice, says_why_there_is_no_card) {
  CardFacts none = card(1, 2);
  none.why_not = "want a GPU, found none";
  const BackendChoice choice = choose_backend(none, "");
  EXPECT_EQ(choice.backend, BackendKind::kCpu);
  EXPECT_EQ(choice.why, "backend cpu: want a GPU, found none");
}

TEST(backend_choice, says_nothing_where_no_card_is_expected) {
  CardFacts none = card(1, 2);
  none.why_not = "this program is built without CUDA";
  none.expected = false;
  const BackendChoice choice = choose_backend(none, "");
  EXPECT_EQ(choice.backend, BackendKind::kCpu);
  EXPECT_EQ(choice.why, "");
}

TEST(backend_choice, a_flag_of_the_cpu_decides) {
  const BackendChoice choice = choose_backend(card(1, 2), "--cpu-isa");
  EXPECT_EQ(choice.backend, BackendKind::kCpu);
  EXPECT_EQ(choice.why, "backend cpu: --cpu-isa is not for cards");
}

// Settings as the command line leaves them.
ModelOptions shapes(BackendKind kind) {
  ModelOptions options;
  options.model = "gpt-oss-20b";
  options.load_format = LoadFormat::kDummy;
  options.run.backend = kind;
  for (const RunSetting& s : run_settings({}))
    options.settings.all.push_back({s.flag, s.given ? s.value : "auto", "default", ""});
  return options;
}

TEST(backend_choice, what_was_asked_for_stays) {
  for (const BackendKind kind : backend::kBackends) {
    const ModelOptions options = shapes(kind);
    EXPECT_EQ(resolved_alone(options, 100).run.backend, kind);
    EXPECT_EQ(resolved_alone(options, 100).backend_why, "");
  }
}

TEST(backend_choice, nothing_is_read_where_a_flag_decides) {
  ModelOptions options;  // of no model
  options.run.isa = backend::CpuIsa::kBaseline;
  EXPECT_EQ(resolved_alone(options, 100).backend_why, "backend cpu: --cpu-isa is not for cards");
}

std::string became(const ModelOptions& options, std::string_view flag) {
  for (const Setting& s : options.settings.all)
    if (s.flag == flag) return s.resolved;
  return "no such setting";
}

TEST(resolved, says_what_auto_became_and_nothing_of_what_the_backend_has_not) {
  const ModelOptions cpu = resolved_model(shapes(BackendKind::kCpu)), card = resolved_model(shapes(BackendKind::kCuda));
  EXPECT_EQ(became(cpu, "--kv-cache-dtype"), "bf16");
  EXPECT_EQ(became(cpu, "--max-num-batched-tokens"), "512");
  EXPECT_EQ(became(cpu, "--cpu-isa"), name_of(cpu.run.isa));
  EXPECT_NE(cpu.run.isa, backend::CpuIsa::kAuto);
  for (const char* flag : {"--moe-kernel", "--attention-backend", "--gpu-memory-utilization"})
    EXPECT_EQ(became(cpu, flag), "") << flag;
  EXPECT_EQ(became(card, "--max-num-batched-tokens"), "2048");
  EXPECT_EQ(became(card, "--attention-backend"), "flash");
  EXPECT_EQ(became(card, "--moe-activation"), "bf16");
  EXPECT_EQ(became(card, "--gpu-memory-utilization"), "0.92");
  EXPECT_EQ(became(card, "--cpu-isa"), "");
}

TEST(resolved, is_resolved_once_more_as_it_is) {
  for (const BackendKind kind : backend::kBackends) {
    for (const backend::KernelFamily family :
         {backend::KernelFamily::kAuto, backend::KernelFamily::kStreaming, backend::KernelFamily::kReference}) {
      ModelOptions options = shapes(kind);
      if (kind == BackendKind::kCuda) options.run.family = family;
      const ModelOptions once = resolved_model(options);
      backend::RunConfig again = once.run;
      if (kind == BackendKind::kCuda)
        again = backend::resolved_cuda(model::backend_config(model::preset("gpt-oss-20b"), {}, {}), once.run);
      if (kind == BackendKind::kCpu) again = backend::resolved_cpu(once.run);
      if (kind == BackendKind::kReference) again = backend::resolved_reference(once.run);
      const auto words = [](const backend::RunConfig& run) {
        std::string all;
        for (const RunSetting& s : run_settings(run)) all += s.value + " ";
        return all;
      };
      EXPECT_EQ(words(again), words(once.run));
    }
  }
}

}  // namespace
}  // namespace nibble::app
