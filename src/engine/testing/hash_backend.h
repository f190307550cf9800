#pragma once
// A backend without arithmetic, for the engine's tests. A token's state is a hash of the tokens that it sees through
// its page tables, read from where they were written. So a page that is shared wrongly, released too early or left out
// gives other tokens. expect_alone() computes, without an engine, what a request must get.

#include "backend/backend.h"
#include "base/error.h"
#include "engine/loop.h"
#include "engine/request.h"
#include "engine/testing/integrity.h"
#include "model/gpt_oss.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

namespace nibble::engine::testing {

using backend::kPageTokens;
using backend::LayerKind;

inline constexpr int32_t kVocab = 40;
inline constexpr int32_t kPoison = 39;  // a context that holds it gives NaN

constexpr uint64_t mix(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9E3779B97F4A7C15u;
  return hash ^ hash >> 31;
}
constexpr uint64_t seen(uint64_t hash, int32_t token, int64_t position) {
  return mix(hash, static_cast<uint64_t>(token) << 32 | static_cast<uint64_t>(position));
}

struct State {
  uint64_t hash = 0;
  bool poisoned = false;
};

// What the fake draws from a state; penalties count when they are set, so that a wrong history shows.
inline backend::DrawnToken fake_draw(const State& state, const backend::SampleRow& row) {
  backend::DrawnToken drawn;
  if (state.poisoned) {
    drawn.error = backend::not_finite("poison");
    return drawn;
  }
  uint64_t hash = mix(mix(state.hash, row.params->seed), static_cast<uint64_t>(row.position));
  if (row.params->presence_penalty != 0) {
    for (const int32_t token : row.prompt) hash = mix(hash, static_cast<uint64_t>(token));
    for (const int32_t token : row.output) hash = mix(hash, static_cast<uint64_t>(token));
  }
  drawn.token = static_cast<int32_t>(hash % (kVocab - 1));  // the poison is never drawn
  const auto allowed = [&](int32_t token) {
    return row.mask.empty() || (row.mask[static_cast<size_t>(token) / 32] >> (token % 32) & 1) != 0;
  };
  for (int tried = 0; !allowed(drawn.token); ++tried) {
    if (tried == kVocab) {
      drawn.token = -1;
      drawn.error = backend::nothing_allowed(row.position);
      return drawn;
    }
    drawn.token = (drawn.token + 1) % (kVocab - 1);
  }
  if (row.given >= 0) drawn.token = row.given;
  if (row.logprobs >= 0) {
    drawn.logprobs = backend::TokenLogprobs{.value = static_cast<double>(state.hash % 997), .top = {}};
    for (int32_t i = 0; i < row.logprobs; ++i) drawn.logprobs->top.push_back({i, static_cast<float>(i)});
  }
  return drawn;
}

// The state of the last token. wide: as Dims::wide_window.
inline State state_of(std::span<const int32_t> tokens, int64_t window, int64_t wide = 0) {
  const auto last = static_cast<int64_t>(tokens.size()) - 1;
  uint64_t full = 0, sliding = 0, widely = 0;
  bool poisoned = false;
  for (int64_t p = 0; p <= last; ++p) {
    const int32_t token = tokens[static_cast<size_t>(p)];
    full = seen(full, token, p);
    if (p > last - window) sliding = seen(sliding, token, p);
    if (p > last - wide) widely = seen(widely, token, p);
    poisoned |= token == kPoison;
  }
  const uint64_t both = mix(mix(0, sliding), full);
  return {.hash = wide > 0 ? mix(both, widely) : both, .poisoned = poisoned};
}

struct Alone {
  std::vector<int32_t> tokens;
  FinishReason reason = FinishReason::kLength;
};

// What a request gets, and how it ends if nothing goes wrong.
inline Alone expect_alone(const Request& request, int64_t window, int64_t max_context, int64_t wide = 0) {
  Alone alone;
  std::vector<int32_t> all = request.prompt;
  std::vector<uint32_t> mask((kVocab + 31) / 32);
  if (request.prompt_logprobs >= 0 && std::count(all.begin(), all.end() - 1, kPoison) != 0) {
    alone.reason = FinishReason::kFailed;
    return alone;
  }
  while (static_cast<int64_t>(alone.tokens.size()) < request.max_tokens) {
    const bool filled = request.mask && request.mask->fill(mask);
    if (!filled) std::fill(mask.begin(), mask.end(), ~0u);
    if (static_cast<int64_t>(alone.tokens.size()) < request.min_tokens)
      for (const int32_t id : request.stop_ids) mask[static_cast<size_t>(id) / 32] &= ~(1u << (id % 32));
    const backend::DrawnToken drawn =
        fake_draw(state_of(all, window, wide), {.params = &request.sampling,
                                                .position = static_cast<int64_t>(all.size()),
                                                .prompt = request.prompt,
                                                .output = alone.tokens,
                                                .mask = mask});
    if (drawn.error) {
      alone.reason = FinishReason::kFailed;
      return alone;
    }
    const int32_t token = request.mask ? request.mask->take(drawn.token) : drawn.token;
    alone.tokens.push_back(token);
    all.push_back(token);
    if (std::count(request.stop_ids.begin(), request.stop_ids.end(), token) != 0) {
      alone.reason = FinishReason::kStop;
      return alone;
    }
    if (static_cast<int64_t>(alone.tokens.size()) >= request.max_tokens) break;
    if (static_cast<int64_t>(all.size()) >= max_context) {
      alone.reason = FinishReason::kContext;
      return alone;
    }
  }
  alone.reason = FinishReason::kLength;
  return alone;
}

// By its operations 1000 keys cost as much as the rest of a token.
inline constexpr backend::Dims kFakeWidths{.hidden = 250, .heads = 1, .kv_heads = 1, .head_dim = 1};

// `dims`: its wide window, and its widths, which count only for what the engine guesses about times.
inline model::GptOss fake_model(int64_t window, int64_t max_context = 4096, const backend::Dims& dims = kFakeWidths) {
  model::GptOss gpt;
  gpt.config.dims = dims;
  gpt.config.dims.layers = std::ssize(kinds_of(dims));  // one of each kind
  gpt.config.dims.vocab = kVocab;
  gpt.config.dims.sliding_window = window;
  gpt.config.dims.max_context = max_context;
  gpt.config.layer_kinds.assign(kinds_of(dims).begin(), kinds_of(dims).end());
  gpt.weights.layers.resize(gpt.config.layer_kinds.size());
  return gpt;
}

class FakeBackend final : public backend::Backend {
 public:
  FakeBackend(const model::GptOss& gpt, const model::StepLimits& limits) : dims_(gpt.config.dims), limits_(limits) {
    for (size_t kind = 0; kind < backend::kLayerKinds; ++kind)
      cells_[kind].resize(static_cast<size_t>(limits.kv_pages[kind]) * kPageTokens);
  }

