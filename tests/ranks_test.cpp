// A model on several ranks equals the model on one: logits within rounding, the same texts, in every format of weights,
// keys and values.

#include "backend/cpu/cpu_backend.h"
#include "backend/ranks/ranks_backend.h"
#include "backend/ranks/socket_transport.h"
#include "backend/reference/reference_backend.h"
#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/gguf.h"
#include "model/hf_config.h"
#include "convert/gguf.h"
#include "convert/synth.h"
#include "engine/testing/integrity.h"
#include "gguf_copy.h"
#include "model/compare.h"
#include "model/gpt_oss.h"
#include "model/manifest.h"
#include "one_sequence.h"
#include "processes_testing.h"
#include "text/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <unistd.h>

namespace nibble {
namespace {

namespace fs = std::filesystem;
using backend::Activations;
using backend::BackendKind;
using backend::HostWeight;
using backend::KvDtype;
using backend::Ranks;
using backend::RunConfig;
using backend::WeightFormat;
using testing::HasSubstr;

const fs::path kTiny = fs::path(NIBBLE_SOURCE_DIR) / "models/nibble-tiny";

std::string described(const Ranks& ranks) {
  return fmt::format("{} ranks{}", ranks.count, ranks.whole_experts ? ", whole experts" : "");
}

std::vector<Ranks> tensor_and_expert(std::initializer_list<int> counts) {
  std::vector<Ranks> all;
  for (const int count : counts) all.insert(all.end(), {{count, false}, {count, true}});
  return all;
}

model::ModelConfig odd_config(int64_t heads, int64_t kv_heads, int64_t inter, int64_t experts) {
  model::ModelConfig config = model::gpt_oss_20b();
  config.dims.layers = 2;
  config.dims.hidden = 96;
  config.dims.heads = heads;
  config.dims.kv_heads = kv_heads;
  config.dims.head_dim = 16;
  config.dims.inter = inter;
  config.dims.experts = experts;
  config.dims.topk = 3;
  config.dims.vocab = 333;
  config.dims.sliding_window = 5;
  config.layer_kinds = model::alternating_layers(2);
  config.bos_id.reset();
  config.pad_id.reset();
  config.eos_ids.clear();
  return config;
}

// A model on a backend of `ranks`. With one rank it is the plain backend.
struct Loaded {
  Loaded(const model::ModelConfig& config, std::span<const HostWeight> weights, const model::StepLimits& limits,
         const RunConfig& run, const Ranks& ranks, const backend::DenseFormats& dense = {}) {
    const auto make = [&](const backend::BackendConfig& of, int rank, int threads) {
      RunConfig alone = run;
      alone.threads = threads;
      std::unique_ptr<backend::Backend> made = run.backend == BackendKind::kReference
                                                   ? backend::make_reference_backend(of, alone)
                                                   : backend::make_cpu_backend(of, alone);
      members[static_cast<size_t>(rank)] = made.get();
      return made;
    };
    const backend::BackendConfig of = model::backend_config(config, limits, dense);
    members.resize(static_cast<size_t>(ranks.count));
    be = ranks.count == 1 ? make(of, 0, run.threads) : backend::make_ranks_backend(of, ranks, run.threads, make);
    gpt = model::load(*be, config, weights);
  }
  std::vector<backend::Backend*> members;  // what computes, by rank
  std::unique_ptr<backend::Backend> be;
  model::GptOss gpt;
};

constexpr int kTokens = 9;
const model::StepLimits kLimits{.max_tokens = kTokens, .max_rows = kTokens, .kv_pages = {1, 1}};

// Every token's logits in double.
std::vector<double> exact_logits(const model::ModelConfig& config, std::span<const HostWeight> weights,
                                 const RunConfig& run, const Ranks& ranks, const backend::DenseFormats& dense = {}) {
  Loaded on(config, weights, kLimits, run, ranks, dense);
  model::Step step = engine::step_alone(test::prompt_of(kTokens, config.dims.vocab));
  step.logit_tokens.resize(kTokens);
  std::iota(step.logit_tokens.begin(), step.logit_tokens.end(), 0);
  model::forward(*on.be, on.gpt, step);
  std::vector<double> all;
  for (size_t t = 0; t < kTokens; ++t)
    for (backend::Backend* member : on.members) {
      const auto rows = std::get<std::vector<std::span<double>>>(member->rows(backend::Slot::kLogits));
      all.insert(all.end(), rows[t].begin(), rows[t].end());
    }
  const std::vector<float> gathered = on.be->peek(backend::Slot::kLogits).values;
  EXPECT_EQ(gathered, std::vector<float>(all.begin(), all.end())) << described(ranks);
  return all;
}

// The largest difference, relative to the RMS of `want`.
template <class T>
double worst(const std::vector<T>& want, const std::vector<T>& found) {
  EXPECT_EQ(want.size(), found.size());
  double squares = 0, most = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    squares += double{want[i]} * double{want[i]};
    const double difference = std::abs(double{want[i]} - double{found[i]});
    most = std::isnan(difference) ? INFINITY : std::max(most, difference);
  }
  return most / std::sqrt(squares / static_cast<double>(want.size()));
}

constexpr RunConfig kOracle{.backend = BackendKind::kReference, .threads = 1, .kv = KvDtype::kF32};
RunConfig cpu_run(KvDtype kv, Activations activations = Activations::kF32) {
  return {.backend = BackendKind::kCpu, .threads = 2, .kv = kv, .activations = activations, .poison = true};
}

struct Shape4 {
  int64_t heads, kv_heads, inter, experts;
  std::vector<int> ranks;
};
// Fewer blocks than ranks, ranks that share KV heads, experts that do not divide.
const std::vector<Shape4> kOddShapes = {
    {6, 3, 160, 5, {2, 3, 6}}, {8, 2, 192, 7, {2, 4, 8}}, {12, 12, 32, 3, {4, 12}}, {5, 5, 416, 4, {5}}};

std::vector<Ranks> valid_ranks(const Shape4& shape) {
  std::vector<Ranks> all;
  for (const int count : shape.ranks) {
    if (shape.kv_heads % count != 0 && count % shape.kv_heads != 0) continue;
    all.insert(all.end(), {{count, false}, {count, true}});
  }
  return all;
}

TEST(Ranks, odd_shapes_have_the_logits_of_one_rank_in_double) {
  for (const Shape4& shape : kOddShapes) {
    const model::ModelConfig config = odd_config(shape.heads, shape.kv_heads, shape.inter, shape.experts);
    const convert::DummyWeights weights(config, 3, nullptr);
    const std::vector<double> want = exact_logits(config, weights.weights(), kOracle, {});
    for (const Ranks& ranks : valid_ranks(shape))
      EXPECT_LT(worst(want, exact_logits(config, weights.weights(), kOracle, ranks)), 1e-9)
          << shape.heads << " heads, " << described(ranks);
  }
}

// All activations that a step leaves, stage by stage.
TEST(Ranks, stages_on_the_cpu_are_those_of_one_rank) {
  for (const Shape4& shape : kOddShapes) {
    const model::ModelConfig config = odd_config(shape.heads, shape.kv_heads, shape.inter, shape.experts);
    const convert::DummyWeights weights(config, 3, nullptr);
    for (const KvDtype kv : {KvDtype::kF32, KvDtype::kBf16}) {
      Loaded one(config, weights.weights(), kLimits, cpu_run(kv), {});
      for (const Ranks& ranks : valid_ranks(shape)) {
        Loaded several(config, weights.weights(), kLimits, cpu_run(kv), ranks);
        model::Step step = engine::step_alone(test::prompt_of(kTokens, config.dims.vocab));
        step.logit_tokens = {0, kTokens - 1};
        const auto result =
            model::compare({*one.be, one.gpt}, {*several.be, several.gpt}, step, kv == KvDtype::kF32 ? 1e-5 : 1e-2);
        EXPECT_FALSE(result.first_bad.has_value())
            << shape.heads << " heads, " << described(ranks) << ", KV " << name_of(kv) << ": "
            << name_of(result.stages[result.first_bad.value_or(0)].slot) << " of layer "
            << result.stages[result.first_bad.value_or(0)].layer << " differs by "
            << result.stages[result.first_bad.value_or(0)].largest;
      }
    }
  }
}

TEST(Ranks, dense_layers_requantised_by_each_rank_are_those_of_one) {
  const model::ModelConfig config = odd_config(8, 4, 128, 4);  // two heads are a block of o's columns
  const convert::DummyWeights weights(config, 3, nullptr);
  for (const WeightFormat format : {WeightFormat::kMxfp4, WeightFormat::kMxfp8}) {
    const backend::DenseFormats dense{.qkv = format, .o = format, .lm_head = format};
    const std::vector<double> want = exact_logits(config, weights.weights(), kOracle, {}, dense);
    for (const Ranks& ranks : tensor_and_expert({2, 4}))
      EXPECT_LT(worst(want, exact_logits(config, weights.weights(), kOracle, ranks, dense)), 1e-9) << described(ranks);
  }
}

TEST(Ranks, pages_are_copied_on_every_rank) {
  const model::ModelConfig config = odd_config(8, 2, 64, 5);
  const convert::DummyWeights weights(config, 3, nullptr);
  const model::StepLimits limits{.max_tokens = 64, .max_rows = 4, .kv_pages = {3, 3}};
  Loaded on(config, weights.weights(), limits, cpu_run(KvDtype::kBf16), {4, false});
  test::expect_page_copies(*on.be, on.gpt);
}

TEST(Ranks, ranks_that_the_model_cannot_be_dealt_to_are_refused) {
  const model::ModelConfig config = odd_config(8, 2, 64, 5);
  const convert::DummyWeights weights(config, 3, nullptr);
  for (const int count : {3, 16}) {
    try {
      const Loaded on(config, weights.weights(), kLimits, kOracle, {count, false});
      ADD_FAILURE() << count << " were taken";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(),
                  HasSubstr("--tensor-parallel-size: want a number that divides the model's 8 query heads"));
    }
  }
}

