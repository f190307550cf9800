#pragma once
// A head run on the host: what backend/draft_head.h asks of who runs one, for backends that run none themselves.

#include "backend/draft_head.h"
#include "base/thread_pool.h"
#include "model/eagle3/head.h"

#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

namespace nibble::model::eagle3 {

class HostRunner final : public backend::HeadRunner {
 public:
  // The head outlives the runner, and so does what the products compute with.
  HostRunner(const Head& head, int threads, std::unique_ptr<backend::HeadProducts> products = nullptr);

  void read(std::span<const Rows> sequences) override;
  void draft(std::span<const Draft> sequences) override;
  void end(SequenceId sequence) override { of_.erase(sequence); }

 private:
  struct State {
    Cache cache;
    std::vector<float> normed, next;  // of the last row that was read
  };
  [[nodiscard]] std::vector<float> features(std::span<const Rows> sequences);
  void keep_last(State& state, const Head::Read& read, size_t row) const;
  void draft_in_turn(std::span<const Draft> sequences);
  void draft_at_once(std::span<const Draft> sequences);

  const Head& head_;
  const std::unique_ptr<backend::HeadProducts> products_;
  ThreadPool threads_;
  const Workers workers_;
  std::vector<float> mask_feature_;  // of rows of the mask token
  std::unordered_map<SequenceId, State> of_;
};

}  // namespace nibble::model::eagle3
