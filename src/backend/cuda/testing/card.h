#pragma once
// What the kernel tests share: device arrays, random values, and a skip where there is no device.

#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/card/device.h"
#include "backend/cuda/launch/launch.h"
#include "base/dtype.h"
#include "base/random.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <vector>

namespace nibble::backend::cuda {

// Gives each test a stream and launch counts, or skips it.
class CudaTest : public testing::Test {
 protected:
  void SetUp() override {
    const CudaAvailable available = cuda_available();
    if (!available.yes) GTEST_SKIP() << available.reason;
    stream_ = make_stream();
    on_ = {stream_.get(), &counts_};
  }

  LaunchCounts counts_{};
  Stream stream_;
  Launch on_;
};

template <class T>
class DeviceArray {
 public:
  DeviceArray() = default;
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) {
    cuda_check(cudaMemcpy(get(), values.data(), bytes(), cudaMemcpyHostToDevice));
    cuda_check(cudaDeviceSynchronize());  // a small copy may still be under way; kernels run on another stream
  }
  // All bits set: NaN, or an index far out of range.
  explicit DeviceArray(size_t size) : size_(size), bytes_(allocate_device(static_cast<int64_t>(bytes()), "test")) {
    cuda_check(cudaMemset(get(), 0xff, bytes()));
    cuda_check(cudaDeviceSynchronize());
  }
  [[nodiscard]] T* get() const { return reinterpret_cast<T*>(bytes_.get()); }
  [[nodiscard]] size_t size() const { return size_; }
  // After all work so far.
  [[nodiscard]] std::vector<T> host() const {
    std::vector<T> values(size_);
    cuda_check(cudaDeviceSynchronize());
    cuda_check(cudaMemcpy(values.data(), get(), bytes(), cudaMemcpyDeviceToHost));
    return values;
  }

 private:
  [[nodiscard]] size_t bytes() const { return size_ * sizeof(T); }
  size_t size_ = 0;
  DeviceBytes bytes_;
};

// A stream of values that depends on the seed alone.
class Values {
 public:
  explicit Values(uint64_t seed) : seed_(seed) {}

  uint32_t bits() {
    if (used_ == 4) {
      words_ = philox(seed_, counter_++);
      used_ = 0;
    }
    return words_[static_cast<size_t>(used_++)];
  }
  int64_t below(int64_t bound) { return static_cast<int64_t>(bits() % static_cast<uint64_t>(bound)); }
  // Values of mean 0 and the given standard deviation; uniform.
  float value(float deviation = 1) { return (uniform_float(bits()) - 0.5f) * 3.4641016f * deviation; }
  std::vector<float> floats(int64_t count, float deviation = 1) {
    std::vector<float> values(static_cast<size_t>(count));
    for (float& v : values) v = value(deviation);
    return values;
  }
  std::vector<Bf16> bf16s(int64_t count, float deviation = 1) {
    std::vector<Bf16> values(static_cast<size_t>(count));
    for (Bf16& v : values) v = Bf16::from_float(value(deviation));
    return values;
  }
  std::vector<uint8_t> bytes(int64_t count) {
    std::vector<uint8_t> values(static_cast<size_t>(count));
    for (uint8_t& v : values) v = static_cast<uint8_t>(bits() >> 8);
    return values;
  }

 private:
  uint64_t seed_;
  uint64_t counter_ = 0;
  Philox4 words_{};
  int used_ = 4;
};

inline constexpr int kEdgeTokens[] = {1, 2, 3, 7, 8, 9, 17, 64, 65, 129};

// What f32 sums may lose against exact ones: a few roundings of Σ|a||b|.
[[nodiscard]] inline double sum_bound(double sum_abs) { return 8 * 0x1p-24 * sum_abs + 1e-30; }

}  // namespace nibble::backend::cuda
