#include "backend/ranks/process_ranks.h"

#include "backend/ranks/gathered_logits.h"
#include "backend/ranks/step_frame.h"
#include "base/error.h"
#include "base/thread_pool.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace nibble::backend {
namespace {

// The type of SlotRows' values.
template <class Rows>
using ValueOf = typename Rows::value_type::element_type;

// Of these rows; throws Error(kCorrupt) where they are others.
template <class T>
std::vector<T> read_rows(const Frame& frame, FrameType want, size_t values) {
  if (frame.type != want) throw Error(Code::kCorrupt, "want a {} frame, found {}", name_of(want), name_of(frame.type));
  BodyReader in(frame);
  std::vector<T> all = in.bare<T>(values);
  in.end();
  return all;
}

class ProcessRanksBackend final : public Backend {
 public:
  ProcessRanksBackend(const BackendConfig& config, const Ranks& ranks, ProcessGroup& group, int threads,
                      const MakeMember& make)
      : config_(config), ranks_(ranks), group_(group), pool_(threads) {
    for (int rank = 0; rank < ranks.count; ++rank) shards_.push_back(shard_of(dims_, ranks, rank));
    tell_room(group, config);
    member_ = make(config_of(config, shards_.front()));
  }

  [[nodiscard]] std::string_view name() const override { return member_->name(); }
  [[nodiscard]] std::string modes() const override {
    return fmt::format("{} processes of a rank each{}, each: {}", ranks_.count,
                       ranks_.whole_experts ? " with whole experts" : "", member_->modes());
  }

  WeightHandle upload(const HostWeight& weight) override {
    HostWeight part = weight;
    part.slice = slice_of(weight.role, dims_, shards_.front());
    return member_->upload(part);
  }

  void finish_upload() override {
    member_->finish_upload();
    for (int rank = 1; rank < ranks_.count; ++rank)
      static_cast<void>(read_rows<std::byte>(group_.receive(rank), FrameType::kReady, 0));
  }

  void copy_page(const PageCopy& copy) override {
    together(FrameType::kCopyPage, std::as_bytes(std::span(&copy, 1)), [&] { member_->copy_page(copy); });
  }

  void begin(const StepArgs& step) override {
    ids_ = logits_.known(step.ids);
    tokens_ = ids_.size();
    StepArgs known = step;
    known.ids = ids_;
    together(FrameType::kStep, written(known), [&] { member_->begin(known); });
  }

  void embed(const EmbedArgs& args) override {
    together(FrameType::kEmbed, {}, [&] { member_->embed({.ids = ids_, .table = args.table}); });
  }

  void attn_in(const AttnInArgs& args) override {
    layer_ = args.layer_idx;
    in_layer(FrameType::kAttnIn, [&] { member_->attn_in(args); });
  }
  void attend(const AttendArgs& args) override {
    in_layer(FrameType::kAttend, [&] { member_->attend(args); });
  }
  void attn_out(const AttnOutArgs& args) override {
    in_layer(FrameType::kAttnOut, [&] {
      member_->attn_out(args);
      reduce_delta();
    });
  }
  void route(const RouteArgs& args) override {
    in_layer(FrameType::kRoute, [&] { member_->route(args); });
  }
  void moe(const MoeArgs& args) override {
    in_layer(FrameType::kMoe, [&] {
      member_->moe(args);
      reduce_delta();
    });
  }

  void logits(const LogitsArgs& args) override {
    together(FrameType::kLogits, {}, [&] {
      member_->logits(args);
      logits_.resize(args.tokens.size());
      std::visit([&](const auto& rows) { put_own_logits(rows); }, member_->rows(Slot::kLogits));
      for (int rank = 1; rank < ranks_.count; ++rank) {
        const Range vocab = shards_[static_cast<size_t>(rank)].vocab;
        const auto width = static_cast<size_t>(vocab.count);
        const auto part = read_rows<float>(group_.receive(rank), FrameType::kLogitRows, logits_.rows() * width);
        for (size_t r = 0; r < logits_.rows(); ++r)
          std::copy_n(part.begin() + static_cast<std::ptrdiff_t>(r * width), width,
                      logits_.row(r).begin() + vocab.first);
      }
    });
  }

  Ticket sample(const SampleArgs& args) override { return logits_.sample(args, pool_); }
  [[nodiscard]] std::vector<Drawn> wait(Ticket ticket) override { return logits_.wait(ticket); }

