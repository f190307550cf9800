// The small model of the repository with drafts and without: the same tokens and the same log probabilities, bit for
// bit, on the CPU.
//
// A part of it in every run; for 200 prompts of all lengths, in int8 as well:
//   speculation_test --gtest_also_run_disabled_tests --gtest_filter='*200_prompts'

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/kernels.h"
#include "backend/reference/reference_backend.h"
#include "base/mmap_file.h"
#include "checkpoint/checkpoint.h"
#include "model/hf_config.h"
#include "engine/draft_model_proposer.h"
#include "engine/loop.h"
#include "engine/testing/integrity.h"
#include "model/eagle3/head.h"
#include "model/gpt_oss.h"
#include "model/manifest.h"
#include "one_sequence.h"
#include "text/grammar.h"
#include "text/tokenizer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <random>

namespace nibble {
namespace {

namespace fs = std::filesystem;
using backend::Activations;
using engine::DraftMethod;
using engine::EngineLimits;
using engine::Finished;
using engine::Request;

const fs::path kTiny = fs::path(NIBBLE_SOURCE_DIR) / "models/nibble-tiny";

// The model's weights, but for the rows of its embedding, which lie a little elsewhere: it says something else now and
// then.
struct Perturbed {
  explicit Perturbed(std::vector<backend::HostWeight> of) : weights(std::move(of)) {
    for (backend::HostWeight& weight : weights) {
      if (weight.role != backend::WeightRole::kEmbedding) continue;
      check(weight.values.dtype == DType::kBf16, "an embedding in bf16");
      bytes.assign(weight.values.bytes.begin(), weight.values.bytes.end());
      std::mt19937 random(3);
      std::normal_distribution<float> normal(1, 0.6f);
      for (size_t i = 0; i < bytes.size(); i += sizeof(Bf16)) {
        Bf16 value;
        std::memcpy(&value, &bytes[i], sizeof(value));
        value = Bf16::from_float(value.to_float() * normal(random));
        std::memcpy(&bytes[i], &value, sizeof(value));
      }
      weight.values.bytes = bytes;
    }
  }
  std::vector<backend::HostWeight> weights;
  std::vector<std::byte> bytes;
};

// A head that drafts at once: its first guesses are those of the head it is made from, of the others it knows nothing.
model::eagle3::Head at_once(model::eagle3::Head head) {
  std::mt19937 random(4);
  std::normal_distribution<float> normal(0, 1);
  head.mask_token = 7;
  for (int64_t i = 0; i < head.reads.taps * head.reads.target_hidden; ++i) head.mask_hidden.push_back(normal(random));
  return head;
}

struct Files {
  model::ModelConfig config = model::read_hf_config(kTiny).config;
  checkpoint::Checkpoint checkpoint = checkpoint::Checkpoint::open(kTiny);
  std::vector<backend::HostWeight> weights = model::bind_weights(checkpoint.entries(), config);
  text::Tokenizer tokenizer = text::Tokenizer::from_file(kTiny / "tokenizer.json");
  text::GrammarCompiler grammars{tokenizer};
  std::string text = read_text_file(kTiny / "heldout.txt", 1 << 20);
  model::eagle3::Head head{model::eagle3::load(kTiny / "eagle3", {config, weights}, model::eagle3::TapReading::kAuto)};
  model::eagle3::Head p_eagle{
      at_once(model::eagle3::load(kTiny / "eagle3", {config, weights}, model::eagle3::TapReading::kAuto))};
  Perturbed perturbed{weights};
};

std::vector<float> floats_of(const Files& files, backend::WeightRole role) {
  return backend::floats_of(std::ranges::find(files.weights, role, &backend::HostWeight::role)->values);
}

struct Loaded {
  Loaded(const Files& files, const model::StepLimits& limits, Activations activations, bool reference = false)
      : Loaded(files.config, files.weights, limits, activations, reference) {}
  Loaded(const model::ModelConfig& config, std::span<const backend::HostWeight> weights,
         const model::StepLimits& limits, Activations activations, bool reference = false)
      : be(reference ? backend::make_reference_backend(model::backend_config(config, limits), {})
                     : backend::make_cpu_backend(model::backend_config(config, limits),
                                                 {.threads = 2, .activations = activations})),
        gpt(model::load(*be, config, weights)) {}
  Loaded(const model::eagle3::Head& head, const model::StepLimits& limits, Activations activations)
      : be(backend::make_cpu_backend(model::eagle3::backend_config(head, limits),
                                     {.threads = 2, .activations = activations})),
        gpt(model::load(*be, head.config, head.weights)) {}
  std::unique_ptr<backend::Backend> be;
  model::GptOss gpt;
};

class MatcherMask final : public engine::TokenMask {
 public:
  explicit MatcherMask(text::GrammarMatcher matcher) : matcher_(std::move(matcher)) {}
  bool fill(std::span<uint32_t> mask) override {
    if (matcher_.finished()) return false;
    matcher_.fill(mask);
    return true;
  }
  void accept(int32_t token) override { matcher_.accept(token); }
  void undo(int tokens) override { matcher_.undo(tokens); }

