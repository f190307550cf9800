// Ranks whose members run whole steps and exchange by themselves, as cards of several processes do: here members on the
// CPU that meet in memory, each with a group of its own over TCP. Texts are those of ranks in one process.

#include "backend/cpu/cpu_backend.h"
#include "backend/ranks/gathered_logits.h"
#include "backend/ranks/group_testing.h"
#include "backend/ranks/process_ranks.h"
#include "backend/ranks/ranks_backend.h"
#include "backend/ranks/step_frame.h"
#include "backend/ranks/step_ranks.h"
#include "base/error.h"
#include "base/random.h"
#include "convert/synth.h"
#include "model/gpt_oss.h"
#include "one_sequence.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace nibble {
namespace {

using backend::Ranks;
using backend::Slot;
using testing::HasSubstr;

// Where members meet: each gives a part, and gets those of all. Once it is given up, whoever waits is let go.
class Exchange {
 public:
  explicit Exchange(int ranks) : parts_(static_cast<size_t>(ranks)) {}
  std::vector<std::vector<float>> together(size_t rank, const std::vector<float>& part) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return given_up_ || taken_ == 0; });
    if (given_up_) return std::vector(parts_.size(), part);
    parts_[rank] = part;
    if (++came_ == parts_.size()) taken_ = parts_.size();
    changed_.notify_all();
    changed_.wait(lock, [&] { return given_up_ || taken_ > 0; });
    if (given_up_) return std::vector(parts_.size(), part);
    std::vector<std::vector<float>> all = parts_;
    if (--taken_ == 0) came_ = 0;
    changed_.notify_all();
    return all;
  }
  void give_up() {
    const std::lock_guard lock(mutex_);
    given_up_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::vector<float>> parts_;
  size_t came_ = 0, taken_ = 0;
  bool given_up_ = false;
};

// A rank's: whole steps, its own sums and draws.
class WholeSteps final : public backend::Backend {
 public:
  WholeSteps(const backend::BackendConfig& whole, const Ranks& ranks, size_t rank, Exchange& exchange)
      : exchange_(exchange), rank_(rank), logits_(whole.dims.vocab) {
    for (int r = 0; r < ranks.count; ++r) shards_.push_back(backend::shard_of(whole.dims, ranks, r));
    inner_ = backend::make_cpu_backend(backend::config_of(whole, shards_[rank]), {.threads = 1});
  }
  [[nodiscard]] std::string_view name() const override { return "whole steps"; }
  backend::WeightHandle upload(const backend::HostWeight& weight) override { return inner_->upload(weight); }
  void copy_page(const backend::PageCopy& copy) override { inner_->copy_page(copy); }

  std::optional<backend::Ran> run(const backend::StepArgs& step) override {
    if (fails_in_run) throw Error(Code::kDevice, "this card has failed");
    const std::vector<int32_t> ids = logits_.known(step.ids);
    const backend::Weights& w = *step.weights;
    inner_->embed({.ids = ids, .table = w.outer[backend::WeightRole::kEmbedding]});
    for (size_t l = 0; l < w.layers.size(); ++l) {
      const auto kind = static_cast<backend::LayerKind>(l % 2);  // as alternating_layers() has them
      const auto kind_idx = static_cast<size_t>(kind);
      inner_->attn_in({.layer = w.layers[l], .layer_idx = static_cast<int>(l)});
      inner_->attend({.layer = w.layers[l],
                      .layer_idx = static_cast<int>(l),
                      .kind = kind,
                      .sinks = step.sinks,
                      .positions = step.positions,
                      .kv_slots = step.kv_slots[kind_idx],
                      .rows = step.rows,
                      .pages = step.pages[kind_idx]});
      inner_->attn_out({.layer = w.layers[l]});
      sum();
      inner_->route({.layer = w.layers[l]});
      inner_->moe({.layer = w.layers[l]});
      sum();
    }
    inner_->logits({.tokens = step.logit_tokens,
                    .norm = w.outer[backend::WeightRole::kFinalNorm],
                    .table = w.outer[backend::WeightRole::kUnembedding]});
    gather(step.logit_tokens.size());
    if (step.sample_rows.empty()) return backend::Ran{};
    const backend::Ticket ticket = logits_.sample({.rows = step.sample_rows}, pool_);
    check(++outstanding_ <= 2, "two tickets may be outstanding");
    return backend::Ran{ticket};
  }
  [[nodiscard]] std::vector<backend::Drawn> wait(backend::Ticket ticket) override {
    check(ticket == ++waited_, "tickets are read once and in order");
    --outstanding_;
    if (fails_in_wait) throw Error(Code::kDevice, "this card has failed");
    std::vector<backend::Drawn> drawn = logits_.wait(ticket);
    if (draws_wrong) ++drawn.at(0).token;
    return drawn;
  }
  [[nodiscard]] backend::SlotData peek(Slot slot) override {
    return slot == Slot::kLogits ? logits_.data() : inner_->peek(slot);
  }

