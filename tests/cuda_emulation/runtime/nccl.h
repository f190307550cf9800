#pragma once
// Stands in for NCCL's header of this name, as cuda_runtime_api.h for CUDA's. The library is emulation/nccl.cpp: ranks
// are threads of this process, and a message is a copy between them. Only what the room calls.

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include <cuda_runtime_api.h>

// NOLINTBEGIN(readability-identifier-naming): NCCL's names
enum ncclResult_t {
  ncclSuccess = 0,
  ncclInvalidArgument = 4,
  ncclInvalidUsage = 5,
  ncclRemoteError = 6,
  ncclInProgress = 7
};
enum ncclDataType_t { ncclFloat32 = 7, ncclBfloat16 = 9 };
enum ncclRedOp_t { ncclSum = 0 };
struct ncclUniqueId {
  char internal[128];
};
struct ncclComm;
using ncclComm_t = ncclComm*;

extern "C" {
ncclResult_t ncclGetVersion(int* version);
const char* ncclGetErrorString(ncclResult_t result);
ncclResult_t ncclGetUniqueId(ncclUniqueId* id);
// Waits until all ranks have come.
ncclResult_t ncclCommInitRank(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank);
ncclResult_t ncclCommDestroy(ncclComm_t comm);
ncclResult_t ncclCommAbort(ncclComm_t comm);
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state);
ncclResult_t ncclGroupStart();
ncclResult_t ncclGroupEnd();
// Outside a capture these wait for the other ranks: on a card, a stream would.
ncclResult_t ncclAllReduce(const void* from, void* to, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclSend(const void* from, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream);
ncclResult_t ncclRecv(void* to, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream);
}
// NOLINTEND(readability-identifier-naming)

namespace nibble::backend::cuda {

// What the library did and is to do, of all ranks.
struct EmulatedNccl {
  std::map<std::string, int64_t> calls{};  // by function, those outside this process's first sums included
  int sums_until_error = -1;               // then a rank's state is ncclRemoteError; -1: never
};
// A copy, under the library's lock.
[[nodiscard]] EmulatedNccl emulated_nccl();
void set_emulated_nccl(const EmulatedNccl& to);

}  // namespace nibble::backend::cuda
