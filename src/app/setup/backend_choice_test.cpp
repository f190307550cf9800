#include "app/setup/backend_choice.h"

#include "app/options/option.h"
#include "backend/cpu/cpu_backend.h"
#include "backend/cuda/cuda_backend.h"
#include "backend/reference/reference_backend.h"
#include "base/error.h"

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

TEST(backend_choice, says_what_a_card_has_no_room_for) {
  CardFacts some = card(14'000'000'000, 14'000'000'000);
  some.host_layers = 7;
  EXPECT_EQ(choose_backend(some, "").why, "backend cuda: H200 has room for the model but the experts of 7 layers");
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

// gpt-oss-120b with 8192 tokens of context: 1.7 GB of experts in each of 36 layers, 4.4 GB of all else.
TEST(backend_choice, a_card_that_is_too_small_leaves_experts_to_the_host) {
  const auto layers = [](int64_t gb, int asked = -1) {
    ModelOptions options = shapes(BackendKind::kCuda);
    options.model = "gpt-oss-120b";
    options.run.cpu_moe_layers = asked;
    const backend::cuda::DeviceFacts card{.name = "a card", .major = 8, .minor = 6, .memory_bytes = gb << 30};
    return resolved_alone(options, 8192, card).run.cpu_moe_layers;
  };
  EXPECT_EQ(layers(80), 0);
  EXPECT_EQ(layers(32), 21);
  EXPECT_EQ(layers(24), 26);
  EXPECT_EQ(layers(16), 30);
  EXPECT_EQ(layers(12), 33);
  EXPECT_EQ(layers(8), 35);
  EXPECT_EQ(layers(4), 36) << "and is refused when it is loaded";
  EXPECT_EQ(layers(8, 12), 12);
  EXPECT_EQ(layers(80, 1024), 36);
  EXPECT_EQ(layers(8, 0), 0);
}

TEST(backend_choice, a_context_that_takes_what_is_left_gets_the_room_of_a_layer) {
  const auto layers = [](int64_t gb, int64_t max_model_len) {
    ModelOptions options = shapes(BackendKind::kCuda);
    options.model = "gpt-oss-120b";
    options.run.max_model_len = max_model_len;
    const backend::cuda::DeviceFacts card{.name = "a card", .major = 8, .minor = 6, .memory_bytes = gb << 30};
    const auto least = [](const ModelOptions&, const model::ModelConfig&) {
      return model::StepLimits{.max_tokens = 2048, .max_rows = 1, .kv_pages = {64, 64}};
    };
    return with_backend(options, least, card).run.cpu_moe_layers;
  };
  EXPECT_EQ(layers(16, kContextThatFits), layers(16, 4096) + 1);
  EXPECT_EQ(layers(80, kContextThatFits), 0);
  EXPECT_EQ(layers(4, kContextThatFits), 36);
}

TEST(backend_choice, several_cards_leave_nothing_to_the_host) {
  ModelOptions options = shapes(BackendKind::kCuda);
  options.run.ranks.count = 2;
  const backend::cuda::DeviceFacts card{.name = "a card", .memory_bytes = int64_t{8} << 30};
  EXPECT_EQ(resolved_alone(options, 100, card).run.cpu_moe_layers, 0);
  options.run.cpu_moe_layers = 4;
  try {
    static_cast<void>(resolved_alone(options, 100, card));
    FAIL() << "two cards";
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(), "--n-cpu-moe 4: want one card, found --tensor-parallel-size 2");
  }
}

TEST(backend_choice, the_host_s_experts_multiply_what_a_cpu_s_would) {
  const auto activations = [](backend::Activations asked) {
    ModelOptions options = shapes(BackendKind::kCuda);
    options.run.activations = asked;
    options.run.cpu_moe_layers = 4;
    const backend::cuda::DeviceFacts card{.name = "a card", .memory_bytes = int64_t{8} << 30};
    return resolved_alone(options, 100, card).run.cpu_moe_activations;
  };
  using enum backend::Activations;
  EXPECT_EQ(activations(kAuto), backend::resolved_cpu({}).activations);
  EXPECT_EQ(activations(kBf16), kF32);
  EXPECT_EQ(activations(kMxfp8), kMxfp8);
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
