// What files hold, on a card: matrices in every type of llama.cpp's, experts in floats, layers that differ.

#include "base/ggml_blocks.h"
#include "base/mx.h"
#include "engine/loop.h"
#include "gguf_rewritten.h"
#include "gpu_testing.h"

#include <cstdio>
#include <string>

namespace nibble {
namespace {

// How far a card's logits are from the reference's, of the same weights: all in f32, and as `auto` runs them.
void expect_reference_logits(const Source& source, const std::vector<int32_t>& prompt, const std::string& what,
                             double bound) {
  const test::OneSequence limits{.max_context = static_cast<int64_t>(prompt.size()),
                                 .chunk_tokens = static_cast<int>(prompt.size()),
                                 .max_logit_rows = static_cast<int>(prompt.size())};
  Loaded reference(source, limits, Which::kReference), exact(source, limits, Which::kCuda),
      fast(source, limits, Which::kCuda, {.kv = Kv::kBf16});
  const std::vector<float> want = all_logits(reference, prompt);
  const double by_loops = relative(all_logits(exact, prompt), want), by_auto = relative(all_logits(fast, prompt), want);
  std::printf("%s: %.2e from the reference in f32, %.2e as auto\n", what.c_str(), by_loops, by_auto);
  EXPECT_LT(by_loops, bound) << what;
  EXPECT_LT(by_auto, 0.05) << what;
}

constexpr DType kTypes[] = {DType::kF32,     DType::kF16,     DType::kBf16,    DType::kGgmlQ8,    DType::kGgmlQ40,
                            DType::kGgmlQ41, DType::kGgmlQ50, DType::kGgmlQ51, DType::kGgmlQ2K,   DType::kGgmlQ3K,
                            DType::kGgmlQ4K, DType::kGgmlQ5K, DType::kGgmlQ6K, DType::kGgmlIq4Nl, DType::kGgmlIq4Xs};

TEST_F(Gpu, every_type_of_ggml_gives_the_reference_logits) {
  Source source(kTiny);
  const test::ScratchDir dir;
  const checkpoint::GgufCheckpoint file =
      test::as_gguf(source.config, source.weights, dir / "m.gguf", {.dense = DType::kF32});
  const std::vector<int32_t> prompt = some_tokens(24, source.config.dims.vocab);
  for (const DType type : kTypes)
    for (const bool experts : {false, true}) {
      const test::Rewritten as(file, type, experts);
      source.weights =
          model::bind_weights(as.tensors, source.config,
                              {.experts = experts ? std::optional(backend::WeightFormat::kGgmlMxfp4) : std::nullopt});
      // What is a signed byte times a scale becomes bf16 on a card, which the reference does not round it to.
      const bool rounded = !experts && (type == DType::kGgmlQ8 || exact_type(type));
      expect_reference_logits(source, prompt,
                              std::string(name_of(type)) + (experts ? " experts, which become MXFP4" : " dense"),
                              rounded ? 0.03 : 1e-4);
    }
}

// Few tokens multiply a file's Q8_0 as it is: beside a reference that has the embedding in bf16, as a card has it, what
// is left is the rounding of activations to f16. More tokens multiply the copy in bf16, bit for bit as without Q8_0.
TEST_F(Gpu, few_tokens_multiply_q8_0_exactly_and_more_its_copy) {
  constexpr auto kQ8 = backend::WeightFormat::kGgmlQ8;
  constexpr backend::DenseFormats kAll = {.qkv = kQ8, .o = kQ8, .lm_head = kQ8};
  const test::ScratchDir dir;
  const Source bf16(kTiny), q8(bf16, dir);
  const std::vector<int32_t> prompt = some_tokens(24, q8.config.dims.vocab);
  const auto far = [vocab = static_cast<size_t>(q8.config.dims.vocab)](const auto& got, const auto& want) {
    return median_distance(got, want, vocab);
  };
  for (const int chunk : {1, 3, 8, 24}) {
    const test::OneSequence limits{.max_context = 24, .chunk_tokens = chunk, .max_logit_rows = chunk};
    const backend::RunConfig run{.kv = Kv::kF32};
    Loaded reference(q8, limits, Which::kReference, {.backend = backend::BackendKind::kCuda}, kAll),
        rounded(q8, limits, Which::kCuda, run), exact(q8, limits, Which::kCuda, run, kAll);
    const std::vector<float> want = all_logits(reference, prompt), of_copy = all_logits(rounded, prompt),
                             found = all_logits(exact, prompt);
    const double error = far(found, want), error_of_copy = far(of_copy, want);
    std::printf("%d tokens: Q8_0 %.2e from the reference, rounded to bf16 %.2e\n", chunk, error, error_of_copy);
    backend::DenseFormats without = kAll;
    without.q8_copies = false;  // any_gemm rounds it to the same bf16
    Loaded alone(q8, limits, Which::kCuda, run, without);
    const std::vector<float> of_alone = all_logits(alone, prompt);
    if (chunk > 8) {
      EXPECT_EQ(found, of_copy);
      EXPECT_LT(relative(of_alone, want), 0.03);
      continue;
    }
    EXPECT_EQ(of_alone, found) << chunk;
    EXPECT_LT(error, 1e-3) << chunk;
    EXPECT_LT(3 * error, error_of_copy) << chunk;
    Loaded of_bf16(bf16, limits, Which::kCuda, run, kAll), wanted(bf16, limits, Which::kReference, {}, kAll);
    EXPECT_LT(far(all_logits(of_bf16, prompt), all_logits(wanted, prompt)), 1e-3) << chunk;
  }
}

// As trainers save them: bf16 [experts, in, out].
TEST_F(Gpu, experts_in_floats_become_the_mxfp4_that_they_were_made_of) {
  Source source(kTiny);
  const std::vector<int32_t> prompt = some_tokens(24, source.config.dims.vocab);
  const test::OneSequence limits{.max_context = 24, .chunk_tokens = 24, .max_logit_rows = 24};
  Loaded before(source, limits, Which::kCuda);
  const std::vector<float> want = all_logits(before, prompt);

  std::vector<checkpoint::TensorEntry> tensors;
  std::deque<std::vector<Bf16>> floats;
  for (const checkpoint::TensorEntry& entry : source.files->entries()) {
    constexpr std::string_view kBlocks = "_blocks";
    if (entry.name.ends_with("_scales")) continue;
    if (!entry.name.ends_with(kBlocks)) {
      tensors.push_back(entry);
      continue;
    }
    const std::string name = entry.name.substr(0, entry.name.size() - kBlocks.size());
    const RawTensor& blocks = entry.tensor;
    const RawTensor& scales = source.files->find(name + "_scales")->tensor;
    const int64_t experts = blocks.shape[0], rows = blocks.shape[1], cols = blocks.shape[2] * kMxBlock;
    std::vector<float> values(static_cast<size_t>(experts * rows * cols));
    mx_dequantize(
        {MxFormat::kMxfp4, std::span(reinterpret_cast<const uint8_t*>(blocks.bytes.data()), blocks.bytes.size()),
         std::span(reinterpret_cast<const uint8_t*>(scales.bytes.data()), scales.bytes.size())},
        values);
    std::vector<Bf16>& turned = floats.emplace_back(values.size());
    for (int64_t e = 0; e < experts; ++e)
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = 0; c < cols; ++c)
          turned[static_cast<size_t>((e * cols + c) * rows + r)] =
              Bf16::from_float(values[static_cast<size_t>((e * rows + r) * cols + c)]);
    tensors.push_back({name, {DType::kBf16, {experts, cols, rows}, std::as_bytes(std::span(turned))}});
  }
  ASSERT_FALSE(floats.empty());
  source.weights = model::bind_weights(tensors, source.config);
  Loaded after(source, limits, Which::kCuda);
  EXPECT_EQ(all_logits(after, prompt), want);
}

// Behind all three windows, with pages that the prefix cache evicts and resumes.
TEST_F(Gpu, layers_that_differ_say_what_the_oracle_says_token_for_token) {
  const Source source(kParity / "puzzle");
  const auto golden = checkpoint::Checkpoint::open(kParity / "puzzle/golden.safetensors");
  const auto tokens = values_of<int32_t>(golden, "tokens"), answer = values_of<int32_t>(golden, "answer");
  const std::vector<int32_t> prompt(tokens.begin(), tokens.end() - std::ssize(answer));
  for (const int chunk : {7, 256}) {
    const engine::EngineLimits limits{.max_context = 320, .max_sequences = 2, .max_batched_tokens = chunk};
    const auto config = model::backend_config(source.config, engine::step_limits(limits, source.config.dims));
    const auto cuda = backend::make_cuda_backend(config, {.kv = Kv::kF32, .family = KernelFamily::kReference});
    const model::GptOss gpt = model::load(*cuda, source.config, source.weights);
    engine::Loop loop(*cuda, gpt, limits);
    for (int turn = 0; turn < 3; ++turn) {
      const test::Output said =
          test::generate(loop, {.prompt = prompt, .max_tokens = std::ssize(answer), .sampling = {.temperature = 0}});
      EXPECT_EQ(said.tokens, answer) << "chunks of " << chunk << ", turn " << turn;
    }
    EXPECT_GT(loop.stats().prefix_hits, 0);
  }
}

// Keys past 448 and values below 2^-9, which E4M3 holds by the checkpoint's scales alone.
TEST_F(Gpu, fp8_pages_hold_what_the_calibrated_scales_make_of_keys_and_values) {
  Source source(kParity / "puzzle");
  model::scale_keys_and_values(model::bind_kv_scales(source.files->entries(), source.config, "puzzle"), source.weights);
  const auto golden = checkpoint::Checkpoint::open(kParity / "puzzle/golden.safetensors");
  const auto tokens = values_of<int32_t>(golden, "tokens"), positions = values_of<int32_t>(golden, "positions");
  const auto want = values_of<float>(golden, "fp8_logits");
  Loaded loaded(source, tokens.size(), 64, Kv::kE4m3, Attention::kReference);
  const std::vector<float> all = all_logits(loaded, tokens);
  const auto vocab = static_cast<size_t>(source.config.dims.vocab);
  for (size_t p = 0; p < positions.size(); ++p)
    EXPECT_LT(relative(std::span(all).subspan(static_cast<size_t>(positions[p]) * vocab, vocab),
                       std::span(want).subspan(p * vocab, vocab)),
              0.03)
        << "position " << positions[p];
}

}  // namespace
}  // namespace nibble