  [[nodiscard]] SlotData peek(Slot slot) override {
    if (slot == Slot::kLogits) return logits_.data();
    require_alike(slot);
    return member_->peek(slot);
  }

 private:
  // The others begin, then this rank. What fails here fails the group: nobody could tell where the others are.
  template <class Verb>
  void together(FrameType type, std::span<const std::byte> body, const Verb& verb) {
    group_.tell(type, body);
    try {
      verb();
    } catch (const std::exception& error) {
      group_.fail(error.what());
      throw;
    }
  }
  template <class Verb>
  void in_layer(FrameType type, const Verb& verb) {
    together(type, std::as_bytes(std::span(&layer_, 1)), verb);
  }

  void reduce_delta() {
    std::visit([&](const auto& own) { reduce(own); }, member_->rows(Slot::kDelta));
  }

  // As ranks of one process add: from the first rank's value on, one after the other.
  template <class Rows>
  void reduce(const Rows& own) {
    using T = ValueOf<Rows>;
    const auto hidden = static_cast<size_t>(dims_.hidden);
    std::vector<T> sum;
    for (const auto& row : own) sum.insert(sum.end(), row.begin(), row.end());
    for (int rank = 1; rank < ranks_.count; ++rank) {
      const auto part = read_rows<T>(group_.receive(rank), FrameType::kDelta, tokens_ * hidden);
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += part[i];
    }
    for (size_t t = 0; t < own.size(); ++t)
      std::copy_n(sum.begin() + static_cast<std::ptrdiff_t>(t * hidden), hidden, own[t].begin());
    group_.tell(FrameType::kDelta, std::as_bytes(std::span(sum)));
  }

  template <class Rows>
  void put_own_logits(const Rows& rows) {
    for (size_t r = 0; r < rows.size(); ++r)
      std::copy(rows[r].begin(), rows[r].end(), logits_.row(r).begin() + shards_.front().vocab.first);
  }

  const BackendConfig config_;
  const Dims& dims_ = config_.dims;
  const Ranks ranks_;
  ProcessGroup& group_;
  ThreadPool pool_;  // draws
  std::vector<Shard> shards_;
  std::unique_ptr<Backend> member_;
  std::vector<int32_t> ids_;  // of the step, none below 0
  size_t tokens_ = 0;
  int32_t layer_ = 0;  // that the verbs are in
  GatheredLogits logits_{dims_.vocab};
};

// Another rank.
class Follower {
 public:
  Follower(ProcessGroup& group, const BackendConfig& config, Backend& member, const Weights& weights)
      : group_(group), config_(config), member_(member), weights_(weights) {}

  void run() {
    group_.send(0, FrameType::kReady);
    for (Frame frame = group_.receive(0); frame.type != FrameType::kEnd; frame = group_.receive(0))
      if (!obey(frame)) return;
  }

 private:
  // False: the group has ended meanwhile.
  bool obey(const Frame& frame) {
    BodyReader in(frame);
    switch (frame.type) {
      case FrameType::kStep: step_ = ReceivedStep(in, config_); break;
      case FrameType::kCopyPage: copy_page(in.number<PageCopy>()); break;
      case FrameType::kEmbed:
        member_.begin(step_.args(weights_));
        member_.embed({.ids = step_.ids, .table = weights_.outer[WeightRole::kEmbedding]});
        break;
      case FrameType::kAttnIn:
        take_layer(in);
        member_.attn_in({.layer = layer(), .layer_idx = layer_});
        break;
      case FrameType::kAttend: attend(in); break;
      case FrameType::kAttnOut:
        take_layer(in);
        member_.attn_out({.layer = layer()});
        return sum_delta();
      case FrameType::kRoute:
        take_layer(in);
        member_.route({.layer = layer()});
        break;
      case FrameType::kMoe:
        take_layer(in);
        member_.moe({.layer = layer()});
        return sum_delta();
      case FrameType::kLogits: logits(); break;
      default: throw Error(Code::kCorrupt, "want a verb, found a {} frame", name_of(frame.type));
    }
    in.end();
    return true;
  }

  void take_layer(BodyReader& in) {
    layer_ = in.number<int32_t>();
    if (layer_ < 0 || layer_ >= std::ssize(weights_.layers))
      throw Error(Code::kCorrupt, "want a layer below {}, found {}", weights_.layers.size(), layer_);
  }
  [[nodiscard]] const LayerWeights& layer() const { return weights_.layers[static_cast<size_t>(layer_)]; }

