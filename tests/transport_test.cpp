// How ranks that share a step exchange, by every transport of a host and by a fake one; and what becomes of a rank that
// fails or is lost in the middle of a step: who is told, and what.

#include "backend/cpu/cpu_backend.h"
#include "backend/ranks/followers.h"
#include "backend/ranks/ranks_backend.h"
#include "backend/ranks/socket_transport.h"
#include "backend/ranks/step_frame.h"
#include "backend/ranks/threads_transport.h"
#include "base/error.h"
#include "base/random.h"
#include "convert/synth.h"
#include "fake_transport.h"
#include "model/gpt_oss.h"
#include "one_sequence.h"
#include "processes_testing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace nibble {
namespace {

using backend::Crew;
using backend::Member;
using backend::Ranks;
using backend::Slot;
using backend::Transport;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using Clock = std::chrono::steady_clock;

std::unique_ptr<Member> cpu_member(const backend::BackendConfig& whole, const Ranks& ranks, int rank,
                                   std::unique_ptr<Transport> transport) {
  return backend::make_host_member(
      whole, {.ranks = ranks, .rank = rank, .transport = std::move(transport)},
      [](const backend::BackendConfig& of_rank) { return backend::make_cpu_backend(of_rank, {.threads = 1}); });
}

std::unique_ptr<backend::Backend> on_threads(const backend::BackendConfig& whole, const Ranks& ranks) {
  return backend::make_ranks_backend(whole, ranks, 1, [](const backend::BackendConfig& of, int, int) {
    return backend::make_cpu_backend(of, {.threads = 1});
  });
}

// A member that fails when it is told to.
class FailingMember final : public Member {
 public:
  explicit FailingMember(std::unique_ptr<Member> inner) : inner_(std::move(inner)) {}
  [[nodiscard]] std::string_view name() const override { return "failing"; }
  backend::WeightHandle upload(const backend::HostWeight& weight) override { return inner_->upload(weight); }
  void copy_page(const backend::PageCopy& copy) override { inner_->copy_page(copy); }
  void prepare(const backend::StepArgs& step, bool watched) override { inner_->prepare(step, watched); }
  [[nodiscard]] backend::StepRun enqueue(const backend::AfterStage& after) override {
    if (fails_in_run) throw Error(Code::kDevice, "this card has failed");
    const backend::StepRun ran = inner_->enqueue(after);
    if (ran.ticket) check(++outstanding_ <= 2, "two tickets may be outstanding");
    return ran;
  }
  [[nodiscard]] std::vector<backend::DrawnToken> wait(backend::Ticket ticket) override {
    check(ticket == ++waited_, "tickets are read once and in order");
    --outstanding_;
    if (fails_in_wait) throw Error(Code::kDevice, "this card has failed");
    std::vector<backend::DrawnToken> drawn = inner_->wait(ticket);
    if (draws_wrong) ++drawn.at(0).token;
    return drawn;
  }
  [[nodiscard]] backend::SlotData peek(Slot slot) override { return inner_->peek(slot); }

  std::atomic<bool> fails_in_run = false, fails_in_wait = false, draws_wrong = false;

 private:
  const std::unique_ptr<Member> inner_;
  backend::Ticket waited_ = 0;
  int outstanding_ = 0;
};

constexpr std::string_view kId = "an id of this group";

// Ranks of a process each that exchange by the fake transport, as cards do by NCCL: the group over TCP carries steps.
class Group {
 public:
  Group(const model::ModelConfig& config, std::span<const backend::HostWeight> weights, const model::StepLimits& limits,
        const Ranks& ranks, const std::vector<std::string>& cards = {})
      : meeting_(ranks.count), members(static_cast<size_t>(ranks.count)) {
    const auto make = [this, ranks, cards](const backend::BackendConfig& whole, backend::ProcessGroup& of_rank) {
      const int rank = of_rank.rank();
      const std::string card = cards.empty() ? fmt::format("card {}", rank) : cards[static_cast<size_t>(rank)];
      const auto id = backend::agree_on_id(of_rank, card, [] {
        const std::span bytes = std::as_bytes(std::span(kId));
        return std::vector(bytes.begin(), bytes.end());
      });
      EXPECT_EQ(std::string(reinterpret_cast<const char*>(id.data()), id.size()), kId);
      auto made = std::make_unique<FailingMember>(cpu_member(whole, ranks, rank, meeting_.end_of(rank)));
      members[static_cast<size_t>(rank)] = made.get();
      return made;
    };
    const auto events = [this](int) {
      return backend::GroupEvents{.lost = [this](const std::string&) { meeting_.give_up(); }};
    };
    processes_.emplace(config, weights, limits, ranks, test::Processes::Setup{.make = make, .events = events});
  }
  [[nodiscard]] backend::Backend& be() const { return *processes_->be; }
  [[nodiscard]] const model::GptOss& gpt() const { return processes_->gpt; }
  [[nodiscard]] backend::ProcessGroup& group() const { return *processes_->group; }
  // What ended the ranks above 0, in a line each; of none: nothing.
  std::string ended() {
    std::string all;
    for (const std::string& error : processes_->ended()) all += error.empty() ? "" : error + "\n";
    return all;
  }

