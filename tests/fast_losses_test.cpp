// The table of --fast (src/app/setup/backend_choice.cpp), measured with nibble-tiny: how much perplexity each set of
// formats costs.

#include "app/setup/backend_choice.h"
#include "lab/verify/verify.h"
#include "backend/cpu/kernels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace nibble::app {
namespace {

const std::filesystem::path kTiny = std::filesystem::path(NIBBLE_SOURCE_DIR) / "models/nibble-tiny";
constexpr int64_t kWindow = 512;  // of nibble perplexity
// How much another instruction set, with another order of sums, changes a loss, in percent: a tie may be rounded the
// other way.
constexpr double kNear = 0.1;

using backend::Activations;
using backend::KvDtype;
using backend::WeightFormat;

// Percent of this are lost, which is what `nibble perplexity -m models/nibble-tiny -f models/nibble-tiny/heldout.txt
// --backend cpu --cpu-isa avx2 --moe-activation f32` prints; the same with each set's flags (--mxfp4-layers all,
// --kv-cache-dtype fp8, …).
constexpr double kExactPerplexity = 21.4008;
constexpr Activations kExact = Activations::kBf16, kCodes = Activations::kMxfp8;  // what dense layers multiply
// Candidates that are not the fastest anywhere.
constexpr FastSet kCandidates[] = {
    {WeightFormat::kMxfp4, kCodes, Activations::kMxfp6, KvDtype::kE4m3, 0.500},
    {WeightFormat::kMxfp4, kCodes, Activations::kMxfp8, KvDtype::kE4m3, 0.541},
    {WeightFormat::kMxfp4, kCodes, Activations::kMxfp4, KvDtype::kE4m3, 2.475},
    {WeightFormat::kMxfp4, kCodes, Activations::kBf16, KvDtype::kBf16, 0.320},
    {WeightFormat::kMxfp8, kCodes, Activations::kMxfp6, KvDtype::kE4m3, -0.061},
    {WeightFormat::kMxfp8, kCodes, Activations::kMxfp8, KvDtype::kE4m3, 0.062},
    {WeightFormat::kMxfp8, kCodes, Activations::kMxfp4, KvDtype::kE4m3, 1.538},
    {WeightFormat::kMxfp8, kCodes, Activations::kBf16, KvDtype::kBf16, -0.300},
    {WeightFormat::kMxfp8, kExact, Activations::kBf16, KvDtype::kBf16, 0.057},
    {WeightFormat::kMxfp4, kExact, Activations::kMxfp8, KvDtype::kE4m3, 0.944},
    {WeightFormat::kMxfp4, kExact, Activations::kMxfp6, KvDtype::kE4m3, 0.940},
    {{}, kExact, Activations::kBf16, KvDtype::kE4m3, -0.001},
    {{}, kExact, Activations::kBf16, KvDtype::kE4m3, 0.049, {}, true},
    {{}, kExact, Activations::kInt8, KvDtype::kBf16, 0.013},
    {{}, kExact, Activations::kMxfp8, KvDtype::kBf16, 0.260},
    {{}, kExact, Activations::kMxfp6, KvDtype::kBf16, 0.168},
    {{}, kExact, Activations::kMxfp4, KvDtype::kBf16, 2.177},
};

std::vector<FastSet> all_sets() {
  std::vector<FastSet> sets(fast_sets().begin(), fast_sets().end());
  sets.insert(sets.end(), std::begin(kCandidates), std::end(kCandidates));
  return sets;
}

bool has(backend::CpuIsa isa) {
  const auto here = backend::cpu::kernels_here();
  return std::any_of(here.begin(), here.end(), [isa](const auto& each) { return each.isa == isa; });
}

double perplexity(ModelOptions options) {
  options.model = kTiny;
  options.run.backend = BackendKind::kCpu;
  options = resolved_model(options);
  Terminal terminal({.quiet = true});
  const ModelSource source = open_model(options, terminal);
  std::ifstream file(kTiny / "heldout.txt");
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  const std::vector<int32_t> ids = source.tokenizer.encode(text);
  return score({source, options, ids, kWindow}, terminal).perplexity();
}

ModelOptions exact() {
  ModelOptions options;
  if (has(backend::CpuIsa::kAvx2)) options.run.isa = backend::CpuIsa::kAvx2;  // as the table: AMX rounds less
  options.run.activations = backend::Activations::kF32;
  return options;
}

TEST(fast_losses, begin_at_the_exact_perplexity) {
  EXPECT_NEAR(perplexity(exact()), kExactPerplexity, kExactPerplexity * kNear / 100);
}

class FastLosses : public testing::TestWithParam<FastSet> {};

TEST_P(FastLosses, are_those_of_the_table) {
  const FastSet& set = GetParam();
  ModelOptions options = exact();
  options.run.dense = {.qkv = set.dense, .o = set.dense, .lm_head = set.dense};
  options.run.kv = set.kv;
  if (rounds(set.activations)) options.run.activations = set.activations;
  if (rounds(set.dense_activations)) options.run.dense_activations = set.dense_activations;
  if (set.fp8_attention) options.run.attention_activations = backend::AttentionActivations::kFp8;
  if (set.activations == backend::Activations::kInt8 && backend::cpu::kernels_for(options.run.isa).int8 == nullptr)
    GTEST_SKIP() << "this CPU has no int8 products";
  EXPECT_NEAR(100 * (perplexity(options) / kExactPerplexity - 1), set.loss, kNear) << describe(set);
}

INSTANTIATE_TEST_SUITE_P(all, FastLosses, testing::ValuesIn(all_sets()), [](const auto& at) {
  std::string name;
  for (const char c : describe(at.param))
    if (c != ',') name += c == ' ' ? '_' : c;
  return name;
});

}  // namespace
}  // namespace nibble::app
