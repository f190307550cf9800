// The tables of int8 products in 256 bits: AVX2's and AVX-VNNI's.
#include "backend/cpu/avx2_int8.h"
#include "backend/cpu/avx2_int8_lanes.h"
#include "backend/cpu/avx2_int8_rows.h"

HWY_PUSH_ATTRIBUTES(NIBBLE_AVX2_TARGET)
namespace nibble::backend::cpu {
namespace {

template <class Fp4, class Q8>
struct Table {
  static int64_t row_size(int64_t cols) {
    const auto size = static_cast<int64_t>(std::max((avx2::chunks_of<Fp4>(cols) + 1) * sizeof(avx2::Chunk<Fp4>),
                                                    (avx2::chunks_of<Q8>(cols) + 1) * sizeof(avx2::Chunk<Q8>)));
    return (size + 63) / 64 * 64;
  }

  static void prepare(WeightFormat format, std::span<const float> x, int64_t /*tokens*/, std::byte* out) {
    if (format == WeightFormat::kGgmlQ8) return avx2::prepare_row(format, x, reinterpret_cast<avx2::Chunk<Q8>*>(out));
    avx2::prepare_row(format, x, reinterpret_cast<avx2::Chunk<Fp4>*>(out));
  }

  static constexpr int kLanesFrom = 4;  // tokens from which a lane per row is faster

  template <WeightFormat kFormat, class Form>
  static void multiply_as(const MultiplyPreparedArgs& args) {
    (args.tokens >= kLanesFrom ? avx2::multiply_lanes<kFormat, Form> : avx2::multiply_rows<kFormat, Form>)(args);
  }

  static void multiply(const MultiplyPreparedArgs& args) {
    switch (args.w.format) {
      case WeightFormat::kMxfp4: return multiply_as<WeightFormat::kMxfp4, Fp4>(args);
      case WeightFormat::kGgmlMxfp4: return multiply_as<WeightFormat::kGgmlMxfp4, Fp4>(args);
      default: return multiply_as<WeightFormat::kGgmlQ8, Q8>(args);
    }
  }

  static constexpr Int8Kernels kKernels{
      .row_size = row_size, .prepare_row = prepare, .multiply_rows = multiply, .alike_tokens = kLanesFrom - 1};
};

}  // namespace

Kernels with_avx2(Kernels portable) {
  portable.int8 = &Table<avx2::Fp4Form<avx2::InWords>, avx2::Q8Words>::kKernels;
  return portable;
}

Kernels with_avx_vnni(Kernels portable) {
  if (!__builtin_cpu_supports("avxvnni")) return portable;
  portable.name = "avx vnni";
  portable.int8 = &Table<avx2::Fp4Form<avx2::InDwords>, avx2::Q8Bytes>::kKernels;
  return portable;
}

}  // namespace nibble::backend::cpu
HWY_POP_ATTRIBUTES
