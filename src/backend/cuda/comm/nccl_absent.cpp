// In a build that found no nccl.h.
#include "backend/cuda/card_group.h"
#include "backend/cuda/comm/comm.h"

#include "base/error.h"

namespace nibble::backend::cuda {

struct NcclComm::End {};

namespace {
[[noreturn]] void refuse() {
  throw Error(Code::kUnsupported, "cuda: cards of several processes: want NCCL, found a build without nccl.h");
}
}  // namespace

std::string nccl_version() { refuse(); }
NcclId new_nccl_id() { refuse(); }

NcclComm::NcclComm(const Place& place) : Comm(place.rank, place.ranks) { refuse(); }
NcclComm::~NcclComm() = default;
void NcclComm::reduce(const DeltaValues& /*values*/, const Launch& /*on*/) const { refuse(); }
void NcclComm::gather(const GatheredColumns& /*of*/, const Launch& /*on*/) const { refuse(); }
void NcclComm::require() const { refuse(); }
void NcclComm::give_up() const {}

}  // namespace nibble::backend::cuda
