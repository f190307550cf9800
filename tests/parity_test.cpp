// The whole model against transformers' GptOssForCausalLM in float32: tests/data/parity, made by tools/make_goldens.py;
// and against the forward pass of tools/make_puzzle_goldens.py, for layers that differ.

#include "backend/cpu/cpu_backend.h"
#include "backend/reference/reference_backend.h"
#include "checkpoint/checkpoint.h"
#include "model/hf_config.h"
#include "goldens.h"
#include "model/compare.h"
#include "model/gpt_oss.h"
#include "model/manifest.h"
#include "one_sequence.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>

namespace nibble {
namespace {

using backend::KvDtype;

// A golden case: the checkpoint, the prompt, and what transformers says at some positions.
struct Case {
  explicit Case(const std::string& name)
      : config(model::read_hf_config(kParity / name).config),
        checkpoint(checkpoint::Checkpoint::open(kParity / name / "model.safetensors")),
        weights(model::bind_weights(checkpoint.entries(), config)),
        golden(checkpoint::Checkpoint::open(kParity / name / "golden.safetensors")),
        tokens(values_of<int32_t>(golden, "tokens")),
        positions(values_of<int32_t>(golden, "positions")),
        logits(values_of<float>(golden, "logits")),
        hidden(values_of<float>(golden, "hidden")) {}

