#include "app/options/option.h"

#include "app/options/command_line.h"
#include "app/options/features.h"
#include "app/options/help.h"
#include "base/error.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

namespace nibble::app {
namespace {

using backend::Activations, backend::AttentionActivations, backend::CpuIsa, backend::KernelFamily, backend::KvDtype;
using backend::AttentionKernel, backend::BackendSet, backend::RunConfig, backend::kBackends, backend::kEveryBackend;
using backend::WeightFormat;
using enum BackendKind;
using testing::HasSubstr;

std::string refusal(const RunConfig& config, BackendSet backends, std::string_view why = "") {
  try {
    check_backends(config, backends, why);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kUnsupported);
    return error.what();
  }
  return "";
}

TEST(run_config, what_is_left_open_fits_every_backend) {
  for (const BackendKind kind : kBackends) EXPECT_EQ(refusal({.backend = kind}, {kind}), "");
}

TEST(run_config, a_setting_is_refused_by_a_backend_that_has_it_not) {
  const struct {
    RunConfig config;
    BackendSet on;
    std::string_view says;
  } cases[] = {
      {{.attention = AttentionKernel::kFlash}, {kCuda}, "--attention-backend: want --backend cuda, found "},
      {{.family = KernelFamily::kStreaming}, {kCuda}, "--moe-kernel: want --backend cuda, found "},
      {{.eager = true}, {kCuda}, "--enforce-eager: want --backend cuda, found "},
      {{.gpu_memory_utilization = 0.5}, {kCuda}, "--gpu-memory-utilization: want --backend cuda, found "},
      {{.isa = CpuIsa::kBaseline}, {kCpu}, "--cpu-isa: want --backend cpu, found "},
      {{.copy_weights = true}, {kCpu}, "--no-mmap: want --backend cpu, found "},
      {{.kv = KvDtype::kInt8}, {kCpu, kReference}, "--kv-cache-dtype int8: want --backend cpu or reference, found "},
      {{.activations = Activations::kF32}, {kCpu}, "--moe-activation f32: want --backend cpu, found "},
      {{.activations = Activations::kMxfp8}, kEveryBackend, ""},
      {{.activations = Activations::kMxfp6}, kEveryBackend, ""},
      {{.activations = Activations::kMxfp4}, kEveryBackend, ""},
      {{.ranks = {.count = 2}}, kEveryBackend, ""},
      {{.ranks = {.whole_experts = true}}, kEveryBackend, ""},
      {{.fast = true}, {kCpu, kCuda}, "--fast: want --backend cpu or cuda, found "},
      {{.activations = Activations::kBf16}, kEveryBackend, ""},
      {{.sinks = false}, kEveryBackend, ""}};
  for (const auto& [config, on, says] : cases) {
    for (const BackendKind kind : kBackends) {
      RunConfig with = config;
      with.backend = kind;
      const std::string want = on.has(kind) ? "" : fmt::format("{}{}", says, name_of(kind));
      EXPECT_EQ(refusal(with, {kind}), want);
    }
    EXPECT_EQ(refusal(config, kEveryBackend), "") << "of several, one is enough";
  }
  EXPECT_EQ(refusal({.family = KernelFamily::kGemm}, {kCpu}, "backend cpu: no card"),
            "--moe-kernel: want --backend cuda, found backend cpu: no card");
}

TEST(run_config, attention_in_fp8_wants_a_cache_in_fp8) {
  const auto said = [](std::optional<KvDtype> kv) -> std::string {
    try {
      check_backends({.kv = kv, .attention_activations = AttentionActivations::kFp8}, kEveryBackend);
      return "";
    } catch (const Error& e) {
      return e.what();
    }
  };
  EXPECT_EQ(said({}), "--attention-activation fp8: want --kv-cache-dtype fp8, found bf16");
  EXPECT_EQ(said(KvDtype::kInt8), "--attention-activation fp8: want --kv-cache-dtype fp8, found int8");
  EXPECT_EQ(said(KvDtype::kE4m3), "");
}

TEST(run_config, every_setting_has_one_line_and_says_whether_it_was_given) {
  RunConfig all{.backend = kCuda,
                .threads = 3,
                .kv = KvDtype::kE4m3,
                .attention = AttentionKernel::kFlash,
                .family = KernelFamily::kGemm,
                .activations = Activations::kMxfp8,
                .isa = CpuIsa::kAvx2,
                .eager = true,
                .sinks = false,
                .copy_weights = true,
                .dense = {.qkv = WeightFormat::kMxfp4, .o = WeightFormat::kMxfp8, .lm_head = WeightFormat::kMxfp4},
                .fast = true,
                .max_model_len = 100,
                .max_num_batched_tokens = 8,
                .gpu_memory_utilization = 0.5};
  std::string given;
  for (const RunSetting& s : run_settings(all))
    given += std::string(s.flag) + " " + s.value + (s.given ? "\n" : " ?\n");
  EXPECT_EQ(given,
            "--backend cuda\n"
            "--fast true\n"
            "--threads 3\n"
            "--kv-cache-dtype fp8\n"
            "--attention-backend flash\n"
            "--attention-activation auto ?\n"
            "--moe-activation mxfp8\n"
            "--dense-activation auto ?\n"
            "--cpu-isa avx2\n"
            "--moe-kernel gemm\n"
            "--moe-tile auto ?\n"
            "--screened-head auto ?\n"
            "--enforce-eager true\n"
            "--mxfp4-layers qkv,lm_head\n"
            "--mxfp8-layers o\n"
            "--q8-layers auto ?\n"
            "--n-cpu-moe auto ?\n"
            "--expert-copy-tokens auto ?\n"
            "--tensor-parallel-size 1 ?\n"
            "--enable-expert-parallel false ?\n"
            "--no-mmap true\n"
            "--attention-sinks off\n"
            "--max-model-len 100\n"
            "--max-num-batched-tokens 8\n"
            "--gpu-memory-utilization 0.5\n");
  for (const RunSetting& s : run_settings({})) EXPECT_FALSE(s.given) << s.flag;
}

// The words of one command, read.
std::string error_of(CommandId id, const std::vector<std::string>& words) {
  Command command = made(id);
  try {
    static_cast<void>(Arguments(id, parts_of(command)).read(words, {}));
    return "";
  } catch (const Error& e) {
    return e.what();
  }
}

TEST(option_table, no_command_has_a_name_twice) {
  for (size_t at = 0; at < command_texts().size(); ++at) {
    std::set<std::string> seen;
    for (const FlagFacts& flag : facts_of(static_cast<CommandId>(at)).flags)
      for (const std::string& name : flag.names)
        EXPECT_TRUE(seen.insert(name).second) << command_texts()[at].name << " " << name;
  }
}

TEST(option_table, each_default_is_a_value_that_its_own_row_takes) {
  for (size_t at = 0; at < command_texts().size(); ++at) {
    Command command = made(static_cast<CommandId>(at));
    const Parts parts = parts_of(command);
    for (const Option& option : option_table()) {
      if (!option.commands.has(static_cast<CommandId>(at)) || option.place.in == nullptr) continue;
      const ValueRef slot = option.place.in(parts);
      EXPECT_FALSE(std::holds_alternative<std::monostate>(slot)) << command_texts()[at].name << " " << option.flag;
      const std::string value = shown_value(option, slot);
      const bool by_words = option.range.kind == Range::Kind::kWords || option.is_switch();
      if (by_words && !value.empty()) {
        EXPECT_NO_THROW(read_value(option, slot, value)) << option.flag << " " << value;
        EXPECT_EQ(shown_value(option, slot), value) << option.flag;
      }
      const std::string_view needs = option.traits.needs;
      EXPECT_TRUE(needs.empty() || option_named(static_cast<CommandId>(at), needs) != nullptr) << needs;
    }
  }
}

TEST(command_line, words_find_their_options) {
  Command command = made(CommandId::kRun);
  Arguments arguments(CommandId::kRun, parts_of(command));
  const std::vector<std::string> words = {
      "-n5", "-qy", "--fast=off", "--no-enforce-eager=no", "--stop", "--seed", "--stop=b", "a b", "-t", "2"};
  ASSERT_TRUE(arguments.read(words, {}));
  const RunOptions& o = std::get<RunOptions>(command);
  EXPECT_EQ(o.generate.max_tokens, 5);
  EXPECT_TRUE(o.output.quiet);
  EXPECT_EQ(o.model.when_absent, WhenAbsent::kPull);
  EXPECT_TRUE(arguments.given("--fast"));
  EXPECT_TRUE(o.model.run.eager) << "a negation of no";
  EXPECT_EQ(o.generate.stop, (std::vector<std::string>{"--seed", "b"}));
  EXPECT_EQ(o.prompt.text, "a b") << "blanks: a text, not a model";
  EXPECT_EQ(o.model.run.threads, 2);
  EXPECT_FALSE(arguments.given("--model"));
}

TEST(command_line, what_is_wrong_is_said_once_with_its_place) {
  EXPECT_EQ(error_of(CommandId::kRun, {"-n", "x"}),
            "nibble run: --max-tokens: want a whole number from 0 to 16777216, found x (nibble run --help)");
  EXPECT_EQ(error_of(CommandId::kRun, {"-n"}),
            "nibble run: --max-tokens: want a value, found none (nibble run --help)");
  EXPECT_EQ(error_of(CommandId::kRun, {"--sed", "1"}),
            "nibble run has no --sed; did you mean --seed? (nibble run --help lists its options)");
  EXPECT_EQ(error_of(CommandId::kRun, {"a", "b", "c"}),
            "nibble run: what is \"c\"? A text with blanks needs quotes (nibble run --help)");
  EXPECT_EQ(error_of(CommandId::kRun, {"--fast=maybe"}),
            "nibble run: --fast: want true or false, found maybe (nibble run --help)");
  EXPECT_EQ(error_of(CommandId::kRun, {"-p", "a", "-f", "b"}),
            "nibble run: --prompt excludes --file (nibble run --help)");
  EXPECT_EQ(error_of(CommandId::kInspect, {"--threads", "2"}),
            "nibble inspect: --threads requires --plan (nibble inspect --help)");
  EXPECT_EQ(error_of(CommandId::kSynth, {"-o", "x"}), "nibble synth: --preset is required (nibble synth --help)");
  EXPECT_THAT(error_of(CommandId::kServe, {"--host", "--port", "80"}), HasSubstr("as a value: --host=--port"));
}

}  // namespace
}  // namespace nibble::app
