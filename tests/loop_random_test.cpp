// The loop under random load: arrivals, shared beginnings, cancels, too few pages, right and wrong drafts, failures of
// the backend. A request must get what it gets alone and end once, and no page may be lost or held twice.
//
// Every run has 200,000 steps, which take a few seconds; NIBBLE_RANDOM_STEPS=1000000 changes that.

#include "engine/draft_model_proposer.h"
#include "engine/loop.h"
#include "engine/testing/hash_backend.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <optional>
#include <random>
#include <set>
#include <stdexcept>

namespace nibble::engine {
namespace {

using testing::Alone;
using testing::FakeBackend;
using testing::Heard;

struct Load {
  EngineLimits limits;
  int64_t window = 128, wide = 0;
  double arrivals = 0.2;   // per step
  double cancels = 0;      // per step
  double faults = 0;       // per step
  double poison = 0;       // per request
  double long_ones = 0.1;  // of the requests: many tokens asked
  int64_t priorities = 1;
  double right = 0;         // with speculation: a guess is right with this chance; some are random
  int32_t draft_pages = 0;  // of a draft model's cache, at most; with speculation: it guesses instead; 0: none does
  uint64_t draft_errs = 0;  // as FakeBackend's
  double step_seconds = 0, token_seconds = 0, key_seconds = 0;
};

struct Client {
  Request request;
  int32_t mask_classes = 0;  // 0: no mask
  Heard heard;
  int64_t came_at = 0;  // steps
  bool cancelled = false;
  bool fault_seen = false;       // the backend failed while it was there
  std::optional<Alone> alone{};  // what it gets, once that was asked for
};

// Guesses the token that will be drawn, with a given chance.
class Oracle final : public Proposer {
 public:
  using Answer = std::function<const std::vector<int32_t>&(RequestId)>;
  Oracle(double right, uint64_t seed, Answer answer) : right_(right), random_(seed), answer_(std::move(answer)) {}
  void propose(const Text& text, int most, Draft& draft) override {
    EXPECT_FALSE(ended_.contains(text.id));
    const std::vector<int32_t>& all = answer_(text.id);
    draft.tokens.clear();
    draft.matched = static_cast<int>(random_() % 20);
    const auto known = std::ssize(text.tokens) - text.prompt_tokens;
    for (int64_t count = static_cast<int64_t>(random_() % static_cast<uint64_t>(most + 1)), i = 0; i < count; ++i) {
      const bool knows = known + i < std::ssize(all) && std::uniform_real_distribution<>(0, 1)(random_) < right_;
      draft.tokens.push_back(knows ? all[static_cast<size_t>(known + i)] : static_cast<int32_t>(random_() % 39));
    }
  }
  void ended(const Text& text) override { EXPECT_TRUE(ended_.insert(text.id).second) << "told once"; }

 private:
  const double right_;
  std::mt19937_64 random_;
  Answer answer_;
  std::set<RequestId> ended_;
};

class World {
 public:
  World(const Load& load, uint64_t seed)
      : load_(load),
        random_(seed),
        gpt_(testing::fake_model(load.window, 4096, with_wide(load.wide))),
        be_(gpt_, step_limits(load.limits, gpt_.config.dims)),
        draft_limits_(draft_limits(load, step_limits(load.limits, gpt_.config.dims))),
        draft_be_(gpt_, draft_limits_),
        loop_(be_, gpt_, load.limits, [this] { return be_.now(); }) {
    be_.step_seconds = load.step_seconds;
    be_.token_seconds = load.token_seconds;
    be_.key_seconds = load.key_seconds;
    be_.runs_ahead = load.limits.async_scheduling;
    if (load.limits.speculation.method == DraftMethod::kOff) return;
    if (load.draft_pages > 0) {
      draft_be_.errs = load.draft_errs;
      auto proposer = std::make_unique<DraftModelProposer>(DraftModel{
          .be = draft_be_, .model = gpt_, .limits = draft_limits_, .prefix_cache = load.limits.prefix_cache});
      draft_model_ = proposer.get();
      loop_.propose_with(std::move(proposer));
    } else {
      loop_.propose_with(std::make_unique<Oracle>(load.right, seed, [this](RequestId id) -> const auto& {
        for (const auto& [of, client] : live_)
          if (of == id) return alone(*client).tokens;
        throw std::logic_error("a draft of nobody");
      }));
    }
  }

