#pragma once
// Ranks of a process each, over the TCP of their group: values go to rank 0, and what all get comes from it.

#include "backend/ranks/process_group.h"
#include "backend/ranks/transport.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <variant>
#include <vector>

namespace nibble::backend {

class SocketTransport final : public Transport {
 public:
  // REQUIRES that the group outlives this.
  explicit SocketTransport(ProcessGroup& group) : group_(group) {}

  void reduce(SlotRows values) override {
    std::visit([this](const auto& rows) { sum(rows); }, values);
  }
  void gather(SlotRows own, const GatheredRows& all) override {
    std::visit([&](const auto& rows) { bring(rows, all); }, own);
  }
  void broadcast(std::span<int32_t> values) override {
    if (group_.rank() == 0) return group_.tell(FrameType::kTokens, std::as_bytes(values));
    std::ranges::copy(receive<int32_t>(0, FrameType::kTokens, values.size()), values.begin());
  }

 private:
  // Throws Error(kCorrupt) for other than so many values.
  template <class T>
  std::vector<T> receive(int rank, FrameType want, size_t count) {
    const Frame frame = group_.receive(rank);
    require_type(frame, want);
    BodyReader in(frame);
    const std::span<const T> values = in.bare<T>(count);
    in.end();
    return {values.begin(), values.end()};
  }

  template <class Rows>
  void sum(const Rows& rows) {
    using T = typename Rows::value_type::element_type;
    std::vector<T> all;
    for (const auto& row : rows) all.insert(all.end(), row.begin(), row.end());
    if (group_.rank() > 0) {
      group_.send(0, FrameType::kDelta, std::as_bytes(std::span(all)));
      all = receive<T>(0, FrameType::kDelta, all.size());
    } else {
      for (int rank = 1; rank < group_.count(); ++rank) {
        const std::vector<T> part = receive<T>(rank, FrameType::kDelta, all.size());
        for (size_t i = 0; i < all.size(); ++i) all[i] += part[i];
      }
      group_.tell(FrameType::kDelta, std::as_bytes(std::span(all)));
    }
    auto at = all.begin();
    for (const auto& row : rows) {
      std::copy_n(at, row.size(), row.begin());
      at += static_cast<std::ptrdiff_t>(row.size());
    }
  }

  template <class Rows>
  void bring(const Rows& own, const GatheredRows& all) {
    if (group_.rank() > 0) {
      std::vector<float> part;
      for (const auto& row : own)
        for (const auto value : row) part.push_back(static_cast<float>(value));
      return group_.send(0, FrameType::kLogitRows, std::as_bytes(std::span(part)));
    }
    all.put(0, own.size(), [&](size_t row) { return own[row]; });
    for (int rank = 1; rank < group_.count(); ++rank) {
      const auto width = static_cast<size_t>(all.columns[static_cast<size_t>(rank)].count);
      const std::vector<float> part = receive<float>(rank, FrameType::kLogitRows, own.size() * width);
      all.put(rank, own.size(), [&](size_t row) { return std::span(part).subspan(row * width, width); });
    }
  }

  ProcessGroup& group_;
};

}  // namespace nibble::backend
