// The CUDA backend behind the waist, against transformers' goldens and against the reference stage by stage.

#include "backend/cuda/arch/arch.h"
#include "backend/cuda/testing/mx_gemm_emulated.h"
#include "base/error.h"
#include "gpu_testing.h"
#include "model/compare.h"

#include <fmt/format.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstdio>
#include <memory>
#include <string>

namespace nibble {
namespace {

using backend::Activations;
using backend::LayerKind;

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

const char* const kGoldens[] = {"window_e8", "experts_e32", "yarn_8k", "puzzle"};

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
    if (name != "puzzle")  // whose experts are chosen at near-ties
      EXPECT_LT(worst_bf16, 0.05) << name;
  }
}

// How both run, and how far CUDA may be from the reference: f16 activations before MX weights lose 2^-12 each.
struct Path {
  KernelFamily family = KernelFamily::kReference;
  backend::DenseFormats dense = {};
  double tolerance = 1e-4;
  Activations activations = Activations::kAuto, dense_activations = Activations::kAuto;
  bool attention_sinks = true;
  std::vector<backend::cuda::Arch> architectures = backend::cuda::architectures();
};

// One model on both.
struct Pair {
  Pair(const Source& source, const model::StepLimits& limits, const Path& path_in = {}) : path(path_in) {
    const auto config = model::backend_config(source.config, limits, path.dense);
    reference = backend::make_reference_backend(config, {.backend = backend::BackendKind::kCuda,
                                                         .activations = path.activations,
                                                         .dense_activations = path.dense_activations});
    cuda = backend::make_cuda_backend(config,
                                      {.kv = Kv::kF32,
                                       .family = path.family,
                                       .activations = path.activations,
                                       .dense_activations = path.dense_activations},
                                      {}, path.architectures);
    on_reference = model::load(*reference, source.config, source.weights);
    on_cuda = model::load(*cuda, source.config, source.weights);
    on_reference.attention_sinks = on_cuda.attention_sinks = path.attention_sinks;
  }

  void compare(const model::Step& step, std::string_view what) const {
    expect_same(model::compare({*reference, on_reference}, {*cuda, on_cuda}, step, path.tolerance), what,
                path.family == KernelFamily::kReference);
  }

  Path path;
  std::unique_ptr<backend::Backend> reference, cuda;
  model::GptOss on_reference, on_cuda;
};

// The whole of one sequence as one step.
void compare_prompt(const Source& source, const std::vector<int32_t>& tokens, std::string_view what,
                    const Path& path = {}) {
  const int count = static_cast<int>(tokens.size());
  const test::OneSequence limits{.max_context = count, .chunk_tokens = count, .max_logit_rows = 2};
  const Pair pair(source, test::step_limits(limits), path);
  model::Step step = engine::step_alone(tokens);
  step.logit_tokens = {0, count - 1};
  pair.compare(step, what);
}

TEST_F(Gpu, every_stage_matches_the_reference_at_edge_token_counts) {
  for (const std::string name : {"window_e8", "experts_e32"}) {
    const Source source(kParity / name);
    for (const size_t count : {1, 2, 3, 7, 8, 9, 17, 64, 65, 129, 150})
      compare_prompt(source, some_tokens(count, source.config.dims.vocab), name + " " + std::to_string(count));
  }
}

TEST_F(Gpu, every_stage_of_layers_that_differ_matches_the_reference) {
  const Source source(kParity / "puzzle");
  for (const auto& [family, tolerance] : {std::pair(KernelFamily::kReference, 1e-4), {KernelFamily::kAuto, 0.04}})
    for (const size_t count : {1, 2, 9, 65, 150})
      compare_prompt(source, some_tokens(count, source.config.dims.vocab),
                     fmt::format("puzzle, {}, {}", name_of(family), count), {.family = family, .tolerance = tolerance});
}

TEST_F(Gpu, every_stage_matches_the_reference_without_sinks) {
  const Source source(kParity / "window_e8");
  compare_prompt(source, some_tokens(140, source.config.dims.vocab), "no sinks", {.attention_sinks = false});
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
  static void compare_prompts(const Source& source, KernelFamily family, std::initializer_list<size_t> counts,
                              double tolerance) {
    for (const size_t count : counts)
      compare_prompt(source, some_tokens(count, source.config.dims.vocab),
                     fmt::format("{}, {} tokens", GetParam().name, count), {family, GetParam().dense, tolerance});
  }
};
INSTANTIATE_TEST_SUITE_P(formats, GpuFormats, testing::ValuesIn(kDenseFormats),
                         [](const auto& of) { return std::string(of.param.name); });

TEST_P(GpuFormats, marlin_matches_the_reference_on_nibble_tiny_at_edge_token_counts) {
  compare_prompts(Source(kTiny), KernelFamily::kStreaming, {1, 2, 3, 7, 8, 9, 17, 65}, 0.04);
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
  compare_prompts(Source(two_layers_of_120b(), 7), KernelFamily::kStreaming, {1, 3, 9}, 0.02);
}