  model::ModelConfig config;
  checkpoint::Checkpoint checkpoint;
  std::vector<backend::HostWeight> weights;
  checkpoint::Checkpoint golden;
  std::vector<int32_t> tokens, positions;
  std::vector<float> logits;  // [positions, vocab]
  std::vector<float> hidden;  // [layers, positions, hidden]: the input of each layer
};

enum class Which { kReference, kCpuF32, kCpuBf16, kReferenceFp8, kCpuFp8 };

struct Loaded {
  Loaded(const Case& c, Which which, int chunk, int threads = 2)
      : Loaded(
            c, which,
            test::OneSequence{
                .max_context = static_cast<int64_t>(c.tokens.size()), .chunk_tokens = chunk, .max_logit_rows = chunk},
            threads) {}
  Loaded(const Case& c, Which which, const test::OneSequence& of, int threads = 2)
      : Loaded(c, which, test::step_limits(of), threads) {
    limits = of;
  }
  Loaded(const Case& c, Which which, const model::StepLimits& steps, int threads) {
    const auto config = model::backend_config(c.config, steps);
    const bool fp8 = which == Which::kReferenceFp8 || which == Which::kCpuFp8;
    const KvDtype kv = fp8 ? KvDtype::kE4m3 : which == Which::kCpuBf16 ? KvDtype::kBf16 : KvDtype::kF32;
    if (which == Which::kReference || which == Which::kReferenceFp8)
      be = backend::make_reference_backend(config, {.kv = kv});
    else
      be = backend::make_cpu_backend(config, {.threads = threads, .kv = kv, .activations = backend::Activations::kF32});
    gpt = model::load(*be, c.config, c.weights);
  }
  test::OneSequence limits;
  std::unique_ptr<backend::Backend> be;
  model::GptOss gpt;
};

// Logits [tokens, vocab] of the first `count` tokens of the prompt.
std::vector<float> all_logits(const Case& c, Loaded& loaded, size_t count) {
  return test::all_logits(*loaded.be, loaded.gpt, std::span(c.tokens).first(count), loaded.limits.chunk_tokens);
}

double worst_position(const Case& c, const std::vector<float>& all) {
  const auto vocab = static_cast<size_t>(c.config.dims.vocab);
  double worst = 0;
  for (size_t p = 0; p < c.positions.size(); ++p) {
    const auto at = static_cast<size_t>(c.positions[p]);
    const double error =
        relative(std::span(all).subspan(at * vocab, vocab), std::span(c.logits).subspan(p * vocab, vocab));
    EXPECT_LT(error, 1e-4) << "position " << at;
    worst = std::max(worst, error);
  }
  return worst;
}

class Parity : public testing::TestWithParam<const char*> {};

TEST_P(Parity, cpu_logits_match_transformers_at_every_position) {
  const Case c(GetParam());
  Loaded loaded(c, Which::kCpuF32, 128);
  const double worst = worst_position(c, all_logits(c, loaded, c.tokens.size()));
  RecordProperty("worst", std::to_string(worst));
}

// Not puzzle: the last experts that its tokens choose are too near to those that they do not.
class ParityBf16 : public testing::TestWithParam<const char*> {};

TEST_P(ParityBf16, keys_and_values_stay_close) {
  const Case c(GetParam());
  Loaded loaded(c, Which::kCpuBf16, 128);
  const auto vocab = static_cast<size_t>(c.config.dims.vocab);
  const std::vector<float> all = all_logits(c, loaded, c.tokens.size());
  for (size_t p = 0; p < c.positions.size(); ++p) {
    const auto got = std::span(all).subspan(static_cast<size_t>(c.positions[p]) * vocab, vocab);
    EXPECT_LT(relative(got, std::span(c.logits).subspan(p * vocab, vocab)), 0.05) << "position " << c.positions[p];
  }
}

INSTANTIATE_TEST_SUITE_P(goldens, ParityBf16, testing::Values("window_e8", "experts_e32", "yarn_8k"),
                         [](const auto& each) { return std::string(each.param); });
INSTANTIATE_TEST_SUITE_P(goldens, Parity, testing::Values("window_e8", "experts_e32", "yarn_8k", "puzzle"),
                         [](const auto& each) { return std::string(each.param); });

class ShortParity : public testing::TestWithParam<const char*> {};

TEST_P(ShortParity, reference_logits_match_transformers_at_every_position) {
  const Case c(GetParam());
  Loaded loaded(c, Which::kReference, 64);
  worst_position(c, all_logits(c, loaded, c.tokens.size()));
}

TEST_P(ShortParity, every_layer_starts_from_transformers_hidden_state) {
  const Case c(GetParam());
  Loaded loaded(c, Which::kReference, static_cast<int>(c.tokens.size()));
  const model::Step step = engine::step_alone(c.tokens);
  const auto width = static_cast<size_t>(c.config.dims.hidden);
  model::forward(*loaded.be, loaded.gpt, step, [&](model::Stage stage, int layer) {
    if (stage != model::Stage::kEmbed && stage != model::Stage::kMoe) return;
    const int next = layer + 1;
    if (next >= c.config.dims.layers) return;
    std::vector<float> residual = loaded.be->peek(backend::Slot::kResidual).values;
    const std::vector<float> delta = loaded.be->peek(backend::Slot::kDelta).values;
    std::transform(residual.begin(), residual.end(), delta.begin(), residual.begin(), std::plus());
    for (size_t p = 0; p < c.positions.size(); ++p) {
      const auto got = std::span(residual).subspan(static_cast<size_t>(c.positions[p]) * width, width);
      const auto want =
          std::span(c.hidden).subspan((static_cast<size_t>(next) * c.positions.size() + p) * width, width);
      EXPECT_LT(relative(got, want), 1e-4) << "layer " << next << " position " << c.positions[p];
    }
  });
}

TEST_P(ShortParity, chunks_decode_and_threads_do_not_change_a_bit) {
  const Case c(GetParam());
  const size_t count = std::min<size_t>(c.tokens.size(), 200);
  Loaded whole(c, Which::kCpuBf16, static_cast<int>(count));
  const std::vector<float> want = all_logits(c, whole, count);
  for (const auto& [chunk, threads] : std::map<int, int>{{1, 2}, {7, 1}, {64, 3}}) {
    Loaded loaded(c, Which::kCpuBf16, chunk, threads);
    EXPECT_EQ(all_logits(c, loaded, count), want) << "chunks of " << chunk << ", threads " << threads;
  }
}

TEST_P(ShortParity, compare_finds_no_difference_between_cpu_and_reference) {
  const Case c(GetParam());
  const int count = 150;
  Loaded reference(c, Which::kReference, count), cpu(c, Which::kCpuF32, count);
  model::Step step = engine::step_alone(std::span(c.tokens).first(count));
  step.logit_tokens = {0, count - 1};
  const auto result = model::compare({*reference.be, reference.gpt}, {*cpu.be, cpu.gpt}, step, 1e-4);
  ASSERT_FALSE(result.first_bad.has_value())
      << "layer " << result.stages[*result.first_bad].layer << " "
      << backend::name_of(result.stages[*result.first_bad].slot) << " " << result.stages[*result.first_bad].largest;
  EXPECT_EQ(result.stages.size(), static_cast<size_t>(2 + 13 * c.config.dims.layers));
}

TEST_P(ShortParity, compare_names_the_first_stage_that_differs) {
  const Case c(GetParam());
  Loaded good(c, Which::kReference, 20), bad(c, Which::kCpuF32, 20);
  bad.gpt.attention_sinks = false;
  const model::Step step = engine::step_alone(std::span(c.tokens).first(20));
  const auto result = model::compare({*good.be, good.gpt}, {*bad.be, bad.gpt}, step, 1e-4);
  ASSERT_TRUE(result.first_bad.has_value());
  EXPECT_EQ(result.stages[*result.first_bad].stage, model::Stage::kAttend);
  EXPECT_EQ(result.stages[*result.first_bad].layer, 0);
}

INSTANTIATE_TEST_SUITE_P(goldens, ShortParity, testing::Values("window_e8", "experts_e32", "puzzle"),
                         [](const auto& each) { return std::string(each.param); });

// With pages, and a cache that evicts them, behind all three windows.
TEST(Puzzle, says_what_the_oracle_says_token_for_token) {
  const Case c("puzzle");
  const auto answer = values_of<int32_t>(c.golden, "answer");
  const std::vector<int32_t> prompt(c.tokens.begin(), c.tokens.end() - std::ssize(answer));
  for (const Which which : {Which::kReference, Which::kCpuF32}) {
    for (const int chunk : {7, 256}) {
      if (which == Which::kReference && chunk == 7) continue;  // slow
      engine::EngineLimits limits{.max_context = 320, .max_sequences = 2, .max_batched_tokens = chunk};
      const model::StepLimits steps = engine::step_limits(limits, c.config.dims);
      Loaded loaded(c, which, steps, 2);
      engine::Loop loop(*loaded.be, loaded.gpt, limits);
      for (int turn = 0; turn < 3; ++turn) {  // the second and third resume what the prefix cache has
        const test::Output said =
            test::generate(loop, {.prompt = prompt, .max_tokens = std::ssize(answer), .sampling = {.temperature = 0}});
        EXPECT_EQ(said.tokens, answer) << "chunks of " << chunk << ", turn " << turn;
      }
      EXPECT_GT(loop.stats().prefix_hits, 0);
    }
  }
}

TEST(Puzzle, fp8_pages_hold_what_the_calibrated_scales_make_of_keys_and_values) {
  const auto fp8_logits = values_of<float>(Case("puzzle").golden, "fp8_logits");
  const auto worst = [&](const Case& c, Which which) {
    Loaded loaded(c, which, 64);
    const std::vector<float> all = all_logits(c, loaded, c.tokens.size());
    const auto vocab = static_cast<size_t>(c.config.dims.vocab);
    double most = 0;
    for (size_t p = 0; p < c.positions.size(); ++p)
      most = std::max(most, relative(std::span(all).subspan(static_cast<size_t>(c.positions[p]) * vocab, vocab),
                                     std::span(fp8_logits).subspan(p * vocab, vocab)));
    return most;
  };
  const Case plain("puzzle");
  Case scaled("puzzle");
  model::scale_keys_and_values(model::bind_kv_scales(scaled.checkpoint.entries(), scaled.config, "puzzle"),
                               scaled.weights);
  for (const Which which : {Which::kReferenceFp8, Which::kCpuFp8}) {
    EXPECT_LT(worst(scaled, which), 0.03);
    EXPECT_GT(worst(plain, which), 0.3);
  }
  Loaded f32(plain, Which::kReference, 64), scaled_f32(scaled, Which::kReference, 64);
  EXPECT_EQ(all_logits(plain, f32, 100), all_logits(scaled, scaled_f32, 100));
}

}  // namespace
}  // namespace nibble
