#pragma once
// Weights to the device, through pinned memory: each thread takes a piece, brings it into a buffer of its own and
// enqueues its copy. Nothing waits for all threads before the end, so that one which the system stops for a while holds
// up nobody. Bytes of a mapped file that are not in the page cache are read from the file itself, past the cache: it is
// not filled with what the device holds. Where the card's memory is the machine's, what the cache held of the
// files is dropped first, so that weights lie in memory once.

#include "backend/cuda/card/device.h"
#include "backend/weights.h"
#include "base/mmap_file.h"

#include <array>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <list>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

namespace nibble::backend::cuda {

class Uploader {
 public:
  // Pinned memory of so many threads.
  [[nodiscard]] static constexpr int64_t memory_bytes(int threads) { return threads * kBuffers * kBufferBytes; }

  // What the page cache holds of the files at the start: is used, or dropped.
  enum class PageCache : uint8_t { kUsed, kDropped };
  // The files that host bytes may be mapped from; other bytes are copied from where they are. Both outlive it. Throws
  // Error(kIo) where the system starts fewer threads.
  Uploader(std::span<const MappedSource> files, int threads, PageCache cached = PageCache::kUsed);
  ~Uploader();

  struct Part {
    std::byte* device = nullptr;
    std::span<const std::byte> host;
  };
  using Job = int64_t;
  // Copies the parts on the stream; calls `then` on one of the threads when all of them are
  // enqueued. The bytes are read until wait_all() returns, unless there is little to copy and nothing to do then.
  // This and the next two throw what DirectFile throws, and what `then` threw.
  Job copy(std::span<const Part> parts, cudaStream_t stream, std::function<void()> then = {});
  // Until the job's copies are enqueued and its `then` has been called.
  void wait(Job job);
  void wait_all();

 private:
  static constexpr int64_t kPieceBytes = int64_t{2} << 20;  // the bus moves pieces of 1 MB a tenth slower
  static constexpr int64_t kBufferBytes = kPieceBytes + DirectFile::kSlack;
  static constexpr int64_t kBuffers = 2;  // of a thread

  struct File {
    std::span<const std::byte> bytes;
    DirectFile file;
  };
  struct Running {
    Job id = 0;
    cudaStream_t stream = nullptr;
    std::function<void()> then;
    size_t pieces_left = 0;
  };
  struct Piece {
    Part part;
    std::list<Running>::iterator job;
  };
  struct Queue {  // guarded by its mutex
    std::mutex mutex;
    std::condition_variable work, progress;  // for the threads, for who waits for them
    std::deque<Piece> pieces;
    std::list<Running> jobs;  // that are not done
    Job next_id = 0;
    std::exception_ptr failure;
    bool stop = false;
  };

  void end();
  void work(int thread_idx, int card);
  void done(std::list<Running>::iterator job, std::exception_ptr failure);
  void wait_until(const std::function<bool()>& holds);  // with the queue locked; throws the failure
  // Brings the bytes into the buffer; where they lie in it.
  [[nodiscard]] const std::byte* fetch(std::span<const std::byte> host, std::byte* buffer) const;

  std::vector<File> files_;
  PinnedBytes memory_;
  Queue queue_;
  std::vector<std::jthread> threads_;
};

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

// Weights in device memory as their files hold them, some rows at a time, on their way to what kernels read. Each slab
// has a stream: while some are copied to, the kernels that rearrange others run.
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
  // What comes next waits for the event, as it was last recorded.
  void begin_after(const Event& event);
  // What is enqueued on the stream next waits for all that was run. Returns when it is enqueued.
  void end_before(cudaStream_t stream);

 private:
  struct Slab {
    DeviceBytes bytes, room;
    Stream stream;
    Event done;
    Uploader::Job job = -1;  // the last one
  };
  Uploader& uploader_;
  std::array<Slab, kCount> slabs_;
  size_t next_ = 0;
};

// The rows as OpenAI's checkpoints have them, to `values` and for MXFP4 to `scales`: translate_weights.
void translate(const SlabSource& source, const Slabs::Rows& rows, uint8_t* values, uint8_t* scales);

}  // namespace nibble::backend::cuda
