#pragma once
// The logits of all ranks, and what is drawn from them: on the host, by whoever drives the ranks.

#include "backend/backend.h"
#include "base/thread_pool.h"

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace nibble::backend {

class GatheredLogits {
 public:
  explicit GatheredLogits(int64_t vocab) : vocab_(vocab) {}

  void resize(size_t rows);
  [[nodiscard]] size_t rows() const { return rows_; }
  [[nodiscard]] std::span<float> row(size_t row);
  [[nodiscard]] SlotData data() const;

  // As Backend has them.
  [[nodiscard]] Ticket sample(const SampleArgs& args, ThreadPool& pool);
  [[nodiscard]] std::vector<Drawn> wait(Ticket ticket) const;

  // Ids below 0 become the tokens that were drawn for them: the ranks have not drawn any.
  [[nodiscard]] std::vector<int32_t> known(std::span<const int32_t> ids) const;

 private:
  const int64_t vocab_;
  std::vector<float> logits_;  // [rows, vocab]
  size_t rows_ = 0;
  std::array<std::vector<Drawn>, 2> sampled_;  // of the last two tickets
  Ticket ticket_ = 0;
};

}  // namespace nibble::backend