// If one rank fails, the verb fails, whichever thread it was on.
TEST(Ranks, a_rank_s_refusal_is_the_backend_s) {
  const model::ModelConfig config = odd_config(8, 8, 64, 5);
  const convert::DummyWeights weights(config, 3, nullptr);
  const backend::DenseFormats dense{.qkv = {}, .o = WeightFormat::kMxfp4, .lm_head = {}};
  try {
    const Loaded on(config, weights.weights(), kLimits, cpu_run(KvDtype::kBf16), {8, false}, dense);
    ADD_FAILURE() << "16 columns of o were taken for a block";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("rows of whole blocks of 32, found mxfp4 and 16"));
  }
}

// ---- nibble-tiny ----

struct Tiny {
  model::ModelConfig config = model::read_hf_config(kTiny).config;
  checkpoint::Checkpoint files = checkpoint::Checkpoint::open(kTiny);
  std::vector<HostWeight> weights = model::bind_weights(files.entries(), config);
  text::Tokenizer tokenizer = text::Tokenizer::from_file(kTiny / "tokenizer.json");
};
const Tiny& tiny() {
  static const Tiny files;
  return files;
}

TEST(RanksTiny, have_the_logits_of_one_rank_in_double) {
  const std::vector<double> want = exact_logits(tiny().config, tiny().weights, kOracle, {});
  for (const Ranks& ranks : tensor_and_expert({2, 4, 8}))
    EXPECT_LT(worst(want, exact_logits(tiny().config, tiny().weights, kOracle, ranks)), 1e-9) << described(ranks);
}

