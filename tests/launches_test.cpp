// What the CUDA backend launches is what its program says, by kernel: its host code runs here over launchers that
// only count (backend/cuda/emulation), so that neither a card nor CUDA is needed. And what it says of cards that it
// cannot use.

#include "backend/cuda/card/device_facts.h"
#include "backend/cuda/emulation/launchers.h"
#include "backend/cuda/memory/upload.h"
#include "backend/cuda/program/program.h"
#include "base/error.h"
#include "base/mmap_file.h"
#include "checkpoint/testing/files.h"
#include "engine/draft_model_proposer.h"
#include "model/gpt_oss.h"
#include "convert/dummy_head.h"
#include "convert/synth.h"

#include <gtest/gtest.h>

#include <cuda_runtime_api.h>  // the emulated one

#include <algorithm>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace nibble {
namespace {

using backend::Activations;
using backend::DenseFormats;
using backend::KernelFamily;
using backend::RunConfig;
using backend::WeightFormat;
using Attention = backend::AttentionKernel;
using Kv = backend::KvDtype;

const backend::cuda::DeviceFacts kH200 = {.name = "H200",
                                          .major = 9,
                                          .minor = 0,
                                          .multiprocessors = 132,
                                          .memory_bytes = int64_t{1} << 37,
                                          .memory_bytes_per_s = 4.8e12,
                                          .cta_smem_bytes = 232448,
                                          .sm_smem_bytes = 233472};
const backend::cuda::DeviceFacts kGb10 = {.name = "GB10",
                                          .major = 12,
                                          .minor = 1,
                                          .multiprocessors = 48,
                                          .memory_bytes = int64_t{1} << 37,
                                          .cta_smem_bytes = 101376,
                                          .sm_smem_bytes = 102400};
// One of each architecture that has kernels of its own.
const backend::cuda::DeviceFacts kArchCards[] = {kH200, kGb10};

// Small, and of a shape that every kernel takes.
model::ModelConfig small_model() {
  model::ModelConfig config = model::preset("tiny");
  config.dims.hidden = config.dims.inter = 192;
  config.dims.vocab = 512;
  config.bos_id = config.pad_id = 0;
  config.eos_ids = {1};
  return config;
}

// Rows of new tokens behind nothing, each with pages of its own; every row's last token gets logits.
model::Step step_of(const std::vector<int32_t>& lengths) {
  model::Step step;
  int32_t first = 0, page = 0, most = 0;
  for (const int32_t length : lengths)
    most = std::max(most, (length + backend::kPageTokens - 1) / backend::kPageTokens);
  for (const int32_t length : lengths) {
    step.rows.push_back({.first_token = first, .tokens = length, .context = length});
    for (int32_t i = 0; i < length; ++i) {
      step.token_ids.push_back(i % 512);
      step.positions.push_back(i);
      for (auto& kv : step.kv) kv.slots.push_back(page * backend::kPageTokens + i);
    }
    for (auto& kv : step.kv) {
      for (int32_t p = 0; p < most; ++p) kv.page_ids.push_back(page + p);
      kv.pages_per_row = most;
    }
    first += length;
    page += most;
    step.logit_tokens.push_back(first - 1);
  }
  return step;
}

using Counts = std::map<std::string, int64_t>;

Counts counts_of(const backend::Backend& be) {
  Counts counts;
  for (const auto& [kernel, count] : be.launches()) counts[std::string(kernel)] = count;
  return counts;
}

// Experts on the host that compute nothing: what launchers that count leave is no input.
class NoExperts final : public backend::HostExperts {
 public:
  [[nodiscard]] std::string modes() const override { return "none"; }
  void upload(const backend::HostWeight& weight) override { EXPECT_TRUE(backend::has_experts(weight.role)); }
  void run(const Work& /*work*/) override {}
};
backend::CudaSetup on_nobody() {
  return {.host_experts = [](const backend::BackendConfig&) { return std::make_unique<NoExperts>(); }};
}

struct Case {
  RunConfig options;
  DenseFormats dense{};
  backend::cuda::DeviceFacts card = kH200;
};

class Launches : public testing::Test {
 protected:
  void expect_planned(const Case& c, const std::vector<int32_t>& lengths, const std::vector<int>& taps = {}) {
    expect_planned(c, lengths, {config_, weights_, taps});
  }
  struct Of {
    const model::ModelConfig& model;
    const convert::DummyWeights& weights;
    const std::vector<int>& taps;
  };
  static void expect_planned(const Case& c, const std::vector<int32_t>& lengths, const Of& of) {
    backend::cuda::emulated_cuda() = {.card = c.card};
    backend::cuda::emulated_tiles().clear();
    const backend::BackendConfig config = model::backend_config(
        of.model, {.max_tokens = 1024, .max_rows = 64, .kv_pages = {64, 64, 64}, .taps = of.taps}, c.dense);
    const auto be = backend::make_cuda_backend(config, c.options, on_nobody());
    const model::GptOss gpt = model::load(*be, of.model, of.weights.weights());
    const model::Step step = step_of(lengths);
    model::forward(*be, gpt, step);

    Counts planned;
    const backend::cuda::Program plan =
        backend::cuda::make_program({.config = config,
                                     .run = c.options,
                                     .step = {.rows = step.rows, .logit_rows = static_cast<int64_t>(lengths.size())},
                                     .card = backend::cuda::Card(c.card)});
    EXPECT_EQ(plan.family, be->kernel_family());
    for (const backend::PlannedKernel& s : plan.nodes) {
      planned[s.kernel] += s.launches * backend::layers_of(s, of.model.layer_kinds);
      const auto& tiles = backend::cuda::emulated_tiles();
      const auto cut = tiles.find(s.kernel);
      EXPECT_TRUE(cut == tiles.end() || cut->second.contains(s.tile)) << s.tile;
    }
    EXPECT_EQ(planned, counts_of(*be));
  }

