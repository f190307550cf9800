#include "backend/ranks/ranks_backend.h"

#include "backend/ranks/followers.h"
#include "backend/ranks/step_frame.h"
#include "backend/ranks/threads_transport.h"
#include "backend/run_config.h"
#include "base/thread_pool.h"
#include "base/error.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <iterator>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

namespace nibble::backend {
namespace {

// Slots of which each rank has a part only.
bool is_split(Slot slot) {
  return slot == Slot::kQkv || slot == Slot::kQ || slot == Slot::kAttn || slot == Slot::kExpertHidden;
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

class RanksBackend final : public Backend {
 public:
  RanksBackend(const Ranks& ranks, std::unique_ptr<Crew> crew)
      : ranks_(ranks), crew_(std::move(crew)), members_(static_cast<size_t>(ranks.count)) {
    using First = BoundThreads::First;
    threads_.emplace(members_.size(), crew_->is_bound() ? First::kOwnThread : First::kCaller);
    const auto thrown = threads_->each([&](size_t rank) { members_[rank] = crew_->make(static_cast<int>(rank)); });
    const auto first = std::ranges::find_if(thrown, [](const auto& one) { return one != nullptr; });
    if (first == thrown.end()) return;
    const std::exception_ptr why = *first;
    drop();
    std::rethrow_exception(why);
  }
  RanksBackend(const Ranks& ranks, ProcessGroup& group, std::unique_ptr<Member> member, std::string member_name)
      : ranks_(ranks), group_(&group), member_name_(std::move(member_name)) {
    members_.push_back(std::move(member));
  }
  ~RanksBackend() override {
    if (group_ != nullptr) return;
    if (!lost_.empty()) crew_->give_up();
    drop();
  }

  [[nodiscard]] std::string_view name() const override { return first().name(); }
  [[nodiscard]] std::string modes() const override {
    if (ranks_.count == 1) return first().modes();
    return fmt::format(
        "{}{}, each: {}",
        group_ == nullptr ? crew_->name() : fmt::format("{} processes of {} each", ranks_.count, member_name_),
        ranks_.whole_experts ? " with whole experts" : "", first().modes());
  }
  [[nodiscard]] KernelFamily kernel_family() const override { return first().kernel_family(); }
  [[nodiscard]] int64_t graph_replays() const override { return first().graph_replays(); }
  [[nodiscard]] std::vector<KernelLaunches> launches() const override { return first().launches(); }

  WeightHandle upload(const HostWeight& weight) override {
    std::vector<WeightHandle> handles(members_.size());
    each(Part::kLoad, [&](size_t rank) { handles[rank] = members_[rank]->upload(weight); });
    for (const WeightHandle& handle : handles)
      check(handle.idx == handles.front().idx, "ranks number their weights alike");
    return handles.front();
  }
  void finish_upload() override {
    each(Part::kLoad, [&](size_t rank) { members_[rank]->finish_upload(); });
    for (int rank = 1; group_ != nullptr && rank < ranks_.count; ++rank)
      require_type(group_->receive(rank), FrameType::kReady);
  }
  void copy_page(const PageCopy& copy) override {
    tell(FrameType::kCopyPage, std::as_bytes(std::span(&copy, 1)));
    each(Part::kPrepare, [&](size_t rank) { members_[rank]->copy_page(copy); });
  }

  std::optional<StepRun> run(const StepArgs& step, const AfterStage& after) override {
    if (group_ != nullptr) tell(FrameType::kStep, written(step));
    const bool watched = after != nullptr, together = !is_bound();
    AfterStage at_first, at_others;
    if (watched) {
      at_first = [&](Stage stage, int layer) {
        in_step_ = true;
        after(stage, layer);
        in_step_ = false;
      };
      at_others = [](Stage, int) {};
    }
    if (!together) each(Part::kPrepare, [&](size_t rank) { members_[rank]->prepare(step, watched); });
    StepRun ran;
    each(Part::kExchange, [&](size_t rank) {
      if (together) members_[rank]->prepare(step, watched);
      const StepRun own = members_[rank]->enqueue(rank == 0 ? at_first : at_others);
      if (rank == 0) ran = own;
    });
    return ran;
  }
  // Each rank waits for its own tokens: a card that fails is noticed by its rank, and then the others do not wait for
  // it.
  [[nodiscard]] std::vector<DrawnToken> wait(Ticket ticket) override {
    require();
    if (!is_bound()) return members_.front()->wait(ticket);  // rank 0 has told the others what it drew
    std::vector<std::vector<DrawnToken>> drawn(members_.size());
    each(Part::kExchange, [&](size_t rank) { drawn[rank] = members_[rank]->wait(ticket); });
    for (size_t rank = 1; rank < drawn.size(); ++rank)
      for (size_t row = 0; row < drawn[rank].size(); ++row)
        if (drawn[rank][row].token != drawn[0][row].token)
          lose(fmt::format("{}: want the same token from every rank, found {} from rank 0 and {} from rank {}", name(),
                           drawn[0][row].token, drawn[rank][row].token, rank));
    if (group_ == nullptr) return std::move(drawn.front());
    require();  // what a card has drawn without the others is nothing
    std::vector<int32_t> tokens;
    for (const DrawnToken& row : drawn.front()) tokens.push_back(row.token);
    tell(FrameType::kDrawn, std::as_bytes(std::span(tokens)));
    return std::move(drawn.front());
  }

  // After the sums all ranks have the same residuals: the first one's are copied, and read by the head beside it.
  [[nodiscard]] bool keeps_taps(std::span<const int> boundaries) const override {
    return first().keeps_taps(boundaries);
  }
  [[nodiscard]] TapTicket copy_taps() override {
    return on_first(Part::kExchange, [](Member& member) { return member.copy_taps(); });
  }
  [[nodiscard]] std::span<const float> wait_taps(TapTicket ticket) override {
    return on_first(Part::kExchange, [&](Member& member) { return member.wait_taps(ticket); });
  }
  [[nodiscard]] SlotData peek(Slot slot) override {
    require();
    if (ranks_.count > 1 && is_split(slot)) return {};
    if (in_step_) return members_.front()->peek(slot);  // on its thread
    return on_first(Part::kExchange, [&](Member& member) { return member.peek(slot); });
  }

  // Rank 0's profile.
  [[nodiscard]] KernelProfiler* kernel_profiler() override {
    KernelProfiler* const own = group_ == nullptr ? members_.front()->kernel_profiler() : nullptr;
    for (int rank = 1; own != nullptr && rank < ranks_.count; ++rank)
      if (crew_->place_of(rank) == crew_->place_of(0))
        throw Error(Code::kUnsupported, "--profile: want a card for every rank, found ranks that share one");
    return own;
  }

 private:
  // What an error of one rank does. kLoad: it is thrown. kPrepare: it ends all ranks, unless all fail alike. kExchange:
  // it ends all, since the others wait for this one.
  enum class Part : uint8_t { kLoad, kPrepare, kExchange };

  [[nodiscard]] bool is_bound() const { return group_ != nullptr || crew_->is_bound(); }
  [[nodiscard]] const Member& first() const { return *members_.front(); }

  // To the other processes, if there are any.
  void tell(FrameType type, std::span<const std::byte> body) const {
    if (group_ != nullptr) group_->tell(type, body);
  }
  // Throws where a rank is lost.
  void require() const {
    if (group_ != nullptr) group_->require();
    if (!lost_.empty()) throw Error(Code::kDevice, lost_);
  }
  template <class Body>
  std::invoke_result_t<const Body&, Member&> on_first(Part part, const Body& body) {
    std::invoke_result_t<const Body&, Member&> result{};
    each(part, [&](size_t rank) {
      if (rank == 0) result = body(*members_[rank]);
    });
    return result;
  }

  // body(rank) on every rank's thread at once.
  template <class Body>
  void each(Part part, const Body& body) {
    require();
    if (group_ != nullptr) return alone(part, body);
    std::atomic<bool> has_failed = false;
    size_t first_failed = 0;
    const std::span<const std::exception_ptr> thrown = threads_->each([&](size_t rank) {
      try {
        body(rank);
      } catch (...) {
        if (!has_failed.exchange(true)) first_failed = rank;
        // The others may be waiting for what this one was to bring or to launch.
        if (part == Part::kExchange || is_device_error(std::current_exception())) crew_->give_up();
        throw;
      }
    });
    if (!has_failed) return;
    const auto device = std::ranges::find_if(thrown, [](const auto& one) { return one && is_device_error(one); });
    const auto cause =
        device == thrown.end() ? first_failed : static_cast<size_t>(std::distance(thrown.begin(), device));
    const bool alike = std::ranges::none_of(thrown, [](const auto& one) { return one == nullptr; });
    const bool is_refusal = device == thrown.end() && (part == Part::kLoad || (part == Part::kPrepare && alike));
    if (is_refusal || ranks_.count == 1) std::rethrow_exception(thrown[cause]);
    const std::string place = crew_->place_of(static_cast<int>(cause));
    lose(fmt::format("rank {} of {}{} failed, and all end with it: {}", cause, ranks_.count,
                     place.empty() ? "" : fmt::format(", on {},", place), what_of(thrown[cause])));
  }

  // The member of this process. Nobody could tell where the others are once it is not where they think.
  template <class Body>
  void alone(Part part, const Body& body) {
    try {
      body(0);
    } catch (const std::exception& error) {
      if (part == Part::kLoad) throw;
      if (!is_lost_by_another(*group_, error)) group_->fail(fmt::format("rank 0 failed: {}", error.what()));
      require();
      throw;
    }
  }

  [[noreturn]] void lose(std::string why) {
    lost_ = std::move(why);
    crew_->give_up();
    throw Error(Code::kDevice, lost_);
  }

  void drop() {
    threads_->each([&](size_t rank) { members_[rank].reset(); });
  }

  const Ranks ranks_;
  // In one process.
  std::unique_ptr<Crew> crew_;
  std::optional<BoundThreads> threads_;
  std::string lost_;  // why nothing runs any more; empty: it does
  // In several.
  ProcessGroup* group_ = nullptr;
  std::string member_name_;
  std::vector<std::unique_ptr<Member>> members_;  // of this process
  bool in_step_ = false;                          // `after` is called behind a stage
};

// Ranks of a host, on threads.
class HostCrew final : public Crew {
 public:
  HostCrew(const BackendConfig& config, const Ranks& ranks, int threads, MakeRank make)
      : config_(config), ranks_(ranks), threads_(threads), make_(std::move(make)), meeting_(ranks.count) {}

  [[nodiscard]] std::unique_ptr<Member> make(int rank) override {
    return make_host_member(
        config_,
        {.ranks = ranks_,
         .rank = rank,
         .transport = meeting_.end_of(rank),
         .draw_threads = std::min(ranks_.count, threads_)},
        [&](const BackendConfig& of_rank) { return make_(of_rank, rank, threads_of(rank, ranks_, threads_)); });
  }
  void give_up() override { meeting_.give_up(); }
  [[nodiscard]] std::string name() const override { return fmt::format("{} ranks", ranks_.count); }

 private:
  const BackendConfig config_;
  const Ranks ranks_;
  const int threads_;
  const MakeRank make_;
  MeetingThreads meeting_;
};

}  // namespace

std::unique_ptr<Backend> make_ranks_backend(const BackendConfig& config, const Ranks& ranks,
                                            std::unique_ptr<Crew> crew) {
  validate(ranks, config.dims, config.layer_experts);
  return std::make_unique<RanksBackend>(ranks, std::move(crew));
}

std::unique_ptr<Backend> make_ranks_backend(const BackendConfig& config, const Ranks& ranks, int threads,
                                            MakeRank make) {
  return make_ranks_backend(config, ranks, std::make_unique<HostCrew>(config, ranks, threads, std::move(make)));
}

std::unique_ptr<Backend> make_ranks_backend(const BackendConfig& config, const Ranks& ranks, ProcessGroup& group,
                                            std::unique_ptr<Member> member, std::string member_name) {
  validate(ranks, config.dims, config.layer_experts);
  check(ranks.count == group.count() && group.rank() == 0, "rank 0 drives a group of as many processes");
  return std::make_unique<RanksBackend>(ranks, group, std::move(member), std::move(member_name));
}

}  // namespace nibble::backend
