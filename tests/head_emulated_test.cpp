// A head on a card that is not there: the backend's host code as it is, the head's kernels lane by lane.

#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/emulation/launchers.h"
#include "backend/reference/reference_backend.h"
#include "checkpoint/testing/files.h"
#include "convert/dummy_head.h"
#include "head_testing.h"

#include <cuda_runtime_api.h>  // the emulated one

namespace nibble::test {
namespace {

constexpr double kTolerance = 0x1p-5;  // of bf16

class HeadOnNoCard : public testing::Test {
 protected:
  void SetUp() override {
    backend::cuda::emulated_cuda() = {.card = {.name = "H100",
                                               .major = 9,
                                               .minor = 0,
                                               .multiprocessors = 8,
                                               .memory_bytes = int64_t{1} << 30,
                                               .cta_smem_bytes = 232448,
                                               .sm_smem_bytes = 233472,
                                               .integrated = false}};
  }
  // A replayed graph does nothing there.
  static std::unique_ptr<backend::Backend> card(const backend::BackendConfig& config) {
    return backend::make_cuda_backend(config, {.backend = backend::BackendKind::kCuda, .eager = true}, {});
  }
  static std::unique_ptr<backend::Backend> reference(const backend::BackendConfig& config) {
    return backend::make_reference_backend(config);
  }
};

class HeadEmulated : public HeadOnNoCard, public testing::WithParamInterface<const char*> {};

TEST_P(HeadEmulated, computes_what_the_independent_model_does) {
  check_head_golden(GetParam(), card, kTolerance, false);
}

TEST_P(HeadEmulated, sequences_draft_together_as_the_reference_says) {
  const Eagle3Target target;
  check_head_traffic(target.load(kEagle3Data / GetParam()), card, reference, kTolerance);
}

INSTANTIATE_TEST_SUITE_P(Published, HeadEmulated, testing::ValuesIn(kHeadVariants),
                         [](const auto& tested) { return std::string(tested.param); });

// Heads that are 64 wide go to the decode kernels of attention.
TEST_F(HeadOnNoCard, attention_of_published_heads_is_that_of_models) {
  model::ModelConfig config = model::preset("tiny");
  config.dims.layers = 8;
  config.dims.vocab = 96;
  const std::vector<Bf16> table(static_cast<size_t>(config.dims.vocab * config.dims.hidden), Bf16::from_float(0.5f));
  const backend::HostWeight embedding{.role = backend::WeightRole::kEmbedding,
                                      .values = {.dtype = DType::kBf16,
                                                 .shape = {config.dims.vocab, config.dims.hidden},
                                                 .bytes = std::as_bytes(std::span(table))},
                                      .scales = {}};
  ASSERT_EQ(config.dims.head_dim, 64);
  check_head_traffic(convert::dummy_head({config, {&embedding, 1}}, {.draft_vocab = 64}), card, reference, kTolerance,
                     5);
}

TEST_F(HeadOnNoCard, shapes_that_the_kernels_do_not_take_are_refused) {
  const Eagle3Target target;
  const auto refused = [&](auto change, const std::string& says) {
    model::eagle3::Head head = target.load(kEagle3Data / "plain");
    change(head.config.dims);
    expect_error([&] { static_cast<void>(HeadRun(head, card)); }, Code::kUnsupported, says);
  };
  refused([](backend::Dims& dims) { dims.hidden = 36; },
          "a head's hidden_size: want a multiple of 8 up to 8192, found 36");
  refused([](backend::Dims& dims) { dims.head_dim = 256; },
          "a head's head_dim: want a multiple of 8 up to 128, found 256");
}

}  // namespace
}  // namespace nibble::test
