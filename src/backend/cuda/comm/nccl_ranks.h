#pragma once
// NVIDIA's NCCL for ranks that have a card each. Its library is opened when ranks ask for it, never linked: a program
// starts without. A build that found no nccl.h has nccl_absent.cpp in its place.

#include "backend/cuda/comm/delta_values.h"
#include "backend/cuda/launch/kernel_table.h"
#include "backend/weights.h"

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace nibble::backend::cuda {

// Which of NCCL's kernels runs is its own choice; their names begin so.
[[nodiscard]] constexpr Kernel nccl_reduce_kernel() { return {"ncclDevKernel_AllReduce"}; }
[[nodiscard]] constexpr Kernel nccl_gather_kernel() { return {"ncclDevKernel_SendRecv"}; }

// What it takes of a card's memory, about: two H200 of one host with its defaults; channels and sockets add to it.
inline constexpr int64_t kNcclCardBytes = int64_t{512} << 20;

// Columns of every rank on their way to all of them.
struct GatheredColumns {
  const float* own = nullptr;      // [rows, columns[rank].count]
  float* all = nullptr;            // [rows, width] out
  std::span<const Range> columns;  // by rank
  int64_t rows = 0, width = 0;
  float* scratch = nullptr;  // [rows, width], of more than one row by NCCL; else not used
};

// What is there: "NCCL 2.28.9", or why nothing is.
struct NcclLibrary {
  bool there = false;
  std::string what;
};
[[nodiscard]] NcclLibrary nccl_library();

// Names a group of ranks. One process makes it and tells the others.
struct NcclId {
  std::array<char, 128> bytes;
};
// Throws as NcclRanks does.
[[nodiscard]] NcclId new_nccl_id();

// Some ranks of a group, or all of them: those of this process.
class NcclRanks {
 public:
  // By rank. Throws Error(kUnsupported) where there is no library, or a card is named twice; Error(kDevice) for what
  // NCCL refuses.
  explicit NcclRanks(std::span<const int> cards);

  struct Group {
    NcclId id;
    int ranks = 1;  // of all processes
    int first = 0;  // rank of this process, with the first card; then one after the other
  };
  // Waits until all ranks of the group have come, and must be told by others if one never does. Throws likewise.
  NcclRanks(const Group& group, std::span<const int> cards);
  // REQUIRES that all graphs with its launches are destroyed: NCCL waits for that.
  ~NcclRanks();
  NcclRanks(const NcclRanks&) = delete;
  NcclRanks& operator=(const NcclRanks&) = delete;

  // values = Σ over ranks, in place and with the same bits on all: NCCL adds up each value in one place and copies the
  // sum. In which order depends on the message, and bf16 is rounded with each addition. Enqueues, like a launch; may be
  // captured. rank: one of this process, with its card current. Throws Error(kDevice).
  void all_reduce(int rank, const DeltaValues& values, const Launch& on) const;
  // all[r, columns[s]] = own[r, :] of rank s, for every rank s. Likewise.
  void gather(int rank, const GatheredColumns& of, const Launch& on) const;
  // Throws Error(kDevice) where NCCL has met an error on the way, or give_up() came: what the cards hold is nothing
  // then.
  void require() const;
  // Ends what waits on the cards for another rank; all else throws from now on. From any thread.
  void give_up() const;

 private:
  struct Ends;
  std::unique_ptr<Ends> ends_;
};

}  // namespace nibble::backend::cuda
