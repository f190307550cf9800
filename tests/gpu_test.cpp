// The CUDA backend behind the waist: against transformers' goldens, against the reference stage by stage, and against
// itself over chunk sizes. Skipped, with the reason, where there is no device.

#include "backend/cpu/cpu_backend.h"
#include "backend/cuda/cuda_backend.h"
#include "backend/reference/reference_backend.h"
#include "base/error.h"
#include "base/thread_pool.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/gguf_checkpoint.h"
#include "checkpoint/hf_config.h"
#include "checkpoint/testing.h"
#include "engine/session.h"
#include "gguf_copy.h"
#include "model/compare.h"
#include "model/gguf_weights.h"
#include "model/load.h"
#include "model/manifest.h"
#include "model/synth.h"
#include "page_copy.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <numeric>
#include <optional>
#include <thread>

namespace nibble {
namespace {

namespace fs = std::filesystem;
using backend::LayerKind;
using Kv = backend::CudaOptions::Kv;
using Attention = backend::CudaOptions::Attention;
using backend::ExpertActivations;
using backend::MoeKernel;

const fs::path kParity = fs::path(NIBBLE_SOURCE_DIR) / "tests/data/parity";
const fs::path kTiny = fs::path(NIBBLE_SOURCE_DIR) / "models/nibble-tiny";

// A model's weights, from files or made up.
struct Source {
  explicit Source(const fs::path& directory)
      : config(model::from_hf(checkpoint::read_hf_config(directory))), files(checkpoint::Checkpoint::open(directory)) {
    weights = model::bind_weights(files->entries(), config);
  }
  Source(const model::ModelConfig& made_up, uint64_t seed) : config(made_up) {
    ThreadPool pool(static_cast<int>(std::max(1u, std::thread::hardware_concurrency())));
    dummy.emplace(config, seed, &pool);
    weights = dummy->weights();
  }

  // `of` in llama.cpp's file, split, its dense matrices in Q8_0.
  Source(const Source& of, const test::ScratchDir& dir) : config(of.config) {
    gguf.emplace(test::as_gguf(config, of.weights, dir / "m.gguf",
                               {.dense = checkpoint::GgmlType::kQ8, .part_bytes = 4'000'000}));
    weights = model::bind_gguf(gguf->tensors(), config);
  }

  model::ModelConfig config;
  std::optional<checkpoint::Checkpoint> files;
  std::optional<checkpoint::GgufCheckpoint> gguf;
  std::optional<model::DummyWeights> dummy;
  std::vector<backend::HostWeight> weights;
};

enum class Which { kCuda, kReference, kCpu };

struct Loaded {
  Loaded(const Source& source, const engine::SessionLimits& limits_in, Which which,
         const backend::CudaOptions& options = {.kv = Kv::kF32, .moe = MoeKernel::kReference})
      : limits(limits_in) {
    const auto config = model::backend_config(source.config, engine::step_limits(limits));
    if (which == Which::kReference) {
      be = backend::make_reference_backend(config);
    } else if (which == Which::kCpu) {
      be = backend::make_cpu_backend(config, {.threads = 4, .kv_dtype = backend::KvDtype::kF32});
    } else {
      auto made = backend::make_cuda_backend(config, options);
      cuda = made.get();
      be = std::move(made);
    }
    gpt = model::load(*be, source.config, source.weights);
  }
  // Scores in chunks; room for `tokens`.
  Loaded(const Source& source, size_t tokens, int chunk, Kv kv = Kv::kF32, Attention attention = Attention::kAuto)
      : Loaded(source, {.max_context = static_cast<int64_t>(tokens), .chunk_tokens = chunk, .max_logit_rows = chunk},
               Which::kCuda, {.kv = kv, .attention = attention, .moe = MoeKernel::kReference}) {}

