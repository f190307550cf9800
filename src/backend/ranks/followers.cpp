#include "backend/ranks/followers.h"

#include "backend/ranks/step_frame.h"
#include "base/error.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <optional>
#include <utility>

namespace nibble::backend {
namespace {

constexpr std::chrono::milliseconds kNewsTime{500};  // from a card's notice of a lost rank to the group's
// Without a word from rank 0 for so long, a rank waits for its own steps: else nobody saw that its card has failed.
constexpr std::chrono::milliseconds kQuietTime{50};

class Follower {
 public:
  Follower(ProcessGroup& group, const BackendConfig& config, Member& member, const Weights& weights)
      : group_(group), config_(config), member_(member), weights_(weights) {}

  void run() {
    group_.send(0, FrameType::kReady);
    while (true) {
      std::optional<Frame> frame = next();
      if (!frame)
        draw_all();
      else if (frame->type == FrameType::kEnd)
        return;
      else
        obey(std::move(*frame));
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
    if (step.tokens) return;
    step.tokens.emplace();
    for (const DrawnToken& row : member_.wait(step.ticket)) step.tokens->push_back(row.token);
  }
  void draw_all() {
    for (UnderWay& step : under_way_) draw(step);
  }

  void obey(Frame frame) {
    if (frame.type == FrameType::kStep) return run_step(std::move(frame));
    BodyReader in(frame);
    switch (frame.type) {
      case FrameType::kDrawn: compare(in); break;
      case FrameType::kCopyPage: copy_page(in.number<PageCopy>()); break;
      default: throw Error(Code::kCorrupt, "want a step, found a {} frame", name_of(frame.type));
    }
    in.end();
  }

  void run_step(Frame frame) {
    const ReceivedStep received(std::move(frame), config_, unread_);
    const StepArgs step = received.args(weights_);
    const std::optional<StepRun> ran = member_.run(step, {});
    if (!step.sample_rows.empty()) unread_ = std::ssize(step.sample_rows);
    if (ran->ticket) under_way_.push_back({*ran->ticket});
  }

  void compare(BodyReader& in) {
    if (under_way_.empty()) throw Error(Code::kCorrupt, "want a drawn frame for each step, found one more");
    UnderWay step = std::move(under_way_.front());
    under_way_.pop_front();
    draw(step);
    const auto want = in.bare<int32_t>(step.tokens->size());
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
  Member& member_;
  const Weights& weights_;
  std::deque<UnderWay> under_way_;
  int64_t unread_ = 0;  // tokens that the last step with draws has drawn
};

}  // namespace

void tell_room(ProcessGroup& group, const BackendConfig& config) {
  BodyWriter room;
  room.field(config.max_tokens);
  room.field(config.max_rows);
  room.field(config.kv_pages);
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
  const auto count = [&](int pages) { return pages == 0 || in_range(pages); };  // a kind that the model lacks has none
  if (!in_range(room.max_tokens) || !in_range(room.max_rows) || !std::ranges::all_of(room.kv_pages, count))
    throw Error(Code::kCorrupt, "limits frame: want numbers from 1 to {}, found others", kMost);
  return room;
}

std::vector<std::byte> agree_on_id(ProcessGroup& group, const std::string& card,
                                   const std::function<std::vector<std::byte>()>& make) {
  if (group.rank() > 0) {
    group.send(0, FrameType::kCard, std::as_bytes(std::span(card)));
    Frame frame = group.receive(0);
    require_type(frame, FrameType::kGroupId);
    return std::move(frame.body);
  }
  std::vector<std::byte> id = make();
  std::vector<std::string> cards = {card};
  for (int rank = 1; rank < group.count(); ++rank) {
    const Frame frame = group.receive(rank);
    require_type(frame, FrameType::kCard);
    cards.push_back(text_of(frame));
    const auto other = std::ranges::find(cards, cards.back()) - cards.begin();
    if (other == rank) continue;
    const std::string why = fmt::format(
        "want a card of its own for each rank, found {} on ranks {} and {}: CUDA_VISIBLE_DEVICES or LOCAL_RANK choose "
        "it",
        cards.back(), other, rank);
    group.fail(why);
    throw Error(Code::kInvalidRequest, why);
  }
  group.tell(FrameType::kGroupId, id);
  return id;
}

bool is_lost_by_another(ProcessGroup& group, const std::exception& error) {
  const auto* const own = dynamic_cast<const Error*>(&error);
  const bool on_device = own != nullptr && own->code() == Code::kDevice;
  return group.lost_within(on_device ? kNewsTime : std::chrono::milliseconds(0));
}

void follow(ProcessGroup& group, const BackendConfig& config, Member& member, const Weights& weights) {
  try {
    Follower(group, config, member, weights).run();
  } catch (const std::exception& error) {
    if (group.ended()) return;  // rank 0 did not wait for the rest of a step
    if (is_lost_by_another(group, error)) group.require();
    group.fail(error.what());
    throw;
  }
}

}  // namespace nibble::backend