  const model::ModelConfig config_ = small_model();
  const convert::DummyWeights weights_{config_, 1, nullptr};
};

TEST_F(Launches, of_layers_that_differ_are_those_of_their_programs) {
  model::ModelConfig config = config_;
  model::set_layers(config, std::vector<model::LayerConfig>{{16, 8}, {0, 8}, {128, 4}, {16, 6}}, "here");
  const convert::DummyWeights weights(config, 1, nullptr);
  for (const KernelFamily family : {KernelFamily::kAuto, KernelFamily::kStreaming, KernelFamily::kReference})
    for (const std::vector<int32_t>& lengths : {std::vector<int32_t>{1}, std::vector<int32_t>(9, 1), {600}})
      for (const Kv kv : {Kv::kBf16, Kv::kE4m3})
        expect_planned({.options = {.kv = kv, .family = family}}, lengths, {config, weights, {}});
}

// In every form of a delta, with and without what a head reads.
TEST_F(Launches, of_layers_whose_experts_are_on_the_host_are_those_of_their_programs) {
  const auto all = static_cast<int>(config_.dims.layers);
  for (const KernelFamily family : {KernelFamily::kAuto, KernelFamily::kStreaming, KernelFamily::kReference})
    for (const backend::cuda::DeviceFacts& card : {kH200, kGb10})
      for (const int layers : {1, all - 1, all})
        for (const std::vector<int32_t>& lengths :
             {std::vector<int32_t>{1}, {1, 1, 1}, std::vector<int32_t>(9, 1), {600}})
          for (const std::vector<int>& taps : {std::vector<int>{}, {0, 1, all}})
            expect_planned({.options = {.family = family, .cpu_moe_layers = layers}, .card = card}, lengths, taps);
}

// With what a head reads, in every form that a step leaves it in.
TEST_F(Launches, of_steps_that_leave_residuals_are_those_of_their_programs) {
  const std::vector<int> taps = {0, 1, static_cast<int>(config_.dims.layers)};
  for (const KernelFamily family : {KernelFamily::kAuto, KernelFamily::kStreaming, KernelFamily::kReference})
    for (const std::vector<int32_t>& lengths : {std::vector<int32_t>{1}, {1, 1, 1}, std::vector<int32_t>(9, 1), {600}})
      expect_planned({.options = {.family = family}}, lengths, taps);
}

TEST_F(Launches, residuals_come_with_tickets_and_two_may_be_outstanding) {
  backend::cuda::emulated_cuda() = {.card = kH200};
  const std::vector<int> boundaries = {0, 1};
  const auto be = backend::make_cuda_backend(
      model::backend_config(config_, {.max_tokens = 64, .max_rows = 4, .kv_pages = {8, 8}, .taps = boundaries}), {});
  const model::GptOss gpt = model::load(*be, config_, weights_.weights());
  EXPECT_TRUE(be->keeps_taps(boundaries));
  EXPECT_FALSE(be->keeps_taps(std::vector{0, 2}));
  const auto forward = [&](const std::vector<int32_t>& lengths) {
    model::Taps taps{.boundaries = boundaries};
    static_cast<void>(model::forward(*be, gpt, step_of(lengths), {}, &taps));
    EXPECT_TRUE(taps.kept && model::residuals(*be, taps).empty()) << "nobody has asked for them";
    model::fetch(*be, taps);
    return taps;
  };
  const model::Taps one = forward({5}), two = forward({1, 1});
  ASSERT_TRUE(one.on_the_way && two.on_the_way);
  const auto width = boundaries.size() * static_cast<size_t>(config_.dims.hidden);
  EXPECT_EQ(model::residuals(*be, one).size(), 5 * width);
  EXPECT_EQ(model::residuals(*be, two).size(), 2 * width);
  EXPECT_EQ(model::residuals(*be, forward({3})).size(), 3 * width);
}

const std::vector<std::vector<int32_t>> kSteps = {
    {1}, {1, 1, 1}, std::vector<int32_t>(8, 1), std::vector<int32_t>(9, 1), {8}, {20}, {1, 100, 1}, {600}};

TEST_F(Launches, the_backend_says_what_its_options_became) {
  const auto modes = [&](const RunConfig& options, const backend::cuda::DeviceFacts& card, int code = 0) {
    backend::cuda::emulated_cuda() = {.card = card, .code = code};
    return backend::make_cuda_backend(
               model::backend_config(config_, {.max_tokens = 64, .max_rows = 4, .kv_pages = {8, 8}}, {}), options)
        ->modes();
  };
  EXPECT_EQ(modes({}, kH200),
            "experts auto, activations bf16, attention flash, CUDA graphs on, kernels of sm90, then neutral");
  EXPECT_EQ(modes({.family = KernelFamily::kGemm, .activations = Activations::kMxfp8, .eager = true}, kGb10),
            "experts gemm, activations mxfp8, attention flash, CUDA graphs off, kernels of sm121, then neutral");
  EXPECT_EQ(modes({}, kH200, 80),
            "experts auto, activations bf16, attention flash, CUDA graphs on, kernels of neutral");
}

// Every launcher checks its arguments. Nobody adds up the parts here: they are what a rank leaves.
TEST_F(Launches, of_a_rank_are_the_planned_ones) {
  using backend::Ranks;
  model::ModelConfig config = config_;
  config.dims.heads = 32;
  config.dims.kv_heads = 8;
  const convert::DummyWeights weights(config, 1, nullptr);
  for (const auto& card : kArchCards)
    for (const Ranks& ranks : {Ranks{2}, Ranks{4}, Ranks{2, true}, Ranks{8, true}})
      for (const RunConfig& options : {RunConfig{}, RunConfig{.family = KernelFamily::kStreaming},
                                       RunConfig{.family = KernelFamily::kGemm, .activations = Activations::kMxfp8},
                                       RunConfig{.family = KernelFamily::kReference}}) {
        for (const int rank : {0, ranks.count - 1}) {
          backend::cuda::emulated_cuda() = {.card = card};
          const backend::Shard shard = backend::shard_of(config.dims, ranks, rank);
          const backend::BackendConfig own = backend::config_of(
              model::backend_config(config, {.max_tokens = 1024, .max_rows = 64, .kv_pages = {64, 64}}, {}),
              backend::cuda_shard(shard));
          const auto be = backend::make_cuda_backend(own, options);
          std::vector<backend::HostWeight> cut = weights.weights();
          for (backend::HostWeight& w : cut) w.slice = backend::slice_of(w.role, config.dims, shard);
          const model::GptOss gpt = model::load(*be, config, cut);
          Counts planned;
          for (const std::vector<int32_t>& lengths : kSteps) {
            const model::Step step = step_of(lengths);
            model::forward(*be, gpt, step);
            const backend::cuda::Program plan = backend::cuda::make_program(
                {.config = own,
                 .run = options,
                 .step = {.rows = step.rows, .logit_rows = static_cast<int64_t>(lengths.size())},
                 .card = backend::cuda::Card(card)});
            for (const backend::PlannedKernel& s : plan.nodes)
              planned[s.kernel] += s.launches * backend::layers_of(s, config.layer_kinds);
          }
          EXPECT_EQ(planned, counts_of(*be)) << ranks.count << " ranks";
        }
      }
}

TEST_F(Launches, are_the_planned_ones_whoever_multiplies) {
  for (const KernelFamily family :
       {KernelFamily::kAuto, KernelFamily::kReference, KernelFamily::kStreaming, KernelFamily::kGemm}) {
    for (const Attention attention : {Attention::kAuto, Attention::kFlash, Attention::kReference}) {
      for (const std::vector<int32_t>& lengths : kSteps) {
        SCOPED_TRACE(testing::Message() << name_of(family) << ", attention " << static_cast<int>(attention) << ", "
                                        << lengths.size() << " rows, first of " << lengths[0]);
        expect_planned({.options = {.attention = attention, .family = family}}, lengths);
      }
    }
  }
}

TEST_F(Launches, are_the_planned_ones_on_either_card_whatever_the_layers_hold) {
  using enum WeightFormat;
  const DenseFormats all[] = {{.qkv = kMxfp4, .o = kMxfp4, .lm_head = kMxfp4},
                              {.qkv = kMxfp8, .o = kMxfp8, .lm_head = kMxfp8},
                              {.qkv = kMxfp8, .o = {}, .lm_head = kMxfp4}};
  for (const DenseFormats& dense : all) {
    for (const auto& card : kArchCards) {
      for (const KernelFamily family : {KernelFamily::kAuto, KernelFamily::kStreaming, KernelFamily::kGemm}) {
        for (const std::vector<int32_t>& lengths : kSteps) {
          SCOPED_TRACE(testing::Message() << card.name << ", " << name_of(family) << ", " << lengths.size()
                                          << " rows, first of " << lengths[0]);
          expect_planned({.options = {.family = family}, .dense = dense, .card = card}, lengths);
        }
      }
    }
  }
}

TEST_F(Launches, are_the_planned_ones_where_experts_multiply_rounded_activations) {
  for (const auto& card : kArchCards) {
    for (const KernelFamily family : {KernelFamily::kAuto, KernelFamily::kStreaming, KernelFamily::kGemm}) {
      for (const auto format : {Activations::kMxfp8, Activations::kMxfp6, Activations::kMxfp4}) {
        for (const std::vector<int32_t>& lengths : kSteps) {
          SCOPED_TRACE(testing::Message() << card.name << ", " << name_of(family) << ", " << name_of(format) << ", "
                                          << lengths.size() << " rows, first of " << lengths[0]);
          expect_planned({.options = {.family = family, .activations = format}, .card = card}, lengths);
        }
      }
    }
  }
}

// Only draws by temperature are: whoever reads other logits gets them all.
TEST_F(Launches, screen_the_logits_of_few_rows_that_are_drawn_by_temperature) {
  const auto logits_of = [&](const RunConfig& run, const backend::SamplingParams& params, size_t rows, int logprobs,
                             backend::cuda::DeviceFacts card = kH200) {
    backend::cuda::emulated_cuda() = {.card = card};
    const backend::BackendConfig config =
        model::backend_config(config_, {.max_tokens = 64, .max_rows = 64, .kv_pages = {64, 64, 64}});
    const auto be = backend::make_cuda_backend(config, run);
    const model::GptOss gpt = model::load(*be, config_, weights_.weights());
    model::Step step = step_of(std::vector<int32_t>(rows, 1));
    for (size_t r = 0; r < rows; ++r)
      step.sample_rows.push_back({.params = &params, .position = 1, .logprobs = logprobs});
    model::forward(*be, gpt, step);
    const Counts counts = counts_of(*be);
    EXPECT_EQ(counts.contains("any_screen"), counts.contains("any_screen_pick"));
    EXPECT_EQ(counts.contains("any_screen"), counts.contains("gemv<listed, bf16>"));
    return counts.contains("any_screen");
  };
  EXPECT_TRUE(logits_of({}, {.temperature = 0}, 1, -1));
  EXPECT_TRUE(logits_of({}, {.temperature = 0.7f}, 8, -1));
  EXPECT_TRUE(logits_of({.eager = true}, {.temperature = 1}, 3, -1));
  EXPECT_FALSE(logits_of({}, {.temperature = 1}, 9, -1));
  EXPECT_FALSE(logits_of({}, {.temperature = 1}, 1, 2));
  EXPECT_FALSE(logits_of({}, {.temperature = 1, .top_p = 0.9f}, 1, -1));
  EXPECT_FALSE(logits_of({}, {.temperature = 1, .logit_bias = {{3, 2.0f}}}, 1, -1));
  EXPECT_FALSE(logits_of({.screened_head = backend::ScreenedHead::kOff}, {.temperature = 0}, 1, -1));
  EXPECT_FALSE(logits_of({.family = KernelFamily::kReference}, {.temperature = 0}, 1, -1));
  backend::cuda::DeviceFacts small = kH200;
  small.memory_bytes = 1 << 20;
  EXPECT_EQ(backend::cuda::screened_bytes(model::backend_config(config_, {}), {}, small), 0);
  EXPECT_GT(backend::cuda::screened_bytes(model::backend_config(config_, {}), {}, kH200), 0);
}

TEST_F(Launches, are_the_planned_ones_for_every_cache) {
  for (const Kv kv : {Kv::kBf16, Kv::kF32, Kv::kE4m3}) {
    for (const KernelFamily family : {KernelFamily::kReference, KernelFamily::kGemm}) {
      for (const std::vector<int32_t>& lengths : kSteps) {
        SCOPED_TRACE(testing::Message() << "cache " << static_cast<int>(kv) << ", " << name_of(family) << ", "
                                        << lengths.size() << " rows, first of " << lengths[0]);
        expect_planned({.options = {.kv = kv, .family = family}}, lengths);
      }
    }
  }
}

TEST_F(Launches, are_the_planned_ones_in_fp8_attention) {
  for (const auto& card : kArchCards)
    for (const std::vector<int32_t>& lengths : kSteps) {
      SCOPED_TRACE(testing::Message() << card.name << ", " << lengths.size() << " rows, first of " << lengths[0]);
      expect_planned(
          {.options = {.kv = Kv::kE4m3, .attention_activations = backend::AttentionActivations::kFp8}, .card = card},
          lengths);
    }
}

TEST_F(Launches, of_a_replayed_graph_are_those_of_the_eager_step) {
  backend::cuda::emulated_cuda() = {.card = kH200};
  const backend::SamplingParams greedy{.temperature = 0};
  Counts counts[2];
  for (const bool eager : {false, true}) {
    const backend::BackendConfig config =
        model::backend_config(config_, {.max_tokens = 64, .max_rows = 40, .kv_pages = {64, 64}});
    const auto be = backend::make_cuda_backend(config, {.eager = eager, .cpu_moe_layers = 1}, on_nobody());
    const model::GptOss gpt = model::load(*be, config_, weights_.weights());
    for (const size_t rows : {3, 3, 3, 3, 8, 8, 8, 9, 9, 9, 9, 40, 40, 40, 41, 41, 41}) {
      model::Step step = step_of(std::vector<int32_t>(rows, 1));
      for (size_t r = 0; r < rows; ++r) step.sample_rows.push_back({.params = &greedy, .position = 0});
      if (rows > 40) step.sample_rows.clear(), step.logit_tokens.clear();
      const auto ticket = model::forward(*be, gpt, step);
      if (ticket) static_cast<void>(be->wait(*ticket));
    }
    EXPECT_EQ(be->graph_replays(), eager ? 0 : 6);  // a size's first step runs, its second is captured
    counts[eager ? 1 : 0] = counts_of(*be);
  }
  EXPECT_EQ(counts[0], counts[1]);
}

TEST_F(Launches, of_a_step_with_guesses_come_from_the_graph_of_as_many_sequences) {
  backend::cuda::emulated_cuda() = {.card = kH200};
  const backend::SamplingParams greedy{.temperature = 0};
  Counts counts[2];
  for (const bool eager : {false, true}) {
    const backend::BackendConfig config =
        model::backend_config(config_, {.max_tokens = 64, .max_rows = 40, .kv_pages = {64, 64}});
    const auto be = backend::make_cuda_backend(config, {.eager = eager});
    const model::GptOss gpt = model::load(*be, config_, weights_.weights());
    const std::vector<int32_t> all[] = {
        {1, 1, 1, 1, 1, 1, 1, 1}, {8}, {3, 5}, {5, 3}, {9}, {9}, {9}, {8, 8, 4}, {8, 8, 4}, {4, 8, 8}};
    for (const std::vector<int32_t>& lengths : all) {
      model::Step step = step_of(lengths);
      step.logit_tokens.clear();
      for (backend::Row& row : step.rows) row.drafted = row.tokens - 1;
      for (size_t t = 0; t < step.token_ids.size(); ++t) {
        step.logit_tokens.push_back(static_cast<int32_t>(t));
        step.sample_rows.push_back({.params = &greedy, .position = step.positions[t] + 1});
      }
      const auto ticket = model::forward(*be, gpt, step);
      EXPECT_EQ(be->wait(*ticket).size(), step.token_ids.size());
    }
    // 8 tokens: of eight sequences, of one (captured), of two twice; 9 of one sequence are a prompt to attention.
    EXPECT_EQ(be->graph_replays(), eager ? 0 : 3);
    counts[eager ? 1 : 0] = counts_of(*be);
  }
  EXPECT_EQ(counts[0], counts[1]);
}

TEST_F(Launches, come_behind_a_load_that_tells_what_its_last_pieces_met) {
  backend::cuda::emulated_cuda() = {.card = kH200};
  std::vector<backend::HostWeight> weights(weights_.weights().begin(), weights_.weights().end());
  std::ranges::stable_partition(weights, [](const auto& w) { return w.role != backend::WeightRole::kUnembedding; });
  std::span<const std::byte>& last = weights.back().values.bytes;
  const test::ScratchDir dir;
  const MmapFile file(dir.write("last", {reinterpret_cast<const char*>(last.data()), last.size()}));
  last = file.bytes();
  std::filesystem::resize_file(dir / "last", 0);  // cut while it is read
  const auto be = backend::make_cuda_backend(
      model::backend_config(config_, {.max_tokens = 64, .max_rows = 8, .kv_pages = {64, 64}}), {},
      {.files = {{file.bytes(), dir / "last"}}});
  test::expect_error([&] { static_cast<void>(model::load(*be, config_, weights)); }, Code::kCorrupt, "was it cut");
}

TEST_F(Launches, are_timed_by_cupti_or_refused_in_a_sentence) {
  backend::cuda::emulated_cuda() = {.card = kH200};
  const auto be = backend::make_cuda_backend(
      model::backend_config(config_, {.max_tokens = 64, .max_rows = 8, .kv_pages = {64, 64}}), {});
  ASSERT_NE(be->kernel_profiler(), nullptr);
  try {
    be->kernel_profiler()->begin();
    FAIL() << "there is no CUPTI here";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kUnsupported);
    EXPECT_NE(std::string(error.what()).find("want a build with CUPTI"), std::string::npos) << error.what();
  }
}

