#include "backend/ranks/ranks_backend.h"

#include "backend/joined_slot.h"
#include "backend/ranks/gathered_logits.h"
#include "base/error.h"
#include "base/thread_pool.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace nibble::backend {
namespace {

class RanksBackend final : public Backend {
 public:
  RanksBackend(const BackendConfig& config, const Ranks& ranks, int threads, const MakeRank& make)
      : config_(config), ranks_(ranks), pool_(std::min(ranks.count, threads)) {
    for (int rank = 0; rank < ranks.count; ++rank) {
      shards_.push_back(shard_of(dims_, ranks, rank));
      members_.push_back(make(config_of(config, shards_.back()), threads_of(rank, ranks, threads)));
    }
  }

  [[nodiscard]] std::string_view name() const override { return members_.front()->name(); }
  [[nodiscard]] std::string modes() const override {
    return fmt::format("{} ranks{}, each: {}", ranks_.count, ranks_.whole_experts ? " with whole experts" : "",
                       members_.front()->modes());
  }

  WeightHandle upload(const HostWeight& weight) override {
    std::vector<WeightHandle> handles(members_.size());
    each([&](size_t rank) {
      HostWeight part = weight;
      part.slice = slice_of(weight.role, dims_, shards_[rank]);
      handles[rank] = members_[rank]->upload(part);
    });
    for (const WeightHandle& handle : handles)
      check(handle.idx == handles.front().idx, "ranks number their weights alike");
    return handles.front();
  }

  void finish_upload() override {
    each([&](size_t rank) { members_[rank]->finish_upload(); });
  }

  void copy_page(const PageCopy& copy) override {
    each([&](size_t rank) { members_[rank]->copy_page(copy); });
  }

  void embed(const EmbedArgs& args) override {
    const std::vector<int32_t> ids = logits_.known(args.ids);
    each([&](size_t rank) { members_[rank]->embed({.ids = ids, .table = args.table}); });
  }

  void attn_in(const AttnInArgs& args) override {
    each([&](size_t rank) { members_[rank]->attn_in(args); });
  }

  void attend(const AttendArgs& args) override {
    each([&](size_t rank) { members_[rank]->attend(args); });
  }

  void attn_out(const AttnOutArgs& args) override {
    each([&](size_t rank) { members_[rank]->attn_out(args); });
    reduce_delta();
  }

  void route(const RouteArgs& args) override {
    each([&](size_t rank) { members_[rank]->route(args); });
  }

  void moe(const MoeArgs& args) override {
    each([&](size_t rank) { members_[rank]->moe(args); });
    reduce_delta();
  }

  void logits(const LogitsArgs& args) override {
    each([&](size_t rank) { members_[rank]->logits(args); });
    logits_.resize(args.tokens.size());
    each([&](size_t rank) {
      std::visit(
          [&](const auto& rows) {
            for (size_t r = 0; r < rows.size(); ++r)
              std::copy(rows[r].begin(), rows[r].end(), logits_.row(r).begin() + shards_[rank].vocab.first);
          },
          members_[rank]->rows(Slot::kLogits));
    });
  }

  Ticket sample(const SampleArgs& args) override { return logits_.sample(args, pool_); }

  [[nodiscard]] std::vector<Drawn> wait(Ticket ticket) override { return logits_.wait(ticket); }

  [[nodiscard]] SlotData peek(Slot slot) override {
    if (slot == Slot::kLogits) return logits_.data();
    return joined_slot(slot, dims_, shards_, [this](size_t rank, Slot of) { return members_[rank]->peek(of); });
  }

 private:
  // body(rank) for every rank, on the pool's threads; throws what the first of them threw.
  template <class Body>
  void each(const Body& body) {
    std::vector<std::exception_ptr> thrown(members_.size());
    pool_.parallel_chunks(std::ssize(members_), 1, [&](IndexRange range) {
      for (auto rank = static_cast<size_t>(range.begin); rank < static_cast<size_t>(range.end); ++rank) {
        try {
          body(rank);
        } catch (...) {
          thrown[rank] = std::current_exception();
        }
      }
    });
    for (const std::exception_ptr& what : thrown)
      if (what) std::rethrow_exception(what);
  }

  // The same sum of all parts, in the order of the ranks, in every rank's delta. Threads share the columns.
  void reduce_delta() {
    std::vector<SlotRows> parts;
    for (const auto& member : members_) parts.push_back(member->rows(Slot::kDelta));
    std::visit([&](const auto& first) { reduce(first, parts); }, parts.front());
  }

  template <class Rows>
  void reduce(const Rows& first, const std::vector<SlotRows>& parts) {
    pool_.parallel_for(dims_.hidden, [&](IndexRange range) {
      for (size_t t = 0; t < first.size(); ++t) {
        for (auto d = static_cast<size_t>(range.begin); d < static_cast<size_t>(range.end); ++d) {
          auto sum = first[t][d];
          for (size_t rank = 1; rank < parts.size(); ++rank) sum += std::get<Rows>(parts[rank])[t][d];
          for (const SlotRows& part : parts) std::get<Rows>(part)[t][d] = sum;
        }
      }
    });
  }

  const BackendConfig config_;
  const Dims& dims_ = config_.dims;
  const Ranks ranks_;
  ThreadPool pool_;  // a thread runs a rank's verb; the rank's backend has threads beside it
  std::vector<Shard> shards_;
  std::vector<std::unique_ptr<Backend>> members_;  // by rank
  GatheredLogits logits_{dims_.vocab};
};

}  // namespace

std::unique_ptr<Backend> make_ranks_backend(const BackendConfig& config, const Ranks& ranks, int threads,
                                            const MakeRank& make) {
  validate(ranks, config.dims);
  return std::make_unique<RanksBackend>(config, ranks, threads, make);
}

}  // namespace nibble::backend