  engine::SessionLimits limits;
  std::unique_ptr<backend::Backend> be;
  backend::CudaBackend* cuda = nullptr;
  model::GptOss gpt;
};

std::vector<float> all_logits(Loaded& loaded, std::span<const int32_t> tokens) {
  std::vector<float> all;
  engine::Session session(*loaded.be, loaded.gpt, loaded.limits);
  session.score(tokens, [&](int64_t, const backend::SlotData& logits) {
    all.insert(all.end(), logits.values.begin(), logits.values.end());
  });
  return all;
}

std::vector<int32_t> some_tokens(size_t count, int64_t vocab) {
  std::vector<int32_t> tokens(count);
  for (size_t i = 0; i < count; ++i)
    tokens[i] = static_cast<int32_t>((i * 7919 + i * i * 31 + 5) % static_cast<size_t>(vocab));
  return tokens;
}

double relative(std::span<const float> got, std::span<const float> want) {
  double error = 0, size = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    error += std::pow(double{got[i]} - want[i], 2);
    size += std::pow(double{want[i]}, 2);
  }
  const double result = std::sqrt(error / size);
  return std::isnan(result) ? INFINITY : result;
}

// `exact`: not even a near-tie among experts may fall to the other side, after which nothing can be compared.
void expect_same(const model::Comparison& result, std::string_view what, bool exact = true) {
  if (result.first_bad) {
    const model::StageDifference& d = result.stages[*result.first_bad];
    if (!exact && d.near_tie) {
      std::printf("%.*s: the same up to a near-tie in layer %d\n", static_cast<int>(what.size()), what.data(), d.layer);
      return;
    }
    FAIL() << what << ": layer " << d.layer << " " << backend::name_of(d.stage) << " " << backend::name_of(d.slot)
           << " element " << d.element << ": reference " << d.a << " cuda " << d.b << ", relative " << d.largest
           << (d.near_tie ? " (near-tie)" : "");
  }
  double largest = 0;
  for (const model::StageDifference& d : result.stages) largest = std::max(largest, d.largest);
  std::printf("%.*s: largest difference %.2e in %zu activations\n", static_cast<int>(what.size()), what.data(), largest,
              result.stages.size());
}

class Gpu : public testing::Test {
 protected:
  void SetUp() override {
    const backend::CudaAvailable available = backend::cuda_available();
    if (!available.yes) GTEST_SKIP() << available.reason;
  }
};

template <class T>
std::vector<T> values_of(const checkpoint::Checkpoint& file, std::string_view name) {
  const auto bytes = file.find(name)->tensor.bytes;
  const auto* first = reinterpret_cast<const T*>(bytes.data());
  return {first, first + bytes.size() / sizeof(T)};
}

// The golden prompt of a case and what transformers says at some positions of it.
struct Golden {
  explicit Golden(const std::string& name)
      : source(kParity / name),
        file(checkpoint::Checkpoint::open(kParity / name / "golden.safetensors")),
        tokens(values_of<int32_t>(file, "tokens")),
        positions(values_of<int32_t>(file, "positions")),
        logits(values_of<float>(file, "logits")) {}

  [[nodiscard]] double worst(const std::vector<float>& all) const {
    const auto vocab = static_cast<size_t>(source.config.dims.vocab);
    double result = 0;
    for (size_t p = 0; p < positions.size(); ++p) {
      const auto got = std::span(all).subspan(static_cast<size_t>(positions[p]) * vocab, vocab);
      result = std::max(result, relative(got, std::span(logits).subspan(p * vocab, vocab)));
    }
    return result;
  }

