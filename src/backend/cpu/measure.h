#pragma once
// How fast this machine reads memory and multiplies matrices, measured with the threads that the backend would use.

#include "backend/measure.h"
#include "base/buffer.h"
#include "base/thread_pool.h"

#include <cstdint>
#include <string>
#include <vector>

namespace nibble::backend {

// Reads a buffer of twice the last-level cache or more, a quarter of the free memory at most. Throws
// Error(kOutOfMemory) when even a small one cannot be had.
class ReadMeter {
 public:
  explicit ReadMeter(int threads);
  // Bytes per second of the fastest of so many passes, which take some 5 ms each.
  [[nodiscard]] double measure(int passes);

 private:
  template <class Body>
  void each_piece(const Body& body);

  ThreadPool pool_;
  int64_t pieces_;
  Buffer buffer_;
};

// Takes about two seconds. Throws as ReadMeter does.
[[nodiscard]] DevicePeaks measure_cpu(int threads);

}  // namespace nibble::backend

namespace nibble::backend::cpu {

// A loop that multiplies and adds in registers as fast as one thread can.
struct PeakLoop {
  std::string type;
  bool exact16 = false;  // MatrixPeak
  double flops_per_round = 0;
  float (*run)(int64_t rounds) = nullptr;  // the result only keeps the work from being dropped
};
// Those of this machine's instructions for bf16 and int8; none where it has none.
[[nodiscard]] std::vector<PeakLoop> matrix_loops();

}  // namespace nibble::backend::cpu