 private:
  text::GrammarMatcher matcher_;
};

struct Answer {
  std::vector<int32_t> tokens;
  std::vector<double> logprobs;
  engine::FinishReason reason{};
};

// Knows what comes from a run without drafts; a guess is right with a given chance.
class Oracle final : public engine::Proposer {
 public:
  Oracle(const std::vector<Answer>& answers, double right) : answers_(answers), right_(right) {}
  void propose(const Text& text, int most, engine::Draft& draft) override {
    draft.tokens.clear();
    draft.matched = 5;
    const std::vector<int32_t>& all = answers_[of(text.id)].tokens;
    for (auto at = static_cast<size_t>(std::ssize(text.tokens) - text.prompt_tokens);
         at < all.size() && std::ssize(draft.tokens) < most; ++at)
      draft.tokens.push_back(std::uniform_real_distribution<>(0, 1)(random_) < right_ ? all[at] : all[0]);
  }
  void ended(const Text&) override {}
  [[nodiscard]] size_t of(engine::RequestId id) const { return static_cast<size_t>(id - 1) % answers_.size(); }

 private:
  const std::vector<Answer>& answers_;
  double right_;
  std::mt19937_64 random_{11};
};

// Guesses as an oracle, and looks at what it is shown: each token of the text once, the last excepted, with its own
// residual, which at boundary 0 is its embedding.
class Witness final : public engine::Proposer {
 public:
  // embedding: [vocab, hidden]
  Witness(std::vector<float> embedding, size_t hidden, const std::vector<Answer>& answers)
      : embedding_(std::move(embedding)), hidden_(hidden), oracle_(answers, 0.6) {}
  [[nodiscard]] std::span<const int> boundaries() const override { return kBoundaries; }
  void saw(std::span<const News> all) override {
    for (const News& each : all) look(each.text, each.residuals);
  }
  void look(const Text& text, const Residuals& residuals) {
    int64_t& seen = seen_[text.id];
    EXPECT_EQ(residuals.from, seen);
    seen += residuals.count;
    EXPECT_LT(seen, std::ssize(text.tokens));
    ASSERT_EQ(residuals.values.size(), static_cast<size_t>(residuals.count) * hidden_);
    for (int64_t i = 0; i < residuals.count; ++i) {
      const auto token = static_cast<size_t>(text.tokens[static_cast<size_t>(residuals.from + i)]);
      const auto row = std::span(embedding_).subspan(token * hidden_, hidden_);
      const auto shown = residuals.values.subspan(static_cast<size_t>(i) * hidden_, hidden_);
      EXPECT_TRUE(std::ranges::equal(shown, row)) << residuals.from << " + " << i;
    }
  }
  void propose(const Text& text, int most, engine::Draft& draft) override {
    EXPECT_EQ(seen_[text.id], std::ssize(text.tokens) - 1);
    oracle_.propose(text, most, draft);
  }
  void ended(const Text& text) override { seen_.erase(text.id); }

