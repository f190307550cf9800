#pragma once
// What the GPU tests of the decode kernels share: a tally, device memory, random matrices as shipped and packed, and
// the plain double reference.

#include "backend/cuda/dense/gemv_plan.h"
#include "backend/cuda/testing/mx_pack.h"
#include "backend/cuda/testing/q8.h"
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
#include <type_traits>
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

// As shipped. bf16 values are uniform in [-1, 1); MX codes and bytes of Q8_0 are random.
struct HostMatrix {
  layout::Packing packing;
  int64_t rows, cols;
  layout::RowOrder order;
  std::vector<uint8_t> values, scales;

  HostMatrix(layout::Packing format, int64_t row_count, int64_t col_count, layout::RowOrder row_order, uint64_t seed,
             Scales range = {})
      : packing(format), rows(row_count), cols(col_count), order(row_order) {
    if (packing == layout::Packing::kQ8) {
      values = random_q8_blocks(rows * cols / 32, seed, range.low - 127, range.high - 127);
      return;
    }
    const int64_t row_bytes = packing == layout::Packing::kBf16 ? 2 * cols : cols / (mxfp4() ? 2 : 1);
    values.resize(static_cast<size_t>(rows * row_bytes));
    if (packing != layout::Packing::kBf16) scales.resize(static_cast<size_t>(rows * cols / 32));
    parallel(rows, [&](int64_t r) {
      for (int64_t i = r * row_bytes / 4; i < (r + 1) * row_bytes / 4; ++i) {
        uint32_t word = draw(seed, static_cast<uint64_t>(i));
        if (packing == layout::Packing::kMxfp8) word &= 0xf7f7f7f7u;  // no NaN
        if (packing == layout::Packing::kBf16) {
          const auto value = [](uint32_t bits) { return uint32_t{Bf16::from_float(uniform_float(bits) * 2 - 1).bits}; };
          word = value(word) | value(word * 2654435761u) << 16;
        }
        std::memcpy(values.data() + 4 * i, &word, 4);
      }
      const auto many = static_cast<uint32_t>(range.high - range.low + 1);
      for (int64_t i = r * cols / 32; !scales.empty() && i < (r + 1) * cols / 32; ++i)
        scales[static_cast<size_t>(i)] =
            static_cast<uint8_t>(range.low + static_cast<int>(draw(seed + 1, static_cast<uint64_t>(i)) % many));
    });
  }
  [[nodiscard]] bool mxfp4() const { return packing == layout::Packing::kMxfp4; }
  [[nodiscard]] std::vector<double> row(int64_t r) const {
    std::vector<double> w(static_cast<size_t>(cols));
    for (int64_t k = 0; k < cols; ++k) {
      const auto i = static_cast<size_t>(r * cols + k);
      double& to = w[static_cast<size_t>(k)];
      if (packing == layout::Packing::kQ8) {
        to = q8_value(values, r * cols + k);
      } else if (packing == layout::Packing::kBf16) {
        to = Bf16{static_cast<uint16_t>(values[2 * i] | values[2 * i + 1] << 8)}.to_float();
      } else if (packing == layout::Packing::kMxfp8) {
        to = std::ldexp(double{E4m3{values[i]}.to_float()}, scales[i / 32] - 127);
      } else {
        const uint8_t code = static_cast<uint8_t>(values[i / 2] >> (4 * (k % 2)) & 15);
        to = std::ldexp(double{E2m1{code}.to_float()}, scales[i / 32] - 127);
      }
    }
    return w;
  }
};

// Packed by the device, in one array.
class PackedMatrices {
 public:
  explicit PackedMatrices(const std::vector<HostMatrix>& all) : bytes_(all.size() * one(all[0])) {
    for (size_t m = 0; m < all.size(); ++m) {
      const HostMatrix& from = all[m];
      const Device<uint8_t> values(from.values);
      const Device<uint8_t> scales(from.scales.empty() ? std::vector<uint8_t>(16) : from.scales);
      const Device<int> bad(std::vector<int>{0});
      pack_weights({.packing = from.packing,
                    .values = values.data(),
                    .scales = scales.data(),
                    .packed = bytes_.data() + m * one(from),
                    .bad_scales = bad.data(),
                    .rows = from.rows,
                    .cols = from.cols,
                    .order = from.order},
                   nullptr);
      cuda_check(cudaDeviceSynchronize(), "pack");
      bad_ += bad.get()[0];
    }
  }
  [[nodiscard]] const uint8_t* data() const { return bytes_.data(); }
  [[nodiscard]] std::vector<uint8_t> get() const { return bytes_.get(); }
  [[nodiscard]] int bad() const { return bad_; }

 private:
  static size_t one(const HostMatrix& m) {
    return static_cast<size_t>(layout::packed_bytes(m.packing, m.rows, m.cols));
  }
  Device<uint8_t> bytes_;
  int bad_ = 0;
};

struct Sum {
  double value = 0, size = 0;  // Σ w x, Σ |w||x|
};

template <class X>
Sum dot(const std::vector<double>& w, const X* x) {
  Sum s;
  for (size_t k = 0; k < w.size(); ++k) {
    double value = 0;
    if constexpr (std::is_same_v<X, float>)
      value = x[k];
    else
      value = x[k].to_float();
    s.value += w[k] * value;
    s.size += std::abs(w[k] * value);
  }
  return s;
}

// Values that f16 and two bf16 hold exactly, so that only sums round.
inline std::vector<float> random_floats(int64_t count, uint64_t seed) {
  std::vector<float> v(static_cast<size_t>(count));
  for (size_t i = 0; i < v.size(); ++i) v[i] = F16::from_float(8 * uniform_float(draw(seed, i)) - 4).to_float();
  return v;
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

inline PlanDevice device_facts() {
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