  Source source;
  checkpoint::Checkpoint file;
  std::vector<int32_t> tokens, positions;
  std::vector<float> logits;  // [positions, vocab]
};

const char* const kGoldens[] = {"window_e8", "experts_e32", "yarn_8k"};

TEST_F(Gpu, logits_match_transformers_at_every_position) {
  for (const std::string name : kGoldens) {
    const Golden golden(name);
    Loaded exact(golden.source, golden.tokens.size(), 512),
        rounded(golden.source, golden.tokens.size(), 512, Kv::kBf16);
    const double worst = golden.worst(all_logits(exact, golden.tokens));
    const double worst_bf16 = golden.worst(all_logits(rounded, golden.tokens));
    std::printf("%s: %zu tokens, worst %.2e with f32 pages, %.2e with bf16 pages\n", name.c_str(), golden.tokens.size(),
                worst, worst_bf16);
    EXPECT_LT(worst, 1e-4) << name;
    EXPECT_LT(worst_bf16, 0.05) << name;
  }
}

// How the CUDA side runs, and how far it may be from the reference: f16 activations before MX weights lose 2^-12 each.
struct Path {
  MoeKernel moe = MoeKernel::kReference;
  backend::DenseFormats dense = {};
  double tolerance = 1e-4;
  ExpertActivations activations = ExpertActivations::kExact;
};

// Both run the same steps; the last one is compared.
void compare_steps(const Source& source, std::span<const model::Step> steps, const model::StepLimits& limits,
                   std::string_view what, const Path& path = {}) {
  const auto config = model::backend_config(source.config, limits, path.dense);
  const auto reference = backend::make_reference_backend(
      config, {.activations = path.activations, .weights = backend::ReferenceOptions::Weights::kBf16});
  const auto cuda =
      backend::make_cuda_backend(config, {.kv = Kv::kF32, .moe = path.moe, .activations = path.activations});
  const model::GptOss on_reference = model::load(*reference, source.config, source.weights);
  const model::GptOss on_cuda = model::load(*cuda, source.config, source.weights);
  for (size_t i = 0; i + 1 < steps.size(); ++i) {
    model::forward(*reference, on_reference, steps[i]);
    model::forward(*cuda, on_cuda, steps[i]);
  }
  expect_same(model::compare({*reference, on_reference}, {*cuda, on_cuda}, steps.back(), path.tolerance), what,
              path.moe == MoeKernel::kReference);
}

// The whole of one sequence as one step.
void compare_prompt(const Source& source, const std::vector<int32_t>& tokens, std::string_view what,
                    const Path& path = {}) {
  const int count = static_cast<int>(tokens.size());
  const engine::SessionLimits limits{.max_context = count, .chunk_tokens = count, .max_logit_rows = 2};
  const Loaded any(source, limits, Which::kReference);
  model::Step step = engine::Session(*any.be, any.gpt, limits).make_step(tokens, 0);
  step.logit_tokens = {0, count - 1};
  compare_steps(source, {&step, 1}, engine::step_limits(limits), what, path);
}

TEST_F(Gpu, every_stage_matches_the_reference_at_edge_token_counts) {
  for (const std::string name : {"window_e8", "experts_e32"}) {
    const Source source(kParity / name);
    for (const size_t count : {1, 2, 3, 7, 8, 9, 17, 64, 65, 129, 150})
      compare_prompt(source, some_tokens(count, source.config.dims.vocab), name + " " + std::to_string(count));
  }
}

TEST_F(Gpu, every_stage_matches_the_reference_without_sinks) {
  const Source source(kParity / "window_e8");
  const engine::SessionLimits limits{.max_context = 140, .chunk_tokens = 140, .max_logit_rows = 1};
  Loaded reference(source, limits, Which::kReference), cuda(source, limits, Which::kCuda);
  reference.gpt.attention_sinks = cuda.gpt.attention_sinks = false;
  const model::Step step =
      engine::Session(*cuda.be, cuda.gpt, limits).make_step(some_tokens(140, source.config.dims.vocab), 0);
  expect_same(model::compare({*reference.be, reference.gpt}, {*cuda.be, cuda.gpt}, step, 1e-4), "no sinks");
}

TEST_F(Gpu, every_stage_matches_the_reference_on_nibble_tiny) {
  const Source source(kTiny);
  compare_prompt(source, some_tokens(40, source.config.dims.vocab), "nibble-tiny");
}

TEST_F(Gpu, every_stage_matches_the_reference_at_real_widths) {
  const Source source(model::truncated(model::gpt_oss_20b(), 2), 7);
  compare_prompt(source, some_tokens(3, source.config.dims.vocab), "gpt-oss-20b, 2 layers");
}

struct NamedFormats {
  const char* name;
  backend::DenseFormats dense;
};
constexpr backend::WeightFormat kMxfp4 = backend::WeightFormat::kMxfp4, kMxfp8 = backend::WeightFormat::kMxfp8;
const NamedFormats kDenseFormats[] = {
    {"exact", {}}, {"all_mxfp8", {kMxfp8, kMxfp8, kMxfp8}}, {"all_mxfp4", {kMxfp4, kMxfp4, kMxfp4}}};

class GpuFormats : public Gpu, public testing::WithParamInterface<NamedFormats> {
 protected:
  static void compare_prompts(const Source& source, MoeKernel moe, std::initializer_list<size_t> counts,
                              double tolerance) {
    for (const size_t count : counts)
      compare_prompt(source, some_tokens(count, source.config.dims.vocab),
                     fmt::format("{}, {} tokens", GetParam().name, count), {moe, GetParam().dense, tolerance});
  }
};
INSTANTIATE_TEST_SUITE_P(formats, GpuFormats, testing::ValuesIn(kDenseFormats),
                         [](const auto& of) { return std::string(of.param.name); });

TEST_P(GpuFormats, marlin_matches_the_reference_on_nibble_tiny_at_edge_token_counts) {
  compare_prompts(Source(kTiny), MoeKernel::kMarlin, {1, 2, 3, 7, 8, 9, 17, 65}, 0.04);
}

// Two layers of 120b. Few words: the reference multiplies them on the host, one product after the other.
model::ModelConfig two_layers_of_120b() {
  model::ModelConfig config = model::truncated(model::gpt_oss_120b(), 2);
  config.dims.vocab = 4096;
  config.bos_id = config.pad_id = 0;
  config.eos_ids = {0};
  return config;
}

TEST_P(GpuFormats, marlin_matches_the_reference_at_real_widths) {
  compare_prompts(Source(two_layers_of_120b(), 7), MoeKernel::kMarlin, {1, 3, 9}, 0.02);
}

// What lies at a tie may fall to either side: a step of E4M3 is an eighth of a value, one of int8 a 127th of a block's
// largest; u is f16 before it is rounded, so one in a few hundred does. nibble-tiny multiplies errors by a hundred and
// more: with mxfp8 its perplexity can be compared, not its activations.
TEST_F(Gpu, experts_of_rounded_activations_match_the_reference_that_rounds_so) {
  const Source tiny(kTiny), wide(two_layers_of_120b(), 7);
  const auto name = [](const Path& path, size_t tokens) {
    return fmt::format("{}, {}, {} tokens", name_of(path.moe), name_of(path.activations), tokens);
  };
  const Path int8{.moe = MoeKernel::kGemv, .tolerance = 0.3, .activations = ExpertActivations::kInt8};
  for (const size_t tokens : {1, 3, 8, 9, 65})
    compare_prompt(tiny, some_tokens(tokens, tiny.config.dims.vocab), name(int8, tokens), int8);
  compare_prompt(wide, some_tokens(2, wide.config.dims.vocab), name(int8, 2), int8);
  for (const auto& [moe, tokens] :
       {std::pair<MoeKernel, size_t>{MoeKernel::kAuto, 2}, {MoeKernel::kAuto, 9}, {MoeKernel::kGemm, 9}}) {
    const Path path{.moe = moe, .tolerance = 0.3, .activations = ExpertActivations::kMxfp8};
    std::vector<int32_t> prompt = some_tokens(tokens + 10, wide.config.dims.vocab);
    prompt.erase(prompt.begin(), prompt.begin() + 10);  // without a near-tie in the first layer
    compare_prompt(wide, prompt, name(path, tokens), path);
  }
}

TEST_F(Gpu, mxfp8_activations_have_four_bits_whoever_multiplies_them) {
  const Source source(kTiny);
  for (const auto& [moe, count] : {std::pair{MoeKernel::kAuto, 3}, {MoeKernel::kAuto, 20}, {MoeKernel::kGemm, 20}}) {
    const engine::SessionLimits limits{.max_context = count, .chunk_tokens = count, .max_logit_rows = 1};
    for (const auto activations : {ExpertActivations::kMxfp8, ExpertActivations::kExact}) {
      Loaded cuda(source, limits, Which::kCuda, {.moe = moe, .activations = activations});
      const model::Step step = engine::Session(*cuda.be, cuda.gpt, limits)
                                   .make_step(some_tokens(static_cast<size_t>(count), source.config.dims.vocab), 0);
      model::forward(*cuda.be, cuda.gpt, step);
      const std::vector<float> u = cuda.be->peek(backend::Slot::kExpertHidden).values;
      const bool few_bits = std::all_of(u.begin(), u.end(), [](float value) {
        return (std::bit_cast<uint32_t>(value) & 0xfffffu) == 0;  // below the sign, the exponent, three bits
      });
      EXPECT_EQ(few_bits, activations == ExpertActivations::kMxfp8) << name_of(moe) << ", " << count << " tokens";
    }
  }
}

// Beyond eight tokens: activations of 16 bits before every matrix, bf16 on Hopper.
TEST_P(GpuFormats, gemms_match_the_reference_on_nibble_tiny) {
  compare_prompts(Source(kTiny), MoeKernel::kGemm, {9, 17, 65}, 0.1);
}

TEST_P(GpuFormats, gemms_match_the_reference_at_real_widths) {
  compare_prompts(Source(two_layers_of_120b(), 7), MoeKernel::kGemm, {17}, 0.05);
}

// The reference reads the file's Q8_0 as the nearest bf16, as the card holds it: the same tolerances as without a file.
TEST_P(GpuFormats, gguf_matches_the_reference_that_rounds_as_the_card_does) {
  const test::ScratchDir dir, wide_dir;
  model::ModelConfig few_experts = two_layers_of_120b();
  few_experts.dims.experts = 16;
  const Source gguf(Source(kTiny), dir), wide(Source(few_experts, 7), wide_dir);
  if (GetParam().dense.o == std::nullopt) compare_prompts(gguf, MoeKernel::kReference, {3}, 1e-4);
  compare_prompts(gguf, MoeKernel::kMarlin, {3}, 0.04);
  compare_prompts(gguf, MoeKernel::kGemm, {17}, 0.1);
  compare_prompts(wide, MoeKernel::kMarlin, {2}, 0.02);
}

// Several sequences in one step, their pages interleaved, pages behind the window released.
struct Batch {
  struct Sequence {
    std::vector<int32_t> tokens;
    std::array<std::vector<int32_t>, backend::kLayerKinds> pages;
    int32_t computed = 0;
  };