 private:
  static constexpr std::array<int, 1> kBoundaries = {0};
  const std::vector<float> embedding_;
  const size_t hidden_;
  Oracle oracle_;
  std::map<engine::RequestId, int64_t> seen_;
};

class Speculation : public testing::TestWithParam<Activations> {
 protected:
  static void SetUpTestSuite() { files = std::make_unique<Files>(); }
  static void TearDownTestSuite() { files.reset(); }
  void SetUp() override {
    if (GetParam() == Activations::kInt8 && backend::cpu::kernels_here().front().kernels.int8 == nullptr)
      GTEST_SKIP() << "this CPU has no int8 products";
  }

  // All kinds of requests; those with a mask get a new one each time.
  static Request request(size_t i, int64_t tokens, size_t longer = 500) {
    const size_t start = i * 1237 % (files->text.size() - 700);
    Request r{.prompt = files->tokenizer.encode(files->text.substr(start, 40 + i * 53 % longer)), .max_tokens = tokens};
    r.sampling.temperature = i % 2 == 0 ? 0.0f : 0.8f;
    r.sampling.seed = i;
    const size_t kind = i % 7;
    if (kind == 1) r.sampling.top_p = 0.9f;
    if (kind == 2) r.sampling.repetition_penalty = 1.2f;
    if (kind == 3) {
      r.sampling.presence_penalty = 0.5f;
      r.sampling.frequency_penalty = 0.3f;
      r.sampling.logit_bias = {{files->tokenizer.encode(" the").at(0), 2.0f}};
    }
    if (kind == 4) r.logprobs = 3;
    if (kind == 5) {
      r.stop_ids = {files->tokenizer.encode(".").at(0)};
      r.min_tokens = tokens / 2;
    }
    if (kind == 6) {
      const text::ContentRule rule{.kind = text::ContentRule::Kind::kJsonSchema,
                                   .schema = nlohmann::ordered_json::parse(R"({"type":"array","minItems":2,"items":
        {"type":"object","properties":{"name":{"enum":["Lily","Ben","the big dog"]},"happy":{"type":"boolean"}},
        "required":["name","happy"]}})"),
                                   .where = "test"};
      const int32_t end = *files->tokenizer.special_id("<|return|>");
      r.mask = std::make_shared<MatcherMask>(files->grammars.content(rule, {end}).matcher());
      r.stop_ids = {end};
    }
    return r;
  }

