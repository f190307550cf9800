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
    part.slice = slice_of(weight.role, whole_.dims, shard_);
    return own_->upload(part);
  }
  void finish_upload() override { own_->finish_upload(); }
  void copy_page(const PageCopy& copy) override { own_->copy_page(copy); }

  void prepare(const StepArgs& step) override { step_ = step; }
  [[nodiscard]] StepRun enqueue() override { return {walk(*this, step_, whole_.layer_kinds)}; }

  void begin(const StepArgs& step) override {
    residuals_.clear();
    ids_.assign(step.ids.begin(), step.ids.end());
    for (int32_t& id : ids_)
      if (id < 0) id = std::max(0, sampled_.back()[static_cast<size_t>(-1 - id)].token);
    StepArgs known = step;
    known.ids = ids_;
    own_->begin(known);
  }
  void embed(const EmbedArgs& args) override {
    EmbedArgs known = args;
    known.ids = ids_;
    own_->embed(known);
    keep_tap(0);
  }
  void attn_in(const AttnInArgs& args) override {
    layer_ = args.layer_idx;
    own_->attn_in(args);
  }
  void attend(const AttendArgs& args) override { own_->attend(args); }
  void attn_out(const AttnOutArgs& args) override {
    own_->attn_out(args);
    transport_->reduce(own_->rows(Slot::kDelta));
  }
  void route(const RouteArgs& args) override { own_->route(args); }
  void moe(const MoeArgs& args) override {
    own_->moe(args);
    transport_->reduce(own_->rows(Slot::kDelta));
    keep_tap(layer_ + 1);
  }
  void logits(const LogitsArgs& args) override {
    own_->logits(args);
    logit_rows_ = args.tokens.size();
    if (rank_ == 0) logits_.resize(logit_rows_ * static_cast<size_t>(whole_.dims.vocab));
    transport_->gather(own_->rows(Slot::kLogits), {.columns = columns_, .values = logits_, .width = whole_.dims.vocab});
  }

  // Rank 0 draws, and tells the others: a later step may name a token that nobody has read yet.
  Ticket sample(const SampleArgs& args) override {
    check(args.rows.size() == logit_rows_, "one sample row per row of logits");
    std::vector<DrawnToken> drawn(args.rows.size());
    if (rank_ == 0)
      pool_.parallel_for(std::ssize(drawn), [&](IndexRange range) {
        for (auto r = static_cast<size_t>(range.begin); r < static_cast<size_t>(range.end); ++r)
          drawn[r] = draw(row(r), args.rows[r]);
      });
    std::vector<int32_t> tokens;
    for (const DrawnToken& of : drawn) tokens.push_back(of.token);
    transport_->broadcast(tokens);
    for (size_t r = 0; r < drawn.size(); ++r) drawn[r].token = tokens[r];
    sampled_ = {std::move(sampled_.back()), std::move(drawn)};
    return ++ticket_;
  }
  [[nodiscard]] std::vector<DrawnToken> wait(Ticket ticket) override {
    check(ticket == ticket_ || ticket == ticket_ - 1, "two tickets may be outstanding");
    return sampled_[ticket == ticket_ ? 1 : 0];
  }

  [[nodiscard]] bool keeps_taps(std::span<const int> boundaries) const override {
    return !boundaries.empty() && std::ranges::equal(boundaries, whole_.taps);
  }
  [[nodiscard]] TapTicket copy_taps() override {
    const size_t hidden = static_cast<size_t>(whole_.dims.hidden), tokens = ids_.size();
    check(residuals_.size() == whole_.taps.size(), "a step that has left its residuals");
    std::vector<float>& all = taps_[static_cast<size_t>(++tap_ticket_ % 2)];
    all.clear();
    for (size_t t = 0; t < tokens; ++t)
      for (const std::vector<float>& of_tap : residuals_)
        all.insert(all.end(), of_tap.begin() + static_cast<std::ptrdiff_t>(t * hidden),
                   of_tap.begin() + static_cast<std::ptrdiff_t>((t + 1) * hidden));
    return tap_ticket_;
  }
  [[nodiscard]] std::span<const float> wait_taps(TapTicket ticket) override {
    return taps_[static_cast<size_t>(ticket % 2)];
  }

  [[nodiscard]] SlotData peek(Slot slot) override {
    if (slot == Slot::kLogits) return {{static_cast<int64_t>(logit_rows_), whole_.dims.vocab}, logits_};
    return own_->peek(slot);
  }

 private:
  [[nodiscard]] std::span<float> row(size_t row) {
    const auto vocab = static_cast<size_t>(whole_.dims.vocab);
    return std::span(logits_).subspan(row * vocab, vocab);
  }

  // All ranks have the same residuals; a head reads rank 0's.
  void keep_tap(int boundary) {
    if (rank_ > 0 || std::ranges::find(whole_.taps, boundary) == whole_.taps.end()) return;
    std::vector<float>& residual = residuals_.emplace_back(own_->peek(Slot::kResidual).values);
    const SlotData delta = own_->peek(Slot::kDelta);
    for (size_t i = 0; i < residual.size(); ++i) residual[i] += delta.values[i];
  }

  const BackendConfig whole_;
  const std::unique_ptr<Transport> transport_;
  const int rank_;
  const Shard shard_;
  std::vector<Range> columns_;  // of the logits, by rank
  ThreadPool pool_;             // draws; the rank's backend has threads beside it
  const std::unique_ptr<Backend> own_;
  StepArgs step_;
  std::vector<int32_t> ids_;                   // of the step, none below 0
  int layer_ = 0;                              // that the verbs are in
  std::vector<std::vector<float>> residuals_;  // by tap: [tokens, hidden]
  std::array<std::vector<float>, 2> taps_;     // by the last two tickets
  TapTicket tap_ticket_ = 0;
  size_t logit_rows_ = 0;
  std::vector<float> logits_;                       // [logit rows, vocab] of rank 0
  std::array<std::vector<DrawnToken>, 2> sampled_;  // of the last two tickets
  Ticket ticket_ = 0;
};

}  // namespace

std::unique_ptr<Member> make_host_member(const BackendConfig& whole, HostPlace place, const MakeHost& make) {
  validate(place.ranks, whole.dims);
  return std::make_unique<HostMember>(whole, std::move(place), make);
}

}  // namespace nibble::backend
