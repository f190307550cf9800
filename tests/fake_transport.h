#pragma once
// Transports for tests: one whose ranks meet in memory and that records what they exchange, and one that dies.

#include "backend/ranks/transport.h"
#include "base/error.h"

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace nibble::test {

// Each rank gives a part, and gets those of all. Once it is given up, whoever waits is let go as cards are: without the
// others' parts, and without an error.
class FakeMeeting {
 public:
  explicit FakeMeeting(int ranks) : parts_(static_cast<size_t>(ranks)), calls_(parts_.size()) {}

  [[nodiscard]] std::unique_ptr<backend::Transport> end_of(int rank) {
    return std::make_unique<End>(*this, static_cast<size_t>(rank));
  }
  void give_up() {
    const std::lock_guard lock(mutex_);
    given_up_ = true;
    changed_.notify_all();
  }
  // Since the last time: "reduce", "gather", "broadcast".
  [[nodiscard]] std::vector<std::string> calls(int rank) {
    const std::lock_guard lock(mutex_);
    return std::exchange(calls_[static_cast<size_t>(rank)], {});
  }

 private:
  using Floats = std::vector<float>;
  using Rows = std::vector<std::span<float>>;

  class End final : public backend::Transport {
   public:
    End(FakeMeeting& at, size_t rank) : at_(at), rank_(rank) {}
    void reduce(backend::SlotRows values) override {
      const std::vector<Floats> parts = at_.together("reduce", rank_, flat(values));
      size_t at = 0;
      for (const auto& row : std::get<Rows>(values))
        for (float& value : row) {
          value = parts[0][at];
          for (size_t rank = 1; rank < parts.size(); ++rank) value += parts[rank][at];
          ++at;
        }
    }
    void gather(backend::SlotRows own, const backend::GatheredRows& all) override {
      const std::vector<Floats> parts = at_.together("gather", rank_, flat(own));
      const size_t rows = std::get<Rows>(own).size();
      for (size_t rank = 0; rank_ == 0 && rank < parts.size(); ++rank) {
        const auto width = static_cast<size_t>(all.columns[rank].count);
        if (parts[rank].size() != rows * width) continue;  // it has gone
        all.put(static_cast<int>(rank), rows,
                [&](size_t r) { return std::span(parts[rank]).subspan(r * width, width); });
      }
    }
    void broadcast(std::span<int32_t> values) override {
      const Floats said = at_.together("broadcast", rank_, {values.begin(), values.end()})[0];
      for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<int32_t>(said[i]);
    }

   private:
    static Floats flat(const backend::SlotRows& rows) {
      Floats values;
      for (const auto& row : std::get<Rows>(rows)) values.insert(values.end(), row.begin(), row.end());
      return values;
    }
    FakeMeeting& at_;
    const size_t rank_;
  };

  std::vector<Floats> together(const char* call, size_t rank, Floats part) {
    std::unique_lock lock(mutex_);
    calls_[rank].emplace_back(call);
    changed_.wait(lock, [&] { return given_up_ || taken_ == 0; });
    if (given_up_) return std::vector(parts_.size(), part);
    parts_[rank] = part;
    if (++came_ == parts_.size()) taken_ = parts_.size();
    changed_.notify_all();
    changed_.wait(lock, [&] { return given_up_ || taken_ > 0; });
    if (given_up_) return std::vector(parts_.size(), std::move(part));
    std::vector<Floats> all = parts_;
    if (--taken_ == 0) came_ = 0;
    changed_.notify_all();
    return all;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Floats> parts_;  // by rank, as the next
  std::vector<std::vector<std::string>> calls_;
  size_t came_ = 0, taken_ = 0;
  bool given_up_ = false;
};

// Another transport that throws, once, in its call number `lives`.
class DyingTransport final : public backend::Transport {
 public:
  DyingTransport(std::unique_ptr<backend::Transport> inner, int lives) : inner_(std::move(inner)), lives_(lives) {}
  void reduce(backend::SlotRows values) override {
    live();
    inner_->reduce(std::move(values));
  }
  void gather(backend::SlotRows own, const backend::GatheredRows& all) override {
    live();
    inner_->gather(std::move(own), all);
  }
  void broadcast(std::span<int32_t> values) override {
    live();
    inner_->broadcast(values);
  }

 private:
  void live() {
    if (lives_-- == 0) throw Error(Code::kOutOfMemory, "this rank has died");
  }
  const std::unique_ptr<backend::Transport> inner_;
  int lives_;
};

}  // namespace nibble::test