  void embed(const backend::EmbedArgs& /*args*/) override { FAIL() << "a whole step"; }
  void attn_in(const backend::AttnInArgs& /*args*/) override { FAIL() << "a whole step"; }
  void attend(const backend::AttendArgs& /*args*/) override { FAIL() << "a whole step"; }
  void attn_out(const backend::AttnOutArgs& /*args*/) override { FAIL() << "a whole step"; }
  void route(const backend::RouteArgs& /*args*/) override { FAIL() << "a whole step"; }
  void moe(const backend::MoeArgs& /*args*/) override { FAIL() << "a whole step"; }
  void logits(const backend::LogitsArgs& /*args*/) override { FAIL() << "a whole step"; }
  backend::Ticket sample(const backend::SampleArgs& /*args*/) override { return 0; }

  std::atomic<bool> fails_in_run = false, fails_in_wait = false, draws_wrong = false;

 private:
  using Floats = std::vector<std::span<float>>;
  [[nodiscard]] Floats rows_of(Slot slot) { return std::get<Floats>(inner_->rows(slot)); }
  [[nodiscard]] std::vector<float> own(Slot slot) {
    std::vector<float> part;
    for (const auto& row : rows_of(slot)) part.insert(part.end(), row.begin(), row.end());
    return part;
  }
  void sum() {
    const auto parts = exchange_.together(rank_, own(Slot::kDelta));
    size_t at = 0;
    for (const auto& row : rows_of(Slot::kDelta))
      for (float& value : row) {
        value = parts[0][at];
        for (size_t r = 1; r < parts.size(); ++r) value += parts[r][at];
        ++at;
      }
  }
  void gather(size_t rows) {
    const auto parts = exchange_.together(rank_, own(Slot::kLogits));
    logits_.resize(rows);
    for (size_t r = 0; r < parts.size(); ++r) {
      const auto [first, count] = shards_[r].vocab;
      if (parts[r].size() != rows * static_cast<size_t>(count)) continue;  // it has gone
      for (size_t row = 0; row < rows; ++row)
        std::copy_n(parts[r].begin() + static_cast<std::ptrdiff_t>(row) * count, count,
                    logits_.row(row).begin() + first);
    }
  }

  Exchange& exchange_;
  const size_t rank_;
  std::vector<backend::Shard> shards_;
  std::unique_ptr<backend::Backend> inner_;
  backend::GatheredLogits logits_;
  ThreadPool pool_{1};
  backend::Ticket waited_ = 0;
  int outstanding_ = 0;
};

constexpr std::string_view kId = "an id of this group";