  struct Case {
    EngineLimits limits;
    size_t requests = 0;
    int64_t tokens = 0;
    size_t at_once = 1;
    size_t longer = 500;                           // characters of a prompt, beyond 40
    std::span<const backend::HostWeight> draft{};  // kDraft: the weights of the model that drafts
  };
  // The receiver ends every third request, as at a stop string.
  static std::vector<Answer> answers(const Case& of, const std::vector<Answer>* known, double right,
                                     engine::EngineStats& stats) {
    const model::StepLimits steps = engine::step_limits(of.limits, files->config.dims);
    Loaded loaded(*files, steps, GetParam());
    std::optional<Loaded> draft;
    std::optional<engine::DraftModel> draft_model;
    EngineLimits limits = of.limits;
    if (limits.speculation.method == DraftMethod::kEagle3) {
      const model::eagle3::Head& head = *limits.speculation.head;
      const model::StepLimits room = engine::head_step_limits(steps);
      draft.emplace(head, room, GetParam());
      draft_model.emplace(engine::DraftModel{.be = *draft->be, .model = draft->gpt, .limits = room, .head = &head});
      limits.speculation.draft_model = &*draft_model;
    }
    if (limits.speculation.method == DraftMethod::kDraft) {
      draft.emplace(files->config, of.draft, engine::draft_step_limits(steps), GetParam());
      draft_model.emplace(
          engine::DraftModel{.be = *draft->be, .model = draft->gpt, .limits = engine::draft_step_limits(steps)});
      limits.speculation.draft_model = &*draft_model;
    }
    // On a clock where guesses are cheap: whether the controller lets them through is no question of this machine's
    // load.
    std::chrono::nanoseconds clock{1};
    engine::Loop loop(*loaded.be, loaded.gpt, limits, [&] { return engine::Sequence::Time(clock); });
    loop.watch([&](const model::Step& step) {
      clock += std::chrono::microseconds(1000 + 10 * std::ssize(step.token_ids));
      return model::Probe();
    });
    if (known != nullptr && right >= 0) loop.propose_with(std::make_unique<Oracle>(*known, right));
    std::vector<Answer> all(of.requests);
    for (size_t first = 0; first < of.requests; first += of.at_once) {
      for (size_t i = first; i < std::min(of.requests, first + of.at_once); ++i) {
        Answer& answer = all[i];
        const auto enough = static_cast<size_t>(i % 3 == 0 ? of.tokens * 2 / 3 : of.tokens);
        loop.add(i + 1, request(i, of.tokens, of.longer), [&answer, &loop, i, enough](const engine::Event& event) {
          if (const auto* end = std::get_if<Finished>(&event)) {
            answer.reason = end->reason;
            return;
          }
          const auto& token = std::get<engine::TokenEvent>(event);
          answer.tokens.push_back(token.token);
          if (token.logprobs) {
            answer.logprobs.push_back(token.logprobs->value);
            for (const engine::Logprob& other : token.logprobs->top) answer.logprobs.push_back(other.value);
          }
          if (answer.tokens.size() == enough) loop.cancel(i + 1);
        });
      }
      while (!loop.idle()) loop.step();
      loop.check_integrity();
    }
    stats = loop.stats();
    EXPECT_EQ(stats.kv_pages_used, 0);
    return all;
  }

  static void expect_same(const std::vector<Answer>& got, const std::vector<Answer>& want) {
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_EQ(got[i].tokens, want[i].tokens) << i;
      EXPECT_EQ(got[i].logprobs, want[i].logprobs) << i;
      EXPECT_EQ(got[i].reason, want[i].reason) << i;
    }
  }

  static void compare(Case of) {
    engine::EngineStats stats;
    const std::vector<Answer> want = answers(of, nullptr, -1, stats);
    const int64_t steps = stats.steps;
    of.limits.speculation = {.method = DraftMethod::kSuffix, .most_tokens = 7, .adaptive = false};
    expect_same(answers(of, nullptr, -1, stats), want);
    of.limits.speculation.method = DraftMethod::kNgram;
    expect_same(answers(of, nullptr, -1, stats), want);
    of.limits.speculation.method = DraftMethod::kEagle3;
    of.limits.speculation.head = &files->head;
    expect_same(answers(of, nullptr, -1, stats), want);
    EXPECT_GT(stats.drafts.accepted, stats.drafts.drafts / 4);
    EXPECT_LT(stats.steps, steps);
    of.limits.speculation.head = &files->p_eagle;
    expect_same(answers(of, nullptr, -1, stats), want);
    EXPECT_GT(stats.drafts.accepted, stats.drafts.drafts / 5);
    EXPECT_LT(stats.steps, steps);
    of.limits.speculation.adaptive = true;
    expect_same(answers(of, nullptr, -1, stats), want);
    of.limits.speculation.adaptive = false;
    of.limits.speculation.method = DraftMethod::kDraft;
    of.draft = files->weights;
    expect_same(answers(of, nullptr, -1, stats), want);
    // All right, at temperature 0.8 as well; but a draft counts no grammar, and in int8 steps of several tokens round
    // in another order.
    EXPECT_GT(stats.drafts.accepted, stats.drafts.tokens * 9 / 10);
    EXPECT_LT(stats.steps, steps / 2);
    of.draft = files->perturbed.weights;
    expect_same(answers(of, nullptr, -1, stats), want);
    EXPECT_GT(stats.drafts.accepted, stats.drafts.tokens / 4);
    EXPECT_LT(stats.drafts.accepted, stats.drafts.tokens * 3 / 4);
    of.limits.speculation.adaptive = true;
    expect_same(answers(of, nullptr, -1, stats), want);
    EXPECT_GT(stats.drafts.tokens, 0);
    of.limits.speculation = {.method = DraftMethod::kSuffix, .most_tokens = 7, .adaptive = false};
    expect_same(answers(of, &want, 0.8, stats), want);
    EXPECT_GT(stats.drafts.accepted, stats.drafts.tokens / 4);
    EXPECT_LT(stats.steps, steps * 2 / 3);
    of.limits.speculation.adaptive = true;
    expect_same(answers(of, &want, 0.8, stats), want);
  }

