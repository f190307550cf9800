#include "backend/cuda/rank_backend.h"

#include "backend/joined_slot.h"
#include "base/thread_pool.h"
#include "base/error.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <functional>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <utility>

namespace nibble::backend::cuda {
namespace {

std::vector<int> devices_of(const CudaSetup& setup, const Ranks& ranks) {
  if (!setup.devices.empty()) {
    check(std::ssize(setup.devices) == ranks.count, "a card for every rank");
    return setup.devices;
  }
  std::vector<int> first(static_cast<size_t>(ranks.count));
  std::iota(first.begin(), first.end(), 0);
  return first;
}

std::string what_of(const std::exception_ptr& thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const std::exception& e) {
    return e.what();
  }
}

bool is_device_error(const std::exception_ptr& thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const Error& e) {
    return e.code() == Code::kDevice;
  } catch (...) {
    return false;
  }
}

class CardsBackend final : public CudaBackend {
 public:
  CardsBackend(const BackendConfig& config, const RunConfig& run, const CudaSetup& setup,
               const std::vector<Arch>& architectures)
      : config_(config),
        ranks_(run.ranks),
        devices_(devices_of(setup, run.ranks)),
        threads_(devices_.size()),
        members_(devices_.size()) {
    validate(ranks_, config.dims);
    const int most = *std::ranges::max_element(devices_) + 1;
    require_cards(most, fmt::format("--tensor-parallel-size {}", ranks_.count));
    for (int rank = 0; rank < ranks_.count; ++rank) shards_.push_back(shard_of(config.dims, ranks_, rank));
    if (ranks_.count > 1) {
      comm_.emplace(devices_);
      for (int rank = 0; rank < ranks_.count; ++rank) ends_.push_back(comm_->of(rank));
    }
    const auto thrown = threads_.each([&](size_t rank) {
      RunConfig own = run;
      own.threads = threads_of(static_cast<int>(rank), ranks_, with_defaults(run).threads);
      own.ranks = {};
      members_[rank] = make_rank_backend(
          cuda_config(config, ranks_, static_cast<int>(rank)), own, setup, architectures,
          ranks_.count == 1
              ? CudaRank{.device = devices_[rank]}
              : CudaRank{.device = devices_[rank], .comm = &ends_[rank], .whole = config.dims, .ranks = ranks_});
    });
    for (size_t rank = 0; rank < thrown.size(); ++rank) {
      if (!thrown[rank]) continue;
      const std::exception_ptr first = thrown[rank];
      drop();
      std::rethrow_exception(first);
    }
  }

  ~CardsBackend() override {
    if (!lost_.empty() && comm_) comm_->give_up();
    drop();
  }

  [[nodiscard]] std::string_view name() const override { return "cuda"; }
  [[nodiscard]] KernelFamily kernel_family() const override { return first().kernel_family(); }
  [[nodiscard]] int64_t graph_replays() const override { return first().graph_replays(); }
  [[nodiscard]] std::vector<KernelLaunches> launches() const override { return first().launches(); }
  [[nodiscard]] std::string modes() const override {
    if (ranks_.count == 1) return first().modes();
    const auto cards = std::set(devices_.begin(), devices_.end()).size();
    const std::string where = std::cmp_equal(cards, ranks_.count)
                                  ? fmt::format("{} cards", cards)
                                  : fmt::format("{} ranks on {} card{}", ranks_.count, cards, cards == 1 ? "" : "s");
    return fmt::format("{}{}, each: {}", where, ranks_.whole_experts ? " with whole experts" : "", first().modes());
  }

  WeightHandle upload(const HostWeight& weight) override {
    std::vector<WeightHandle> handles(members_.size());
    each(Waits::kNo, [&](size_t rank) {
      HostWeight part = weight;
      if (ranks_.count > 1) part.slice = slice_of(weight.role, config_.dims, shards_[rank]);
      handles[rank] = members_[rank]->upload(part);
    });
    for (const WeightHandle& handle : handles)
      check(handle.idx == handles.front().idx, "ranks number their weights alike");
    return handles.front();
  }
  void finish_upload() override {
    each(Waits::kNo, [&](size_t rank) { members_[rank]->finish_upload(); });
  }
  void copy_page(const PageCopy& copy) override {
    each(Waits::kNo, [&](size_t rank) { members_[rank]->copy_page(copy); });
  }

