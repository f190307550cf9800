#pragma once
// What the GPU tests of the MXFP4 kernels share: a tally, device memory, random matrices as shipped and packed, and the
// plain double reference.

#include "backend/cuda/kernels/any/gemv.h"
#include "backend/cuda/layout/mx_pack.h"
#include "base/random.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace nibble::backend::cuda {

inline int passed = 0, failed = 0;

inline void report(bool ok, const std::string& name, const std::string& detail) {
  ++(ok ? passed : failed);
  std::printf("%s %s: %s\n", ok ? "PASS" : "FAIL", name.c_str(), detail.c_str());
  std::fflush(stdout);
}

inline void cuda_check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  std::printf("FAIL %s: %s\n%d passed, %d failed\n", what, cudaGetErrorString(status), passed, failed + 1);
  std::exit(1);
}

template <class T>
class Device {
 public:
  explicit Device(size_t count) : count_(count) {
    cuda_check(cudaMalloc(&data_, count * sizeof(T)), "cudaMalloc");
    cuda_check(cudaMemset(data_, 0xff, count * sizeof(T)), "poison");  // NaN in f16 and f32
  }
  explicit Device(const std::vector<T>& values) : Device(values.size()) { set(values); }
  ~Device() { cudaFree(data_); }
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  void set(const std::vector<T>& values) {
    cuda_check(cudaMemcpy(data_, values.data(), count_ * sizeof(T), cudaMemcpyHostToDevice), "to device");
  }
  [[nodiscard]] std::vector<T> get() const {
    std::vector<T> values(count_);
    cuda_check(cudaMemcpy(values.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost), "from device");
    return values;
  }
  [[nodiscard]] T* data() const { return data_; }

 private:
  size_t count_;
  T* data_ = nullptr;
};

inline void parallel(int64_t count, const std::function<void(int64_t)>& body) {
  std::atomic<int64_t> next = 0;
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < std::max(1u, std::thread::hardware_concurrency()); ++i)
    threads.emplace_back([&] {
      for (int64_t n = next++; n < count; n = next++) body(n);
    });
  for (std::thread& thread : threads) thread.join();
}

inline uint32_t draw(uint64_t seed, uint64_t n) { return philox(seed, n)[0]; }

struct Scales {
  int low = 113, high = 121;  // about 2^-14 .. 2^-6, as checkpoints have
};

struct HostMatrix {
  int64_t rows, cols;
  std::vector<uint8_t> codes, scales, packed;

  HostMatrix(int64_t row_count, int64_t col_count, layout::RowOrder order, uint64_t seed, Scales range = {})
      : rows(row_count),
        cols(col_count),
        codes(static_cast<size_t>(rows * cols / 2)),
        scales(static_cast<size_t>(rows * cols / 32)),
        packed(static_cast<size_t>(layout::packed_bytes(rows, cols))) {
    parallel(rows, [&](int64_t r) {
      for (int64_t i = r * cols / 8; i < (r + 1) * cols / 8; ++i) {
        const uint32_t four = draw(seed, static_cast<uint64_t>(i));
        std::memcpy(codes.data() + 4 * i, &four, 4);
      }
      for (int64_t i = r * cols / 32; i < (r + 1) * cols / 32; ++i)
        scales[static_cast<size_t>(i)] =
            static_cast<uint8_t>(range.low + static_cast<int>(draw(seed + 1, static_cast<uint64_t>(i)) %
                                                              static_cast<uint32_t>(range.high - range.low + 1)));
    });
    layout::pack({rows, cols, order, codes, scales}, packed);
  }
  [[nodiscard]] std::vector<double> row(int64_t r) const {
    static constexpr double kValues[16] = {0, .5, 1, 1.5, 2, 3, 4, 6, 0, -.5, -1, -1.5, -2, -3, -4, -6};
    std::vector<double> w(static_cast<size_t>(cols));
    for (int64_t k = 0; k < cols; ++k) {
      const uint8_t byte = codes[static_cast<size_t>((r * cols + k) / 2)];
      w[static_cast<size_t>(k)] = std::ldexp(kValues[k % 2 == 0 ? byte & 15 : byte >> 4],
                                             scales[static_cast<size_t>((r * cols + k) / 32)] - 127);
    }
    return w;
  }
};

struct Sum {
  double value = 0, size = 0;  // Σ w x, Σ |w||x|
};

inline Sum dot(const std::vector<double>& w, const F16* x) {
  Sum s;
  for (size_t k = 0; k < w.size(); ++k) {
    const double term = w[k] * x[k].to_float();
    s.value += term;
    s.size += std::abs(term);
  }
  return s;
}

inline std::vector<F16> random_f16(int64_t count, uint64_t seed) {
  std::vector<F16> v(static_cast<size_t>(count));
  for (size_t i = 0; i < v.size(); ++i) v[i] = F16::from_float(8 * uniform_float(draw(seed, i)) - 4);
  return v;
}

inline std::vector<Bf16> random_bf16(int64_t count, uint64_t seed) {
  std::vector<Bf16> v(static_cast<size_t>(count));
  for (size_t i = 0; i < v.size(); ++i) v[i] = Bf16::from_float(2 * uniform_float(draw(seed, i)) - 1);
  return v;
}

// Two gates: DeepGEMM's similarity over all values, and a bound per element.
class Comparison {
 public:
  void add(const std::string& where, double got, double want, double bound) {
    product_ += got * want;
    squares_ += got * got + want * want;
    const double ratio = std::abs(got - want) / bound;
    if (!(ratio <= worst_)) {  // NaN too
      worst_ = std::isnan(ratio) ? INFINITY : ratio;
      where_ = where + " got " + std::to_string(got) + " want " + std::to_string(want);
    }
  }
  void finish(const std::string& name, bool repeats) const {
    const double distance = 1 - 2 * product_ / squares_;
    char text[300];
    std::snprintf(text, sizeof text, "1-similarity %.2e, worst %.3f of the bound (%s)%s", distance, worst_,
                  where_.c_str(), repeats ? "" : ", NOT REPEATABLE");
    report(distance < 1e-6 && worst_ <= 1 && repeats, name, text);
  }

 private:
  double product_ = 0, squares_ = 0, worst_ = -1;
  std::string where_;
};

inline constexpr double kSumError =
    0x1p-18;                            // of Σ|w||x|: 64 float ulps; one wrong product of 2880 is 90 times as much
inline constexpr double kTiny = 1e-42;  // results in float's subnormal range

inline GemvDevice device_facts() {
  cudaDeviceProp prop{};
  cuda_check(cudaGetDeviceProperties(&prop, 0), "device");
  std::printf("%s, %d SMs, %zu B shared per block, %zu per SM\n", prop.name, prop.multiProcessorCount,
              prop.sharedMemPerBlockOptin, prop.sharedMemPerMultiprocessor);
  return {prop.multiProcessorCount, static_cast<int64_t>(prop.sharedMemPerBlockOptin),
          static_cast<int64_t>(prop.sharedMemPerMultiprocessor)};
}

inline std::string at(const char* a, int64_t i, const char* b, int64_t j) {
  return std::string(a) + std::to_string(i) + b + std::to_string(j);
}

}  // namespace nibble::backend::cuda
