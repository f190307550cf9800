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
  explicit MeetingThreads(int ranks) : ranks_(static_cast<size_t>(ranks)) {
    for (Shown& shown : shown_) {
      shown.rows.resize(ranks_);
      std::get<Copies<float>>(shown.copies).resize(ranks_);
      std::get<Copies<double>>(shown.copies).resize(ranks_);
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
  template <class T>
  using Copies = std::vector<std::vector<T>>;  // by rank
  // What ranks show each other in an exchange. There are two, in turn: who has met all in this exchange is done with
  // what was shown in the one before. It stays here: a rank that is let go may leave while another still reads.
  struct Shown {
    std::vector<SlotRows> rows;  // by rank
    std::tuple<Copies<float>, Copies<double>> copies;
    std::vector<int32_t> said;  // by rank 0
  };

  class End final : public Transport {
   public:
    End(MeetingThreads& at, size_t rank) : at_(at), rank_(rank) {}

    void reduce(SlotRows values) override {
      const bool is_short = std::visit(
          [](const auto& rows) { return rows.empty() || rows.size() * rows[0].size() <= kShortValues; }, values);
      Shown& shown = next();
      if (is_short) return std::visit([&](const auto& rows) { add_all(rows, shown); }, values);
      shown.rows[rank_] = std::move(values);
      at_.meet();
      std::visit([&]<class Rows>(const Rows&) { add_columns<Rows>(shown); }, shown.rows[rank_]);
      at_.meet();
    }
    void gather(SlotRows own, const GatheredRows& all) override {
      Shown& shown = next();
      shown.rows[rank_] = std::move(own);
      at_.meet();
      for (size_t rank = 0; rank_ == 0 && rank < at_.ranks_; ++rank)
        std::visit(
            [&](const auto& rows) {
              all.put(static_cast<int>(rank), rows.size(), [&](size_t row) { return rows[row]; });
            },
            shown.rows[rank]);
    }
    void broadcast(std::span<int32_t> values) override {
      Shown& shown = next();
      if (rank_ == 0) shown.said.assign(values.begin(), values.end());
      at_.meet();
      if (rank_ > 0) std::ranges::copy(shown.said, values.begin());
    }

   private:
    [[nodiscard]] Shown& next() {
      at_.require();
      return at_.shown_[turn_ ^= 1];
    }
    // A short message: every rank adds up all parts by itself, in the order of the ranks: they meet once.
    template <class Rows>
    void add_all(const Rows& rows, Shown& shown) {
      using T = typename Rows::value_type::element_type;
      auto& parts = std::get<Copies<T>>(shown.copies);
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
    void add_columns(const Shown& shown) const {
      const size_t ranks = at_.ranks_;
      const auto rows_of = [&](size_t rank) -> const Rows& { return std::get<Rows>(shown.rows[rank]); };
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

  // Returns when all ranks have come.
  void meet() {
    const uint32_t round = round_.load(std::memory_order_acquire);
    require();
    if (came_.fetch_add(1, std::memory_order_acq_rel) + 1 == ranks_) {
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

  const size_t ranks_;
  std::array<Shown, 2> shown_;
  std::atomic<uint32_t> round_{0};
  alignas(64) std::atomic<size_t> came_{0};
  std::atomic<bool> given_up_{false};
  // Ranks that outnumber the processors would keep each other from running.
  const bool spins_ = ranks_ <= std::thread::hardware_concurrency();
};

}  // namespace nibble::backend
