#include "backend/cuda/comm/nccl_ranks.h"

#include "backend/cuda/card/device.h"
#include "backend/cuda/comm/sum_way.h"
#include "base/error.h"
#include "base/shared_library.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <mutex>
#include <shared_mutex>
#include <span>
#include <string_view>
#include <thread>
#include <vector>

#include <nccl.h>

namespace nibble::backend::cuda {
namespace {

constexpr std::chrono::milliseconds kUsingTime{300};

// What is used of the library, under NCCL's names.
struct Functions {
  decltype(&ncclGetVersion) version = nullptr;
  decltype(&ncclGetErrorString) error = nullptr;
  decltype(&ncclGetUniqueId) unique_id = nullptr;
  decltype(&ncclCommInitRank) init = nullptr;
  decltype(&ncclCommDestroy) destroy = nullptr;
  decltype(&ncclCommAbort) abort = nullptr;
  decltype(&ncclGroupStart) group = nullptr;
  decltype(&ncclGroupEnd) group_end = nullptr;
  decltype(&ncclAllReduce) all_reduce = nullptr;
  decltype(&ncclSend) send = nullptr;
  decltype(&ncclRecv) receive = nullptr;
  decltype(&ncclCommGetAsyncError) state = nullptr;

  void check(ncclResult_t result, std::string_view what) const {
    if (result != ncclSuccess && result != ncclInProgress)
      throw Error(Code::kDevice, "cuda: NCCL: {}: {} (NCCL_DEBUG=WARN says more)", what, error(result));
  }
};

// Throws as SharedLibrary does.
Functions open_nccl() {
  const SharedLibrary library({.file = "libnccl.so.2",
                               .name = "NCCL",
                               .purpose = "to add up between cards",
                               .packages = "apt install libnccl2"});
  return {.version = library.find("ncclGetVersion"),
          .error = library.find("ncclGetErrorString"),
          .unique_id = library.find("ncclGetUniqueId"),
          .init = library.find("ncclCommInitRank"),
          .destroy = library.find("ncclCommDestroy"),
          .abort = library.find("ncclCommAbort"),
          .group = library.find("ncclGroupStart"),
          .group_end = library.find("ncclGroupEnd"),
          .all_reduce = library.find("ncclAllReduce"),
          .send = library.find("ncclSend"),
          .receive = library.find("ncclRecv"),
          .state = library.find("ncclCommGetAsyncError")};
}

ncclDataType_t type_of(DeltaValues::Type type) { return type == DeltaValues::Type::kF32 ? ncclFloat32 : ncclBfloat16; }
int64_t bytes_of(DeltaValues::Type type) { return type == DeltaValues::Type::kF32 ? 4 : 2; }

// Of one call. Longer messages go in several, since ranks have met for these sizes alone (meet()).
constexpr int64_t kFewestBytes = 1024, kMostBytes = kNcclBytes;

}  // namespace

NcclLibrary nccl_library() {
  try {
    const Functions found = open_nccl();
    int version = 0;
    found.check(found.version(&version), "its version");
    return {.there = true, .what = fmt::format("NCCL {}.{}.{}", version / 10000, version / 100 % 100, version % 100)};
  } catch (const Error& e) {
    return {.there = false, .what = e.what()};
  }
}

NcclId new_nccl_id() {
  const Functions nccl = open_nccl();
  ncclUniqueId id{};
  nccl.check(nccl.unique_id(&id), "a group's id");
  NcclId out{};
  static_assert(sizeof id == sizeof out.bytes);
  std::memcpy(out.bytes.data(), &id, sizeof id);
  return out;
}

struct NcclRanks::Ends {
  Functions nccl = open_nccl();
  int ranks = 1, first = 0;
  struct End {
    int card = 0;
    ncclComm_t comm = nullptr;
  };
  std::vector<End> ends;
  std::shared_timed_mutex using_ends;  // alone: who gives up
  std::atomic<bool> given_up = false;
  std::thread abandons;

