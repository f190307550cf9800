#include "backend/ranks/step_ranks.h"

#include "backend/ranks/step_frame.h"
#include "base/error.h"

#include <chrono>
#include <deque>
#include <exception>
#include <optional>
#include <string_view>
#include <utility>

namespace nibble::backend {
namespace {

constexpr size_t kMostCardName = 256, kMostIdBytes = 4096;
// A member may notice before the group that another rank has gone. Whose fault it is the group knows soon.
constexpr std::chrono::milliseconds kNewsTime{500};
// Without a word from rank 0 for so long, a rank waits for its own steps: else nobody saw that its card has failed.
constexpr std::chrono::milliseconds kQuietTime{50};

void require_type(const Frame& frame, FrameType want) {
  if (frame.type != want) throw Error(Code::kCorrupt, "want a {} frame, found {}", name_of(want), name_of(frame.type));
}

std::vector<int32_t> tokens_of(std::span<const Drawn> drawn) {
  std::vector<int32_t> tokens;
  for (const Drawn& row : drawn) tokens.push_back(row.token);
  return tokens;
}

class StepRanksBackend final : public Backend {
 public:
  StepRanksBackend(const BackendConfig& config, const Ranks& ranks, ProcessGroup& group,
                   std::unique_ptr<Backend> member)
      : dims_(config.dims),
        ranks_(ranks),
        group_(group),
        own_(shard_of(config.dims, ranks, 0)),
        member_(std::move(member)) {}

  [[nodiscard]] std::string_view name() const override { return member_->name(); }
  [[nodiscard]] std::string modes() const override {
    return fmt::format("{} processes of a card each{}, each: {}", ranks_.count,
                       ranks_.whole_experts ? " with whole experts" : "", member_->modes());
  }

  WeightHandle upload(const HostWeight& weight) override {
    HostWeight part = weight;
    part.slice = slice_of(weight.role, dims_, own_);
    return member_->upload(part);
  }
  void finish_upload() override {
    member_->finish_upload();
    for (int rank = 1; rank < ranks_.count; ++rank) require_type(group_.receive(rank), FrameType::kReady);
  }

  void copy_page(const PageCopy& copy) override {
    group_.tell(FrameType::kCopyPage, std::as_bytes(std::span(&copy, 1)));
    ends_group([&] { member_->copy_page(copy); });
  }

  std::optional<Ran> run(const StepArgs& step) override {
    group_.tell(FrameType::kRun, written_with_draws(step));
    std::optional<Ran> ran;
    ends_group([&] { ran = member_->run(step); });
    check(ran.has_value(), "a member runs whole steps");
    return ran;
  }
  [[nodiscard]] std::vector<Drawn> wait(Ticket ticket) override {
    std::vector<Drawn> drawn;
    ends_group([&] { drawn = member_->wait(ticket); });
    group_.require();  // what a card has drawn without the others is nothing
    const std::vector<int32_t> tokens = tokens_of(drawn);
    group_.tell(FrameType::kDrawn, std::as_bytes(std::span(tokens)));
    return drawn;
  }

  void embed(const EmbedArgs& /*args*/) override { refuse_verb(); }
  void attn_in(const AttnInArgs& /*args*/) override { refuse_verb(); }
  void attend(const AttendArgs& /*args*/) override { refuse_verb(); }
  void attn_out(const AttnOutArgs& /*args*/) override { refuse_verb(); }
  void route(const RouteArgs& /*args*/) override { refuse_verb(); }
  void moe(const MoeArgs& /*args*/) override { refuse_verb(); }
  void logits(const LogitsArgs& /*args*/) override { refuse_verb(); }
  Ticket sample(const SampleArgs& /*args*/) override { refuse_verb(); }

  [[nodiscard]] SlotData peek(Slot slot) override {
    require_alike(slot);
    return member_->peek(slot);
  }

 private:
  [[noreturn]] static void refuse_verb() {
    throw Error(Code::kUnsupported, "a step of ranks in several processes, each with a card: want a whole one");
  }

  // Nobody could tell where the others are once this rank is not where they think.
  template <class Call>
  void ends_group(const Call& call) {
    try {
      call();
    } catch (const std::exception& error) {
      if (!group_.lost_within(kNewsTime)) group_.fail(fmt::format("rank 0 failed: {}", error.what()));
      group_.require();
      throw;
    }
  }

  const Dims dims_;
  const Ranks ranks_;
  ProcessGroup& group_;
  const Shard own_;
  const std::unique_ptr<Backend> member_;
};

// Another rank.
class StepFollower {
 public:
  StepFollower(ProcessGroup& group, const BackendConfig& config, Backend& member, const Weights& weights)
      : group_(group), config_(config), member_(member), weights_(weights) {}

  void run() {
    group_.send(0, FrameType::kReady);
    while (true) {
      const std::optional<Frame> frame = next();
      if (!frame) {
        draw_all();
      } else if (frame->type == FrameType::kEnd) {
        return;
      } else {
        obey(*frame);
      }
    }
  }

