#include "backend/ranks/member.h"

#include "base/error.h"
#include "base/thread_pool.h"

#include <algorithm>
#include <array>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace nibble::backend {
namespace {

class HostMember final : public Member {
 public:
  HostMember(const BackendConfig& whole, HostPlace place, const MakeHost& make)
      : whole_(whole),
        transport_(std::move(place.transport)),
        rank_(place.rank),
        shard_(shard_of(whole.dims, place.ranks, place.rank)),
        pool_(rank_ == 0 ? place.draw_threads : 1),
        own_(make(config_of(whole, shard_))) {
    for (int rank = 0; rank < place.ranks.count; ++rank)
      columns_.push_back(shard_of(whole.dims, place.ranks, rank).vocab);
  }

  [[nodiscard]] std::string_view name() const override { return own_->name(); }
  [[nodiscard]] std::string modes() const override { return own_->modes(); }

  WeightHandle upload(const HostWeight& weight) override {
    HostWeight part = weight;
    part.slice = slice_of(weight, whole_.dims, shard_);
    return own_->upload(part);
  }
  void finish_upload() override { own_->finish_upload(); }
  void copy_page(const PageCopy& copy) override { own_->copy_page(copy); }

  void prepare(const StepArgs& step, bool /*watched*/) override {
    ids_.assign(step.ids.begin(), step.ids.end());
    for (int32_t& id : ids_)
      if (id < 0) id = std::max(0, sampled_.back()[static_cast<size_t>(-1 - id)].token);
    step_ = step;
    step_.ids = ids_;
    step_.sample_rows = {};
    draws_ = step.sample_rows;
    check(draws_.empty() || draws_.size() == step.logit_tokens.size(), "one sample row per row of logits");
  }
  [[nodiscard]] StepRun enqueue(const AfterStage& after) override {
    own_->begin(step_);
    walk(*own_, step_, whole_.layer_kinds, [&](Stage stage, int layer) {
      if (stage == Stage::kAttnOut || stage == Stage::kMoe) transport_->reduce(own_->rows(Slot::kDelta));
      if (stage == Stage::kLogits) gather();
      if (after) after(stage, layer);
    });
    if (draws_.empty()) return {};
    return {draw_all()};
  }

  [[nodiscard]] std::vector<DrawnToken> wait(Ticket ticket) override {
    check(ticket == ticket_ || ticket == ticket_ - 1, "two tickets may be outstanding");
    return sampled_[ticket == ticket_ ? 1 : 0];
  }

  [[nodiscard]] SlotData peek(Slot slot) override {
    if (slot == Slot::kLogits) return {{std::ssize(logits_) / whole_.dims.vocab, whole_.dims.vocab}, logits_};
    return own_->peek(slot);
  }

 private:
  [[nodiscard]] std::span<float> row(size_t row) {
    const auto vocab = static_cast<size_t>(whole_.dims.vocab);
    return std::span(logits_).subspan(row * vocab, vocab);
  }

  void gather() {
    if (rank_ == 0) logits_.resize(step_.logit_tokens.size() * static_cast<size_t>(whole_.dims.vocab));
    transport_->gather(own_->rows(Slot::kLogits), {.columns = columns_, .values = logits_, .width = whole_.dims.vocab});
  }

  // Rank 0 draws, and tells the others: a later step may name a token that nobody has read yet.
  Ticket draw_all() {
    std::vector<DrawnToken> drawn(draws_.size());
    if (rank_ == 0)
      pool_.parallel_for(std::ssize(drawn), [&](IndexRange range) {
        for (auto r = static_cast<size_t>(range.begin); r < static_cast<size_t>(range.end); ++r)
          drawn[r] = draw(row(r), draws_[r]);
      });
    std::vector<int32_t> tokens;
    for (const DrawnToken& of : drawn) tokens.push_back(of.token);
    transport_->broadcast(tokens);
    for (size_t r = 0; r < drawn.size(); ++r) drawn[r].token = tokens[r];
    sampled_ = {std::move(sampled_.back()), std::move(drawn)};
    return ++ticket_;
  }

  const BackendConfig whole_;
  const std::unique_ptr<Transport> transport_;
  const int rank_;
  const Shard shard_;
  std::vector<Range> columns_;  // of the logits, by rank
  ThreadPool pool_;             // draws; the rank's backend has threads beside it
  const std::unique_ptr<Backend> own_;
  StepArgs step_;             // whose ids are ids_, and whose draws are draws_
  std::vector<int32_t> ids_;  // none below 0
  std::span<const SampleRow> draws_;
  std::vector<float> logits_;                       // [logit rows, vocab] of rank 0
  std::array<std::vector<DrawnToken>, 2> sampled_;  // of the last two tickets
  Ticket ticket_ = 0;
};

}  // namespace

std::unique_ptr<Member> make_host_member(const BackendConfig& whole, HostPlace place, const MakeHost& make) {
  validate(place.ranks, whole.dims, whole.layer_experts);
  return std::make_unique<HostMember>(whole, std::move(place), make);
}

}  // namespace nibble::backend
