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

// Loops that do one thing as fast as one thread can: read memory, or multiply and add in registers.
namespace nibble::backend::cpu {

// The sum of `words` words; `words` a multiple of 256.
[[nodiscard]] uint64_t read_all(const uint64_t* data, int64_t words);

struct PeakLoop {
  std::string type;
  bool exact16 = false;  // MatrixPeak
  double flops_per_round = 0;
  float (*run)(int64_t rounds) = nullptr;  // the result only keeps the work from being dropped
};

// Both, as compiled for one instruction set.
struct TargetLoops {
  uint64_t (*read_all)(const uint64_t* data, int64_t words) = nullptr;
  PeakLoop (*float_loop)() = nullptr;
};

// Multiply-adds in float, on the instruction set that the backend's other loops use.
[[nodiscard]] PeakLoop float_loop();
// Those of this machine's instructions for bf16 and int8; none where it has none.
[[nodiscard]] std::vector<PeakLoop> matrix_loops();

}  // namespace nibble::backend::cpu
