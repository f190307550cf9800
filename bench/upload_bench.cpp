// How fast weights reach the card: the Uploader from a mapped file, first seen and seen before, beside plain copies of
// the same bytes from pinned and from pageable memory. What the page cache does not hold is read from the disk.
//   upload_bench FILE [THREADS]

#include "backend/cuda/card/device.h"
#include "backend/cuda/memory/upload.h"
#include "base/error.h"
#include "base/mmap_file.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <optional>
#include <span>
#include <thread>

namespace nibble::backend::cuda {
namespace {

double seconds_of(const std::function<void()>& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  cuda_check(cudaDeviceSynchronize());
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void run(const char* path, int threads) {
  std::printf("%s, %d threads\n", open_device(0).name.c_str(), threads);
  const Stream stream = make_stream();
  constexpr int64_t kMostBytes = int64_t{8} << 30, kPinnedBytes = int64_t{256} << 20;
  const auto size = static_cast<int64_t>(MmapFile(path).bytes().size());
  const int64_t bytes = std::min(kMostBytes, size) / kPinnedBytes * kPinnedBytes;
  check(bytes > 0, "a file of at least 256 MB");
  const DeviceBytes device = allocate_device(bytes, "bench");
  const auto show = [bytes](const char* what, double seconds) {
    std::printf("%-32s %7.1f GB/s\n", what, static_cast<double>(bytes) / seconds / 1e9);
  };

  const PinnedBytes pinned = allocate_pinned(kPinnedBytes, "bench");
  const auto copy_pinned = [&] {
    for (int64_t at = 0; at < bytes; at += kPinnedBytes)
      cuda_check(cudaMemcpyAsync(device.get() + at, pinned.get(), static_cast<size_t>(kPinnedBytes),
                                 cudaMemcpyHostToDevice, stream.get()));
  };
  static_cast<void>(seconds_of(copy_pinned));
  show("plain copy, pinned", seconds_of(copy_pinned));
  {
    const MmapFile file(path);
    const auto copy = [&] {
      cuda_check(cudaMemcpyAsync(device.get(), file.bytes().data(), static_cast<size_t>(bytes), cudaMemcpyHostToDevice,
                                 stream.get()));
    };
    show("plain copy, pageable", seconds_of(copy));
  }
  const MmapFile file(path);
  const MappedSource source{file.bytes(), path};
  std::optional<Uploader> uploader;
  std::printf("%-32s %7.1f ms\n", "buffers",
              1e3 * seconds_of([&] { uploader.emplace(std::span(&source, 1), threads); }));
  for (const char* what : {"Uploader, first seen", "Uploader, seen before"})
    show(what, seconds_of([&] {
           uploader->copy(std::array{Uploader::Part{device.get(), file.bytes().first(static_cast<size_t>(bytes))}},
                          stream.get());
           uploader->wait_all();
         }));
}

}  // namespace
}  // namespace nibble::backend::cuda

int main(int argc, char** argv) {
  try {
    if (argc < 2) throw nibble::Error(nibble::Code::kInvalidRequest, "want a file, and threads if not all");
    const unsigned all = std::thread::hardware_concurrency();
    nibble::backend::cuda::run(argv[1], argc > 2 ? std::atoi(argv[2]) : static_cast<int>(std::max(1u, all)));
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