// Rank 0's backend, and the other ranks beside it.
class Group {
 public:
  Group(const model::ModelConfig& config, std::span<const backend::HostWeight> weights, const model::StepLimits& limits,
        const Ranks& ranks, const std::vector<std::string>& cards = {})
      : exchange_(ranks.count), members(static_cast<size_t>(ranks.count)), errors_(members.size()) {
    const backend::GroupPlace place = backend::place_of(ranks.count);
    const auto card = [cards](int rank) {
      return cards.empty() ? fmt::format("card {}", rank) : cards[static_cast<size_t>(rank)];
    };
    const backend::GroupEvents events{.lost = [this](const std::string&) { exchange_.give_up(); }};
    const auto member = [this, ranks](const backend::BackendConfig& whole, int rank) {
      auto made = std::make_unique<WholeSteps>(whole, ranks, static_cast<size_t>(rank), exchange_);
      members[static_cast<size_t>(rank)] = made.get();
      return made;
    };
    for (int rank = 1; rank < ranks.count; ++rank)
      others_.emplace_back([=, this, &config] {
        try {
          backend::ProcessGroup of_rank(backend::at_rank(place, rank), events);
          const backend::StepRoom room = backend::receive_room(of_rank);
          const auto id = backend::receive_id(of_rank, card(rank));
          EXPECT_EQ(std::string(reinterpret_cast<const char*>(id.data()), id.size()), kId);
          const auto whole = model::backend_config(config, {room.max_tokens, room.max_rows, room.kv_pages});
          const auto own = member(whole, rank);
          std::vector<backend::HostWeight> parts(weights.begin(), weights.end());
          const backend::Shard shard = backend::shard_of(whole.dims, ranks, rank);
          for (backend::HostWeight& part : parts) part.slice = backend::slice_of(part.role, whole.dims, shard);
          const model::GptOss of_member = model::load(*own, config, parts);
          backend::follow_steps(of_rank, whole, *own, of_member.weights);
        } catch (const Error& error) {
          errors_[static_cast<size_t>(rank)] = error.what();
        }
      });
    group = std::make_unique<backend::ProcessGroup>(backend::at_rank(place, 0), events);
    const auto whole = model::backend_config(config, limits);
    backend::tell_room(*group, whole);
    backend::hand_out_id(*group, card(0), std::as_bytes(std::span(kId)));
    be = backend::make_step_ranks(whole, ranks, *group, member(whole, 0));
    gpt = model::load(*be, config, weights);
  }
  // What ended the ranks above 0, in a line each; of none: nothing.
  std::string ended() {
    be.reset();
    group.reset();
    others_.clear();
    std::string all;
    for (const std::string& error : errors_) all += error.empty() ? "" : error + "\n";
    return all;
  }

 private:
  Exchange exchange_;

 public:
  std::vector<std::atomic<WholeSteps*>> members;  // by rank

 private:
  std::vector<std::string> errors_;
  std::vector<std::jthread> others_;  // end with the group

 public:
  std::unique_ptr<backend::ProcessGroup> group;
  std::unique_ptr<backend::Backend> be;
  model::GptOss gpt;
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

class StepRanks : public testing::Test {
 protected:
  StepRanks() : limits_(test::engine_limits({.max_context = 512, .chunk_tokens = 64})) {}
  [[nodiscard]] model::StepLimits steps() const { return engine::step_limits(limits_, config_.dims); }
  [[nodiscard]] engine::Request request(const backend::SamplingParams& sampling = {.temperature = 0}) const {
    return {.prompt = prompt_of(150, config_.dims.vocab), .max_tokens = 12, .sampling = sampling, .stop_ids = {}};
  }