  std::optional<Ran> run(const StepArgs& step) override {
    each(Waits::kNo, [&](size_t rank) { members_[rank]->prepare(step); });
    Ran ran;
    each(Waits::kYes, [&](size_t rank) {
      const Ran own = members_[rank]->enqueue();
      if (rank == 0) ran = own;
    });
    return ran;
  }
  void begin(const StepArgs& step) override {
    each(Waits::kNo, [&](size_t rank) { members_[rank]->begin(step); });
  }
  void embed(const EmbedArgs& args) override {
    each(Waits::kYes, [&](size_t rank) { members_[rank]->embed(args); });
  }
  void attn_in(const AttnInArgs& args) override {
    each(Waits::kYes, [&](size_t rank) { members_[rank]->attn_in(args); });
  }
  void attend(const AttendArgs& args) override {
    each(Waits::kYes, [&](size_t rank) { members_[rank]->attend(args); });
  }
  void attn_out(const AttnOutArgs& args) override {
    each(Waits::kYes, [&](size_t rank) { members_[rank]->attn_out(args); });
  }
  void route(const RouteArgs& args) override {
    each(Waits::kYes, [&](size_t rank) { members_[rank]->route(args); });
  }
  void moe(const MoeArgs& args) override {
    each(Waits::kYes, [&](size_t rank) { members_[rank]->moe(args); });
  }
  void logits(const LogitsArgs& args) override {
    each(Waits::kYes, [&](size_t rank) { members_[rank]->logits(args); });
  }
  Ticket sample(const SampleArgs& args) override {
    Ticket ticket = 0;
    each(Waits::kYes, [&](size_t rank) {
      const Ticket own = members_[rank]->sample(args);
      if (rank == 0) ticket = own;
    });
    return ticket;
  }

  // Each waits for its own: a card that fails is noticed by its rank, and then the others do not wait for it.
  [[nodiscard]] std::vector<Drawn> wait(Ticket ticket) override {
    std::vector<std::vector<Drawn>> drawn(members_.size());
    each(Waits::kYes, [&](size_t rank) { drawn[rank] = members_[rank]->wait(ticket); });
    for (size_t rank = 1; rank < drawn.size(); ++rank)
      for (size_t row = 0; row < drawn[rank].size(); ++row)
        if (drawn[rank][row].token != drawn[0][row].token)
          lose(fmt::format("cuda: want the same token from every rank, found {} from rank 0 and {} from rank {}",
                           drawn[0][row].token, drawn[rank][row].token, rank));
    return std::move(drawn.front());
  }

  // After the sums all ranks have the same residuals: the first one's are copied.
  [[nodiscard]] bool keeps_taps(std::span<const int> boundaries) const override {
    return first().keeps_taps(boundaries);
  }
  [[nodiscard]] TapTicket copy_taps() override {
    TapTicket ticket = 0;
    each(Waits::kYes, [&](size_t rank) {
      if (rank == 0) ticket = members_[rank]->copy_taps();
    });
    return ticket;
  }
  [[nodiscard]] std::span<const float> wait_taps(TapTicket ticket) override {
    std::span<const float> values;
    each(Waits::kYes, [&](size_t rank) {
      if (rank == 0) values = members_[rank]->wait_taps(ticket);
    });
    return values;
  }

  [[nodiscard]] SlotData peek(Slot slot) override {
    return joined_slot(slot, config_.dims, shards_, [&](size_t of, Slot which) {
      SlotData data;
      each(Waits::kYes, [&](size_t rank) {
        if (rank == of) data = members_[rank]->peek(which);
      });
      return data;
    });
  }

  [[nodiscard]] KernelProfiler* kernel_profiler() override { return &profiler_; }