 private:
  test::FakeMeeting meeting_;

 public:
  std::vector<std::atomic<FailingMember*>> members;  // by rank

 private:
  std::optional<test::Processes> processes_;
};

model::ModelConfig small_config() {
  model::ModelConfig config = model::preset("tiny");
  config.dims.layers = 2;
  config.dims.hidden = 96;
  config.dims.heads = 8;
  config.dims.kv_heads = 4;
  config.dims.head_dim = 16;
  config.dims.inter = 64;
  config.dims.vocab = 333;  // of ranks that have not equally many
  config.dims.sliding_window = 5;
  config.layer_kinds = model::alternating_layers(2);
  config.bos_id.reset();
  config.pad_id.reset();
  config.eos_ids.clear();
  return config;
}

std::vector<int32_t> prompt_of(size_t tokens, int64_t vocab) {
  std::vector<int32_t> ids;
  for (size_t i = 0; i < tokens; ++i)
    ids.push_back(static_cast<int32_t>(philox(5, i)[0] % static_cast<uint32_t>(vocab)));
  return ids;
}

class Members : public testing::Test {
 protected:
  Members() : limits_(test::engine_limits({.max_context = 512, .chunk_tokens = 64})) {}
  [[nodiscard]] model::StepLimits steps() const { return engine::step_limits(limits_, config_.dims); }
  [[nodiscard]] engine::Request request(const backend::SamplingParams& sampling = {.temperature = 0}) const {
    return {.prompt = prompt_of(150, config_.dims.vocab), .max_tokens = 12, .sampling = sampling, .stop_ids = {}};
  }