TEST_F(Launches, the_budget_counts_what_a_backend_allocates_but_for_a_checkpoints_weights) {
  const backend::BackendConfig config =
      model::backend_config(config_, {.max_tokens = 1024, .max_rows = 64, .kv_pages = {64, 64}});
  for (const KernelFamily family :
       {KernelFamily::kAuto, KernelFamily::kReference, KernelFamily::kStreaming, KernelFamily::kGemm}) {
    for (const Attention attention : {Attention::kAuto, Attention::kFlash}) {
      const RunConfig options = {.attention = attention, .family = family};
      backend::cuda::emulated_cuda() = {.card = kH200};
      const backend::MemoryNeeds needs = backend::cuda_memory_needs(config, options);
      const auto be = backend::make_cuda_backend(config, options);
      const int64_t want = needs.weights + needs.kv + needs.activations;  // weights: the copy that screens logits
      EXPECT_NEAR(static_cast<double>(backend::cuda::emulated_cuda().allocated), want, 4096)
          << name_of(family) << ", attention " << static_cast<int>(attention);
    }
  }
}

TEST_F(Launches, weights_of_experts_on_the_host_take_nothing_of_the_card) {
  const backend::BackendConfig config =
      model::backend_config(config_, {.max_tokens = 64, .max_rows = 4, .kv_pages = {8, 8}});
  const auto allocated = [&](int layers) {
    backend::cuda::emulated_cuda() = {.card = kH200};
    const auto be = backend::make_cuda_backend(config, {.cpu_moe_layers = layers}, on_nobody());
    static_cast<void>(model::load(*be, config_, weights_.weights()));
    return backend::cuda::emulated_cuda().allocated;
  };
  const backend::CostModel cost{config_.dims, backend::StoredFormats::as_shipped()};
  EXPECT_NEAR(static_cast<double>(allocated(0) - allocated(2)), static_cast<double>(cost.expert_bytes(2)), 4096);
}