  int64_t calls_to_fault = -1;  // 0: the next verb or wait throws; -1: none does
  int64_t faults = 0;           // that were thrown
  bool fault_in_wait = false;   // one of them
  int64_t tokens_computed = 0;
  int64_t steps = 0;
  int most_rows = 0;
  std::vector<int> kept_taps{};  // boundaries whose residuals it keeps
  int64_t tap_copies = 0;
  int64_t fed_back = 0;  // ids that named a token in flight
  // What a step takes, by a clock of its own.
  double step_seconds = 0, token_seconds = 0, key_seconds = 0;
  std::vector<double> seconds_of{};  // instead of the first two: by tokens, from one on; behind the last, the last
  std::function<double(std::span<const backend::Row> rows)> times{};  // of a step, more than all of these
  double seconds = 0;                                                 // by that clock
  bool runs_ahead = false;  // as a card does: a step takes its time while the host goes on
  uint64_t errs = 0;        // one of so many draws is another model's; 0: none
  [[nodiscard]] std::chrono::steady_clock::time_point now() const {
    using namespace std::chrono;
    return steady_clock::time_point(duration_cast<steady_clock::duration>(duration<double>(1 + seconds)));
  }

  // What else runs there, which the host waits for.
  void work(double takes) { seconds = step_ends_ = std::max(step_ends_, seconds) + takes; }

