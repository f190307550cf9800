#include "backend/cuda/comm/comm.h"

#include "backend/cuda/card/device.h"
#include "backend/cuda/card_group.h"
#include "backend/cuda/comm/sums.h"
#include "base/error.h"
#include "base/shared_library.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <mutex>
#include <shared_mutex>
#include <string_view>
#include <thread>

#include <nccl.h>

namespace nibble::backend::cuda {
namespace {

constexpr std::chrono::milliseconds kUsingTime{300};

// What is used of the library. Throws as SharedLibrary does.
struct Nccl {
  const SharedLibrary library{{.file = "libnccl.so.2",
                               .name = "NCCL",
                               .purpose = "to add up between cards",
                               .packages = "apt install libnccl2"}};
  decltype(&ncclGetVersion) version = library.find("ncclGetVersion");
  decltype(&ncclGetErrorString) error = library.find("ncclGetErrorString");
  decltype(&ncclGetUniqueId) unique_id = library.find("ncclGetUniqueId");
  decltype(&ncclCommInitRank) init = library.find("ncclCommInitRank");
  decltype(&ncclCommDestroy) destroy = library.find("ncclCommDestroy");
  decltype(&ncclCommAbort) abort = library.find("ncclCommAbort");
  decltype(&ncclGroupStart) group = library.find("ncclGroupStart");
  decltype(&ncclGroupEnd) group_end = library.find("ncclGroupEnd");
  decltype(&ncclAllReduce) all_reduce = library.find("ncclAllReduce");
  decltype(&ncclSend) send = library.find("ncclSend");
  decltype(&ncclRecv) receive = library.find("ncclRecv");
  decltype(&ncclCommGetAsyncError) state = library.find("ncclCommGetAsyncError");

