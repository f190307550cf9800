#pragma once
// Ranks of one process, each on a thread of its own, which read and write each other's values where these lie.

#include "backend/ranks/transport.h"
#include "base/error.h"
#include "base/thread_pool.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <thread>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

namespace nibble::backend {

// Where the ranks meet. It outlives their ends.
class MeetingThreads {
 public:
  explicit MeetingThreads(int ranks) : own_(static_cast<size_t>(ranks)) {
    for (auto& [floats, doubles] : copies_) {
      floats.resize(own_.size());
      doubles.resize(own_.size());
    }
  }

  [[nodiscard]] std::unique_ptr<Transport> end_of(int rank) {
    return std::make_unique<End>(*this, static_cast<size_t>(rank));
  }
  // Whoever waits for another rank, now or later, gets an error. From any thread.
  void give_up() {
    given_up_ = true;
    round_.fetch_add(1, std::memory_order_release);
    round_.notify_all();
  }

 private:
  class End final : public Transport {
   public:
    End(MeetingThreads& at, size_t rank) : at_(at), rank_(rank) {}

    void reduce(SlotRows values) override {
      const bool is_short = std::visit(
          [](const auto& rows) { return rows.empty() || rows.size() * rows[0].size() <= kShortValues; }, values);
      if (is_short) return std::visit([this](const auto& rows) { add_all(rows); }, values);
      at_.show(rank_, std::move(values));
      std::visit([this]<class Rows>(const Rows&) { add_columns<Rows>(); }, at_.own_[rank_]);
      at_.meet();
    }
    void gather(SlotRows own, const GatheredRows& all) override {
      if (rank_ == 0) at_.gathered_ = all;
      at_.show(rank_, std::move(own));
      std::visit(
          [this](const auto& rows) {
            at_.gathered_.put(static_cast<int>(rank_), rows.size(), [&](size_t row) { return rows[row]; });
          },
          at_.own_[rank_]);
      at_.meet();
    }
    void broadcast(std::span<int32_t> values) override {
      if (rank_ == 0) at_.said_ = values;
      at_.meet();
      if (rank_ > 0) std::ranges::copy(at_.said_, values.begin());
      at_.meet();
    }

   private:
    // A short message: every rank adds up all parts by itself, in the order of the ranks: they meet once. Parts are
    // copied to two places in turn: who has met all in this sum is done with those of the sum before.
    template <class Rows>
    void add_all(const Rows& rows) {
      using T = typename Rows::value_type::element_type;
      auto& parts = std::get<std::vector<std::vector<T>>>(at_.copies_[turn_ ^= 1]);
      at_.require();
      std::vector<T>& own = parts[rank_];
      own.clear();
      for (const auto& row : rows) own.insert(own.end(), row.begin(), row.end());
      at_.meet();
      size_t at = 0;
      for (const auto& row : rows)
        for (T& value : row) {
          T sum = parts[0][at];
          for (size_t rank = 1; rank < parts.size(); ++rank) sum += parts[rank][at];
          value = sum;
          ++at;
        }
    }
    // This rank's share of the columns, for all ranks.
    template <class Rows>
    void add_columns() const {
      const size_t ranks = at_.own_.size();
      const auto rows_of = [this](size_t rank) -> const Rows& { return std::get<Rows>(at_.own_[rank]); };
      const Rows& first = rows_of(0);
      const size_t width = first.empty() ? 0 : first[0].size();
      for (size_t t = 0; t < first.size(); ++t) {
        for (size_t d = width * rank_ / ranks; d < width * (rank_ + 1) / ranks; ++d) {
          auto sum = first[t][d];
          for (size_t rank = 1; rank < ranks; ++rank) sum += rows_of(rank)[t][d];
          for (size_t rank = 0; rank < ranks; ++rank) rows_of(rank)[t][d] = sum;
        }
      }
    }
    MeetingThreads& at_;
    const size_t rank_;
    size_t turn_ = 0;
  };
  static constexpr size_t kShortValues = size_t{16} << 10;

  // Once all have shown theirs. They stay here: a rank that is let go may leave while another still reads.
  void show(size_t rank, SlotRows rows) {
    require();
    own_[rank] = std::move(rows);
    meet();
  }
  // Returns when all ranks have come.
  void meet() {
    const uint32_t round = round_.load(std::memory_order_acquire);
    require();
    if (came_.fetch_add(1, std::memory_order_acq_rel) + 1 == own_.size()) {
      came_.store(0, std::memory_order_relaxed);
      round_.fetch_add(1, std::memory_order_release);
      round_.notify_all();
    } else if (spins_) {
      wait_while(round_, round);
    } else {
      round_.wait(round, std::memory_order_acquire);
    }
    require();
  }
  void require() const {
    if (given_up_) throw Error(Code::kIo, "another rank has failed");
  }

  std::vector<SlotRows> own_;  // by rank
  template <class T>
  using Copies = std::vector<std::vector<T>>;  // by rank
  std::array<std::tuple<Copies<float>, Copies<double>>, 2> copies_;
  GatheredRows gathered_;  // rank 0's
  std::span<const int32_t> said_;
  std::atomic<uint32_t> round_{0};
  alignas(64) std::atomic<size_t> came_{0};
  std::atomic<bool> given_up_{false};
  // Ranks that outnumber the processors would keep each other from running.
  const bool spins_ = own_.size() <= std::thread::hardware_concurrency();
};

}  // namespace nibble::backend
