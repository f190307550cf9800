// Every published variant of a head on the host's backends, against tools/eagle3_model.py
// (tools/make_eagle_goldens.py).

#include "backend/cpu/cpu_backend.h"
#include "backend/reference/reference_backend.h"
#include "head_testing.h"

namespace nibble::test {
namespace {

MakeBackend reference() {
  return [](const backend::BackendConfig& config) { return backend::make_reference_backend(config); };
}
MakeBackend cpu(backend::Activations activations, backend::KvDtype kv = backend::KvDtype::kF32) {
  return [=](const backend::BackendConfig& config) {
    return backend::make_cpu_backend(config, {.threads = 2, .kv = kv, .activations = activations, .poison = true});
  };
}

class Head : public testing::TestWithParam<const char*> {};

TEST_P(Head, computes_what_the_independent_model_does) {
  check_head_golden(GetParam(), reference(), 1e-5, true);
  check_head_golden(GetParam(), cpu(backend::Activations::kF32), 1e-5, true);
}

TEST_P(Head, sequences_draft_together_as_the_reference_says) {
  const Eagle3Target target;
  const model::eagle3::Head head = target.load(kEagle3Data / GetParam());
  check_head_traffic(head, cpu(backend::Activations::kF32), reference(), 1e-5);
  check_head_traffic(head, cpu(backend::Activations::kF32, backend::KvDtype::kBf16), reference(), 2e-2);
}

INSTANTIATE_TEST_SUITE_P(Published, Head, testing::ValuesIn(kHeadVariants),
                         [](const auto& tested) { return std::string(tested.param); });

}  // namespace
}  // namespace nibble::test