  ~Ends() {
    if (abandons.joinable()) {
      abandons.join();
      return;
    }
    for (const End& end : ends)
      if (end.comm != nullptr) nccl.destroy(end.comm);
  }
  // On every rank of this process, as one call of NCCL.
  template <class Body>
  void together(std::string_view what, const Body& body) {
    nccl.check(nccl.group(), what);
    for (End& end : ends) {
      const CurrentDevice before;
      cuda_check(cudaSetDevice(end.card));
      body(end);
    }
    nccl.check(nccl.group_end(), what);
  }
  void meet();
  void meet_to_gather(std::span<const DeviceBytes> values, std::span<const Stream> streams);
  [[nodiscard]] const End& of(int rank) const { return ends.at(static_cast<size_t>(rank - first)); }
  void require_all() const {
    if (given_up) throw Error(Code::kDevice, "cuda: NCCL: a rank has failed");
  }
};

// NCCL connects ranks when a message first takes one of its algorithms, and in that call waits for the others. One
// thread that enqueues rank by rank would wait for ever, so all sizes go once, of all ranks together.
void NcclRanks::Ends::meet() {
  std::vector<DeviceBytes> values;
  std::vector<Stream> streams;
  for (const End& end : ends) {
    const CurrentDevice before;
    cuda_check(cudaSetDevice(end.card));
    values.push_back(allocate_device(kMostBytes, "the first sums of NCCL"));
    streams.push_back(make_stream());
    cuda_check(cudaMemsetAsync(values.back().get(), 0, static_cast<size_t>(kMostBytes), streams.back().get()));
  }
  for (const DeltaValues::Type type : {DeltaValues::Type::kF32, DeltaValues::Type::kBf16}) {
    for (int64_t bytes = kFewestBytes; bytes <= kMostBytes; bytes *= 2) {
      together("the first sums", [&](const End& end) {
        const auto i = static_cast<size_t>(&end - ends.data());
        nccl.check(nccl.all_reduce(values[i].get(), values[i].get(), static_cast<size_t>(bytes / bytes_of(type)),
                                   type_of(type), ncclSum, end.comm, streams[i].get()),
                   "the first sums");
      });
    }
  }
  meet_to_gather(values, streams);
  for (size_t i = 0; i < ends.size(); ++i) {
    const CurrentDevice before;
    cuda_check(cudaSetDevice(ends[i].card));
    cuda_check(cudaStreamSynchronize(streams[i].get()));
    streams[i].reset();
    values[i].reset();
  }
}

// Every rank with every other, the first part of its values for the second.
void NcclRanks::Ends::meet_to_gather(std::span<const DeviceBytes> values, std::span<const Stream> streams) {
  for (int64_t bytes = kFewestBytes; bytes <= kMostBytes / 2; bytes *= 16) {
    together("the first exchange", [&](const End& end) {
      const auto i = static_cast<size_t>(&end - ends.data());
      const auto count = static_cast<size_t>(bytes) / sizeof(float);
      for (int rank = 0; rank < ranks; ++rank) {
        if (rank == first + static_cast<int>(i)) continue;
        nccl.check(nccl.send(values[i].get(), count, ncclFloat32, rank, end.comm, streams[i].get()),
                   "the first exchange");
        nccl.check(nccl.receive(values[i].get() + bytes, count, ncclFloat32, rank, end.comm, streams[i].get()),
                   "the first exchange");
      }
    });
  }
}

NcclRanks::NcclRanks(std::span<const int> cards)
    : NcclRanks({.id = new_nccl_id(), .ranks = static_cast<int>(cards.size())}, cards) {}

NcclRanks::NcclRanks(const Group& group, std::span<const int> cards) : ends_(std::make_unique<Ends>()) {
  for (size_t i = 0; i < cards.size(); ++i)
    if (std::find(cards.begin(), cards.begin() + static_cast<std::ptrdiff_t>(i), cards[i]) !=
        cards.begin() + static_cast<std::ptrdiff_t>(i))
      throw Error(Code::kUnsupported, "cuda: want a card of its own for each rank of NCCL, found card {} twice",
                  cards[i]);
  ends_->ranks = group.ranks;
  ends_->first = group.first;
  for (const int card : cards) ends_->ends.push_back({.card = card});
  ncclUniqueId id;
  std::memcpy(&id, group.id.bytes.data(), sizeof id);
  int rank = group.first;
  ends_->together("joining the group", [&](Ends::End& end) {
    ends_->nccl.check(ends_->nccl.init(&end.comm, group.ranks, id, rank++), "joining the group");
  });
  ends_->meet();
}

NcclRanks::~NcclRanks() = default;

void NcclRanks::all_reduce(int rank, const DeltaValues& values, const Launch& on) const {
  const int64_t bytes = bytes_of(values.type), most = kMostBytes / bytes;
  const Ends::End& end = ends_->of(rank);
  const std::shared_lock lock(ends_->using_ends);
  ends_->require_all();
  for (int64_t at = 0; at < values.count; at += most) {
    std::byte* const part = static_cast<std::byte*>(values.at) + at * bytes;
    ends_->nccl.check(ends_->nccl.all_reduce(part, part, static_cast<size_t>(std::min(most, values.count - at)),
                                             type_of(values.type), ncclSum, end.comm, on.stream),
                      "a sum");
    launched(nccl_reduce_kernel(), on);
  }
}

void NcclRanks::gather(int rank, const GatheredColumns& of, const Launch& on) const {
  const Ends::End& end = ends_->of(rank);
  const std::shared_lock lock(ends_->using_ends);
  ends_->require_all();
  const Functions& nccl = ends_->nccl;
  // A row lies where it belongs; more of them come side by side, and are put there.
  const auto place = [&](int from) {
    const int64_t first = of.columns[static_cast<size_t>(from)].first;
    return of.rows == 1 ? of.all + first : of.scratch + of.rows * first;
  };
  const auto count = [&](int from) {
    return static_cast<size_t>(of.rows * of.columns[static_cast<size_t>(from)].count);
  };
  nccl.check(nccl.group(), "logits");
  for (int other = 0; other < ends_->ranks; ++other) {
    if (other == rank) continue;
    nccl.check(nccl.send(of.own, count(rank), ncclFloat32, other, end.comm, on.stream), "logits");
    nccl.check(nccl.receive(place(other), count(other), ncclFloat32, other, end.comm, on.stream), "logits");
  }
  nccl.check(nccl.group_end(), "logits");
  launched(nccl_gather_kernel(), on);
  for (int from = 0; from < ends_->ranks; ++from) {
    if (of.rows == 1 && from != rank) continue;
    const Range& columns = of.columns[static_cast<size_t>(from)];
    const size_t bytes = static_cast<size_t>(columns.count) * sizeof(float);
    cuda_check(cudaMemcpy2DAsync(of.all + columns.first, static_cast<size_t>(of.width) * sizeof(float),
                                 from == rank ? of.own : place(from), bytes, bytes, static_cast<size_t>(of.rows),
                                 cudaMemcpyDeviceToDevice, on.stream));
  }
}

void NcclRanks::require() const {
  const std::shared_lock lock(ends_->using_ends);
  ends_->require_all();
  for (const Ends::End& end : ends_->ends) {
    ncclResult_t state = ncclSuccess;
    ends_->nccl.check(ends_->nccl.state(end.comm, &state), "what became of it");
    ends_->nccl.check(state, "a sum over ranks");
  }
}

// NCCL tells the cards at once, and then waits until the last graph is gone: whose owner may be who calls. Who is in
// the middle of a launch may wait for room behind launches that never end: then nobody waits for it.
void NcclRanks::give_up() const {
  const std::unique_lock lock(ends_->using_ends, kUsingTime);
  if (ends_->given_up.exchange(true)) return;
  ends_->abandons = std::thread([ends = ends_.get()] {
    ends->nccl.group();
    for (const Ends::End& end : ends->ends) ends->nccl.abort(end.comm);
    ends->nccl.group_end();
  });
}

}  // namespace nibble::backend::cuda
