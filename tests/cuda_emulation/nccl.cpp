// The library behind emulation/runtime/nccl.h.

#include "base/dtype.h"

#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <type_traits>
#include <utility>
#include <vector>

#include <nccl.h>

namespace {

using nibble::Bf16;
using nibble::backend::cuda::EmulatedNccl;

struct Sum {
  struct Part {
    const void* from;
    void* to;
  };
  std::vector<Part> parts;
  size_t count = 0;
  ncclDataType_t type = ncclFloat32;
  bool done = false;
};
struct Message {
  const void* from = nullptr;
  void* to = nullptr;
  size_t count = 0;
  bool done = false;
};
using SharedSum = std::shared_ptr<Sum>;
using SharedMessage = std::shared_ptr<Message>;

// Ranks that met by one id.
struct Meeting {
  explicit Meeting(int count) : ranks(count), past(static_cast<size_t>(count)) {}
  int ranks = 0, came = 0;
  std::deque<SharedSum> sums;                                              // that not all ranks have come to
  std::vector<size_t> past;                                                // sums of each rank so far
  size_t first = 0;                                                        // number of sums.front()
  std::map<std::pair<int, int>, std::deque<SharedMessage>> sent, awaited;  // by sender and receiver
};

std::mutex all_mutex;  // guards all below
std::condition_variable changed;
EmulatedNccl told;
std::map<std::string, std::shared_ptr<Meeting>> meetings;
int ids = 0;

float float_of(float value) { return value; }
float float_of(Bf16 value) { return value.to_float(); }

template <class T>
void add_up(const Sum& sum) {
  std::vector<float> total(sum.count);
  for (const Sum::Part& part : sum.parts)
    for (size_t i = 0; i < sum.count; ++i) total[i] += float_of(static_cast<const T*>(part.from)[i]);
  for (const Sum::Part& part : sum.parts)
    for (size_t i = 0; i < sum.count; ++i)
      if constexpr (std::is_same_v<T, float>)
        static_cast<float*>(part.to)[i] = total[i];
      else
        static_cast<T*>(part.to)[i] = T::from_float(total[i]);
}

}  // namespace

// NOLINTBEGIN(readability-identifier-naming): NCCL's names
struct ncclComm {
  std::shared_ptr<Meeting> meeting;
  int rank = 0;
  bool aborted = false;
  ncclResult_t state = ncclSuccess;
};

namespace {

std::vector<std::unique_ptr<ncclComm>> aborted;  // guarded; who aborts does not free

// What this thread waits for at the end of its group.
struct Pending {
  ncclComm_t comm;
  std::function<bool()> done;
};
thread_local int depth = 0;
thread_local std::vector<Pending> pending;

ncclResult_t finish(std::unique_lock<std::mutex>& lock) {
  if (depth > 0) return ncclSuccess;
  for (const Pending& of : std::exchange(pending, {}))
    changed.wait(lock, [&] { return of.comm->aborted || of.done(); });
  return ncclSuccess;
}

}  // namespace

ncclResult_t ncclGetVersion(int* version) { return *version = 22803, ncclSuccess; }
const char* ncclGetErrorString(ncclResult_t result) { return result == ncclRemoteError ? "remote error" : "an error"; }

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  const std::lock_guard lock(all_mutex);
  ++told.calls["id"];
  *id = {};
  std::memcpy(id->internal, &++ids, sizeof ids);
  return ncclSuccess;
}

ncclResult_t ncclCommInitRank(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank) {
  std::unique_lock lock(all_mutex);
  ++told.calls["join"];
  std::shared_ptr<Meeting>& meeting = meetings[std::string(id.internal, sizeof id.internal)];
  if (!meeting) meeting = std::make_shared<Meeting>(ranks);
  if (meeting->ranks != ranks || rank < 0 || rank >= ranks) return ncclInvalidArgument;
  *comm = new ncclComm{.meeting = meeting, .rank = rank};
  ++meeting->came;
  changed.notify_all();
  pending.push_back({*comm, [of = meeting] { return of->came == of->ranks; }});
  return finish(lock);
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  const std::lock_guard lock(all_mutex);
  ++told.calls["destroy"];
  delete comm;
  return ncclSuccess;
}

