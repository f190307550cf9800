#pragma once
// How fast this machine reads memory and multiplies matrices, measured with the threads that the backend would use.

#include "backend/measure.h"
#include "base/buffer.h"
#include "base/thread_pool.h"

#include <cstdint>

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