 private:
  // A step that is not compared yet.
  struct UnderWay {
    Ticket ticket;
    std::optional<std::vector<int32_t>> tokens{};  // none: not read yet
  };

  [[nodiscard]] bool all_drawn() const { return under_way_.empty() || under_way_.back().tokens; }
  [[nodiscard]] std::optional<Frame> next() {
    return all_drawn() ? std::optional(group_.receive(0)) : group_.receive_within(0, kQuietTime);
  }
  void draw(UnderWay& step) {
    if (!step.tokens) step.tokens = tokens_of(member_.wait(step.ticket));
  }
  void draw_all() {
    for (UnderWay& step : under_way_) draw(step);
  }

  void obey(const Frame& frame) {
    BodyReader in(frame);
    switch (frame.type) {
      case FrameType::kRun: run_step(in); break;
      case FrameType::kDrawn: compare(frame); return;
      case FrameType::kCopyPage: copy_page(in.number<PageCopy>()); break;
      default: throw Error(Code::kCorrupt, "want a step, found a {} frame", name_of(frame.type));
    }
    in.end();
  }

  void run_step(BodyReader& in) {
    const ReceivedStep received(in, config_, unread_);
    const ReceivedDraws draws(in, config_, received.logit_tokens.size());
    const std::vector<SampleRow> rows = draws.rows();
    StepArgs step = received.args(weights_);
    step.sample_rows = rows;
    const std::optional<Ran> ran = member_.run(step);
    check(ran.has_value(), "a member runs whole steps");
    if (!rows.empty()) unread_ = std::ssize(rows);
    if (ran->ticket) under_way_.push_back({*ran->ticket});
  }

  void compare(const Frame& frame) {
    if (under_way_.empty()) throw Error(Code::kCorrupt, "want a drawn frame for each step, found one more");
    UnderWay step = std::move(under_way_.front());
    under_way_.pop_front();
    draw(step);
    BodyReader in(frame);
    const auto want = in.bare<int32_t>(step.tokens->size());
    in.end();
    for (size_t row = 0; row < want.size(); ++row)
      if (want[row] != (*step.tokens)[row])
        throw Error(Code::kDevice, "want the same token from every rank, found {} from rank 0 and {} from rank {}",
                    want[row], (*step.tokens)[row], group_.rank());
  }

  void copy_page(const PageCopy& copy) {
    require_pages(copy, config_);
    member_.copy_page(copy);
  }

  ProcessGroup& group_;
  const BackendConfig& config_;
  Backend& member_;
  const Weights& weights_;
  std::deque<UnderWay> under_way_;
  int64_t unread_ = 0;  // tokens that the last step with draws has drawn
};

}  // namespace

void hand_out_id(ProcessGroup& group, const std::string& card, std::span<const std::byte> id) {
  std::vector<std::string> cards = {card};
  for (int rank = 1; rank < group.count(); ++rank) {
    const Frame frame = group.receive(rank);
    require_type(frame, FrameType::kCard);
    BodyReader in(frame);
    cards.push_back(in.text(kMostCardName));
    in.end();
    for (int other = 0; other < rank; ++other) {
      if (cards[static_cast<size_t>(other)] != cards.back()) continue;
      const std::string why = fmt::format(
          "want a card of its own for each rank, found {} on ranks {} and {}: CUDA_VISIBLE_DEVICES or LOCAL_RANK choose "
          "it",
          cards.back(), other, rank);
      group.fail(why);
      throw Error(Code::kInvalidRequest, why);
    }
  }
  group.tell(FrameType::kGroupId, id);
}

std::vector<std::byte> receive_id(ProcessGroup& group, const std::string& card) {
  BodyWriter own;
  own.text(card);
  group.send(0, FrameType::kCard, own.bytes());
  Frame frame = group.receive(0);
  require_type(frame, FrameType::kGroupId);
  if (frame.body.size() > kMostIdBytes)
    throw Error(Code::kCorrupt, "group_id frame: want at most {} bytes, found {}", kMostIdBytes, frame.body.size());
  return std::move(frame.body);
}

std::unique_ptr<Backend> make_step_ranks(const BackendConfig& config, const Ranks& ranks, ProcessGroup& group,
                                         std::unique_ptr<Backend> member) {
  validate(ranks, config.dims);
  check(ranks.count == group.count() && group.rank() == 0, "rank 0 drives a group of as many processes");
  return std::make_unique<StepRanksBackend>(config, ranks, group, std::move(member));
}

void follow_steps(ProcessGroup& group, const BackendConfig& config, Backend& member, const Weights& weights) {
  try {
    StepFollower(group, config, member, weights).run();
  } catch (const std::exception& error) {
    if (group.lost_within(kNewsTime)) group.require();  // why a card was let go
    group.fail(error.what());
    throw;
  }
}

}  // namespace nibble::backend
