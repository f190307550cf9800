// The policies on a card, against exact products and the codes of base/dtype.h: EmulatedMx on any, NativeMx where the
// card and the build have the instruction.

#include "backend/cuda/arch/sm121/mx_testing.h"
#include "backend/cuda/testing.h"

#include <gtest/gtest.h>

namespace nibble::backend::cuda {
namespace {

class Mx : public CudaTest {};

void check_probe(const MxProbe& probe) {
  for (int product = 0; product < kMxProductCount; ++product)
    check_mx_product(product, [&](int which, const std::vector<MxFragments>& fragments, const std::vector<float>& d) {
      const DeviceArray<MxFragments> from(fragments);
      const DeviceArray<float> sums(d);
      probe.product(which, from.get(), sums.get(), fragments.size());
      cuda_check(cudaGetLastError());
      return sums.host();
    });
  for (int format = 0; format < kMxPairFormatCount; ++format)
    check_mx_pairs(format, [&](int which, const std::vector<float>& values) {
      const DeviceArray<float> from(values);
      const DeviceArray<uint32_t> pairs(values.size() / 2);
      probe.pairs(which, from.get(), pairs.get(), pairs.size());
      cuda_check(cudaGetLastError());
      return pairs.host();
    });
}

TEST_F(Mx, products_through_f16_are_the_exact_ones) { check_probe(emulated_mx_probe()); }

TEST_F(Mx, the_instruction_gives_the_exact_products_and_codes) {
  const MxProbe probe = native_mx_probe();
  if (probe.product == nullptr) GTEST_SKIP() << "want a build for sm_120a or sm_121a";
  if (const int major = open_device(0).major; major != 12)
    GTEST_SKIP() << "want compute capability 12, found " << major;
  check_probe(probe);
}

}  // namespace
}  // namespace nibble::backend::cuda
