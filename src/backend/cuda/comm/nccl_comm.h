#pragma once
// NVIDIA's NCCL as the transport of a rank that has a process and a card of its own. Its library is opened when a rank
// asks for it, never linked: a program starts without. A build that found no nccl.h has nccl_absent.cpp in its place.

#include "backend/cuda/comm/comm.h"
#include "backend/cuda/launch/launch.h"

#include <array>
#include <cstdint>
#include <memory>

namespace nibble::backend::cuda {

// Names a group of ranks. One process makes it and tells the others.
struct NcclId {
  std::array<char, 128> bytes;
};
// Throws as NcclComm does.
[[nodiscard]] NcclId new_nccl_id();

class NcclComm final : public Comm {
 public:
  struct Place {
    NcclId id;
    int rank = 0, ranks = 1;
    int card = 0;
  };
  // Waits until all ranks of the group have come, and must be told by others if one never does. Throws
  // Error(kUnsupported) where there is no library, Error(kDevice) for what NCCL refuses.
  explicit NcclComm(const Place& place);
  // REQUIRES that all graphs with its launches are destroyed: NCCL waits for that.
  ~NcclComm() override;
  NcclComm(const NcclComm&) = delete;
  NcclComm& operator=(const NcclComm&) = delete;

  // NCCL adds up each value in one place and copies the sum. In which order depends on the message, and bf16 is rounded
  // with each addition. May be captured. REQUIRES its card to be current; throws Error(kDevice).
  void reduce(const DeltaValues& values, const Launch& on) const override;
  void gather(const GatheredColumns& of, const Launch& on) const override;
  // Throws Error(kDevice) where NCCL has met an error on the way, or give_up() came: what the card holds is nothing
  // then.
  void require() const override;
  // Ends what waits on the card for another rank; all else throws from now on. From any thread.
  void give_up() const;

 private:
  struct End;
  std::unique_ptr<End> end_;
};

}  // namespace nibble::backend::cuda