std::vector<float> cpu_logits(std::span<const HostWeight> weights, const RunConfig& run, const Ranks& ranks) {
  const std::vector<int32_t> ids = tiny().tokenizer.encode(read_text_file(kTiny / "heldout.txt", 1 << 20));
  const test::OneSequence limits{.max_context = 256, .chunk_tokens = 64, .max_logit_rows = 64};
  Loaded on(tiny().config, weights, test::step_limits(limits), run, ranks);
  return test::all_logits(*on.be, on.gpt, std::span(ids).first(200), 64);
}

// The largest difference over nine tokens in ten. At a near-tie of experts another order of a sum may choose another
// expert, which changes that token's logits.
double mostly_worst(const std::vector<float>& want, const std::vector<float>& found) {
  const auto vocab = static_cast<size_t>(tiny().config.dims.vocab);
  std::vector<double> of_token;
  for (size_t at = 0; at < want.size(); at += vocab) {
    const auto row = [&](const std::vector<float>& all) {
      return std::vector<float>(all.begin() + static_cast<int64_t>(at), all.begin() + static_cast<int64_t>(at + vocab));
    };
    of_token.push_back(worst(row(want), row(found)));
  }
  std::sort(of_token.begin(), of_token.end());
  if (std::isinf(of_token.back())) return INFINITY;
  return of_token[of_token.size() * 9 / 10];
}

