// In a build that found no nccl.h.
#include "backend/cuda/card_group.h"
#include "backend/cuda/comm/comm.h"

#include "base/error.h"

namespace nibble::backend::cuda {
namespace {
[[noreturn]] void refuse() {
  throw Error(Code::kUnsupported, "cuda: cards of several processes: want NCCL, found a build without nccl.h");
}
}  // namespace

std::string nccl_version() { refuse(); }
NcclId new_nccl_id() { refuse(); }

std::unique_ptr<Comm> make_nccl_comm(const NcclPlace& /*place*/) { refuse(); }

}  // namespace nibble::backend::cuda
