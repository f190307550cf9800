#pragma once
// Weights in device memory as their files hold them, some rows at a time, on their way to what kernels read. Each slab
// has a stream: while some are copied to, the kernels that rearrange others run.

#include "backend/cuda/card/device.h"
#include "backend/cuda/memory/upload.h"
#include "backend/weights.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

namespace nibble::backend::cuda {

// A matrix on the host; a vector is one with a single column. Experts are rows of one tall matrix.
struct SlabSource {
  WeightFormat format = WeightFormat::kBf16;
  int64_t rows = 0, cols = 0;
  std::span<const std::byte> even,
      odd;                            // `odd`, where it is not empty, holds rows 1, 3, 5, …; else `even` has them all
  std::span<const std::byte> scales;  // of kMxfp4

  // Whether the bytes are such as OpenAI's checkpoints have: what the packers and the plain kernels take.
  [[nodiscard]] bool as_shipped() const {
    return odd.empty() && (format == WeightFormat::kBf16 || format == WeightFormat::kMxfp4);
  }
};

class Slabs {
 public:
  static constexpr int64_t kBytes = int64_t{32} << 20;  // of a slab
  static constexpr int64_t kCount = 4;
  static constexpr int64_t kMemoryBytes = 2 * kCount * kBytes;  // of the device, at most

  explicit Slabs(Uploader& uploader);

  // Rows of a source, in device memory as the source holds them.
  struct Rows {
    int64_t first = 0, count = 0;
    const uint8_t *even = nullptr, *odd = nullptr, *scales = nullptr;
    uint8_t* room = nullptr;  // where asked for: kBytes, enough for them in any format
    cudaStream_t stream = nullptr;
  };
  // Calls use for rows after rows, all but the last in multiples of 64, on the uploader's threads, until wait()
  // returns; what it enqueues on the stream may read them.
  using Use = std::function<void(const Rows&)>;
  enum class Room : uint8_t { kNone, kWanted };
  void run(const SlabSource& source, Room room, const Use& use);
  // Until all is done.
  void wait();

 private:
  struct Slab {
    DeviceBytes bytes, room;
    Stream stream;
    Uploader::Job job = -1;  // the last one
  };
  Uploader& uploader_;
  std::array<Slab, kCount> slabs_;
  size_t next_ = 0;
};

// The rows as OpenAI's checkpoints have them, to `values` and for MXFP4 to `scales`: translate_weights.
void translate(const SlabSource& source, const Slabs::Rows& rows, uint8_t* values, uint8_t* scales);

}  // namespace nibble::backend::cuda