TEST(RanksTiny, have_the_logits_of_one_rank_on_the_cpu) {
  struct Case {
    KvDtype kv;
    Activations activations;
    double bound;  // wider where a key, value or activation is rounded, and may fall to the other side
  };
  for (const Case& c : {Case{KvDtype::kF32, Activations::kF32, 1e-4},
                        {KvDtype::kBf16, Activations::kF32, 1e-2},
                        {KvDtype::kE4m3, Activations::kF32, 0.1},
                        {KvDtype::kInt8, Activations::kF32, 0.1},
                        {KvDtype::kF32, Activations::kAuto, 0.1},
                        {KvDtype::kF32, Activations::kMxfp8, 0.1}}) {
    const std::vector<float> want = cpu_logits(tiny().weights, cpu_run(c.kv, c.activations), {});
    for (const Ranks& ranks : tensor_and_expert({2, 4, 8})) {
      const double off = mostly_worst(want, cpu_logits(tiny().weights, cpu_run(c.kv, c.activations), ranks));
      EXPECT_LT(off, c.bound) << described(ranks) << ", KV " << name_of(c.kv) << ", activations "
                              << name_of(c.activations);
    }
  }
}

TEST(RanksTiny, have_the_logits_of_one_rank_from_gguf) {
  const fs::path path = fs::temp_directory_path() / fmt::format("nibble_ranks_{}.gguf", ::getpid());
  for (const auto dense : {DType::kGgmlQ8, DType::kF32}) {
    const checkpoint::GgufCheckpoint file =
        test::as_gguf(tiny().config, tiny().weights, path, {.dense = dense, .part_bytes = 0, .tokenizer = {}});
    const std::vector<HostWeight> weights = model::bind_weights(file.tensors(), tiny().config);
    const std::vector<double> exact = exact_logits(tiny().config, weights, kOracle, {});
    const std::vector<float> want = cpu_logits(weights, cpu_run(KvDtype::kF32), {});
    for (const Ranks& ranks : tensor_and_expert({2, 8})) {
      EXPECT_LT(worst(exact, exact_logits(tiny().config, weights, kOracle, ranks)), 1e-9) << described(ranks);
      EXPECT_LT(mostly_worst(want, cpu_logits(weights, cpu_run(KvDtype::kF32), ranks)), 1e-4) << described(ranks);
    }
    fs::remove(path);
  }
}

// Two turns of a conversation, the second from the prefix cache of the first.
std::vector<int32_t> greedy_texts(const RunConfig& run, const Ranks& ranks) {
  const test::OneSequence limits{.max_context = 512, .chunk_tokens = 64};
  const engine::EngineLimits of_engine = test::engine_limits(limits);
  Loaded on(tiny().config, tiny().weights, engine::step_limits(of_engine, tiny().config.dims), run, ranks);
  engine::Loop loop(*on.be, on.gpt, of_engine);
  std::vector<int32_t> all;
  std::vector<int32_t> prompt = tiny().tokenizer.encode(read_text_file(kTiny / "heldout.txt", 1 << 20));
  prompt.resize(150);
  for (int turn = 0; turn < 2; ++turn) {
    const test::Output out =
        test::generate(loop, {.prompt = prompt, .max_tokens = 24, .sampling = {.temperature = 0}, .stop_ids = {}});
    if (turn == 1) EXPECT_GT(out.finished.cached_tokens, 100) << described(ranks);
    all.insert(all.end(), out.tokens.begin(), out.tokens.end());
    prompt.insert(prompt.end(), out.tokens.begin(), out.tokens.end());
  }
  loop.check_integrity();
  return all;
}

TEST(RanksTiny, write_the_greedy_texts_of_one_rank) {
  for (const KvDtype kv : {KvDtype::kF32, KvDtype::kBf16, KvDtype::kE4m3, KvDtype::kInt8}) {
    const std::vector<int32_t> want = greedy_texts(cpu_run(kv), {});
    for (const Ranks& ranks : tensor_and_expert({2, 4, 8}))
      EXPECT_EQ(greedy_texts(cpu_run(kv), ranks), want) << described(ranks) << ", KV " << name_of(kv);
  }
}

// ---- ranks as processes: here threads, each with a group of its own over TCP ----