TEST_F(Launches, the_budget_counts_a_head) {
  model::ModelConfig deeper = config_;  // as deep as its usual boundaries want
  deeper.dims.layers = 8;
  const model::eagle3::Head head = convert::dummy_head({deeper, weights_.weights()}, {.draft_vocab = 64});
  const backend::BackendConfig config =
      model::eagle3::backend_config(head, {.max_tokens = 64, .max_rows = 64, .kv_pages = {64, 64}});
  backend::cuda::emulated_cuda() = {.card = kH200};
  const backend::MemoryNeeds needs = backend::cuda_memory_needs(config, {});
  EXPECT_GT(needs.weights, 0);
  const auto be = backend::make_cuda_backend(config, {});
  EXPECT_NEAR(static_cast<double>(backend::cuda::emulated_cuda().allocated), needs.kv + needs.activations, 65536);
  const int64_t before = backend::cuda::emulated_cuda().allocated;
  static_cast<void>(model::load(*be, head.config, head.weights));
  using backend::cuda::Slabs;  // weights on their way
  const int64_t weights = backend::cuda::emulated_cuda().allocated - before - Slabs::kCount * Slabs::kBytes;
  EXPECT_NEAR(static_cast<double>(weights), needs.weights, 65536);
}

// Each of its steps: the one that reads what is new, and those that follow from the one before.
TEST_F(Launches, a_lone_draft_of_a_head_is_replayed) {
  model::ModelConfig deeper = config_;
  deeper.dims.layers = 8;
  const model::eagle3::Head head = convert::dummy_head({deeper, weights_.weights()}, {.draft_vocab = 64});
  const model::StepLimits limits = engine::head_step_limits({.kv_pages = {64, 64}});
  backend::cuda::emulated_cuda() = {.card = kH200};
  const auto be = backend::make_cuda_backend(model::eagle3::backend_config(head, limits), {});
  const model::GptOss gpt = model::load(*be, head.config, head.weights);
  engine::DraftModelProposer proposer({.be = *be, .model = gpt, .limits = limits, .head = &head});
  constexpr int64_t kRows = 3;
  const std::vector<float> residuals(static_cast<size_t>(kRows * head.reads.taps * head.reads.target_hidden), 0.5f);
  std::vector<int32_t> tokens = {0};
  for (const int replays : {0, 2, 5, 8}) {
    const int64_t from = std::ssize(tokens) - 1;
    tokens.resize(tokens.size() + kRows);
    const engine::Proposer::Text text{.id = 1, .tokens = tokens, .prompt_tokens = 0, .shares = false};
    const engine::Proposer::News news{.text = text, .residuals = {.from = from, .count = kRows, .values = residuals}};
    proposer.saw({&news, 1});
    engine::Draft draft;
    proposer.propose(text, 3, draft);
    EXPECT_EQ(draft.tokens.size(), 3u);
    EXPECT_EQ(be->graph_replays(), replays);
  }
}