  void run(int64_t steps) {
    for (int64_t i = 0; i < steps && !::testing::Test::HasFailure(); ++i) step(chance(load_.arrivals));
    while (!loop_.idle() && !::testing::Test::HasFailure()) step(false);
    ASSERT_TRUE(live_.empty());
    const EngineStats stats = loop_.stats();
    EXPECT_EQ(stats.kv_pages_used, 0);
    EXPECT_EQ(draft_model_ == nullptr ? 0 : draft_model_->pages_used(), 0);
    EXPECT_EQ(stats.running + stats.waiting, 0);
    done += stats.steps;
  }
  [[nodiscard]] const Loop& loop() const { return loop_; }
  [[nodiscard]] const FakeBackend& be() const { return be_; }
  int64_t finished = 0, stopped = 0, failed = 0, cached_tokens = 0, done = 0, longest = 0;
  int64_t cancelled_drafts = 0;  // requests that were cancelled and had guessed
  int64_t masked_accepted = 0;   // right guesses of requests with a mask

 private:
  static backend::Dims with_wide(int64_t window) {
    backend::Dims dims = testing::kFakeWidths;
    dims.wide_window = window;
    return dims;
  }
  static model::StepLimits draft_limits(const Load& load, const model::StepLimits& of_model) {
    model::StepLimits limits = draft_step_limits(of_model);
    for (int32_t& pages : limits.kv_pages) pages = std::min(pages, std::max(load.draft_pages, 1));
    return limits;
  }
  bool chance(double p) { return std::uniform_real_distribution<>(0, 1)(random_) < p; }
  int64_t below(int64_t n) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(n)); }

  void step(bool arrival) {
    if (arrival) submit();
    if (!live_.empty() && chance(load_.cancels)) {
      const auto& [id, client] = live_[static_cast<size_t>(below(static_cast<int64_t>(live_.size())))];
      client->cancelled = client->heard.finished.empty();
      loop_.cancel(id);
      EXPECT_EQ(client->heard.finished.size(), 1u) << "a cancelled request ends at once";
    }
    if (chance(load_.faults)) (chance(0.3) ? draft_be_ : be_).calls_to_fault = below(20);
    const int64_t faults = be_.faults + draft_be_.faults;
    try {
      loop_.step();
    } catch (const Error& why) {  // of the draft model: as the engine does
      EXPECT_GT(draft_be_.faults, 0);
      loop_.fail_all(why);
    }
    ++now_;
    if (be_.faults + draft_be_.faults != faults)
      for (auto& [id, client] : live_) client->fault_seen = true;
    if (now_ % 16 == 0) {
      loop_.check_integrity();
      if (draft_model_ != nullptr) draft_model_->check_integrity();
    }
    std::erase_if(live_, [&](const auto& entry) {
      if (entry.second->heard.finished.empty()) {
        // Nobody waits for ever. The bound is ten times what a full queue needs.
        EXPECT_LT(now_ - entry.second->came_at, 10 * load_.limits.max_waiting * load_.limits.max_context);
        return false;
      }
      judge(*entry.second);
      return true;
    });
  }

  std::vector<int32_t> make_prompt() {
    std::vector<int32_t> prompt;
    if (!past_.empty() && chance(0.7)) {  // continues an earlier text, maybe not from its end
      prompt = past_[static_cast<size_t>(below(static_cast<int64_t>(past_.size())))];
      if (chance(0.5)) prompt.resize(static_cast<size_t>(1 + below(static_cast<int64_t>(prompt.size()))));
    }
    for (int64_t more = 1 + below(chance(0.2) ? 200 : 20); more > 0; --more)
      prompt.push_back(static_cast<int32_t>(below(3)));
    prompt.resize(std::min(prompt.size(), static_cast<size_t>(load_.limits.max_context)));
    if (chance(load_.poison))
      prompt[static_cast<size_t>(below(static_cast<int64_t>(prompt.size())))] = testing::kPoison;
    return prompt;
  }

  void submit() {
    if (loop_.stats().waiting >= load_.limits.max_waiting) return;
    auto client = std::make_unique<Client>();
    Request& r = client->request;
    r.prompt = make_prompt();
    r.max_tokens = chance(0.05) ? 0 : 1 + below(chance(load_.long_ones) ? 300 : 60);
    if (r.max_tokens > 0 && std::ssize(r.prompt) == load_.limits.max_context) r.prompt.pop_back();  // room for one
    r.prefix_cache = !chance(0.1);
    r.min_tokens = chance(0.1) ? below(r.max_tokens + 1) : 0;
    r.sampling.seed = random_();
    r.sampling.presence_penalty = chance(0.1) ? 1.0f : 0.0f;
    for (int64_t stops = chance(0.3) ? 1 + below(3) : 0; stops > 0; --stops)
      r.stop_ids.push_back(static_cast<int32_t>(below(38)));
    r.priority = below(load_.priorities);
    r.logprobs = chance(0.2) ? 2 : -1;
    r.prompt_logprobs = chance(0.05) ? 1 : -1;
    if (chance(0.1)) client->mask_classes = static_cast<int32_t>(2 + below(4));
    client->came_at = now_;
    Request sent = r;
    if (client->mask_classes > 0) sent.mask = std::make_shared<testing::ResidueMask>(client->mask_classes);
    validate(sent, load_.limits, gpt_.config.dims);
    Heard& heard = client->heard;
    live_.emplace_back(++last_id_, std::move(client));
    loop_.add(last_id_, std::move(sent), [&heard](const Event& event) { heard(event); });
  }