 private:
  // Whether a rank's part waits, on the card or for it, for the other ranks'.
  enum class Waits : uint8_t { kNo, kYes };

  // The first rank's profile.
  class FirstsProfiler final : public KernelProfiler {
   public:
    explicit FirstsProfiler(CardsBackend& of) : of_(of) {}
    void begin() override {
      if (std::ranges::count(of_.devices_, of_.devices_.front()) > 1)
        throw Error(Code::kUnsupported, "--profile: want a card for every rank, found ranks that share one");
      on_first([](KernelProfiler& own) { own.begin(); });
    }
    void skip() override {
      on_first([](KernelProfiler& own) { own.skip(); });
    }
    [[nodiscard]] KernelProfile take() override {
      KernelProfile profile;
      on_first([&](KernelProfiler& own) { profile = own.take(); });
      return profile;
    }
    void end() override {
      on_first([](KernelProfiler& own) { own.end(); });
    }

   private:
    template <class Body>
    void on_first(const Body& body) {
      std::exception_ptr refused;  // not the ranks' failure
      of_.each(Waits::kYes, [&](size_t rank) {
        try {
          if (rank == 0) body(*of_.members_[rank]->kernel_profiler());
        } catch (...) {
          refused = std::current_exception();
        }
      });
      if (refused) std::rethrow_exception(refused);
    }
    CardsBackend& of_;
  };

  [[nodiscard]] const RankBackend& first() const { return *members_.front(); }

  // body(rank) on every rank's thread at once. What all ranks refuse alike, before anything waits, is thrown, and they
  // go on; all else is the end of them.
  template <class Body>
  void each(Waits waits, const Body& body) {
    if (!lost_.empty()) throw Error(Code::kDevice, lost_);
    const std::span<const std::exception_ptr> thrown = threads_.each([&](size_t rank) {
      try {
        body(rank);
      } catch (...) {
        // The others may be waiting for what this one was to launch.
        if (comm_ && (waits == Waits::kYes || is_device_error(std::current_exception()))) comm_->give_up();
        throw;
      }
    });
    const auto first = std::ranges::find_if(thrown, [](const auto& one) { return one != nullptr; });
    if (first == thrown.end()) return;
    const bool alike = std::ranges::none_of(thrown, [](const auto& one) { return !one || is_device_error(one); });
    if (waits == Waits::kNo && alike) std::rethrow_exception(*first);
    // The one that a device failed is the cause where there is one.
    auto cause = std::ranges::find_if(thrown, [](const auto& one) { return one && is_device_error(one); });
    if (cause == thrown.end()) cause = first;
    const auto rank = static_cast<size_t>(cause - thrown.begin());
    if (ranks_.count == 1) std::rethrow_exception(*cause);
    lose(fmt::format("rank {} of {}, on card {}, failed, and all end with it: {}", rank, ranks_.count, devices_[rank],
                     what_of(*cause)));
  }

  [[noreturn]] void lose(std::string why) {
    lost_ = std::move(why);
    if (comm_) comm_->give_up();
    throw Error(Code::kDevice, lost_);
  }

  // Each where it was made: its card is current there.
  void drop() {
    threads_.each([&](size_t rank) { members_[rank].reset(); });
  }

  const BackendConfig config_;
  const Ranks ranks_;
  const std::vector<int> devices_;  // by rank, as the next
  std::vector<Shard> shards_;
  std::optional<CommMemory> comm_;  // none: one rank
  std::vector<Comm> ends_;
  BoundThreads threads_;
  std::vector<std::unique_ptr<RankBackend>> members_;
  std::string lost_;  // why nothing runs any more; empty: it does
  FirstsProfiler profiler_{*this};
};

}  // namespace

std::unique_ptr<CudaBackend> make_cards_backend(const BackendConfig& config, const RunConfig& run, CudaSetup setup,
                                                const std::vector<Arch>& architectures) {
  return std::make_unique<CardsBackend>(config, run, setup, architectures);
}

}  // namespace nibble::backend::cuda
