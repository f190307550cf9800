#include "backend/cuda/memory/slabs.h"

#include "backend/cuda/dense/gemv_plan.h"
#include "base/error.h"

#include <algorithm>
#include <vector>

namespace nibble::backend::cuda {
namespace {

constexpr int64_t kStep = 64;  // rows: whole tiles, whole heads, and of a vector whole blocks
constexpr int64_t kAlignment = 256;
int64_t align(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

std::span<const std::byte> part(std::span<const std::byte> all, int64_t begin, int64_t bytes) {
  return all.subspan(static_cast<size_t>(begin), static_cast<size_t>(bytes));
}

}  // namespace

Slabs::Slabs(Uploader& uploader) : uploader_(uploader) {
  for (Slab& slab : slabs_) {
    slab.bytes = allocate_device(kBytes, "weights on their way");
    slab.stream = make_stream();
  }
}

void Slabs::run(const SlabSource& source, Room room, const Use& use) {
  // Where row `row` begins in an array; REQUIRES whole steps, or the end.
  const auto at_row = [&](std::span<const std::byte> array, int64_t row) {
    return row == source.rows ? std::ssize(array) : std::ssize(array) * kStep / source.rows * (row / kStep);
  };
  const auto held = std::ssize(source.even) + std::ssize(source.odd) + std::ssize(source.scales);
  const int64_t row_bytes = std::max(held / source.rows + 1, 2 * source.cols);  // held, or in bf16
  const int64_t most = std::max(kStep, (kBytes - 3 * kAlignment) / row_bytes / kStep * kStep);
  check(most * row_bytes + 3 * kAlignment <= kBytes, "64 rows fit a slab");
  for (int64_t first = 0; first < source.rows; first += most) {
    const int64_t count = std::min(most, source.rows - first);
    Slab& slab = slabs_[next_];
    next_ = (next_ + 1) % slabs_.size();
    uploader_.wait(slab.job);
    if (room == Room::kWanted && slab.room == nullptr) slab.room = allocate_device(kBytes, "weights on their way");
    std::vector<Uploader::Part> parts;
    std::byte* at = slab.bytes.get();
    const auto place = [&](std::span<const std::byte> array) -> const uint8_t* {
      if (array.empty()) return nullptr;
      const int64_t begin = at_row(array, first), bytes = at_row(array, first + count) - begin;
      parts.push_back({at, part(array, begin, bytes)});
      at += align(bytes);
      return reinterpret_cast<const uint8_t*>(parts.back().device);
    };
    Rows rows{.first = first, .count = count};
    rows.even = place(source.even);
    rows.odd = place(source.odd);
    rows.scales = place(source.scales);
    rows.room = reinterpret_cast<uint8_t*>(slab.room.get());
    rows.stream = slab.stream.get();
    slab.job = uploader_.copy(parts, rows.stream, [use, rows] { use(rows); });
  }
}

void Slabs::wait() {
  uploader_.wait_all();
  for (const Slab& slab : slabs_) cuda_check(cudaStreamSynchronize(slab.stream.get()));
}

void translate(const SlabSource& source, const Slabs::Rows& rows, uint8_t* values, uint8_t* scales) {
  translate_weights({.format = source.format,
                     .even = rows.even,
                     .odd = rows.odd,
                     .values = values,
                     .scales = scales,
                     .rows = rows.count,
                     .cols = source.cols},
                    rows.stream);
}

}  // namespace nibble::backend::cuda