  Batch(std::span<const int> contexts, const backend::Dims& dims_in) : dims(dims_in) {
    for (const int context : contexts)
      sequences.push_back(
          {.tokens = some_tokens(static_cast<size_t>(context) + sequences.size(), dims.vocab), .pages = {}});
  }

  // The next `count[i]` tokens of sequence i; 0 leaves it out.
  model::Step next(std::span<const int> counts) {
    model::Step step;
    int32_t most_pages = 0;
    for (size_t s = 0; s < sequences.size(); ++s) {
      Sequence& q = sequences[s];
      if (counts[s] == 0) continue;
      const auto first = static_cast<int32_t>(step.token_ids.size());
      for (int i = 0; i < counts[s]; ++i) {
        const int32_t position = q.computed + i;
        step.token_ids.push_back(q.tokens[static_cast<size_t>(position)]);
        step.positions.push_back(position);
        for (size_t kind = 0; kind < backend::kLayerKinds; ++kind) {
          std::vector<int32_t>& pages = q.pages[kind];
          if (position / backend::kPageTokens == static_cast<int32_t>(pages.size())) pages.push_back(next_page[kind]++);
          step.kv[kind].slots.push_back(pages.back() * backend::kPageTokens + position % backend::kPageTokens);
        }
      }
      release(q);
      q.computed += counts[s];
      step.rows.push_back({.first_token = first, .tokens = counts[s], .context = q.computed});
      step.logit_tokens.push_back(first + counts[s] - 1);
      most_pages = std::max(most_pages, static_cast<int32_t>(q.pages[0].size()));
    }
    for (size_t kind = 0; kind < backend::kLayerKinds; ++kind) {
      step.kv[kind].pages_per_row = most_pages;
      for (size_t s = 0; s < sequences.size(); ++s) {
        if (counts[s] == 0) continue;
        std::vector<int32_t> pages = sequences[s].pages[kind];
        pages.resize(static_cast<size_t>(most_pages), -1);
        step.kv[kind].page_ids.insert(step.kv[kind].page_ids.end(), pages.begin(), pages.end());
      }
    }
    return step;
  }