  [[nodiscard]] std::string_view name() const override { return "fake"; }
  backend::WeightHandle upload(const backend::HostWeight&) override { return {}; }

  void copy_page(const backend::PageCopy& copy) override {
    fault();
    const auto page = [&](int32_t idx) {
      return cells_[static_cast<size_t>(copy.kind)].begin() + int64_t{idx} * kPageTokens;
    };
    std::copy_n(page(copy.from), kPageTokens, page(copy.to));
  }
  void embed(const backend::EmbedArgs& args) override {
    fault();
    check(static_cast<int>(args.ids.size()) <= limits_.max_tokens, "a step has at most max_tokens");
    tokens_.clear();
    for (const int32_t id : args.ids) {
      fed_back += id < 0 ? 1 : 0;
      tokens_.push_back(id >= 0 ? id : std::max(0, results_.back().second.at(static_cast<size_t>(-1 - id)).token));
    }
    states_.assign(tokens_.size(), {});
    const size_t count = args.ids.size();
    const double takes = seconds_of.empty() ? step_seconds + token_seconds * static_cast<double>(count)
                                            : seconds_of[std::min(count, seconds_of.size()) - 1];
    step_ends_ = std::max(step_ends_, seconds) + takes;
    if (!runs_ahead) seconds = step_ends_;
    tokens_computed += static_cast<int64_t>(tokens_.size());
    ++steps;
  }
  void attn_in(const backend::AttnInArgs&) override { fault(); }
  void attend(const backend::AttendArgs& args) override {
    fault();
    positions_.assign(args.positions.begin(), args.positions.end());
    if (times && args.layer_idx == 0) step_ends_ += times(args.rows);
    for (const int32_t position : args.positions)
      step_ends_ += args.layer_idx == 0 ? key_seconds * static_cast<double>(position) : 0;
    if (!runs_ahead) seconds = step_ends_;
    for (size_t t = 0; t < tokens_.size(); ++t) {
      Cell& cell = cells_[static_cast<size_t>(args.layer_idx)].at(static_cast<size_t>(args.kv_slots[t]));
      check(cell.step != steps || cell.token < 0, "a slot is written once in a step");
      cell = {.token = tokens_[t], .position = args.positions[t], .step = steps};
    }
    most_rows = std::max(most_rows, static_cast<int>(args.rows.size()));
    for (size_t r = 0; r < args.rows.size(); ++r) {
      const backend::Row& row = args.rows[r];
      const auto pages = args.pages.ids.subspan(r * static_cast<size_t>(args.pages.pages_per_row),
                                                static_cast<size_t>(args.pages.pages_per_row));
      const auto see = [&](State& state, int64_t p) {
        const int32_t page = pages[static_cast<size_t>(p / kPageTokens)];
        check(page >= 0, "no page that a token sees was released");
        const Cell& cell =
            cells_[static_cast<size_t>(args.kind)].at(static_cast<size_t>(page * kPageTokens + p % kPageTokens));
        state.hash = seen(state.hash, cell.token, cell.position);
        state.poisoned |= cell.token == kPoison;
      };
      State full;
      const int64_t first = row.context - row.tokens;
      for (int64_t p = 0; args.kind == LayerKind::kFull && p < first; ++p) see(full, p);
      for (int64_t p = first; p < row.context; ++p) {
        State now;
        if (args.kind == LayerKind::kFull) {
          see(full, p);
          now = full;
        } else {
          for (int64_t q = std::max<int64_t>(0, p - dims_.window_of(args.kind) + 1); q <= p; ++q) see(now, q);
        }
        State& state = states_[static_cast<size_t>(row.first_token + p - first)];
        state = {.hash = mix(state.hash, now.hash), .poisoned = state.poisoned || now.poisoned};
      }
    }
  }
  void attn_out(const backend::AttnOutArgs&) override {}
  void route(const backend::RouteArgs&) override {}
  void moe(const backend::MoeArgs&) override { fault(); }
  void logits(const backend::LogitsArgs& args) override {
    fault();
    check(static_cast<int>(args.tokens.size()) <= limits_.max_rows, "a step has at most max_rows of logits");
    rows_.clear();
    for (const int32_t t : args.tokens) rows_.push_back(states_.at(static_cast<size_t>(t)));
  }
  backend::Ticket sample(const backend::SampleArgs& args) override {
    fault();
    check(args.rows.size() == rows_.size(), "a sample row per row of logits");
    std::vector<backend::DrawnToken> drawn;
    for (size_t r = 0; r < rows_.size(); ++r) {
      drawn.push_back(fake_draw(rows_[r], args.rows[r]));
      if (errs > 0 && mix(rows_[r].hash, 1) % errs == 0) drawn.back().token = (drawn.back().token + 1) % (kVocab - 1);
    }
    results_.emplace_back(++ticket_, std::move(drawn));
    ends_[static_cast<size_t>(ticket_) % ends_.size()] = step_ends_;
    if (results_.size() > 3) results_.pop_front();
    return ticket_;
  }
  [[nodiscard]] std::vector<backend::DrawnToken> wait(backend::Ticket ticket) override {
    check(ticket > last_read_ && ticket + 1 >= ticket_, "tickets are read once, in order, two at most outstanding");
    last_read_ = ticket;
    seconds = std::max(seconds, ends_[static_cast<size_t>(ticket) % ends_.size()]);
    fault_in_wait |= calls_to_fault == 0;
    fault();
    for (auto& [of, drawn] : results_)
      if (of == ticket) return drawn;
    check(false, "a ticket was given");
    return {};
  }
  [[nodiscard]] backend::SlotData peek(backend::Slot) override { return {}; }
  // A token's residual at every boundary: itself and its position.
  [[nodiscard]] static float residual(int32_t token, int64_t position) {
    return static_cast<float>(position) + static_cast<float>(token) / 64;
  }
  [[nodiscard]] bool keeps_taps(std::span<const int> boundaries) const override {
    return !boundaries.empty() && std::ranges::equal(boundaries, kept_taps);
  }
  [[nodiscard]] backend::TapTicket copy_taps() override {
    ++tap_copies;
    std::vector<float>& taps = taps_[static_cast<size_t>(++tap_ticket_) % taps_.size()];
    taps.clear();
    for (size_t t = 0; t < tokens_.size(); ++t)
      taps.insert(taps.end(), kept_taps.size(), residual(tokens_[t], positions_[t]));
    return tap_ticket_;
  }
  [[nodiscard]] std::span<const float> wait_taps(backend::TapTicket ticket) override {
    check(ticket > 0 && ticket + 1 >= tap_ticket_, "residuals are read before the second step after theirs");
    return taps_[static_cast<size_t>(ticket) % taps_.size()];
  }
  [[nodiscard]] int64_t tickets() const { return ticket_; }
  [[nodiscard]] int64_t unread() const { return ticket_ - last_read_; }