// Who waits on this rank is let go; the rank lives until the program ends, since it may be in the middle of a call.
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  const std::lock_guard lock(all_mutex);
  ++told.calls["abort"];
  comm->aborted = true;
  aborted.emplace_back(comm);
  changed.notify_all();
  return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  const std::lock_guard lock(all_mutex);
  return *state = comm->state, ncclSuccess;
}

ncclResult_t ncclGroupStart() { return ++depth, ncclSuccess; }
ncclResult_t ncclGroupEnd() {
  std::unique_lock lock(all_mutex);
  --depth;
  return finish(lock);
}

ncclResult_t ncclAllReduce(const void* from, void* to, size_t count, ncclDataType_t type, ncclRedOp_t /*op*/,
                           ncclComm_t comm, cudaStream_t /*stream*/) {
  std::unique_lock lock(all_mutex);
  ++told.calls["sum"];
  if (told.sums_until_error >= 0 && told.sums_until_error-- == 0) comm->state = ncclRemoteError;
  Meeting& meeting = *comm->meeting;
  size_t& past = meeting.past[static_cast<size_t>(comm->rank)];
  while (meeting.first + meeting.sums.size() <= past) meeting.sums.push_back(std::make_shared<Sum>());
  const SharedSum sum = meeting.sums[past++ - meeting.first];
  if (!sum->parts.empty() && (sum->count != count || sum->type != type)) return ncclInvalidArgument;  // a card hangs
  sum->count = count;
  sum->type = type;
  sum->parts.push_back({from, to});
  if (std::cmp_equal(sum->parts.size(), meeting.ranks)) {
    type == ncclFloat32 ? add_up<float>(*sum) : add_up<Bf16>(*sum);
    sum->done = true;
    while (!meeting.sums.empty() && meeting.sums.front()->done) meeting.sums.pop_front(), ++meeting.first;
    changed.notify_all();
  }
  pending.push_back({comm, [sum] { return sum->done; }});
  return finish(lock);
}

namespace {

// `own` is one end; the other's may have come before.
ncclResult_t exchange(ncclComm_t comm, std::deque<SharedMessage>& mine, std::deque<SharedMessage>& theirs,
                      const Message& own) {
  std::unique_lock lock(all_mutex, std::adopt_lock);
  SharedMessage message;
  if (theirs.empty()) {
    message = mine.emplace_back(std::make_shared<Message>(own));
  } else {
    message = theirs.front();
    theirs.pop_front();
    if (message->count != own.count) return ncclInvalidArgument;  // a card hangs
    if (own.from != nullptr)
      message->from = own.from;
    else
      message->to = own.to;
    std::memcpy(message->to, message->from, own.count * sizeof(float));
    message->done = true;
    changed.notify_all();
  }
  pending.push_back({comm, [message] { return message->done; }});
  return finish(lock);
}

}  // namespace

ncclResult_t ncclSend(const void* from, size_t count, ncclDataType_t /*type*/, int peer, ncclComm_t comm,
                      cudaStream_t /*stream*/) {
  all_mutex.lock();
  ++told.calls["send"];
  const std::pair way(comm->rank, peer);
  return exchange(comm, comm->meeting->sent[way], comm->meeting->awaited[way], {.from = from, .count = count});
}
ncclResult_t ncclRecv(void* to, size_t count, ncclDataType_t /*type*/, int peer, ncclComm_t comm,
                      cudaStream_t /*stream*/) {
  all_mutex.lock();
  const std::pair way(peer, comm->rank);
  return exchange(comm, comm->meeting->awaited[way], comm->meeting->sent[way], {.to = to, .count = count});
}
// NOLINTEND(readability-identifier-naming)

namespace nibble::backend::cuda {

EmulatedNccl emulated_nccl() {
  const std::lock_guard lock(all_mutex);
  return told;
}
void set_emulated_nccl(const EmulatedNccl& to) {
  const std::lock_guard lock(all_mutex);
  told = to;
}

}  // namespace nibble::backend::cuda