  // Pages that no token from `computed` on sees in a sliding layer.
  void release(Sequence& q) const {
    std::vector<int32_t>& pages = q.pages[static_cast<size_t>(LayerKind::kSliding)];
    for (size_t p = 0; (static_cast<int64_t>(p) + 1) * backend::kPageTokens <= q.computed - dims.sliding_window + 1;
         ++p)
      pages[p] = -1;
  }

  const backend::Dims& dims;
  std::vector<Sequence> sequences;
  std::array<int32_t, backend::kLayerKinds> next_page{};
};

TEST_F(Gpu, every_stage_matches_the_reference_with_many_sequences_in_a_step) {
  const Source source(kParity / "window_e8");
  constexpr int kContexts[] = {1, 64, 127, 128, 129, 200, 260};
  Batch batch(kContexts, source.config.dims);
  std::vector<model::Step> steps;
  steps.push_back(batch.next(std::array{0, 60, 100, 127, 40, 3, 130}));
  steps.push_back(batch.next(std::array{0, 3, 26, 0, 88, 190, 127}));
  steps.push_back(batch.next(std::array{1, 1, 1, 1, 1, 7, 3}));  // the last positions: 63, 126, 127, 128, 199, 259
  const model::StepLimits limits{.max_tokens = 460, .max_rows = 7, .kv_pages = {24, 24}};
  compare_steps(source, steps, limits, "seven sequences");
}

TEST_F(Gpu, chunks_do_not_change_a_bit) {
  for (const std::string name : {"window_e8", "experts_e32"}) {
    const Source source(kParity / name);
    const std::vector<int32_t> tokens = some_tokens(200, source.config.dims.vocab);
    Loaded whole(source, tokens.size(), 200, Kv::kBf16, Attention::kReference);
    const std::vector<float> want = all_logits(whole, tokens);
    for (const int chunk : {1, 7, 64}) {
      Loaded loaded(source, tokens.size(), chunk, Kv::kBf16, Attention::kReference);
      EXPECT_EQ(all_logits(loaded, tokens), want) << name << ", chunks of " << chunk;
    }
  }
}

TEST_F(Gpu, chunks_do_not_change_a_bit_at_real_widths) {
  const Source source(model::truncated(model::gpt_oss_20b(), 1), 8);
  const std::vector<int32_t> tokens = some_tokens(65, source.config.dims.vocab);
  Loaded whole(source, tokens.size(), 65, Kv::kBf16, Attention::kReference);
  const std::vector<float> want = all_logits(whole, tokens);
  EXPECT_TRUE(std::none_of(want.begin(), want.end(), [](float v) { return std::isnan(v); }));
  for (const int chunk : {1, 7}) {
    Loaded loaded(source, tokens.size(), chunk, Kv::kBf16, Attention::kReference);
    EXPECT_EQ(all_logits(loaded, tokens), want) << "chunks of " << chunk;
  }
}

// Each with pages of the same type, so that the kernels differ alone.
TEST_F(Gpu, flash_attention_is_the_plain_one_up_to_rounding) {
  for (const Source& source : {Source(kTiny), Source(kParity / "experts_e32")}) {
    if (source.config.dims.head_dim != 64) continue;
    const std::vector<int32_t> tokens = some_tokens(200, source.config.dims.vocab);
    Loaded plain(source, tokens.size(), 200, Kv::kBf16, Attention::kReference);
    const std::vector<float> want = all_logits(plain, tokens);
    for (const int chunk : {1, 7, 64, 200}) {
      Loaded flash(source, tokens.size(), chunk, Kv::kBf16, Attention::kFlash);
      const double difference = relative(all_logits(flash, tokens), want);
      std::printf("flash attention, chunks of %d: %.2e from the plain one\n", chunk, difference);
      EXPECT_LT(difference, chunk <= 8 ? 1e-3 : 0.02) << "chunks of " << chunk;
      Loaded fp8(source, tokens.size(), chunk, Kv::kE4m3);
      EXPECT_LT(relative(all_logits(fp8, tokens), want), 0.25) << "fp8, chunks of " << chunk;
    }
  }
}

TEST_F(Gpu, flash_attention_names_its_kernels_and_refuses_f32_pages) {
  const Source source(kTiny);
  Loaded loaded(source, 20, 20, Kv::kBf16, Attention::kFlash);
  all_logits(loaded, some_tokens(20, source.config.dims.vocab));
  bool prefill = false;
  for (const backend::KernelLaunches& launch : loaded.cuda->launches()) {
    prefill |= launch.kernel.ends_with("_attend_prefill_bf16_d64_g8") && launch.count == source.config.dims.layers;
    EXPECT_NE(launch.kernel, "any_attend_f32_bf16");
  }
  EXPECT_TRUE(prefill);
  EXPECT_THROW(Loaded(source, 20, 20, Kv::kF32, Attention::kFlash), Error);
  EXPECT_THROW(Loaded(source, 20, 20, Kv::kE4m3, Attention::kReference), Error);
}

std::vector<int32_t> generate(Loaded& loaded, const engine::Request& request) {
  engine::Session session(*loaded.be, loaded.gpt, loaded.limits);
  std::vector<int32_t> tokens;
  session.generate(request, [&](int32_t token) {
    tokens.push_back(token);
    return true;
  });
  return tokens;
}

TEST_F(Gpu, generates_the_tokens_of_the_cpu_greedy_and_drawn) {
  const Source source(kTiny);
  const engine::SessionLimits limits{.max_context = 256, .chunk_tokens = 16, .max_logit_rows = 1};
  Loaded cuda(source, limits, Which::kCuda), cpu(source, limits, Which::kCpu);
  engine::Request request{
      .prompt = some_tokens(37, source.config.dims.vocab), .max_tokens = 60, .sampling = {}, .stop_ids = {}};
  const backend::SamplingParams all[] = {{.temperature = 0},
                                         {.temperature = 1, .seed = 3},
                                         {.temperature = 0.8f, .top_p = 0.9f, .min_p = 0.01f, .top_k = 50, .seed = 4},
                                         {.temperature = 0.7f,
                                          .repetition_penalty = 1.2f,
                                          .presence_penalty = 0.3f,
                                          .frequency_penalty = 0.2f,
                                          .logit_bias = {{11, 2.0f}, {12, -5.0f}},
                                          .seed = 5}};
  for (const backend::SamplingParams& params : all) {
    request.sampling = params;
    EXPECT_EQ(generate(cuda, request), generate(cpu, request)) << "temperature " << params.temperature;
  }
}

TEST_F(Gpu, marlin_generates_the_greedy_tokens_of_the_cpu) {
  const Source source(kTiny);
  const engine::SessionLimits limits{.max_context = 256, .chunk_tokens = 16, .max_logit_rows = 1};
  Loaded cuda(source, limits, Which::kCuda, {.moe = MoeKernel::kMarlin}), cpu(source, limits, Which::kCpu);
  const engine::Request request{.prompt = some_tokens(37, source.config.dims.vocab),
                                .max_tokens = 60,
                                .sampling = {.temperature = 0},
                                .stop_ids = {}};
  EXPECT_EQ(generate(cuda, request), generate(cpu, request));
}

TEST_F(Gpu, generates_the_greedy_tokens_of_the_cpu_from_the_same_gguf_file) {
  const test::ScratchDir dir;
  const Source source(Source(kTiny), dir);
  const engine::SessionLimits limits{.max_context = 256, .chunk_tokens = 16, .max_logit_rows = 1};
  const engine::Request request{.prompt = some_tokens(37, source.config.dims.vocab),
                                .max_tokens = 60,
                                .sampling = {.temperature = 0},
                                .stop_ids = {}};
  Loaded cpu(source, limits, Which::kCpu);
  for (const MoeKernel moe : {MoeKernel::kReference, MoeKernel::kAuto}) {
    Loaded cuda(source, limits, Which::kCuda, {.moe = moe});
    EXPECT_EQ(generate(cuda, request), generate(cpu, request)) << name_of(moe);
  }
}

TEST_F(Gpu, replayed_graphs_give_the_tokens_and_launches_of_eager_steps) {
  const Source source(kTiny);
  const engine::SessionLimits limits{.max_context = 256, .chunk_tokens = 16, .max_logit_rows = 1};
  Loaded eager(source, limits, Which::kCuda, {.moe = MoeKernel::kMarlin, .eager = true});
  Loaded graphs(source, limits, Which::kCuda, {.moe = MoeKernel::kMarlin});
  engine::Request request{
      .prompt = some_tokens(37, source.config.dims.vocab), .max_tokens = 100, .sampling = {}, .stop_ids = {}};
  const backend::SamplingParams all[] = {
      {.temperature = 0}, {.temperature = 1, .seed = 3}, {.temperature = 0.8f, .top_k = 50, .seed = 4}};
  for (const backend::SamplingParams& params : all) {
    request.sampling = params;
    EXPECT_EQ(generate(graphs, request), generate(eager, request)) << "temperature " << params.temperature;
  }
  EXPECT_GE(graphs.cuda->graph_replays(), 190);  // two of three requests, but for the first two steps
  EXPECT_EQ(eager.cuda->graph_replays(), 0);
  const auto counts = [](const Loaded& loaded) {
    std::vector<std::pair<std::string, int64_t>> result;
    for (const backend::KernelLaunches& l : loaded.cuda->launches()) result.emplace_back(l.kernel, l.count);
    return result;
  };
  EXPECT_EQ(counts(graphs), counts(eager));
}

// Rows of different lengths that pass page boundaries, as many as a graph takes.
TEST_F(Gpu, replayed_batches_draw_what_eager_batches_draw) {
  const Source source(kTiny);
  const auto run = [&](int most_rows, MoeKernel moe, bool eager) {
    constexpr int kPages = 4, kSteps = 150;
    const model::StepLimits limits{
        .max_tokens = 64, .max_rows = 40, .kv_pages = {most_rows * kPages, most_rows * kPages}};
    const auto cuda =
        backend::make_cuda_backend(model::backend_config(source.config, limits), {.moe = moe, .eager = eager});
    const model::GptOss gpt = model::load(*cuda, source.config, source.weights);
    const backend::SamplingParams greedy{.temperature = 0};
    std::vector<std::vector<int32_t>> drawn;
    std::vector<int32_t> last(static_cast<size_t>(most_rows), 17);
    for (int s = 0; s < kSteps; ++s) {
      const int rows = s < 60 ? most_rows : most_rows - 2;
      model::Step step;
      for (int r = 0; r < rows; ++r) {
        const int position = s;
        step.token_ids.push_back(s == 0 ? 17 + r : last[static_cast<size_t>(r)]);
        step.positions.push_back(position);
        step.rows.push_back({.first_token = r, .tokens = 1, .context = position + 1});
        step.logit_tokens.push_back(r);
        step.sample_rows.push_back({.params = &greedy, .position = position});
        for (auto& kv : step.kv) {
          kv.pages_per_row = position / backend::kPageTokens + 1;
          kv.slots.push_back((r * kPages + position / backend::kPageTokens) * backend::kPageTokens +
                             position % backend::kPageTokens);
          for (int p = 0; p < kv.pages_per_row; ++p) kv.page_ids.push_back(r * kPages + p);
        }
      }
      last.clear();
      for (const backend::Drawn& row : cuda->wait(*model::forward(*cuda, gpt, step))) last.push_back(row.token);
      drawn.push_back(last);
    }
    EXPECT_EQ(cuda->graph_replays() > 100, !eager);
    return drawn;
  };
  for (const int rows : {5, 10, 37})
    for (const MoeKernel moe : {MoeKernel::kMarlin, MoeKernel::kAuto})
      EXPECT_EQ(run(rows, moe, false), run(rows, moe, true)) << rows << " rows, " << name_of(moe);
}

// One token each at position 0 of a page of its own.
model::Step first_tokens(int rows, const backend::SamplingParams& params) {
  model::Step step;
  for (int r = 0; r < rows; ++r) {
    step.token_ids.push_back(r);
    step.positions.push_back(0);
    step.rows.push_back({.first_token = r, .tokens = 1, .context = 1});
    step.logit_tokens.push_back(r);
    step.sample_rows.push_back({.params = &params, .position = 0});
    for (auto& kv : step.kv) {
      kv.pages_per_row = 1;
      kv.slots.push_back(r * backend::kPageTokens);
      kv.page_ids.push_back(r);
    }
  }
  return step;
}

// As many layers as the largest model; a graph's size does not depend on their widths. Others on the card would be
// measured with it.
TEST_F(Gpu, graphs_take_no_more_memory_than_the_budget_says) {
  model::ModelConfig config = model::gpt_oss_120b();
  config.dims.hidden = config.dims.inter = 192;
  config.dims.vocab = 512;
  config.bos_id = config.pad_id = 0;
  config.eos_ids = {0};
  const Source source(config, 7);
  constexpr int kSizes = 128;
  const auto be =
      model::backend_config(config, {.max_tokens = kSizes, .max_rows = kSizes, .kv_pages = {kSizes, kSizes}});
  const auto cuda = backend::make_cuda_backend(be, {});
  const model::GptOss gpt = model::load(*cuda, config, source.weights);
  const backend::SamplingParams greedy{.temperature = 0};
  const auto run = [&](int rows) { cuda->wait(*model::forward(*cuda, gpt, first_tokens(rows, greedy))); };
  run(1);  // ends loading
  for (int rows = 1; rows <= kSizes; ++rows) run(rows);
  const int64_t before = backend::cuda_memory().free_bytes;
  for (int rows = 1; rows <= kSizes; ++rows) run(rows), run(rows);
  const int64_t taken = before - backend::cuda_memory().free_bytes;
  std::printf("%d graphs of %d layers took %.1f MB\n", kSizes, 36, static_cast<double>(taken) / 1e6);
  EXPECT_GE(cuda->graph_replays(), kSizes);
  EXPECT_LE(taken, backend::cuda_memory_needs(be, {}).graphs);
}

TEST_F(Gpu, a_copied_page_is_as_good_as_the_first) {
  const Source source(kTiny);
  const model::StepLimits limits{.max_tokens = 64, .max_rows = 4, .kv_pages = {3, 3}};
  for (const auto& [kv, moe] : {std::pair{Kv::kF32, MoeKernel::kReference}, {Kv::kBf16, MoeKernel::kMarlin}}) {
    const auto cuda = backend::make_cuda_backend(model::backend_config(source.config, limits), {.kv = kv, .moe = moe});
    expect_page_copies(*cuda, model::load(*cuda, source.config, source.weights));
  }
}

TEST_F(Gpu, tickets_may_wait_while_the_next_step_runs) {
  const Source source(kTiny);
  const engine::SessionLimits limits{.max_context = 64, .chunk_tokens = 8, .max_logit_rows = 2};
  Loaded loaded(source, limits, Which::kCuda);
  const backend::SamplingParams greedy{.temperature = 0}, drawn{.seed = 9};
  const auto run = [&](bool at_once) {
    const engine::Session session(*loaded.be, loaded.gpt, limits);
    std::vector<backend::Ticket> tickets;
    std::vector<std::vector<int32_t>> tokens;
    const auto wait = [&](backend::Ticket ticket) {
      tokens.emplace_back();
      for (const backend::Drawn& one : loaded.be->wait(ticket)) tokens.back().push_back(one.token);
    };
    for (int i = 0; i < 3; ++i) {
      model::Step step = session.make_step(some_tokens(static_cast<size_t>(5 + i), source.config.dims.vocab), 0);
      step.logit_tokens = {1, 4};
      step.sample_rows = {{.params = &greedy, .position = 2}, {.params = &drawn, .position = 5}};
      tickets.push_back(*model::forward(*loaded.be, loaded.gpt, step));
      if (at_once) wait(tickets.back());
    }
    for (size_t i = 0; !at_once && i < tickets.size(); ++i) wait(tickets[i]);
    return tokens;
  };
  const auto want = run(true);
  EXPECT_EQ(run(false), want);
  EXPECT_EQ(want[0].size(), 2u);
}

TEST_F(Gpu, launches_name_the_kernels_that_ran) {
  const Source source(kTiny);
  Loaded loaded(source, 20, 20);
  all_logits(loaded, some_tokens(20, source.config.dims.vocab));
  const std::vector<backend::KernelLaunches> launches = loaded.cuda->launches();
  const auto count = [&](std::string_view kernel) {
    const auto at = std::find_if(launches.begin(), launches.end(), [&](const auto& l) { return l.kernel == kernel; });
    return at == launches.end() ? 0 : at->count;
  };
  const int64_t layers = source.config.dims.layers;
  EXPECT_EQ(count("any_embed_f32_bf16"), 1);
  EXPECT_EQ(count("any_attend_f32_f32"), layers);
  EXPECT_EQ(count("any_attend_f32_bf16"), 0);
  EXPECT_EQ(count("any_moe_gate_up_f32_mxfp4"), layers);
  EXPECT_EQ(count("any_linear_f32_bf16"), 5 * layers + 1);
  EXPECT_EQ(count("any_sample_draw_f32"), 0);
}

TEST_F(Gpu, too_large_a_cache_is_refused_with_the_bytes_wanted) {
  const Source source(kParity / "window_e8");
  const model::StepLimits limits{.max_tokens = 1, .max_rows = 1, .kv_pages = {1 << 26, 1 << 26}};
  try {
    static_cast<void>(backend::make_cuda_backend(model::backend_config(source.config, limits), {}));
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kOutOfMemory) << error.what();
    EXPECT_NE(std::string_view(error.what()).find("GiB free"), std::string_view::npos) << error.what();
  }
}

}  // namespace
}  // namespace nibble
