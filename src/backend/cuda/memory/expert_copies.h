#pragma once
// The host's experts on their way to the card, for steps of so many tokens that reading all of them over the bus is
// faster than what the host would compute.

#include "backend/backend.h"
#include "backend/cuda/card/device.h"
#include "backend/cuda/experts/host_experts.h"
#include "backend/cuda/memory/arena.h"
#include "backend/cuda/memory/upload.h"

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <utility>

namespace nibble::backend::cuda {

class ExpertCopies {
 public:
  // `config` and `files` outlive it; the slots are those of config's expert_parts.
  ExpertCopies(const BackendConfig& config, std::span<const MappedSource> files, int threads, const ExpertSlots& slots,
               cudaStream_t stream);

  // A matrix of a layer's experts, whose bytes stay.
  void add(const HostWeight& weight);
  // Whether all that were added can be copied: as they lie, no file's format is another, no column is filled up, and no
  // copy has failed.
  [[nodiscard]] bool able() const { return able_; }

  // Enqueues the copy. What is enqueued on the stream next finds the part in its slot; what was enqueued since the last
  // copy reads that one's slot. Returns when all is enqueued, so it takes as long as the copy but for its end. REQUIRES
  // able(), and both matrices of the layer.
  void copy(const ExpertCopy& part, const Launch& on);
  // Throws Error(kUnsupported) once a part that was copied had scales which no packing holds, and from then on.
  void require() const;

 private:
  void enqueue(const ExpertCopy& part, const Launch& on);

  const BackendConfig& config_;
  const std::span<const MappedSource> files_;
  const int threads_;
  const ExpertSlots slots_;
  const ExpertParts parts_;
  bool able_ = true;
  std::map<std::pair<int, WeightRole>, HostWeight> weights_;
  PinnedBytes bad_shown_;         // an int
  DeviceBytes bad_scales_;        // an int
  std::array<Event, 2> read_{};   // by slot: who read it has ended
  std::optional<Slabs> slabs_;    // from the first copy on
  std::optional<Uploader> from_;  // the last: its threads use the others
};

}  // namespace nibble::backend::cuda
