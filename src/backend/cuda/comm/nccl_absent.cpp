// In a build that found no nccl.h.
#include "backend/cuda/comm/nccl_ranks.h"

#include "base/error.h"

namespace nibble::backend::cuda {

struct NcclRanks::Ends {};

namespace {
[[noreturn]] void refuse() { throw Error(Code::kUnsupported, "cuda: {}", nccl_library().what); }
}  // namespace

NcclLibrary nccl_library() { return {.there = false, .what = "want NCCL, found a build without nccl.h"}; }
NcclId new_nccl_id() { refuse(); }

NcclRanks::NcclRanks(std::span<const int> /*cards*/) { refuse(); }
NcclRanks::NcclRanks(const Group& /*group*/, std::span<const int> /*cards*/) { refuse(); }
NcclRanks::~NcclRanks() = default;
void NcclRanks::all_reduce(int /*rank*/, const DeltaValues& /*values*/, const Launch& /*on*/) const { refuse(); }
void NcclRanks::gather(int /*rank*/, const GatheredColumns& /*of*/, const Launch& /*on*/) const { refuse(); }
void NcclRanks::require() const { refuse(); }
void NcclRanks::give_up() const {}

}  // namespace nibble::backend::cuda