  const model::ModelConfig config_ = small_config();
  const convert::DummyWeights weights_{config_, 3, nullptr};
  engine::EngineLimits limits_;
};

// Whatever decides about a token reaches all ranks: else they would draw others and the group would end.
TEST_F(Members, write_the_texts_of_ranks_in_one_process) {
  using Params = backend::SamplingParams;
  const std::vector<Params> draws = {
      {.temperature = 0},
      {.temperature = 1, .seed = 7},
      {.temperature = 0.7f, .top_p = 0.9f, .min_p = 0.01f, .top_k = 40, .seed = 8},
      {.temperature = 1, .repetition_penalty = 1.3f, .presence_penalty = 0.5f, .frequency_penalty = 0.5f, .seed = 9},
      {.temperature = 1, .logit_bias = {{3, 50.0f}, {7, 49.5f}}, .seed = 10}};
  for (const Ranks& ranks : {Ranks{2, false}, Ranks{4, true}}) {
    for (const bool async : {false, true}) {
      limits_.async_scheduling = async;
      Group of_group(config_, weights_.weights(), steps(), ranks);
      const auto threads = on_threads(model::backend_config(config_, steps()), ranks);
      const model::GptOss of_threads = model::load(*threads, config_, weights_.weights());
      {
        engine::Loop found(of_group.be(), of_group.gpt(), limits_), want(*threads, of_threads, limits_);
        for (const Params& params : draws) {
          engine::Request asked = request(params);
          asked.logprobs = params.seed == 8 ? 3 : -1;
          EXPECT_EQ(test::generate(found, asked).tokens, test::generate(want, asked).tokens) << params.seed;
        }
      }
      EXPECT_EQ(of_group.ended(), "");
    }
  }
}

TEST_F(Members, guess_as_one_process_does) {
  limits_.speculation = {.method = engine::DraftMethod::kNgram};
  limits_.max_logit_rows = 16;
  Group of_group(config_, weights_.weights(), steps(), {2, false});
  const auto threads = on_threads(model::backend_config(config_, steps()), {2, false});
  const model::GptOss of_threads = model::load(*threads, config_, weights_.weights());
  engine::Loop found(of_group.be(), of_group.gpt(), limits_), want(*threads, of_threads, limits_);
  engine::Request asked = request();
  asked.max_tokens = 40;
  EXPECT_EQ(test::generate(found, asked).tokens, test::generate(want, asked).tokens);
}

TEST_F(Members, copy_pages_on_every_rank) {
  Group on(config_, weights_.weights(), {.max_tokens = 64, .max_rows = 4, .kv_pages = {3, 3}}, {2, false});
  test::expect_page_copies(on.be(), on.gpt());
}

// Residuals at boundaries of layers, as a head wants them.
TEST_F(Members, are_looked_at_behind_their_stages_wherever_they_are) {
  Group of_group(config_, weights_.weights(), steps(), {2, false});
  const auto threads = on_threads(model::backend_config(config_, steps()), {2, false});
  const model::GptOss of_threads = model::load(*threads, config_, weights_.weights());
  const auto one = backend::make_cpu_backend(model::backend_config(config_, steps()), {.threads = 1});
  const model::GptOss of_one = model::load(*one, config_, weights_.weights());
  const model::Step step = engine::step_alone(prompt_of(3, config_.dims.vocab));
  const auto taps_of = [&](backend::Backend& be, const model::GptOss& gpt) {
    model::Taps taps{.boundaries = {0, 1, 2}};
    model::forward(be, gpt, step, {}, &taps);
    return taps.values;
  };
  const std::vector<float> want = taps_of(*one, of_one), found = taps_of(*threads, of_threads);
  EXPECT_EQ(taps_of(of_group.be(), of_group.gpt()), found);
  ASSERT_EQ(found.size(), 3 * 3 * static_cast<size_t>(config_.dims.hidden));
  for (size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], want[i], 1e-4) << i;
}

TEST_F(Members, serve_whole_steps_alone) {
  Group on(config_, weights_.weights(), steps(), {2, false});
  EXPECT_THROW(on.be().embed({.ids = {}, .table = {}}), Error);
  EXPECT_TRUE(on.be().peek(Slot::kAttn).shape.empty());
}

TEST_F(Members, that_have_one_card_are_refused_by_name) {
  try {
    const Group on(config_, weights_.weights(), steps(), {4, false}, {"GPU-a", "GPU-b", "GPU-c", "GPU-b"});
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("want a card of its own for each rank, found GPU-b on ranks 1 and 3"));
  }
}

// What a request ends with.
std::string error_of(engine::Loop& loop, const engine::Request& request) {
  try {
    test::generate(loop, request);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kIo) << "what HTTP answers with 503";
    return error.what();
  }
  return "no error";
}

TEST_F(Members, end_where_one_draws_another_token) {
  Group on(config_, weights_.weights(), steps(), {2, false});
  on.members[1].load()->draws_wrong = true;
  engine::Loop loop(on.be(), on.gpt(), limits_);
  EXPECT_THAT(error_of(loop, request()), HasSubstr("want the same token from every rank, found "));
}

TEST_F(Members, end_where_a_card_fails) {
  for (const bool in_wait : {false, true}) {
    for (const size_t rank : {size_t{0}, size_t{1}}) {
      Group on(config_, weights_.weights(), steps(), {2, false});
      FailingMember& fails = *on.members[rank];
      (in_wait ? fails.fails_in_wait : fails.fails_in_run) = true;
      {
        engine::Loop loop(on.be(), on.gpt(), limits_);
        EXPECT_THAT(error_of(loop, request()), HasSubstr("this card has failed")) << rank << in_wait;
        EXPECT_THROW(on.be().copy_page({}), Error);
      }
      EXPECT_THAT(on.ended(), HasSubstr("this card has failed")) << rank << in_wait;
    }
  }
}

