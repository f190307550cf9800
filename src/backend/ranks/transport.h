#pragma once
// How ranks that share a step exchange values: each rank's member (member.h) calls its own end, all of them the same
// functions in the same order. A function returns when this rank has what it is to get. One that waits for a rank that
// is lost throws Error; what was exchanged in that step is worth nothing then.
//
// On a host: threads_transport.h, ranks of one process; socket_transport.h, a process each. Cards have the same
// functions as launches of a step (backend/cuda/comm/comm.h), by peer memory or by NCCL.

#include "backend/backend.h"
#include "backend/weights.h"

#include <cstddef>
#include <cstdint>
#include <span>

namespace nibble::backend {

// All ranks' columns of some rows, side by side.
struct GatheredRows {
  std::span<const Range> columns;  // by rank
  std::span<float> values{};       // [rows, width] out; none: not on this rank
  int64_t width = 0;

  // values[:, columns[rank]] = row(0), row(1) and so on, as the rank has them.
  template <class Row>
  void put(int rank, size_t rows, const Row& row) const {
    const auto first = static_cast<size_t>(columns[static_cast<size_t>(rank)].first);
    for (size_t r = 0; r < rows; ++r) {
      const std::span<float> into = values.subspan(r * static_cast<size_t>(width) + first);
      size_t at = 0;
      for (const auto value : row(r)) into[at++] = static_cast<float>(value);
    }
  }
};

class Transport {
 public:
  Transport() = default;
  virtual ~Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  // Every rank's values become the sum of all ranks', added from the first rank on: all have the same bits.
  virtual void reduce(SlotRows values) = 0;
  // Rank 0 gets every rank's rows. They stay as they are until the rank's next call has
  // returned, or the step has ended.
  virtual void gather(SlotRows own, const GatheredRows& all) = 0;
  // Every rank gets rank 0's values.
  virtual void broadcast(std::span<int32_t> values) = 0;
};

}  // namespace nibble::backend