struct Processes : test::Processes {
  Processes(const model::ModelConfig& config, std::span<const HostWeight> weights, const model::StepLimits& limits,
            const RunConfig& run, const Ranks& ranks)
      : test::Processes(config, weights, limits, ranks,
                        {.make = [run, ranks](const backend::BackendConfig& whole, backend::ProcessGroup& of_rank) {
                          return backend::make_host_member(
                              whole,
                              {.ranks = ranks,
                               .rank = of_rank.rank(),
                               .transport = std::make_unique<backend::SocketTransport>(of_rank),
                               .draw_threads = 2},
                              [run](const backend::BackendConfig& of) {
                                return run.backend == BackendKind::kReference ? backend::make_reference_backend(of, run)
                                                                              : backend::make_cpu_backend(of, run);
                              });
                        }}) {}
};

TEST(RanksTiny, of_several_processes_have_the_bits_of_threads) {
  const std::vector<int32_t> ids = tiny().tokenizer.encode(read_text_file(kTiny / "heldout.txt", 1 << 20));
  const model::StepLimits limits = test::step_limits({.max_context = 256, .chunk_tokens = 64, .max_logit_rows = 64});
  RunConfig oracle = kOracle;
  for (const RunConfig& run : {cpu_run(KvDtype::kBf16), cpu_run(KvDtype::kInt8, Activations::kAuto), oracle}) {
    for (const Ranks& ranks : {Ranks{2, false}, Ranks{4, true}, Ranks{8, false}}) {
      const size_t tokens = run.backend == BackendKind::kReference ? 16 : 150;
      const auto prompt = std::span(ids).first(tokens);
      Loaded threads(tiny().config, tiny().weights, limits, run, ranks);
      Processes processes(tiny().config, tiny().weights, limits, run, ranks);
      EXPECT_EQ(test::all_logits(*processes.be, processes.gpt, prompt, 64),
                test::all_logits(*threads.be, threads.gpt, prompt, 64))
          << described(ranks) << " of " << name_of(run.backend);
      EXPECT_EQ(processes.be->peek(backend::Slot::kDelta).values, threads.be->peek(backend::Slot::kDelta).values);
      EXPECT_TRUE(processes.be->peek(backend::Slot::kAttn).shape.empty());
    }
  }
}

TEST(Ranks, pages_are_copied_in_every_process) {
  const model::ModelConfig config = odd_config(8, 2, 64, 5);
  const convert::DummyWeights weights(config, 3, nullptr);
  const model::StepLimits limits{.max_tokens = 64, .max_rows = 4, .kv_pages = {3, 3}};
  Processes on(config, weights.weights(), limits, cpu_run(KvDtype::kBf16), {4, false});
  test::expect_page_copies(*on.be, on.gpt);
}

// Enqueued steps name tokens that are not read yet; a second turn takes its pages from the cache.
TEST(RanksTiny, of_several_processes_write_the_texts_of_threads) {
  engine::EngineLimits limits = test::engine_limits({.max_context = 512, .chunk_tokens = 64});
  const model::StepLimits steps = engine::step_limits(limits, tiny().config.dims);
  std::vector<int32_t> prompt = tiny().tokenizer.encode(read_text_file(kTiny / "heldout.txt", 1 << 20));
  prompt.resize(150);
  for (const bool async : {false, true}) {
    limits.async_scheduling = async;
    Loaded threads(tiny().config, tiny().weights, steps, cpu_run(KvDtype::kBf16), {2, false});
    Processes processes(tiny().config, tiny().weights, steps, cpu_run(KvDtype::kBf16), {2, false});
    engine::Loop of_threads(*threads.be, threads.gpt, limits), of_processes(*processes.be, processes.gpt, limits);
    for (int turn = 0; turn < 2; ++turn) {
      const engine::Request request{
          .prompt = prompt, .max_tokens = 24, .sampling = {.temperature = 1, .seed = 7}, .stop_ids = {}};
      const test::Output want = test::generate(of_threads, request), found = test::generate(of_processes, request);
      EXPECT_EQ(found.tokens, want.tokens);
      EXPECT_EQ(found.finished.cached_tokens, want.finished.cached_tokens);
      if (turn == 1) EXPECT_GT(found.finished.cached_tokens, 100);
    }
  }
}

TEST(RanksTiny, share_the_threads) {
  for (const int threads : {1, 2, 3, 8, 17}) {
    for (const int count : {1, 2, 4, 8}) {
      int sum = 0;
      for (int rank = 0; rank < count; ++rank) {
        EXPECT_GE(backend::threads_of(rank, {.count = count}, threads), 1);
        sum += backend::threads_of(rank, {.count = count}, threads);
      }
      EXPECT_EQ(sum, std::max(threads, threads < count ? sum : 0));
    }
  }
}

}  // namespace
}  // namespace nibble
