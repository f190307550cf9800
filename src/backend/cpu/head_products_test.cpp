#include "backend/cpu/head_products.h"

#include "backend/cpu/testing/kernels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <span>
#include <vector>

namespace nibble::backend::cpu {
namespace {

// A matrix of a type, with a bias or without, and the values that it holds.
struct Sampled {
  Sampled(DType dtype, int64_t rows, int64_t cols, bool biased) {
    const WeightFormat format = dtype == DType::kF32   ? WeightFormat::kF32
                                : dtype == DType::kF16 ? WeightFormat::kF16
                                                       : WeightFormat::kBf16;
    for (int64_t r = 0; r < rows; ++r) {
      const Sample row(format, cols, 1, static_cast<uint64_t>(r) + 1);
      const auto values = std::as_bytes(std::span(row.values));
      bytes.insert(bytes.end(), values.begin(), values.end());
    }
    matrix.values = {.dtype = dtype, .shape = {rows, cols}, .bytes = bytes};
    if (biased) matrix.bias = random_floats(static_cast<size_t>(rows), 77);
  }
  std::vector<std::byte> bytes;
  HeadMatrix matrix;
};

// By the rows that a head decodes itself.
std::vector<double> plain(std::span<const float> x, const HeadMatrix& matrix, std::vector<double>& sizes) {
  std::vector<float> weights(static_cast<size_t>(matrix.cols()));
  const int64_t count = std::ssize(x) / matrix.cols();
  std::vector<double> y(static_cast<size_t>(count * matrix.rows()));
  sizes.assign(y.size(), 0);
  for (int64_t out = 0; out < matrix.rows(); ++out) {
    matrix.decode(out, weights.data());
    for (int64_t r = 0; r < count; ++r) {
      const auto at = static_cast<size_t>(r * matrix.rows() + out);
      y[at] = matrix.bias.empty() ? 0 : matrix.bias[static_cast<size_t>(out)];
      for (int64_t i = 0; i < matrix.cols(); ++i) {
        const double product = double{x[static_cast<size_t>(r * matrix.cols() + i)]} * weights[static_cast<size_t>(i)];
        y[at] += product;
        sizes[at] += std::abs(product);
      }
    }
  }
  return y;
}

// A head of one layer whose matrices are these in turn.
HeadWeights head_of(std::span<const Sampled* const> matrices) {
  HeadWeights head;
  size_t n = 0;
  const auto next = [&]() -> const HeadMatrix& { return matrices[n++ % matrices.size()]->matrix; };
  head.fc = next();
  HeadLayer& layer = head.layers.emplace_back();
  for (HeadMatrix* matrix : {&layer.q, &layer.k, &layer.v, &layer.o, &layer.gate, &layer.up, &layer.down})
    *matrix = next();
  head.lm_head = next();
  return head;
}

constexpr int64_t kMatrixRows = 71, kMostRows = 130;  // of x: more than one pass

std::vector<float> some_rows(HeadProducts& products, const HeadMatrix& matrix, std::span<const float> x, int64_t rows) {
  std::vector<float> y(static_cast<size_t>(rows * kMatrixRows));
  products.multiply(x.last(static_cast<size_t>(rows * matrix.cols())), matrix, y.data());
  return y;
}

void expect_alike(HeadProducts& products, const HeadMatrix& matrix, std::span<const float> x,
                  std::span<const float> all) {
  for (const int64_t rows : {1, 2, 3, 5, 8, 64}) {
    const std::vector<float> some = some_rows(products, matrix, x, rows);
    EXPECT_TRUE(std::ranges::equal(some, all.last(some.size()))) << matrix.cols() << ' ' << rows;
  }
}

TEST(HeadProducts, are_those_of_plain_loops_and_no_row_depends_on_others) {
  const Kernels kernels = kernels_for(CpuIsa::kAuto);
  ThreadPool pool(2);
  std::vector<std::unique_ptr<Sampled>> matrices;
  std::vector<const Sampled*> all_of;
  for (const int64_t cols : {32, 45, 256})
    for (const DType dtype : {DType::kBf16, DType::kF16, DType::kF32})
      all_of.push_back(matrices.emplace_back(std::make_unique<Sampled>(dtype, kMatrixRows, cols, cols == 45)).get());
  const HeadWeights head = head_of(all_of);
  const auto products = make_head_products(head, kernels, Activations::kF32, pool);
  for (const Sampled* const of : all_of) {
    const std::vector<float> x = random_floats(static_cast<size_t>(kMostRows * of->matrix.cols()), 5);
    const std::vector<float> all = some_rows(*products, of->matrix, x, kMostRows);
    std::vector<double> sizes;
    const std::vector<double> want = plain(x, of->matrix, sizes);
    for (size_t i = 0; i < all.size(); ++i)
      ASSERT_NEAR(all[i], want[i], 1e-5 * sizes[i] + 1e-5) << of->matrix.cols() << ' ' << i;
    expect_alike(*products, of->matrix, x, all);
  }
}

// Four bits of weights are a tenth of the sums' size away, eight of activations a hundredth; 45 columns are no blocks.
TEST(HeadProducts, in_int8_are_near_those_of_plain_loops) {
  const Kernels kernels = kernels_for(CpuIsa::kAuto);
  if (kernels.int8 == nullptr) GTEST_SKIP() << "this CPU has no int8 products";
  ThreadPool pool(2);
  const Sampled wide(DType::kBf16, kMatrixRows, 256, true), short_one(DType::kBf16, kMatrixRows, 45, false);
  const auto products = make_head_products(head_of(std::array{&wide, &short_one}), kernels, Activations::kInt8, pool);
  for (const Sampled* const of : {&wide, &short_one}) {
    const std::vector<float> x = random_floats(static_cast<size_t>(kMostRows * of->matrix.cols()), 5);
    std::vector<double> sizes;
    const std::vector<double> want = plain(x, of->matrix, sizes);
    for (const int64_t rows : {int64_t{1}, int64_t{3}, int64_t{5}, kMostRows}) {  // kernels of few rows and of many
      const std::vector<float> some = some_rows(*products, of->matrix, x, rows);
      const auto last = std::span(want).last(some.size());
      double off = 0, size = 0;
      for (size_t i = 0; i < some.size(); ++i) {
        off += (some[i] - last[i]) * (some[i] - last[i]);
        size += last[i] * last[i];
      }
      const double share = std::sqrt(off / size);
      EXPECT_GT(share, of == &wide ? 0.03 : 0) << rows << ": rounded, or floats";
      EXPECT_LT(share, of == &wide ? 0.15 : 1e-5) << rows;
    }
  }
}

}  // namespace
}  // namespace nibble::backend::cpu