// The last step's tokens, which rank 0 has not told, are waited for all the same.
TEST_F(Members, notice_a_card_that_fails_in_the_last_step) {
  Group on(config_, weights_.weights(), steps(), {2, false});
  on.members[1].load()->fails_in_wait = true;
  const backend::SamplingParams greedy{.temperature = 0};
  model::Step step = engine::step_alone(prompt_of(3, config_.dims.vocab));
  step.logit_tokens = {2};
  step.sample_rows = {{.params = &greedy, .position = 3}};
  model::forward(on.be(), on.gpt(), step);
  EXPECT_TRUE(on.group().lost_within(std::chrono::seconds(60)));
}

// ---- every transport of a host ----

// Calls body(rank, transport) on a thread for each of three ranks.
void on_three(const std::string& which, const std::function<void(int, Transport&)>& body) {
  constexpr int kRanks = 3;
  test::FakeMeeting fake(kRanks);
  backend::MeetingThreads meeting(kRanks);
  const backend::GroupPlace place = backend::place_of(kRanks);
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < kRanks; ++rank)
    threads.emplace_back([&, rank] {
      std::optional<backend::ProcessGroup> group;
      if (which == "sockets") group.emplace(backend::at_rank(place, rank), backend::GroupEvents());
      const std::unique_ptr<Transport> transport = which == "sockets"
                                                       ? std::make_unique<backend::SocketTransport>(*group)
                                                   : which == "threads" ? meeting.end_of(rank)
                                                                        : fake.end_of(rank);
      body(rank, *transport);
      if (group && rank > 0) EXPECT_EQ(group->receive(0).type, backend::FrameType::kEnd);  // none leaves before
    });
}

TEST(Transports, add_up_in_the_order_of_the_ranks_gather_at_rank_0_and_tell_its_values) {
  const std::vector<backend::Range> columns = {{0, 2}, {2, 3}, {5, 1}};
  const std::vector<float> parts = {1e8f, -1e8f, 1.0f};  // (a + b) + c is 1; c + b + a and a + c + b are 0
  for (const std::string which : {"threads", "sockets", "fake"})
    on_three(which, [&](int rank, Transport& transport) {
      const auto idx = static_cast<size_t>(rank);
      for (int round = 0; round < 20; ++round) {
        const size_t width_of_sum = round % 2 == 0 ? 7 : 10'000;  // both ways of threads
        std::vector<float> values(2 * width_of_sum);
        for (size_t i = 0; i < values.size(); ++i)
          values[i] = parts[idx] + static_cast<float>(i * 8 * (idx == 0 ? 1 : 0));
        std::vector<float> want;
        for (size_t i = 0; i < values.size(); ++i)
          want.push_back((parts[0] + static_cast<float>(i * 8) + parts[1]) + parts[2]);
        transport.reduce(
            std::vector<std::span<float>>{std::span(values).first(width_of_sum), std::span(values).last(width_of_sum)});
        EXPECT_EQ(values, want) << which << ", rank " << rank;

        const auto width = static_cast<size_t>(columns[idx].count);
        std::vector<float> own(2 * width), all(rank == 0 ? 12 : 0);
        for (size_t i = 0; i < own.size(); ++i) own[i] = static_cast<float>(100 * rank + static_cast<int>(i) + round);
        transport.gather(std::vector<std::span<float>>{std::span(own).first(width), std::span(own).last(width)},
                         {.columns = columns, .values = all, .width = 6});
        std::vector<float> again(all.size());
        transport.gather(std::vector<std::span<float>>{std::span(own).first(width), std::span(own).last(width)},
                         {.columns = columns, .values = again, .width = 6});
        EXPECT_EQ(again, all) << which;
        const auto r = static_cast<float>(round);
        if (rank == 0) {
          EXPECT_THAT(all, ElementsAre(r, r + 1, r + 100, r + 101, r + 102, r + 200, r + 2, r + 3, r + 103, r + 104,
                                       r + 105, r + 201))
              << which;
        }
        std::vector<int32_t> tokens = {rank, round + rank};
        transport.broadcast(tokens);
        EXPECT_THAT(tokens, ElementsAre(0, round)) << which;
      }
    });
}