  const Alone& alone(Client& client) {
    if (client.alone) return *client.alone;
    Request request = client.request;
    if (client.mask_classes > 0) request.mask = std::make_shared<testing::ResidueMask>(client.mask_classes);
    return client.alone.emplace(testing::expect_alone(request, load_.window, load_.limits.max_context, load_.wide));
  }

  void judge(Client& client) {
    const Heard& heard = client.heard;
    const Request& request = client.request;
    const Alone& want = alone(client);
    const Finished& end = heard.finished[0];
    EXPECT_EQ(heard.finished.size(), 1u);
    EXPECT_FALSE(heard.late);
    EXPECT_EQ(end.generated_tokens, static_cast<int64_t>(heard.tokens.size()));
    EXPECT_LE(end.cached_tokens, std::max<int64_t>(0, end.prompt_tokens - 1));
    ASSERT_LE(heard.tokens.size(), want.tokens.size());
    EXPECT_TRUE(std::equal(heard.tokens.begin(), heard.tokens.end(), want.tokens.begin())) << "tokens of another";
    ASSERT_LT(heard.prompt_tokens.size(), request.prompt.size());
    EXPECT_TRUE(std::equal(heard.prompt_tokens.begin(), heard.prompt_tokens.end(), request.prompt.begin() + 1));
    const bool early =
        end.reason == FinishReason::kCancelled || (end.reason == FinishReason::kFailed && client.fault_seen);
    if (!early) {
      EXPECT_EQ(end.reason, want.reason) << end.message;
      EXPECT_EQ(heard.tokens.size(), want.tokens.size());
      const bool scored = request.prompt_logprobs >= 0 && want.reason != FinishReason::kFailed;
      EXPECT_EQ(heard.prompt_tokens.size(), scored ? request.prompt.size() - 1 : heard.prompt_tokens.size());
    }
    EXPECT_EQ(end.reason == FinishReason::kCancelled, client.cancelled);
    ++finished;
    cancelled_drafts += client.cancelled && end.drafted_tokens > 0 ? 1 : 0;
    masked_accepted += client.mask_classes > 0 ? end.accepted_tokens : 0;
    stopped += end.reason == FinishReason::kStop ? 1 : 0;
    failed += end.reason == FinishReason::kFailed ? 1 : 0;
    cached_tokens += end.cached_tokens;
    longest = std::max(longest, now_ - client.came_at);
    std::vector<int32_t> all = request.prompt;
    all.insert(all.end(), heard.tokens.begin(), heard.tokens.end());
    if (past_.size() < 12)
      past_.push_back(all);
    else
      past_[static_cast<size_t>(below(12))] = all;
  }

  const Load load_;
  std::mt19937_64 random_;
  model::GptOss gpt_;
  FakeBackend be_;
  const model::StepLimits draft_limits_;
  FakeBackend draft_be_;
  Loop loop_;
  const DraftModelProposer* draft_model_ = nullptr;  // the loop's
  std::vector<std::pair<RequestId, std::unique_ptr<Client>>> live_;
  std::vector<std::vector<int32_t>> past_;  // prompts with their outputs
  RequestId last_id_ = 0;
  int64_t now_ = 0;
};