 private:
  struct Cell {
    int32_t token = -1, position = -1;
    int64_t step = -1;
  };

  void fault() {
    if (calls_to_fault < 0 || calls_to_fault-- > 0) return;
    ++faults;
    throw Error(Code::kDevice, "[fake] a fault");
  }

  const backend::Dims dims_;
  const model::StepLimits limits_;
  std::array<std::vector<Cell>, backend::kLayerKinds> cells_;  // by kind: one layer of each
  std::vector<int32_t> tokens_, positions_;
  std::array<std::vector<float>, 2> taps_;
  backend::TapTicket tap_ticket_ = 0;
  std::vector<State> states_, rows_;
  std::deque<std::pair<backend::Ticket, std::vector<backend::DrawnToken>>> results_;
  backend::Ticket ticket_ = 0, last_read_ = 0;
  double step_ends_ = 0;
  std::array<double, 4> ends_{};  // by ticket
};

// What a receiver was sent.
struct Heard {
  std::vector<int32_t> tokens, prompt_tokens;
  std::vector<double> logprobs;
  std::vector<Finished> finished;
  bool late = false;  // an event came after Finished

  void operator()(const Event& event) {
    late |= !finished.empty();
    if (const auto* done = std::get_if<Finished>(&event)) {
      finished.push_back(*done);
      return;
    }
    const auto& token = std::get<TokenEvent>(event);
    (token.of_prompt ? prompt_tokens : tokens).push_back(token.token);
    if (token.logprobs) logprobs.push_back(token.logprobs->value);
  }
};

// What one request was sent, from whatever thread.
class Mailbox {
 public:
  Receiver receiver() {
    return [this](const Event& event) {
      const std::lock_guard lock(mutex_);
      heard_(event);
      changed_.notify_all();
    };
  }
  Heard wait_finished() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !heard_.finished.empty(); });
    return heard_;
  }
  void wait_tokens(size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return heard_.tokens.size() >= count || !heard_.finished.empty(); });
  }
  Heard now() {
    const std::lock_guard lock(mutex_);
    return heard_;
  }

 private:
  std::mutex mutex_;  // guards heard_
  std::condition_variable changed_;
  Heard heard_;
};