// ---- a process of several ranks ----

// Ranks on threads that exchange by `meeting`; one of them dies in its call number `lives`.
template <class Meeting>
class DyingCrew final : public Crew {
 public:
  DyingCrew(const backend::BackendConfig& whole, const Ranks& ranks, int dies, int lives)
      : whole_(whole), ranks_(ranks), dies_(dies), lives_(lives), meeting(ranks.count) {}
  [[nodiscard]] std::unique_ptr<Member> make(int rank) override {
    std::unique_ptr<Transport> transport = meeting.end_of(rank);
    if (rank == dies_) transport = std::make_unique<test::DyingTransport>(std::move(transport), lives_);
    return cpu_member(whole_, ranks_, rank, std::move(transport));
  }
  void give_up() override { meeting.give_up(); }
  [[nodiscard]] std::string name() const override { return "some ranks"; }

 private:
  const backend::BackendConfig whole_;
  const Ranks ranks_;
  const int dies_, lives_;

 public:
  Meeting meeting;
};

constexpr int kNobody = -1;

TEST_F(Members, exchange_twice_in_a_layer_and_once_for_the_logits) {
  const Ranks ranks{4, true};
  const backend::BackendConfig whole = model::backend_config(config_, steps());
  auto crew = std::make_unique<DyingCrew<test::FakeMeeting>>(whole, ranks, kNobody, 0);
  test::FakeMeeting& meeting = crew->meeting;
  const auto be = backend::make_ranks_backend(whole, ranks, std::move(crew));
  const model::GptOss gpt = model::load(*be, config_, weights_.weights());
  EXPECT_THAT(be->modes(), HasSubstr("some ranks with whole experts, each: "));
  const auto threads = on_threads(whole, ranks);
  const model::GptOss of_threads = model::load(*threads, config_, weights_.weights());
  const backend::SamplingParams greedy{.temperature = 0};
  model::Step step = engine::step_alone(prompt_of(3, config_.dims.vocab));
  step.logit_tokens = {2};
  step.sample_rows = {{.params = &greedy, .position = 3}};
  const auto drawn = be->wait(*model::forward(*be, gpt, step));
  EXPECT_EQ(drawn.at(0).token, threads->wait(*model::forward(*threads, of_threads, step)).at(0).token);
  for (int rank = 0; rank < ranks.count; ++rank)
    EXPECT_THAT(meeting.calls(rank), ElementsAre("reduce", "reduce", "reduce", "reduce", "gather", "broadcast"))
        << rank;
  model::forward(*be, gpt, step, [](backend::Stage, int) {});  // and looked at
  for (int rank = 0; rank < ranks.count; ++rank) EXPECT_EQ(meeting.calls(rank).size(), 6u) << rank;
}

template <class Meeting>
void expect_all_end(const model::ModelConfig& config, std::span<const backend::HostWeight> weights,
                    const backend::BackendConfig& whole) {
  const backend::SamplingParams greedy{.temperature = 0};
  model::Step step = engine::step_alone(prompt_of(3, config.dims.vocab));
  step.logit_tokens = {2};
  step.sample_rows = {{.params = &greedy, .position = 3}};
  for (int dies = 0; dies < 4; ++dies) {
    for (const int lives : {0, 3, 4, 5}) {  // in a sum of the first layer and of the second, gathering, telling
      const auto be = backend::make_ranks_backend(
          whole, {4, false}, std::make_unique<DyingCrew<Meeting>>(whole, Ranks{4, false}, dies, lives));
      const model::GptOss gpt = model::load(*be, config, weights);
      const auto error_of = [](const auto& call) -> std::string {
        try {
          call();
        } catch (const Error& error) {
          EXPECT_EQ(error.code(), Code::kDevice);
          return error.what();
        }
        return "no error";
      };
      const auto start = Clock::now();
      const std::string why = fmt::format("rank {} of 4 failed, and all end with it: this rank has died", dies);
      EXPECT_EQ(error_of([&] { model::forward(*be, gpt, step); }), why) << lives;
      EXPECT_EQ(error_of([&] { model::forward(*be, gpt, step); }), why) << lives;
      EXPECT_EQ(error_of([&] { be->copy_page({}); }), why) << lives;
      EXPECT_LT(Clock::now() - start, std::chrono::seconds(5)) << "nobody waits for who is gone";
    }
  }
}
TEST_F(Members, all_end_with_one_that_dies_in_a_step) {
  const backend::BackendConfig whole = model::backend_config(config_, steps());
  expect_all_end<backend::MeetingThreads>(config_, weights_.weights(), whole);
  expect_all_end<test::FakeMeeting>(config_, weights_.weights(), whole);
}