  const model::ModelConfig config_ = small_config();
  const convert::DummyWeights weights_{config_, 3, nullptr};
  engine::EngineLimits limits_;
};

// Whatever decides about a token reaches all ranks: else they would draw others and the group would end.
TEST_F(StepRanks, write_the_texts_of_ranks_in_one_process) {
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
      const auto threads = backend::make_ranks_backend(
          model::backend_config(config_, steps()), ranks, 1,
          [](const backend::BackendConfig& of, int) { return backend::make_cpu_backend(of, {.threads = 1}); });
      const model::GptOss of_threads = model::load(*threads, config_, weights_.weights());
      {
        engine::Loop found(*of_group.be, of_group.gpt, limits_), want(*threads, of_threads, limits_);
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

TEST_F(StepRanks, guess_as_one_process_does) {
  limits_.speculation = {.method = engine::DraftMethod::kNgram};
  limits_.max_logit_rows = 16;
  Group of_group(config_, weights_.weights(), steps(), {2, false});
  const auto threads = backend::make_ranks_backend(
      model::backend_config(config_, steps()), {2, false}, 1,
      [](const backend::BackendConfig& of, int) { return backend::make_cpu_backend(of, {.threads = 1}); });
  const model::GptOss of_threads = model::load(*threads, config_, weights_.weights());
  engine::Loop found(*of_group.be, of_group.gpt, limits_), want(*threads, of_threads, limits_);
  engine::Request asked = request();
  asked.max_tokens = 40;
  EXPECT_EQ(test::generate(found, asked).tokens, test::generate(want, asked).tokens);
}

TEST_F(StepRanks, copy_pages_on_every_rank) {
  Group on(config_, weights_.weights(), {.max_tokens = 64, .max_rows = 4, .kv_pages = {3, 3}}, {2, false});
  test::expect_page_copies(*on.be, on.gpt);
}

TEST_F(StepRanks, serve_whole_steps_alone) {
  Group on(config_, weights_.weights(), steps(), {2, false});
  EXPECT_THROW(on.be->embed({.ids = {}, .table = {}}), Error);
  EXPECT_THROW((void)on.be->peek(Slot::kAttn), Error);
}

TEST_F(StepRanks, that_have_one_card_are_refused_by_name) {
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

TEST_F(StepRanks, end_where_one_draws_another_token) {
  Group on(config_, weights_.weights(), steps(), {2, false});
  on.members[1].load()->draws_wrong = true;
  engine::Loop loop(*on.be, on.gpt, limits_);
  EXPECT_THAT(error_of(loop, request()), HasSubstr("want the same token from every rank, found "));
}

TEST_F(StepRanks, end_where_a_card_fails) {
  for (const bool in_wait : {false, true}) {
    for (const size_t rank : {size_t{0}, size_t{1}}) {
      Group on(config_, weights_.weights(), steps(), {2, false});
      WholeSteps& fails = *on.members[rank];
      (in_wait ? fails.fails_in_wait : fails.fails_in_run) = true;
      {
        engine::Loop loop(*on.be, on.gpt, limits_);
        EXPECT_THAT(error_of(loop, request()), HasSubstr("this card has failed")) << rank << in_wait;
        EXPECT_THROW(on.be->copy_page({}), Error);
      }
      EXPECT_THAT(on.ended(), HasSubstr("this card has failed")) << rank << in_wait;
    }
  }
}

// The last step's tokens, which rank 0 has not told, are waited for all the same.
TEST_F(StepRanks, notice_a_card_that_fails_in_the_last_step) {
  Group on(config_, weights_.weights(), steps(), {2, false});
  on.members[1].load()->fails_in_wait = true;
  const backend::SamplingParams greedy{.temperature = 0};
  model::Step step = engine::step_alone(prompt_of(3, config_.dims.vocab));
  step.logit_tokens = {2};
  step.sample_rows = {{.params = &greedy, .position = 3}};
  model::forward(*on.be, on.gpt, step);
  EXPECT_TRUE(on.group->lost_within(std::chrono::seconds(60)));
}

// ---- what is said of a step ----

class RunFrame : public StepRanks {
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
    const backend::Frame frame{backend::FrameType::kRun, backend::written_with_draws(step)};
    backend::BodyReader in(frame);
    const backend::BackendConfig whole = model::backend_config(config_, steps());
    const backend::ReceivedStep received(in, whole, 1);
    const backend::ReceivedDraws draws(in, whole, received.logit_tokens.size());
    in.end();
    const std::vector<backend::SampleRow> found = draws.rows();
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

TEST_F(RunFrame, keeps_what_a_draw_depends_on) {
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

TEST_F(RunFrame, refuses_what_is_none) {
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