  void check(ncclResult_t result, std::string_view what) const {
    if (result != ncclSuccess && result != ncclInProgress)
      throw Error(Code::kDevice, "cuda: NCCL: {}: {} (NCCL_DEBUG=WARN says more)", what, error(result));
  }
};

ncclDataType_t type_of(DeltaValues::Type type) { return type == DeltaValues::Type::kF32 ? ncclFloat32 : ncclBfloat16; }
int64_t bytes_of(DeltaValues::Type type) { return type == DeltaValues::Type::kF32 ? 4 : 2; }

// Bytes of one call. Longer messages go in several, since ranks have met for these sizes alone (meet()).
constexpr int64_t kFewestBytes = 1024, kMostBytes = kNcclBytes;

}  // namespace

std::string nccl_version() {
  int version = 0;
  try {
    const Nccl nccl;
    nccl.check(nccl.version(&version), "its version");
  } catch (const Error& e) {
    throw Error(Code::kUnsupported, "cuda: cards of several processes: {}", e.what());
  }
  return fmt::format("NCCL {}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

NcclId new_nccl_id() {
  const Nccl nccl;
  ncclUniqueId id{};
  nccl.check(nccl.unique_id(&id), "a group's id");
  NcclId out{};
  static_assert(sizeof id == sizeof out.bytes);
  std::memcpy(out.bytes.data(), &id, sizeof id);
  return out;
}

namespace {

class NcclComm final : public Comm {
 public:
  // The other constructor comes first, so that the destructor runs where this one throws.
  explicit NcclComm(const NcclPlace& place) : NcclComm(place.rank, place.ranks) {
    ncclUniqueId id;
    std::memcpy(&id, place.id.bytes.data(), sizeof id);
    const CurrentDevice before;
    cuda_check(cudaSetDevice(place.card));
    nccl_.check(nccl_.init(&comm_, place.ranks, id, place.rank), "joining the group");
    meet();
  }
  ~NcclComm() override {
    if (abandons_.joinable())
      abandons_.join();
    else if (comm_ != nullptr)
      nccl_.destroy(comm_);
  }
  NcclComm(const NcclComm&) = delete;
  NcclComm& operator=(const NcclComm&) = delete;

  void reduce(const DeltaValues& values, const Launch& on) const override {
    const int64_t bytes = bytes_of(values.type), most = kMostBytes / bytes;
    const auto lock = use();
    for (int64_t at = 0; at < values.count; at += most) {
      std::byte* const part = static_cast<std::byte*>(values.at) + at * bytes;
      nccl_.check(nccl_.all_reduce(part, part, static_cast<size_t>(std::min(most, values.count - at)),
                                   type_of(values.type), ncclSum, comm_, on.stream),
                  "a sum");
      launched(nccl_reduce_kernel(), on);
    }
  }

  void gather(const GatheredColumns& of, const Launch& on) const override {
    const auto lock = use();
    // A row lies where it belongs; more of them come side by side, and are put there.
    const auto place = [&](int from) {
      const int64_t first = of.columns[static_cast<size_t>(from)].first;
      return of.rows == 1 ? of.all + first : of.scratch + of.rows * first;
    };
    const auto count = [&](int from) {
      return static_cast<size_t>(of.rows * of.columns[static_cast<size_t>(from)].count);
    };
    nccl_.check(nccl_.group(), "logits");
    for (int other = 0; other < ranks(); ++other) {
      if (other == rank()) continue;
      nccl_.check(nccl_.send(of.own, count(rank()), ncclFloat32, other, comm_, on.stream), "logits");
      nccl_.check(nccl_.receive(place(other), count(other), ncclFloat32, other, comm_, on.stream), "logits");
    }
    nccl_.check(nccl_.group_end(), "logits");
    launched(nccl_gather_kernel(), on);
    for (int from = 0; from < ranks(); ++from) {
      if (of.rows == 1 && from != rank()) continue;
      const Range& columns = of.columns[static_cast<size_t>(from)];
      const size_t bytes = static_cast<size_t>(columns.count) * sizeof(float);
      cuda_check(cudaMemcpy2DAsync(of.all + columns.first, static_cast<size_t>(of.width) * sizeof(float),
                                   from == rank() ? of.own : place(from), bytes, bytes, static_cast<size_t>(of.rows),
                                   cudaMemcpyDeviceToDevice, on.stream));
    }
  }

  void require() const override {
    const auto lock = use();
    ncclResult_t state = ncclSuccess;
    nccl_.check(nccl_.state(comm_, &state), "what became of it");
    nccl_.check(state, "a sum over ranks");
  }

  // NCCL tells the card at once, and then waits until the last graph is gone: whose owner may be who calls. Who is in
  // the middle of a launch may wait for room behind launches that never end: then nobody waits for it.
  void give_up() const override {
    const std::unique_lock lock(used_, kUsingTime);
    if (given_up_.exchange(true)) return;
    abandons_ = std::thread([this] { nccl_.abort(comm_); });
  }

 private:
  NcclComm(int rank, int ranks) : Comm(rank, ranks) {}
  // NCCL connects ranks when a message first takes one of its algorithms, and in that call waits for the others: not in
  // the middle of a step. So all sizes go once, and then to every other rank the first part of the values for the
  // second.
  void meet() const {
    const DeviceBytes values = allocate_device(kMostBytes, "the first sums of NCCL");
    const Stream stream = make_stream();
    cuda_check(cudaMemsetAsync(values.get(), 0, static_cast<size_t>(kMostBytes), stream.get()));
    for (const DeltaValues::Type type : {DeltaValues::Type::kF32, DeltaValues::Type::kBf16})
      for (int64_t bytes = kFewestBytes; bytes <= kMostBytes; bytes *= 2)
        nccl_.check(nccl_.all_reduce(values.get(), values.get(), static_cast<size_t>(bytes / bytes_of(type)),
                                     type_of(type), ncclSum, comm_, stream.get()),
                    "the first sums");
    constexpr std::string_view kExchange = "the first exchange";
    for (int64_t bytes = kFewestBytes; bytes <= kMostBytes / 2; bytes *= 16) {
      const auto count = static_cast<size_t>(bytes) / sizeof(float);
      nccl_.check(nccl_.group(), kExchange);
      for (int other = 0; other < ranks(); ++other) {
        if (other == rank()) continue;
        nccl_.check(nccl_.send(values.get(), count, ncclFloat32, other, comm_, stream.get()), kExchange);
        nccl_.check(nccl_.receive(values.get() + bytes, count, ncclFloat32, other, comm_, stream.get()), kExchange);
      }
      nccl_.check(nccl_.group_end(), kExchange);
    }
    cuda_check(cudaStreamSynchronize(stream.get()));
  }
  // Throws where this rank was given up.
  [[nodiscard]] std::shared_lock<std::shared_timed_mutex> use() const {
    std::shared_lock lock(used_);
    if (given_up_) throw Error(Code::kDevice, "cuda: NCCL: a rank has failed");
    return lock;
  }

  const Nccl nccl_;
  ncclComm_t comm_ = nullptr;
  mutable std::shared_timed_mutex used_;  // alone: who gives up
  mutable std::atomic<bool> given_up_ = false;
  mutable std::thread abandons_;
};

}  // namespace

std::unique_ptr<Comm> make_nccl_comm(const NcclPlace& place) { return std::make_unique<NcclComm>(place); }

}  // namespace nibble::backend::cuda