// Every seed is another engine: many or few pages, another window, all kinds of trouble or none.
Load load_of(uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto pick = [&](auto... choices) {
    const std::array all{choices...};
    return all[random() % all.size()];
  };
  Load load;
  load.limits = {.max_context = pick(130, 300, 512),
                 .max_sequences = pick(1, 2, 5, 8, 20),
                 .max_batched_tokens = pick(1, 7, 64, 100, 256),
                 .max_waiting = 6,
                 .prefix_cache = pick(1, 1, 1, 0) != 0,
                 .async_scheduling = pick(1, 1, 0) != 0};
  load.limits.kv_tokens = load.limits.max_context * pick(1, 1, 2, 6);
  load.window = pick(128, 128, 64, 65, 100, 1, 40);
  load.arrivals = pick(0.05, 0.3, 1.0);
  load.cancels = pick(0.0, 0.0, 0.02);
  load.faults = pick(0.0, 0.0, 0.01);
  load.poison = pick(0.0, 0.0, 0.03);
  load.long_ones = pick(0.1, 0.8);
  load.step_seconds = pick(0.0, 1e-3, 20e-3);
  load.token_seconds = pick(0.0, 1e-5, 1e-3);
  load.key_seconds = pick(0.0, 1e-7, 1e-5);
  load.limits.target_itl_seconds = pick(0.0, 0.0, 5e-3, 1.0);
  load.limits.max_partial_prefills = pick(1, 2, 8);
  load.limits.max_long_partial_prefills = pick(1, 8);
  load.limits.long_prefill_tokens = pick(0, 0, 20);
  load.priorities = pick(1, 1, 3);
  load.right = pick(0.0, 0.5, 0.9, 1.0);
  load.limits.speculation = {.method = pick(DraftMethod::kOff, DraftMethod::kSuffix, DraftMethod::kSuffix),
                             .most_tokens = pick(1, 3, 8, 32),
                             .adaptive = pick(1, 0, 0) != 0};
  load.draft_pages = pick(0, 5, 1000);
  load.draft_errs = pick(uint64_t{0}, uint64_t{2}, uint64_t{2}, uint64_t{8});
  load.wide = pick(0, 1) * (load.window + pick(1, 70, 150));
  return load;
}

// What happened in a run.
struct Sum {
  int64_t steps = 0, preemptions = 0, prefix_hits = 0, drafted = 0, accepted = 0;
  // With guesses.
  int64_t guessing_steps = 0, guessing_preemptions = 0, cancelled_drafts = 0, masked_accepted = 0;
  int64_t by_model = 0, by_model_right = 0, by_model_preemptions = 0;  // guesses of a draft model
};

void run_world(uint64_t seed, int64_t steps, Sum& sum) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  const Load load = load_of(seed);
  World world(load, seed);
  world.run(steps);
  const EngineStats stats = world.loop().stats();
  sum.steps += stats.steps;
  sum.preemptions += stats.preemptions;
  sum.prefix_hits += stats.prefix_hits;
  sum.drafted += stats.drafts.tokens;
  sum.accepted += stats.drafts.accepted;
  if (load.limits.speculation.method == DraftMethod::kOff) return;
  sum.guessing_steps += stats.steps;
  sum.guessing_preemptions += stats.preemptions;
  sum.cancelled_drafts += world.cancelled_drafts;
  sum.masked_accepted += world.masked_accepted;
  if (load.draft_pages == 0) return;
  sum.by_model += stats.drafts.tokens;
  sum.by_model_right += stats.drafts.accepted;
  sum.by_model_preemptions += stats.preemptions;
}

int64_t steps_asked_for() {
  const char* const asked = std::getenv("NIBBLE_RANDOM_STEPS");
  int64_t steps = 200'000;
  if (asked != nullptr) std::from_chars(asked, asked + std::strlen(asked), steps);
  return steps;
}

TEST(loop_random, every_request_gets_what_it_gets_alone) {
  Sum sum;
  const int64_t steps = steps_asked_for();
  for (uint64_t seed = 1; sum.steps < steps && !HasFailure(); ++seed) run_world(seed, 2000, sum);
  fmt::print(
      "{} steps, {} with guesses among them; {} preemptions, {} prompt tokens from the cache; {} of {} guesses right, "
      "{} of them under a grammar; {} cancelled with drafts, {} preempted; {} of {} guesses of draft models right, {} "
      "preempted\n",
      sum.steps, sum.guessing_steps, sum.preemptions, sum.prefix_hits, sum.accepted, sum.drafted, sum.masked_accepted,
      sum.cancelled_drafts, sum.guessing_preemptions, sum.by_model_right, sum.by_model, sum.by_model_preemptions);
  EXPECT_GT(sum.preemptions, 50);
  EXPECT_GT(sum.prefix_hits, 10000);
  EXPECT_GT(sum.guessing_steps, steps / 2);
  EXPECT_GT(sum.accepted, 10000);
  EXPECT_GT(sum.drafted, sum.accepted * 3 / 2);
  EXPECT_GT(sum.masked_accepted, 100);
  EXPECT_GT(sum.cancelled_drafts, 20);
  EXPECT_GT(sum.guessing_preemptions, 30);
  EXPECT_GT(sum.by_model_right, 1000);
  EXPECT_GT(sum.by_model, sum.by_model_right * 3 / 2);
  EXPECT_GT(sum.by_model_preemptions, 10);
}

}  // namespace
}  // namespace nibble::engine