  void copy_page(const PageCopy& copy) {
    require_pages(copy, config_);
    member_.copy_page(copy);
  }

  void attend(BodyReader& in) {
    take_layer(in);
    const LayerKind kind = config_.layer_kinds[static_cast<size_t>(layer_)];
    const StepArgs step = step_.args(weights_);
    const auto kind_idx = static_cast<size_t>(kind);
    if (step.kv_slots[kind_idx].size() != step.ids.size())
      throw Error(Code::kCorrupt, "want a KV slot for each of {} tokens, found {}", step.ids.size(),
                  step.kv_slots[kind_idx].size());
    member_.attend({.layer = layer(),
                    .layer_idx = layer_,
                    .kind = kind,
                    .sinks = step.sinks,
                    .positions = step.positions,
                    .kv_slots = step.kv_slots[kind_idx],
                    .rows = step.rows,
                    .pages = step.pages[kind_idx]});
  }

  bool sum_delta() {
    return std::visit([&](const auto& own) { return sum(own); }, member_.rows(Slot::kDelta));
  }

  template <class Rows>
  bool sum(const Rows& own) {
    using T = ValueOf<Rows>;
    const auto hidden = static_cast<size_t>(config_.dims.hidden);
    BodyWriter part;
    for (const auto& row : own) part.bare(std::span<const T>(row));
    group_.send(0, FrameType::kDelta, part.bytes());
    const Frame frame = group_.receive(0);
    if (frame.type == FrameType::kEnd) return false;
    const auto all = read_rows<T>(frame, FrameType::kDelta, own.size() * hidden);
    for (size_t t = 0; t < own.size(); ++t)
      std::copy_n(all.begin() + static_cast<std::ptrdiff_t>(t * hidden), hidden, own[t].begin());
    return true;
  }

  void logits() {
    member_.logits({.tokens = step_.logit_tokens,
                    .norm = weights_.outer[WeightRole::kFinalNorm],
                    .table = weights_.outer[WeightRole::kUnembedding]});
    BodyWriter part;
    std::visit(
        [&](const auto& rows) {
          for (const auto& row : rows) part.bare(std::span<const float>(std::vector<float>(row.begin(), row.end())));
        },
        member_.rows(Slot::kLogits));
    group_.send(0, FrameType::kLogitRows, part.bytes());
  }

  ProcessGroup& group_;
  const BackendConfig& config_;
  Backend& member_;
  const Weights& weights_;
  ReceivedStep step_;
  int32_t layer_ = 0;
};

}  // namespace

std::unique_ptr<Backend> make_process_ranks(const BackendConfig& config, const Ranks& ranks, ProcessGroup& group,
                                            int threads, const MakeMember& make) {
  validate(ranks, config.dims);
  check(ranks.count == group.count() && group.rank() == 0, "rank 0 drives a group of as many processes");
  return std::make_unique<ProcessRanksBackend>(config, ranks, group, threads, make);
}

void tell_room(ProcessGroup& group, const BackendConfig& config) {
  BodyWriter room;
  room.number(config.max_tokens);
  room.number(config.max_rows);
  room.number(config.kv_pages);
  group.tell(FrameType::kLimits, room.bytes());
}

StepRoom receive_room(ProcessGroup& group) {
  const Frame frame = group.receive(0);
  if (frame.type != FrameType::kLimits)
    throw Error(Code::kIo, "rank 0 ended before it said what to hold: a {} frame", name_of(frame.type));
  BodyReader in(frame);
  const auto tokens = in.number<int>(), rows = in.number<int>();
  const StepRoom room{tokens, rows, in.number<std::array<int32_t, kLayerKinds>>()};
  in.end();
  constexpr int kMost = 1 << 24;
  const auto in_range = [](int value) { return value >= 1 && value <= kMost; };
  if (!in_range(room.max_tokens) || !in_range(room.max_rows) || !std::ranges::all_of(room.kv_pages, in_range))
    throw Error(Code::kCorrupt, "limits frame: want numbers from 1 to {}, found others", kMost);
  return room;
}

void follow(ProcessGroup& group, const BackendConfig& config, Backend& member, const Weights& weights) {
  try {
    Follower(group, config, member, weights).run();
  } catch (const std::exception& error) {
    group.fail(error.what());
    throw;
  }
}

}  // namespace nibble::backend
