#include "backend/ranks/gathered_logits.h"

#include "base/error.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace nibble::backend {

void GatheredLogits::resize(size_t rows) {
  rows_ = rows;
  logits_.resize(rows * static_cast<size_t>(vocab_));
}

std::span<float> GatheredLogits::row(size_t row) {
  const auto vocab = static_cast<size_t>(vocab_);
  return std::span(logits_).subspan(row * vocab, vocab);
}

SlotData GatheredLogits::data() const { return {{static_cast<int64_t>(rows_), vocab_}, logits_}; }

Ticket GatheredLogits::sample(const SampleArgs& args, ThreadPool& pool) {
  check(args.rows.size() == rows_, "one sample row per row of logits");
  std::vector<Drawn> drawn(args.rows.size());
  pool.parallel_for(std::ssize(drawn), [&](IndexRange range) {
    for (auto r = static_cast<size_t>(range.begin); r < static_cast<size_t>(range.end); ++r)
      drawn[r] = draw(row(r), args.rows[r]);
  });
  sampled_ = {std::move(sampled_.back()), std::move(drawn)};
  return ++ticket_;
}

std::vector<Drawn> GatheredLogits::wait(Ticket ticket) const {
  check(ticket == ticket_ || ticket == ticket_ - 1, "two tickets may be outstanding");
  return sampled_[ticket == ticket_ ? 1 : 0];
}

std::vector<int32_t> GatheredLogits::known(std::span<const int32_t> ids) const {
  std::vector<int32_t> known(ids.begin(), ids.end());
  for (int32_t& id : known)
    if (id < 0) id = std::max(0, sampled_.back()[static_cast<size_t>(-1 - id)].token);
  return known;
}

}  // namespace nibble::backend
