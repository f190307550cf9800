// A head on a card beside the host's loops. Skipped, with the reason, where there is no device.

#include "backend/cuda/cuda_backend.h"
#include "eagle3_testing.h"

namespace nibble::test {
namespace {

class Eagle3OnCard : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const backend::CudaAvailable available = backend::cuda_available();
    if (!available.yes) GTEST_SKIP() << available.reason;
  }
  const Eagle3Setup setup_{.rows = 16384, .sequences = 80};
};

TEST_P(Eagle3OnCard, computes_what_the_host_does) { check_eagle3_golden(GetParam(), setup_); }

TEST_P(Eagle3OnCard, several_sequences_read_and_draft_together) {
  const Eagle3Target target;
  const model::eagle3::Head head(target.load(kEagle3Data / GetParam()));
  const std::unique_ptr<Eagle3Runner> runner = make_eagle3_runner(head.weights(), setup_);
  check_eagle3_traffic(head, *runner, {.sequences = 5, .rounds = 9});
  for (HeadRunner::SequenceId id = 10; id < 15; ++id) runner->end(id);
  check_eagle3_traffic(head, *runner, {.sequences = 70, .rounds = 2});
  for (HeadRunner::SequenceId id = 10; id < 80; ++id) runner->end(id);
  check_eagle3_traffic(head, *runner, {.sequences = 2, .rounds = 4, .most_rows = 400});
  for (HeadRunner::SequenceId id = 10; id < 12; ++id) runner->end(id);
  check_eagle3_traffic(head, *runner, {.sequences = 20, .rounds = 6, .unread = true});
}

TEST_P(Eagle3OnCard, who_finds_no_room_drafts_nothing) {
  const Eagle3Target target;
  check_eagle3_room(model::eagle3::Head(target.load(kEagle3Data / GetParam())), setup_);
}

INSTANTIATE_TEST_SUITE_P(Published, Eagle3OnCard, testing::ValuesIn(kEagle3Variants),
                         [](const auto& tested) { return std::string(tested.param); });

// The shape of the published heads of gpt-oss-120b, and one whose heads are 128 wide.
TEST(Eagle3TrueShapes, compute_what_the_host_does) {
  const backend::CudaAvailable available = backend::cuda_available();
  if (!available.yes) GTEST_SKIP() << available.reason;
  for (const int64_t head_dim : {64, 128}) {
    backend::HeadDims dims = backend::cuda::kEagle3Of120b;
    dims.vocab = 40000;  // of the embedding, which is but a table
    dims.head_dim = head_dim, dims.heads = 4096 / head_dim;
    backend::cuda::RandomHead random(dims);
    const std::unique_ptr<Eagle3Runner> runner = make_eagle3_runner(random.weights, {.rows = 1024});
    model::eagle3::Weights weights;
    static_cast<backend::HeadWeights&>(weights) = random.weights;
    const model::eagle3::Head head(std::move(weights));
    check_eagle3_traffic(head, *runner, {.sequences = 2, .rounds = 3, .most_rows = 3, .drafts = {3, 2}});
  }
}

}  // namespace
}  // namespace nibble::test