// The code and the sentence of the error when a backend is made on such a machine.
std::pair<Code, std::string> refusal(const backend::cuda::EmulatedCuda& machine, int32_t pages = 64) {
  backend::cuda::emulated_cuda() = machine;
  try {
    static_cast<void>(backend::make_cuda_backend(
        model::backend_config(small_model(), {.max_tokens = 64, .max_rows = 8, .kv_pages = {pages, pages}}), {}));
  } catch (const Error& error) {
    return {error.code(), error.what()};
  }
  return {Code::kInvalidRequest, "none"};
}

TEST(Card, that_is_missing_old_foreign_or_small_is_refused_in_a_sentence) {
  const auto expect = [](const std::pair<Code, std::string>& found, Code code, std::string_view says) {
    EXPECT_EQ(found.first, code);
    EXPECT_NE(found.second.find(says), std::string::npos) << found.second;
  };
  expect(refusal({.card = kH200}), Code::kInvalidRequest, "none");
  expect(refusal({.card = {}, .status = cudaErrorInsufficientDriver, .driver = 0}), Code::kUnsupported,
         "version 580 or newer, found none");
  expect(refusal({.card = {}, .status = cudaErrorInsufficientDriver, .driver = 12040}), Code::kUnsupported,
         "want an NVIDIA driver for CUDA 13.0, version 580 or newer, found one for CUDA 12.4");
  expect(refusal({.card = {}, .status = cudaErrorNoDevice}), Code::kUnsupported, "want a GPU, found none");
  backend::cuda::DeviceFacts ampere = kH200;
  ampere.name = "NVIDIA A100";
  ampere.major = 8;
  expect(refusal({.card = ampere, .kernels = cudaErrorNoKernelImageForDevice}), Code::kUnsupported,
         "want a card of compute capability 9.0 or 12.1, for which this build has kernels, found NVIDIA A100 of 8.0");
  backend::cuda::mask_card(backend::cuda::card_arch("sm_80"));
  expect(refusal({.card = kH200, .code = 90}), Code::kUnsupported,
         "NIBBLE_CUDA_ARCH: want sm_80, found that this build runs code for sm_90 on H200 as sm_80 (a build");
  expect(refusal({.card = kH200, .code = 80}), Code::kInvalidRequest, "none");
  backend::cuda::mask_card(std::nullopt);
  backend::cuda::DeviceFacts small = kH200;
  small.memory_bytes = int64_t{1} << 30;
  expect(refusal({.card = small}, 1 << 20), Code::kOutOfMemory, "activations and KV pages: want ");
  EXPECT_FALSE(backend::cuda_plan_device() == std::nullopt);  // a card with little memory is a card
}

}  // namespace
}  // namespace nibble
