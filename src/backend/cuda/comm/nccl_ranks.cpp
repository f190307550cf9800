#include "backend/cuda/comm/nccl_ranks.h"

#include "backend/cuda/card/device.h"
#include "backend/cuda/comm/sum_way.h"
#include "base/error.h"
#include "base/shared_library.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <shared_mutex>
#include <string_view>
#include <thread>
#include <vector>

#include <nccl.h>

namespace nibble::backend::cuda {
namespace {

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
          .all_reduce = library.find("ncclAllReduce")};
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
  int first = 0;
  struct End {
    int card = 0;
    ncclComm_t comm = nullptr;
  };
  std::vector<End> ends;
  std::shared_mutex using_ends;  // alone: who gives up
  bool given_up = false;
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
  for (size_t i = 0; i < ends.size(); ++i) {
    const CurrentDevice before;
    cuda_check(cudaSetDevice(ends[i].card));
    cuda_check(cudaStreamSynchronize(streams[i].get()));
    streams[i].reset();
    values[i].reset();
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
  const Ends::End& end = ends_->ends.at(static_cast<size_t>(rank - ends_->first));
  const std::shared_lock lock(ends_->using_ends);
  if (ends_->given_up) throw Error(Code::kDevice, "cuda: NCCL: a rank has failed");
  for (int64_t at = 0; at < values.count; at += most) {
    std::byte* const part = static_cast<std::byte*>(values.at) + at * bytes;
    ends_->nccl.check(ends_->nccl.all_reduce(part, part, static_cast<size_t>(std::min(most, values.count - at)),
                                             type_of(values.type), ncclSum, end.comm, on.stream),
                      "a sum");
    launched(nccl_reduce_kernel(), on);
  }
}

// NCCL tells the cards at once, and then waits until the last graph is gone: whose owner may be who calls.
void NcclRanks::give_up() const {
  const std::unique_lock lock(ends_->using_ends);
  if (ends_->given_up) return;
  ends_->given_up = true;
  ends_->abandons = std::thread([ends = ends_.get()] {
    ends->nccl.group();
    for (const Ends::End& end : ends->ends) ends->nccl.abort(end.comm);
    ends->nccl.group_end();
  });
}

}  // namespace nibble::backend::cuda