// Allows the tokens of one residue class, which follows from all that was drawn. Puts another one of the class in the
// place of some.
class ResidueMask final : public TokenMask {
 public:
  explicit ResidueMask(int32_t classes) : classes_(classes) {}
  bool fill(std::span<uint32_t> mask) override {
    if (last_ % 5 == 4) return false;
    std::fill(mask.begin(), mask.end(), 0u);
    for (int32_t token = 0; token < kVocab - 1; ++token)
      if ((token + last_) % classes_ == 0) mask[static_cast<size_t>(token) / 32] |= 1u << (token % 32);
    return true;
  }
  void accept(int32_t token) override {
    before_.push_back(last_);
    last_ = (3 * last_ + token) % 1009;
  }
  int32_t take(int32_t drawn) override {
    const int32_t token = last_ % 7 != 3 ? drawn : drawn >= classes_ ? drawn - classes_ : drawn + classes_;
    accept(token);
    return token;
  }
  void undo(int tokens) override {
    for (; tokens > 0; --tokens) {
      check(!before_.empty(), "what is undone was accepted");
      last_ = before_.back();
      before_.pop_back();
    }
  }

 private:
  int32_t classes_, last_ = 0;
  std::vector<int32_t> before_;
};

inline constexpr int64_t kWindow = 128;

// Limits under which steps are as long as they can be, whatever they take.
constexpr EngineLimits unpaced(EngineLimits limits) {
  if (limits.target_itl_seconds == 0) limits.target_itl_seconds = std::numeric_limits<double>::infinity();
  return limits;
}

// The loop on the fake backend and its clock, driven step by step.
struct Rig {
  explicit Rig(const EngineLimits& of, int64_t longest = 4096) : Rig(fake_model(kWindow, longest), unpaced(of)) {}
  Rig(model::GptOss of_model, const EngineLimits& of)
      : limits(of),
        gpt(std::move(of_model)),
        be(gpt, step_limits(of, gpt.config.dims)),
        loop(be, gpt, of, [this] { return be.now(); }) {}

  Heard& add(Request request) {
    validate(request, limits, gpt.config.dims);
    heard.push_back(std::make_unique<Heard>());
    Heard& to = *heard.back();
    loop.add(static_cast<RequestId>(heard.size()), std::move(request), [&to](const Event& event) { to(event); });
    return to;
  }
  void run() {
    for (int i = 0; i < 100000 && !loop.idle(); ++i) {
      loop.step();
      loop.check_integrity();
    }
    ASSERT_TRUE(loop.idle());
  }
  Heard run(Request request) {
    Heard& to = add(std::move(request));
    run();
    return to;
  }

  EngineLimits limits;
  model::GptOss gpt;
  FakeBackend be;
  Loop loop;
  std::vector<std::unique_ptr<Heard>> heard;
};

inline std::vector<int32_t> some(size_t count, int32_t from = 0) {
  std::vector<int32_t> tokens(count);
  for (size_t i = 0; i < count; ++i) tokens[i] = static_cast<int32_t>((i * i + i / 7 + static_cast<size_t>(from)) % 37);
  return tokens;
}

inline Request ask(std::vector<int32_t> prompt, int64_t max_tokens) {
  return {.prompt = std::move(prompt), .max_tokens = max_tokens, .sampling = {.seed = 5}};
}

}  // namespace nibble::engine::testing