  static std::unique_ptr<Files> files;
};
std::unique_ptr<Files> Speculation::files;

constexpr EngineLimits kRoomy{
    .max_context = 512, .max_sequences = 8, .max_batched_tokens = 128, .kv_tokens = 4096, .async_scheduling = false};

TEST_P(Speculation, a_step_of_several_tokens_gives_each_the_bits_it_gets_alone) {
  const std::vector<int32_t> tokens = files->tokenizer.encode(files->text.substr(0, 900));
  const auto logits = [&](int chunk) {
    const test::OneSequence limits{.max_context = 512, .chunk_tokens = chunk, .max_logit_rows = chunk};
    Loaded loaded(*files, test::step_limits(limits), GetParam());
    return test::all_logits(*loaded.be, loaded.gpt, std::span(tokens).first(170), chunk, test::Tokens::kGuesses);
  };
  const std::vector<float> alone = logits(1);
  for (const int chunk : {2, 3, 4, 5, 7, 8, 16, 33}) {
    const std::vector<float> together = logits(chunk);
    ASSERT_EQ(together.size(), alone.size());
    size_t differ = 0;
    double most = 0;
    for (size_t i = 0; i < alone.size(); ++i) {
      differ += together[i] != alone[i] ? 1 : 0;
      most = std::max(most, std::abs(double{together[i]} - double{alone[i]}));
    }
    EXPECT_EQ(differ, 0u) << chunk << " tokens: of " << alone.size() << " logits, by at most " << most;
  }
}

// The first boundary is the embedding, the last what the final norm reads.
TEST_P(Speculation, taps_are_the_residuals_of_their_boundaries) {
  const std::vector<int32_t> tokens = files->tokenizer.encode(files->text.substr(0, 60));
  const auto count = static_cast<int>(tokens.size());
  const auto layers = static_cast<int>(files->config.dims.layers);
  const test::OneSequence limits{.max_context = 128, .chunk_tokens = count, .max_logit_rows = count};
  model::Step step = engine::step_alone(tokens);
  for (int32_t t = 0; t < count; ++t) step.logit_tokens.push_back(t);
  const auto hidden = static_cast<size_t>(files->config.dims.hidden), width = 3 * hidden;
  const std::vector<float> embedding = floats_of(*files, backend::WeightRole::kEmbedding),
                           lm_head = floats_of(*files, backend::WeightRole::kUnembedding),
                           norm = floats_of(*files, backend::WeightRole::kFinalNorm);
  for (const bool reference : {false, true}) {
    const Loaded loaded(*files, test::step_limits(limits), GetParam(), reference);
    model::Taps taps{.boundaries = {0, 3, layers}, .values = {}};
    static_cast<void>(model::forward(*loaded.be, loaded.gpt, step, {}, &taps));
    const std::vector<float> logits = loaded.be->peek(backend::Slot::kLogits).values;
    ASSERT_EQ(taps.values.size(), tokens.size() * width);
    const auto vocab = static_cast<size_t>(files->config.dims.vocab);
    for (size_t t = 0; t < tokens.size(); ++t) {
      const std::span<const float> all = std::span(taps.values).subspan(t * width, width);
      for (size_t d = 0; d < hidden; ++d)
        ASSERT_EQ(all[d], embedding[static_cast<size_t>(tokens[t]) * hidden + d]) << t;
      const std::span<const float> last = all.last(hidden);
      double sum = 0;
      for (const float x : last) sum += double{x} * x;
      const double inverse = 1 / std::sqrt(sum / static_cast<double>(hidden) + double{files->config.rms_eps});
      for (size_t token = 0; token < vocab; token += 97) {
        double want = 0;
        for (size_t d = 0; d < hidden; ++d) want += double{last[d]} * inverse * norm[d] * lm_head[token * hidden + d];
        // The backend may round what lm_head reads.
        ASSERT_NEAR(logits[t * vocab + token], want, 0.15) << t << ' ' << token;
      }
    }
  }
}