// What lies at a tie may fall to either side: a step of E4M3 is an eighth of a value; u is f16 before it is rounded, so
// one in a few hundred does. nibble-tiny multiplies errors by a hundred and more: its perplexity can be compared, not
// its activations.
TEST_F(Gpu, experts_of_rounded_activations_match_the_reference_that_rounds_so) {
  const Source wide(two_layers_of_120b(), 7);
  const auto name = [](const Path& path, size_t tokens) {
    return fmt::format("{}, {}, {} tokens", name_of(path.family), name_of(path.activations), tokens);
  };
  for (const KernelFamily family : {KernelFamily::kAuto, KernelFamily::kGemm}) {
    constexpr size_t tokens = 9;  // fewer are not rounded
    const std::vector<int32_t> prompt = some_tokens(tokens + 10, wide.config.dims.vocab);
    // Without a near-tie in the first layer. A step of E2M1 is half of a value: too much for the layers behind.
    for (const auto format : {Activations::kMxfp8, Activations::kMxfp6}) {
      const Path path{.family = family, .tolerance = 0.3, .activations = format};
      compare_prompt(wide, {prompt.begin() + 10, prompt.end()}, name(path, tokens), path);
    }
  }
}

// The kernels of GB10 with an emulated instruction: as above, but u is f32 before it is rounded, so fewer lie on the
// other side of a tie.
std::vector<backend::cuda::Arch> emulated_spark() {
  return {backend::cuda::sm121_emulated(), backend::cuda::architectures().back()};
}
bool launched(const backend::Backend& cuda, std::string_view kernel) {
  const std::vector<backend::KernelLaunches> all = cuda.launches();
  return std::any_of(all.begin(), all.end(), [&](const auto& launch) { return launch.kernel == kernel; });
}

TEST_F(Gpu, block_scaled_experts_match_the_reference_that_rounds_so) {
  const Source wide(two_layers_of_120b(), 7);
  for (const size_t tokens : {9, 33}) {
    const std::vector<int32_t> prompt = some_tokens(tokens + 10, wide.config.dims.vocab);
    const Path path{.family = KernelFamily::kGemm,
                    .tolerance = 0.3,
                    .activations = Activations::kMxfp8,
                    .architectures = emulated_spark()};
    compare_prompt(wide, {prompt.begin() + 10, prompt.end()}, fmt::format("block-scaled, {} tokens", tokens), path);
  }
}

// On a GB10's kernels and on those of every card. Pages of f32: attention is the plain one, so a pass rounds what o
// takes. Narrow experts: the reference's time goes to the layers that are tested.
TEST_F(Gpu, dense_layers_of_rounded_activations_match_the_reference_that_rounds_so) {
  model::ModelConfig config = two_layers_of_120b();
  config.dims.inter = 576;
  const Source wide(config, 7);
  constexpr auto kFp8 = backend::WeightFormat::kMxfp8, kFp4 = backend::WeightFormat::kMxfp4;
  for (const backend::DenseFormats& dense : {backend::DenseFormats{kFp8, kFp4, kFp8}, {kFp4, kFp8, {}}})
    for (const size_t tokens : {9, 33})
      for (const bool block_scaled : {false, true}) {
        const std::vector<int32_t> prompt = some_tokens(tokens + 10, wide.config.dims.vocab);
        Path path{
            .family = KernelFamily::kGemm, .dense = dense, .tolerance = 0.3, .dense_activations = Activations::kMxfp8};
        if (block_scaled) path.architectures = emulated_spark();
        compare_prompt(wide, {prompt.begin() + 10, prompt.end()},
                       fmt::format("dense{}, {} tokens", block_scaled ? ", block-scaled" : "", tokens), path);
      }
}

// Of tokens[1..], from the logits of those before.
double mean_loss(const std::vector<float>& logits, const std::vector<int32_t>& tokens) {
  const size_t vocab = logits.size() / tokens.size();
  double loss = 0;
  for (size_t t = 0; t + 1 < tokens.size(); ++t) {
    const auto row = std::span(logits).subspan(t * vocab, vocab);
    const double most = *std::max_element(row.begin(), row.end());
    double sum = 0;
    for (const float value : row) sum += std::exp(value - most);
    loss += most + std::log(sum) - row[static_cast<size_t>(tokens[t + 1])];
  }
  return loss / static_cast<double>(tokens.size() - 1);
}