// ---- a process each ----

TEST_F(Members, every_process_is_told_of_one_that_dies_in_a_step_and_no_other_group_is_harmed) {
  constexpr int kRanks = 4, kDies = 2;
  const auto group_where = [&](bool one_dies, int lives) {
    return std::make_unique<test::Processes>(
        config_, weights_.weights(), steps(), Ranks{kRanks, false},
        test::Processes::Setup{.make = [=](const backend::BackendConfig& whole, backend::ProcessGroup& of_rank) {
          std::unique_ptr<Transport> transport = std::make_unique<backend::SocketTransport>(of_rank);
          if (one_dies && of_rank.rank() == kDies)
            transport = std::make_unique<test::DyingTransport>(std::move(transport), lives);
          return cpu_member(whole, {kRanks, false}, of_rank.rank(), std::move(transport));
        }});
  };
  const auto other = group_where(false, 0);
  engine::Loop of_other(*other->be, other->gpt, limits_);
  const std::vector<int32_t> want = test::generate(of_other, request()).tokens;
  for (const int lives : {0, 1, 4, 5, 20}) {
    const auto dying = group_where(true, lives);
    {
      engine::Loop loop(*dying->be, dying->gpt, limits_);
      const auto start = Clock::now();
      const std::string why = error_of(loop, request());
      EXPECT_THAT(why, AllOf(HasSubstr("rank 2 at 127.0.0.1:"), HasSubstr("is gone: it ended: this rank has died")));
      EXPECT_LT(Clock::now() - start, std::chrono::seconds(5)) << "docs/several-gpus.md: at once";
      EXPECT_EQ(error_of(loop, request()), why);
    }
    const std::vector<std::string> ended = dying->ended();
    EXPECT_EQ(ended[kDies], "this rank has died");
    for (const size_t rank : {1, 3})
      EXPECT_THAT(ended[rank], AllOf(HasSubstr("rank 0 at 127.0.0.1:"), HasSubstr("it ended: rank 2 at "),
                                     HasSubstr("this rank has died")))
          << rank;
    EXPECT_EQ(test::generate(of_other, request()).tokens, want);
  }
}

TEST_F(Members, a_group_that_ends_in_the_middle_of_a_step_is_no_failure) {
  test::Processes processes(config_, weights_.weights(), steps(), {2, false},
                            {.make = [](const backend::BackendConfig& whole, backend::ProcessGroup& of_rank) {
                              return cpu_member(whole, {2, false}, of_rank.rank(),
                                                std::make_unique<backend::SocketTransport>(of_rank));
                            }});
  model::Step step = engine::step_alone(prompt_of(3, config_.dims.vocab));
  const backend::StepArgs of_step{.ids = step.token_ids,
                                  .positions = step.positions,
                                  .kv_slots = {step.kv[0].slots, step.kv[1].slots},
                                  .pages = {backend::PageTable{step.kv[0].page_ids, step.kv[0].pages_per_row},
                                            backend::PageTable{step.kv[1].page_ids, step.kv[1].pages_per_row}},
                                  .rows = step.rows,
                                  .logit_tokens = {},
                                  .sample_rows = {}};
  processes.group->tell(backend::FrameType::kStep, backend::written(of_step));
  static_cast<void>(processes.group->receive(1));  // its first part, whose sum never comes
  processes.group->end();
  EXPECT_THAT(processes.ended(), ElementsAre("", ""));
}

// ---- what is said of a step ----