TEST_P(Speculation, residuals_of_what_was_verified_are_shown_once) {
  EngineLimits limits = kRoomy;
  limits.prefix_cache = false;
  engine::EngineStats stats;
  const std::vector<Answer> want = answers({.limits = limits, .requests = 7, .tokens = 24}, nullptr, -1, stats);
  limits.speculation = {.method = DraftMethod::kSuffix, .most_tokens = 7, .adaptive = false};
  Loaded loaded(*files, engine::step_limits(limits, files->config.dims), GetParam());
  engine::Loop loop(*loaded.be, loaded.gpt, limits);
  loop.propose_with(std::make_unique<Witness>(floats_of(*files, backend::WeightRole::kEmbedding),
                                              static_cast<size_t>(files->config.dims.hidden), want));
  for (size_t i = 0; i < want.size(); ++i) {
    loop.add(i + 1, request(i, 24), [](const engine::Event&) {});
    if (i % 3 == 2)
      while (!loop.idle()) loop.step();
  }
  while (!loop.idle()) loop.step();
  EXPECT_GT(loop.stats().drafts.accepted, 0);
  EXPECT_LT(loop.stats().drafts.accepted, loop.stats().drafts.tokens);
}

TEST_P(Speculation, changes_no_token) { compare({.limits = kRoomy, .requests = 14, .tokens = 24}); }

TEST_P(Speculation, changes_no_token_where_several_run_and_some_give_way) {
  if (GetParam() == Activations::kInt8) GTEST_SKIP() << "who shares a step changes bits, with drafts or without";
  compare({.limits = {.max_context = 256, .max_sequences = 6, .max_batched_tokens = 64, .async_scheduling = false},
           .requests = 7,
           .tokens = 40,
           .at_once = 7});
}

TEST_P(Speculation, changes_no_token_of_200_short_prompts) {
  if (GetParam() == Activations::kInt8) GTEST_SKIP() << "who shares a step changes bits, with drafts or without";
  Case of{.limits = kRoomy, .requests = 200, .tokens = 8, .at_once = 8, .longer = 30};
  engine::EngineStats stats;
  const std::vector<Answer> want = answers(of, nullptr, -1, stats);
  of.draft = files->perturbed.weights;
  for (const auto method : {DraftMethod::kSuffix, DraftMethod::kNgram, DraftMethod::kEagle3, DraftMethod::kDraft}) {
    SCOPED_TRACE(name_of(method));
    of.limits.speculation = {.method = method, .most_tokens = 7, .head = &files->head, .adaptive = false};
    expect_same(answers(of, nullptr, -1, stats), want);
    EXPECT_GT(stats.drafts.accepted, 0);
    EXPECT_LT(stats.drafts.accepted, stats.drafts.tokens);
  }
}

TEST_P(Speculation, DISABLED_changes_no_token_of_200_prompts) {
  compare({.limits = kRoomy, .requests = 200, .tokens = 64});
}

INSTANTIATE_TEST_SUITE_P(Activations, Speculation, testing::Values(Activations::kF32, Activations::kInt8),
                         [](const auto& tested) { return tested.param == Activations::kF32 ? "f32" : "int8"; });

}  // namespace
}  // namespace nibble
