// A head on a card beside the goldens and the reference. Skipped, with the reason, where there is no device.

#include "backend/cpu/cpu_backend.h"
#include "backend/cuda/cuda_backend.h"
#include "backend/reference/reference_backend.h"
#include "base/thread_pool.h"
#include "convert/dummy_head.h"
#include "head_testing.h"

namespace nibble::test {
namespace {

constexpr double kTolerance = 0x1p-5;  // of bf16

std::unique_ptr<backend::Backend> card(const backend::BackendConfig& config) {
  return backend::make_cuda_backend(config, {.backend = backend::BackendKind::kCuda}, {});
}
std::unique_ptr<backend::Backend> reference(const backend::BackendConfig& config) {
  return backend::make_reference_backend(config);
}

class HeadOnCard : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const backend::CudaAvailable available = backend::cuda_available();
    if (!available.yes) GTEST_SKIP() << available.reason;
  }
};

TEST_P(HeadOnCard, computes_what_the_independent_model_does) { check_head_golden(GetParam(), card, kTolerance, false); }

TEST_P(HeadOnCard, sequences_draft_together_as_the_reference_says) {
  const Eagle3Target target;
  check_head_traffic(target.load(kEagle3Data / GetParam()), card, reference, kTolerance);
}

INSTANTIATE_TEST_SUITE_P(Published, HeadOnCard, testing::ValuesIn(kHeadVariants),
                         [](const auto& tested) { return std::string(tested.param); });

// The shape of the published heads of gpt-oss-120b, whose attention is on tensor cores, and one whose heads are 128
// wide; beside the CPU, as the reference would take minutes.
TEST(HeadTrueShapes, compute_what_the_host_does) {
  const backend::CudaAvailable available = backend::cuda_available();
  if (!available.yes) GTEST_SKIP() << available.reason;
  for (const int64_t head_dim : {64, 128}) {
    model::ModelConfig config = model::gpt_oss_120b();
    config.dims.vocab = 4096;
    config.dims.head_dim = head_dim, config.dims.heads = 4096 / head_dim;
    const std::vector<Bf16> table(static_cast<size_t>(config.dims.vocab * config.dims.hidden), Bf16::from_float(0.5f));
    const backend::HostWeight embedding{.role = backend::WeightRole::kEmbedding,
                                        .values = {.dtype = DType::kBf16,
                                                   .shape = {config.dims.vocab, config.dims.hidden},
                                                   .bytes = std::as_bytes(std::span(table))},
                                        .scales = {}};
    ThreadPool pool(8);
    const model::eagle3::Head head =
        convert::dummy_head({config, {&embedding, 1}}, {.draft_vocab = 2048, .pool = &pool});
    check_head_traffic(
        head, card,
        [](const backend::BackendConfig& of) {
          return backend::make_cpu_backend(
              of, {.threads = 8, .kv = backend::KvDtype::kF32, .activations = backend::Activations::kF32});
        },
        kTolerance);
  }
}

}  // namespace
}  // namespace nibble::test
