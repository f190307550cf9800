#include "backend/cuda/memory/upload.h"

#include "backend/cuda/dense/gemv_plan.h"
#include "base/error.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <system_error>
#include <utility>
#include <vector>

namespace nibble::backend::cuda {

Uploader::Uploader(std::span<const MappedSource> files, int threads, PageCache cached)
    : memory_(allocate_pinned(memory_bytes(threads), "upload buffers")) {  // page-aligned
  for (const MappedSource& file : files) {
    files_.push_back({file.bytes, DirectFile(file.path)});
    if (cached == PageCache::kDropped) files_.back().file.forget(file.bytes);
  }
  int card = 0;
  cuda_check(cudaGetDevice(&card));
  try {
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this, i, card] { work(i, card); });
  } catch (const std::system_error& e) {
    end();
    throw Error(Code::kIo, "cannot start {} threads: {} could be: {}", threads, threads_.size(), e.code().message());
  }
}

Uploader::~Uploader() { end(); }

void Uploader::end() {
  {
    const std::scoped_lock lock(queue_.mutex);
    queue_.stop = true;
  }
  queue_.work.notify_all();
}

const std::byte* Uploader::fetch(std::span<const std::byte> host, std::byte* buffer) const {
  for (const File& file : files_) {
    const std::byte* const end = file.bytes.data() + file.bytes.size();
    if (host.data() < file.bytes.data() || host.data() + host.size() > end || is_resident(host)) continue;
    const ByteRange range{.offset = host.data() - file.bytes.data(), .bytes = std::ssize(host)};
    return file.file.read(range, {buffer, kBufferBytes}).data();
  }
  std::memcpy(buffer, host.data(), host.size());
  return buffer;
}

void Uploader::work(int thread_idx, int card) {
  std::array<Event, kBuffers> copied;  // the last copy out of a buffer
  for (size_t turn = 0;; turn = (turn + 1) % kBuffers) {
    std::unique_lock lock(queue_.mutex);
    queue_.work.wait(lock, [this] { return queue_.stop || !queue_.pieces.empty(); });
    if (queue_.stop) return;
    const auto [part, job] = queue_.pieces.front();
    queue_.pieces.pop_front();
    const bool failed = queue_.failure != nullptr;
    lock.unlock();
    std::exception_ptr failure;
    if (!failed) {
      try {
        cuda_check(cudaSetDevice(card));  // a thread has its own
        if (copied[turn] == nullptr) copied[turn] = make_event();
        cuda_check(cudaEventSynchronize(copied[turn].get()));  // at once when never recorded
        std::byte* const buffer = memory_.get() + (thread_idx * kBuffers + static_cast<int64_t>(turn)) * kBufferBytes;
        const std::byte* const from = fetch(part.host, buffer);
        cuda_check(cudaMemcpyAsync(part.device, from, part.host.size(), cudaMemcpyHostToDevice, job->stream));
        cuda_check(cudaEventRecord(copied[turn].get(), job->stream));
      } catch (...) {
        failure = std::current_exception();
      }
    }
    done(job, failure);
  }
}

// One piece of the job is.
void Uploader::done(std::list<Running>::iterator job, std::exception_ptr failure) {
  std::unique_lock lock(queue_.mutex);
  if (failure && !queue_.failure) queue_.failure = failure;
  if (--job->pieces_left == 0) {
    if (job->then && !queue_.failure) {
      lock.unlock();
      try {
        job->then();
      } catch (...) {
        failure = std::current_exception();
      }
      lock.lock();
      if (failure && !queue_.failure) queue_.failure = failure;
    }
    queue_.jobs.erase(job);
  }
  lock.unlock();
  queue_.progress.notify_one();
}

void Uploader::wait_until(const std::function<bool()>& holds) {
  std::unique_lock lock(queue_.mutex);
  queue_.progress.wait(lock, [&] { return queue_.failure != nullptr || holds(); });
  if (queue_.failure) std::rethrow_exception(queue_.failure);
}

Uploader::Job Uploader::copy(std::span<const Part> parts, cudaStream_t stream, std::function<void()> then) {
  constexpr size_t kSmallBytes = size_t{64} << 10;  // the driver stages these itself, and does not wait for the stream
  if (!then && parts.size() == 1 && parts[0].host.size() <= kSmallBytes) {
    cuda_check(
        cudaMemcpyAsync(parts[0].device, parts[0].host.data(), parts[0].host.size(), cudaMemcpyHostToDevice, stream));
    return -1;
  }
  const size_t most_waiting = 8 * threads_.size();
  wait_until([&] { return queue_.pieces.size() < most_waiting; });
  const std::scoped_lock lock(queue_.mutex);
  const auto job = queue_.jobs.insert(queue_.jobs.end(), {queue_.next_id++, stream, std::move(then)});
  for (const Part& part : parts)
    for (size_t at = 0; at < part.host.size(); at += kPieceBytes, ++job->pieces_left)
      queue_.pieces.push_back(
          {{part.device + at, part.host.subspan(at, std::min<size_t>(kPieceBytes, part.host.size() - at))}, job});
  check(job->pieces_left > 0, "a job copies something");
  queue_.work.notify_all();
  return job->id;
}

void Uploader::wait(Job job) {
  wait_until([&] { return std::ranges::none_of(queue_.jobs, [&](const Running& r) { return r.id == job; }); });
}

void Uploader::wait_all() {
  wait_until([this] { return queue_.jobs.empty(); });
}

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
    slab.done = make_event();
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

void Slabs::begin_after(const Event& event) {
  for (const Slab& slab : slabs_) cuda_check(cudaStreamWaitEvent(slab.stream.get(), event.get()));
}

void Slabs::end_before(cudaStream_t stream) {
  uploader_.wait_all();
  for (const Slab& slab : slabs_) {
    cuda_check(cudaEventRecord(slab.done.get(), slab.stream.get()));
    cuda_check(cudaStreamWaitEvent(stream, slab.done.get()));
  }
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