// The whole of nibble-tiny, with one router and the other, beside the same rounding on the kernels of every card. Ties
// that f16 turned move its activations, not its losses.
TEST_F(Gpu, block_scaled_products_lose_what_those_of_rounded_values_do) {
  using enum Activations;
  constexpr auto kFp8 = backend::WeightFormat::kMxfp8, kFp4 = backend::WeightFormat::kMxfp4;
  struct Case {
    Activations experts = kAuto, dense = kAuto;
    backend::DenseFormats layers = {};
    std::string_view kernel;  // of block-scaled products
  };
  const Case cases[] = {{.experts = kMxfp8, .kernel = "sm121_mx_gemm<gate_up, mxfp8>"},
                        {.experts = kMxfp6, .kernel = "sm121_mx_gemm<gate_up, mxfp6>"},
                        {.experts = kMxfp4, .kernel = "sm121_mx_gemm<gate_up, mxfp4>"},
                        {.dense = kMxfp8, .layers = {kFp8, kFp8, kFp8}, .kernel = "sm121_mx_gemm<mxfp8>"},
                        {.dense = kMxfp8, .layers = {kFp4, kFp4, kFp4}, .kernel = "sm121_mx_gemm<mxfp4>"}};
  const Source source(kTiny);
  for (const Case& c : cases)
    for (const int count : {64, 600}) {
      const auto config = model::backend_config(
          source.config, test::step_limits({.max_context = count, .chunk_tokens = count, .max_logit_rows = count}),
          c.layers);
      const backend::RunConfig run{
          .family = KernelFamily::kGemm, .activations = c.experts, .dense_activations = c.dense};
      const std::vector<int32_t> tokens = some_tokens(static_cast<size_t>(count), source.config.dims.vocab);
      double losses[2] = {};
      for (const bool block_scaled : {false, true}) {
        const auto be = backend::make_cuda_backend(
            config, run, {}, block_scaled ? emulated_spark() : std::vector{backend::cuda::architectures().back()});
        const model::GptOss gpt = model::load(*be, source.config, source.weights);
        losses[block_scaled ? 1 : 0] = mean_loss(test::all_logits(*be, gpt, tokens, count), tokens);
        EXPECT_EQ(launched(*be, c.kernel), block_scaled) << c.kernel;
      }
      std::printf("%s, %d tokens: loss %.4f beside %.4f of rounded values\n", std::string(c.kernel).c_str(), count,
                  losses[1], losses[0]);
      EXPECT_NEAR(losses[1], losses[0], 0.05 * losses[0]) << c.kernel;
    }
}

TEST_F(Gpu, activations_in_mx_blocks_have_their_bits_whoever_multiplies_them) {
  const Source source(kTiny);
  for (const auto& [family, count] :
       {std::pair{KernelFamily::kStreaming, 9}, {KernelFamily::kStreaming, 20}, {KernelFamily::kGemm, 20}}) {
    const test::OneSequence limits{.max_context = count, .chunk_tokens = count, .max_logit_rows = 1};
    for (const auto activations : {Activations::kMxfp8, Activations::kMxfp6, Activations::kMxfp4, Activations::kBf16}) {
      Loaded cuda(source, limits, Which::kCuda, {.family = family, .activations = activations});
      const model::Step step = engine::step_alone(some_tokens(static_cast<size_t>(count), source.config.dims.vocab));
      model::forward(*cuda.be, cuda.gpt, step);
      const std::vector<float> u = cuda.be->peek(backend::Slot::kExpertHidden).values;
      // Below the sign, the exponent and so many bits.
      const auto at_most = [&](int bits) {
        return std::all_of(u.begin(), u.end(),
                           [bits](float value) { return (std::bit_cast<uint32_t>(value) & (0x7fffffu >> bits)) == 0; });
      };
      SCOPED_TRACE(testing::Message() << name_of(family) << ", " << name_of(activations) << ", " << count << " tokens");
      EXPECT_EQ(at_most(3), activations != Activations::kBf16);
      EXPECT_EQ(at_most(1), activations == Activations::kMxfp4);
    }
  }
}

// Beyond eight tokens: activations of 16 bits before every matrix, bf16 on Hopper.
TEST_P(GpuFormats, gemms_match_the_reference_on_nibble_tiny) {
  compare_prompts(Source(kTiny), KernelFamily::kGemm, {9, 17, 65}, 0.1);
}

TEST_P(GpuFormats, gemms_match_the_reference_at_real_widths) {
  compare_prompts(Source(two_layers_of_120b(), 7), KernelFamily::kGemm, {17}, 0.05);
}

// The reference reads the file's Q8_0 as the nearest bf16, as the card holds it: the same tolerances as without a file.
TEST_P(GpuFormats, gguf_matches_the_reference_that_rounds_as_the_card_does) {
  const test::ScratchDir dir, wide_dir;
  model::ModelConfig few_experts = two_layers_of_120b();
  few_experts.dims.experts = 16;
  const Source gguf(Source(kTiny), dir), wide(Source(few_experts, 7), wide_dir);
  if (GetParam().dense.o == std::nullopt) compare_prompts(gguf, KernelFamily::kReference, {3}, 1e-4);
  compare_prompts(gguf, KernelFamily::kStreaming, {3}, 0.04);
  compare_prompts(gguf, KernelFamily::kGemm, {17}, 0.1);
  compare_prompts(wide, KernelFamily::kStreaming, {2}, 0.02);
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
  const Pair pair(source, limits);
  for (const model::Step& before : std::span(steps).first(2)) {
    model::forward(*pair.reference, pair.on_reference, before);
    model::forward(*pair.cuda, pair.on_cuda, before);
  }
  pair.compare(steps[2], "seven sequences");
}

}  // namespace
}  // namespace nibble