class StepFrame : public Members {
 protected:
  // Where `change` was made to a row of a step of two tokens.
  void read_changed(const std::function<void(backend::SampleRow&)>& change, int32_t id = 1) const {
    backend::SampleRow row{.params = &params_, .position = 2};
    change(row);
    const std::vector<int32_t> ids = {0, id}, positions = {0, 1}, slots = {0, 1}, logit_tokens = {1}, pages = {0};
    const std::vector<backend::Row> rows = {{.first_token = 0, .tokens = 2, .context = 2}};
    const backend::StepArgs step{.ids = ids,
                                 .positions = positions,
                                 .kv_slots = {slots, slots},
                                 .pages = {backend::PageTable{pages, 1}, backend::PageTable{pages, 1}},
                                 .rows = rows,
                                 .logit_tokens = logit_tokens,
                                 .sample_rows = {&row, 1}};
    const backend::ReceivedStep received({backend::FrameType::kStep, backend::written(step)},
                                         model::backend_config(config_, steps()), 1);
    const std::span<const backend::SampleRow> found = received.args({}).sample_rows;
    ASSERT_EQ(found.size(), 1u);
    const backend::SamplingParams& p = *found[0].params;
    for (const backend::SamplingField& field : backend::kSamplingFields)
      EXPECT_EQ(field.of(p), field.of(params_)) << field.name;
    EXPECT_EQ(p.logit_bias, params_.logit_bias);
    EXPECT_EQ(p.seed, params_.seed);
    EXPECT_TRUE(std::ranges::equal(found[0].mask, row.mask));
    const bool counts = params_.counts_tokens();  // else nobody reads what was seen
    EXPECT_TRUE(std::ranges::equal(found[0].prompt, counts ? row.prompt : std::span<const int32_t>()));
    EXPECT_TRUE(std::ranges::equal(found[0].output, counts ? row.output : std::span<const int32_t>()));
    EXPECT_EQ(found[0].logprobs, row.logprobs);
    EXPECT_EQ(found[0].given, row.given);
    EXPECT_EQ(found[0].position, row.position);
  }
  backend::SamplingParams params_{.temperature = 0.5f,
                                  .top_p = 0.75f,
                                  .min_p = 0.25f,
                                  .top_k = 9,
                                  .logit_bias = {{2, -1.0f}},
                                  .seed = uint64_t{77} << 40};
};

TEST_F(StepFrame, keeps_what_a_draw_depends_on) {
  const std::vector<int32_t> seen = {5, 6, 332};
  const std::vector<uint32_t> mask(11, 0x55555555);  // of 333 tokens
  for (const bool penalties : {false, true}) {
    // Numbers that are no defaults, each of its own.
    double share = 0.05;
    backend::for_each_field(params_, [&](const backend::SamplingField& field, auto& value) {
      if (field.use == backend::SamplingUse::kPenalty && !penalties) return;
      const double most = std::min(field.range.most, 100.0);
      value =
          static_cast<std::remove_reference_t<decltype(value)>>(most - (share += 0.05) * (most - field.range.least));
    });
    read_changed([&](backend::SampleRow& row) {
      row.prompt = seen;
      row.output = std::span(seen).first(1);
      row.mask = mask;
      row.logprobs = 4;
      row.given = 9;
    });
  }
  read_changed([](backend::SampleRow&) {}, -1);  // the token of a row that was not read yet
}

TEST_F(StepFrame, refuses_what_is_none) {
  const std::vector<int32_t> seen = {333};
  const std::vector<uint32_t> mask(10);
  params_.presence_penalty = 0.5f;
  EXPECT_THROW(read_changed([&](backend::SampleRow& row) { row.prompt = seen; }), Error);
  EXPECT_THROW(read_changed([&](backend::SampleRow& row) { row.output = seen; }), Error);
  EXPECT_THROW(read_changed([&](backend::SampleRow& row) { row.mask = mask; }), Error);
  EXPECT_THROW(read_changed([](backend::SampleRow& row) { row.given = 333; }), Error);
  EXPECT_THROW(read_changed([](backend::SampleRow& row) { row.logprobs = -2; }), Error);
  EXPECT_THROW(read_changed([](backend::SampleRow&) {}, -2), Error);
  params_.temperature = -1;
  EXPECT_THROW(read_changed([](backend::SampleRow&) {}), Error);
}

}  // namespace
}  // namespace nibble
