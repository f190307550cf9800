// What is drawn where guesses are verified follows the model's distribution: chi-square tests of the whole loop against
// probabilities that are computed apart from it, in double, from the reference's logits. Guesses of each kind, verified
// whole or as the controller likes, at positions where they are right and where they are wrong.
//
// The model is random and its vocabulary small, so that thousands of draws are cheap. Seeds and clock are fixed: a run
// is like any other.

#include "backend/cpu/cpu_backend.h"
#include "backend/reference/reference_backend.h"
#include "convert/synth.h"
#include "engine/draft_model_proposer.h"
#include "engine/loop.h"
#include "model/eagle3/head.h"
#include "model/config.h"
#include "one_sequence.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <optional>

namespace nibble {
namespace {

using engine::DraftMethod;
using engine::EngineLimits;
using engine::Finished;
using engine::Request;

constexpr int64_t kVocab = 24, kPromptTokens = 24, kAnswerTokens = 40;
constexpr int kTogether = 16;    // answers
constexpr int kMostGuesses = 4;  // of an answer in a step
constexpr int64_t kContext = kPromptTokens + kAnswerTokens;

uint64_t answers_asked_for() {
  const char* const asked = std::getenv("NIBBLE_DRAWN_ANSWERS");
  uint64_t answers = 13 * kTogether;
  if (asked != nullptr) std::from_chars(asked, asked + std::strlen(asked), answers);
  return answers;
}

model::ModelConfig small_model() {
  model::ModelConfig config = model::truncated(model::tiny(), 2);
  config.dims.hidden = config.dims.inter = 32;
  config.dims.heads = 2;
  config.dims.kv_heads = 1;
  config.dims.experts = 4;
  config.dims.topk = 2;
  config.dims.vocab = kVocab;
  config.bos_id = config.pad_id = std::nullopt;
  config.eos_ids = {};
  return config;
}

// A head that says what comes after its token if the model's layers do little: lm_head of the embedding, and a bit of
// the residual before.
model::eagle3::Head small_head(const model::eagle3::Target& target) {
  using enum backend::WeightRole;
  const backend::Dims& of = target.config.dims;
  model::eagle3::Head head;
  head.config.dims = of;
  head.config.dims.layers = 1;
  head.config.dims.inter = 32;
  head.config.dims.experts = head.config.dims.topk = 1;
  head.config.dims.sliding_window = 1;  // a row's attention is its own value
  head.config.layer_kinds = {backend::LayerKind::kSliding};
  head.rope = model::plain_rope(10000, of.head_dim);
  head.reads = {.taps = 1, .target_hidden = of.hidden, .target_vocab = of.vocab, .tap_eps = head.config.rms_eps};
  head.boundaries = {static_cast<int>(of.layers)};
  const auto diagonal = [&](Shape shape, float value) -> RawTensor {
    const int64_t cols = shape.back(), rows = shape[shape.size() - 2];
    std::vector<std::byte>& bytes = head.made_up.emplace_back(static_cast<size_t>(rows * cols) * sizeof(float));
    for (int64_t i = 0; i < std::min(rows, cols); ++i)
      std::memcpy(&bytes[static_cast<size_t>(i * cols + i) * sizeof value], &value, sizeof value);
    return {.dtype = DType::kF32, .shape = std::move(shape), .bytes = bytes};
  };
  const auto put = [&](backend::WeightRole role, int layer, RawTensor values, RawTensor odd = {}) {
    head.weights.push_back({.role = role,
                            .layer = layer,
                            .format = backend::WeightFormat::kF32,
                            .values = std::move(values),
                            .scales = {},
                            .odd = std::move(odd),
                            .odd_format = backend::WeightFormat::kF32});
  };
  const std::vector<float> ones(static_cast<size_t>(of.hidden), 1.0f);
  const auto bytes = std::as_bytes(std::span(ones));
  const std::vector<std::byte>& scale = head.made_up.emplace_back(bytes.begin(), bytes.end());
  for (const auto& [role, layer] : {std::pair{kFinalNorm, -1}, {kAttnNorm, 0}, {kHiddenNorm, 0}, {kMlpNorm, 0}})
    put(role, layer, {.dtype = DType::kF32, .shape = {of.hidden}, .bytes = scale});
  put(kTapFc, -1, diagonal({of.hidden, of.hidden}, 0.03f));
  put(kQ, 0, diagonal({of.q_width(), 2 * of.hidden}, 0));
  put(kK, 0, diagonal({of.kv_width(), 2 * of.hidden}, 0));
  put(kV, 0, diagonal({of.kv_width(), 2 * of.hidden}, 1));
  put(kO, 0, diagonal({of.hidden, of.q_width()}, 1));
  put(kGateUp, 0, diagonal({1, 32, of.hidden}, 0), diagonal({1, 32, of.hidden}, 0));
  put(kDown, 0, diagonal({1, of.hidden, 32}, 0));
  head.weights.push_back(model::eagle3::shared(target, kEmbedding, "test"));
  head.weights.push_back(model::eagle3::shared(target, kUnembedding, "test"));
  model::eagle3::fill_up(head);
  return head;
}

// Of a model that drafts: other layers between the same embedding and lm_head.
std::vector<backend::HostWeight> other_layers(const std::vector<backend::HostWeight>& weights,
                                              std::vector<backend::HostWeight> others) {
  for (size_t i = 0; i < others.size(); ++i)
    if (others[i].role == backend::WeightRole::kEmbedding || others[i].role == backend::WeightRole::kUnembedding)
      others[i] = weights[i];
  return others;
}

// What a grammar of the test allows depends on all that was drawn.
bool allowed(std::span<const int32_t> drawn, int64_t token) {
  const int64_t sum = std::accumulate(drawn.begin(), drawn.end(), std::ssize(drawn));
  return (sum + token) % 3 != 0;
}

class Grammar final : public engine::TokenMask {
 public:
  bool fill(std::span<uint32_t> mask) override {
    std::ranges::fill(mask, 0u);
    for (size_t t = 0; t < kVocab; ++t) mask[t / 32] |= uint32_t{allowed(drawn_, static_cast<int64_t>(t))} << t % 32;
    return true;
  }
  void accept(int32_t token) override { drawn_.push_back(token); }
  void undo(int tokens) override { drawn_.resize(drawn_.size() - static_cast<size_t>(tokens)); }

 private:
  std::vector<int32_t> drawn_;
};

struct Kind {
  const char* name;
  backend::SamplingParams sampling;
  bool grammar = false;
};
constexpr float kTemperature = 1.5f;
const std::array kKinds = {
    Kind{.name = "plain", .sampling = {.temperature = kTemperature}},
    Kind{.name = "filters", .sampling = {.temperature = kTemperature, .top_p = 0.8f, .min_p = 0.02f, .top_k = 8}},
    Kind{.name = "penalties",
         .sampling = {.temperature = kTemperature,
                      .repetition_penalty = 1.2f,
                      .presence_penalty = 0.5f,
                      .frequency_penalty = 1.5f,
                      .logit_bias = {{3, 1.5f}}}},
    Kind{.name = "grammar", .sampling = {.temperature = kTemperature}, .grammar = true},
};

std::vector<int32_t> by_likelihood(const std::vector<double>& p) {
  std::vector<int32_t> tokens(p.size());
  std::iota(tokens.begin(), tokens.end(), 0);
  std::ranges::stable_sort(tokens, std::greater(), [&](int32_t token) { return p[static_cast<size_t>(token)]; });
  return tokens;
}

// Of each token, after `output`; empty where a filter cuts so near to a token that rounding might decide.
std::vector<double> probabilities(const Kind& kind, std::span<const float> logits, std::span<const int32_t> prompt,
                                  std::span<const int32_t> output) {
  const backend::SamplingParams& s = kind.sampling;
  std::vector<double> p(logits.begin(), logits.end());
  for (const auto& [token, bias] : s.logit_bias) p[static_cast<size_t>(token)] += double{bias};
  for (size_t t = 0; t < p.size(); ++t) {
    const auto is_it = [&](int32_t token) { return token == static_cast<int32_t>(t); };
    const auto drawn = static_cast<double>(std::ranges::count_if(output, is_it));
    if (drawn > 0 || std::ranges::any_of(prompt, is_it))
      p[t] = p[t] > 0 ? p[t] / double{s.repetition_penalty} : p[t] * double{s.repetition_penalty};
    if (drawn > 0) p[t] -= double{s.presence_penalty} + double{s.frequency_penalty} * drawn;
    p[t] = std::exp(p[t] / double{s.temperature});
    if (kind.grammar && !allowed(output, static_cast<int64_t>(t))) p[t] = 0;
  }
  std::vector<double> sorted = p;
  std::ranges::sort(sorted, std::greater());
  bool near = false;
  const auto less = [&](double a, double b) {
    near |= std::abs(a - b) < 2e-4 * b;
    return a < b;
  };
  const auto sum_of = [&](size_t count) {
    return std::accumulate(sorted.begin(), sorted.begin() + static_cast<std::ptrdiff_t>(count), 0.0);
  };
  size_t kept = 1;
  while (kept < sorted.size() && sorted[kept] > 0 && !less(sorted[kept], double{s.min_p} * sorted[0])) ++kept;
  if (s.top_k > 0 && static_cast<size_t>(s.top_k) < kept) {
    kept = static_cast<size_t>(s.top_k);
    static_cast<void>(less(sorted[kept], sorted[kept - 1]));
  }
  if (s.top_p < 1) {
    const double total = sum_of(kept);
    size_t nucleus = 1;
    while (nucleus < kept && less(sum_of(nucleus), double{s.top_p} * total)) ++nucleus;
    kept = nucleus;
  }
  if (near) return {};
  const double total = sum_of(kept), least = sorted[kept - 1];
  for (double& one : p) one = one >= least ? one / total : 0;
  return p;
}

// Of draws that each have a distribution of their own: how many fell into which cell, beside how many should.
class ChiSquare {
 public:
  static constexpr size_t kCells = 8;
  using Cells = std::array<double, kCells>;
  void add(const Cells& p, size_t cell) {
    ++count_;
    seen_[cell] += 1;
    for (size_t i = 0; i < kCells; ++i) {
      expected_[i] += p[i];
      covariance_[i][i] += p[i];
      for (size_t j = 0; j < kCells; ++j) covariance_[i][j] -= p[i] * p[j];
    }
  }
  [[nodiscard]] int64_t count() const { return count_; }
  // How likely it is that draws of these distributions differ so much from what is expected, or more: of the quadratic
  // form of the differences with the inverse of their covariance, all cells but the last, by Wilson and Hilferty's cube
  // root. Cells where few are expected are left to the last one.
  [[nodiscard]] double p_value() const {
    std::vector<size_t> cells;
    for (size_t i = 0; i + 1 < kCells; ++i)
      if (expected_[i] >= 20) cells.push_back(i);
    const size_t n = cells.size();
    std::vector<std::vector<double>> rows(n, std::vector<double>(n + 1));
    for (size_t i = 0; i < n; ++i) {
      for (size_t j = 0; j < n; ++j) rows[i][j] = covariance_[cells[i]][cells[j]];
      rows[i][n] = seen_[cells[i]] - expected_[cells[i]];
    }
    double form = 0;  // as rows are eliminated, each pivot gives a square
    for (size_t i = 0; i < n; ++i) {
      form += rows[i][n] * rows[i][n] / rows[i][i];
      for (size_t j = i + 1; j < n; ++j) {
        const double factor = rows[j][i] / rows[i][i];
        for (size_t k = i; k <= n; ++k) rows[j][k] -= factor * rows[i][k];
      }
    }
    const auto k = static_cast<double>(n);
    return 0.5 * std::erfc((std::cbrt(form / k) - (1 - 2 / (9 * k))) / std::sqrt(2 / (9 * k)) / std::sqrt(2.0));
  }

 private:
  int64_t count_ = 0;
  Cells seen_{}, expected_{};
  std::array<Cells, kCells> covariance_{};
};

struct Draw {
  int32_t token = -1;
  int32_t guess = -1;  // -1: none was verified
  int after = 0;       // right guesses of the same step
};

class Reference {
 public:
  Reference(const model::ModelConfig& config, std::span<const backend::HostWeight> weights,
            const std::vector<int32_t>& prompt)
      : be_(backend::make_reference_backend(model::backend_config(
            config,
            test::step_limits({.max_context = kContext, .chunk_tokens = kContext, .max_logit_rows = kContext})))),
        gpt_(model::load(*be_, config, weights)),
        last_(prompt.back()) {
    model::forward(*be_, gpt_, engine::step_alone(prompt));
  }

  // [kAnswerTokens, kVocab]: what each token of an answer is drawn from.
  const std::vector<float>& logits(const std::vector<int32_t>& answer) {
    std::vector<float>& found = logits_[answer];
    if (!found.empty()) return found;
    std::vector<int32_t> tokens = {last_};
    tokens.insert(tokens.end(), answer.begin(), answer.end() - 1);
    model::Step step = engine::step_alone(tokens, kPromptTokens - 1);
    step.logit_tokens.resize(tokens.size());
    std::iota(step.logit_tokens.begin(), step.logit_tokens.end(), 0);
    model::forward(*be_, gpt_, step);
    return found = be_->peek(backend::Slot::kLogits).values;
  }

 private:
  std::unique_ptr<backend::Backend> be_;
  model::GptOss gpt_;
  int32_t last_;
  std::map<std::vector<int32_t>, std::vector<float>> logits_;
};

class Draws : public testing::TestWithParam<Kind> {
 protected:
  [[nodiscard]] Request request(uint64_t seed) const {
    Request r{.prompt = prompt_, .max_tokens = kAnswerTokens, .sampling = GetParam().sampling};
    r.sampling.seed = seed;
    if (GetParam().grammar) r.mask = std::make_shared<Grammar>();
    return r;
  }

  // By request, whose number is its seed. What a step verifies is seen as it is enqueued; it is read before the next
  // one. The clock is such that most guesses pay, and not all.
  [[nodiscard]] std::vector<std::vector<Draw>> draws(DraftMethod method, bool adaptive) {
    EngineLimits limits{.max_context = kContext,
                        .max_sequences = kTogether,
                        .max_batched_tokens = 512,
                        .kv_tokens = 4096,
                        .target_itl_seconds = std::numeric_limits<double>::infinity(),  // a prompt is one step's
                        .async_scheduling = false};
    limits.speculation = {
        .method = method, .most_tokens = kMostGuesses, .least_lookup = 1, .head = &head_, .adaptive = adaptive};
    const model::StepLimits steps = engine::step_limits(limits, config_.dims);
    const Loaded model(config_, weights_.weights(), steps);
    const bool by_head = method == DraftMethod::kEagle3;
    const model::StepLimits draft_steps = by_head ? engine::head_step_limits(steps) : engine::draft_step_limits(steps);
    const Loaded draft = by_head ? Loaded(head_, draft_steps) : Loaded(config_, draft_weights_, draft_steps);
    const engine::DraftModel draft_model{
        .be = *draft.be, .model = draft.gpt, .limits = draft_steps, .head = by_head ? &head_ : nullptr};
    limits.speculation.draft_model = &draft_model;
    std::chrono::nanoseconds clock{1};
    engine::Loop loop(*model.be, model.gpt, limits, [&] { return engine::Sequence::Time(clock); });
    std::vector<std::vector<Draw>> all(answers_asked_for());
    std::map<std::pair<uint64_t, int64_t>, Draw> verified;  // by seed and position
    loop.watch([&](const model::Step& step) {
      clock += std::chrono::microseconds(1000 + 3 * (std::ssize(step.token_ids) - std::ssize(step.rows)));
      verified.clear();
      size_t logits = 0;
      for (const backend::Row& row : step.rows) {
        for (int i = 0; i <= row.drafted; ++i, ++logits) {
          const auto token = static_cast<size_t>(row.first_token + row.tokens - row.drafted + i);
          const backend::SampleRow& sampled = step.sample_rows[logits];
          verified[{sampled.params->seed, sampled.position}] = {.guess = i < row.drafted ? step.token_ids[token] : -1,
                                                                .after = i};
        }
      }
      return model::Probe();
    });
    for (size_t first = 0; first < all.size(); first += kTogether) {
      for (size_t i = first; i < std::min(all.size(), first + kTogether); ++i) {
        loop.add(i, request(i), [&, i](const engine::Event& event) {
          if (const auto* end = std::get_if<Finished>(&event)) {
            EXPECT_EQ(end->reason, engine::FinishReason::kLength) << end->message;
            return;
          }
          Draw draw = verified.at({i, kPromptTokens + std::ssize(all[i])});
          draw.token = std::get<engine::TokenEvent>(event).token;
          all[i].push_back(draw);
        });
      }
      while (!loop.idle()) loop.step();
    }
    return all;
  }

  struct Loaded {
    Loaded(const model::ModelConfig& config, std::span<const backend::HostWeight> weights,
           const model::StepLimits& limits)
        : be(backend::make_cpu_backend(
              model::backend_config(config, limits),
              {.threads = 1, .kv = backend::KvDtype::kF32, .activations = backend::Activations::kF32})),
          gpt(model::load(*be, config, weights)) {}
    Loaded(const model::eagle3::Head& head, const model::StepLimits& limits)
        : be(backend::make_cpu_backend(model::eagle3::backend_config(head, limits),
                                       {.threads = 1, .activations = backend::Activations::kF32})),
          gpt(model::load(*be, head.config, head.weights)) {}
    std::unique_ptr<backend::Backend> be;
    model::GptOss gpt;
  };

  const model::ModelConfig config_ = small_model();
  const convert::DummyWeights weights_{config_, 1, nullptr}, others_{config_, 2, nullptr};
  const std::vector<backend::HostWeight> draft_weights_ = other_layers(weights_.weights(), others_.weights());
  const model::eagle3::Head head_ = small_head({config_, weights_.weights()});
  const std::vector<int32_t> prompt_ = test::prompt_of(kPromptTokens, kVocab);
  Reference reference_{config_, weights_.weights(), prompt_}, draft_reference_{config_, draft_weights_, prompt_};
};

// How likely two draws with the same noise, one of p and one of q, are both a token: of the Gumbel maximum, both have
// it at that token. Empty as p and q.
std::vector<double> both(const std::vector<double>& p, const std::vector<double>& q) {
  if (q.empty()) return {};
  std::vector<double> shared(p.size());
  for (size_t t = 0; t < p.size(); ++t) {
    if (p[t] == 0 || q[t] == 0) continue;
    double sum = 0;
    for (size_t other = 0; other < p.size(); ++other) sum += std::max(p[other] / p[t], q[other] / q[t]);
    shared[t] = 1 / sum;
  }
  return shared;
}

// How draws of one kind are spread. The first cell is the guess, the second what was drawn just before, which penalties
// hit if they count guesses; the others are the tokens by how likely they are.
struct Tally {
  ChiSquare first, behind;  // no guess, and right ones
  int64_t drawn = 0, guessed = 0, right = 0, near_a_cut = 0, impossible = 0;

  // `p`: as of probabilities(). `guess`: how likely each token is drawn and guessed.
  void add(const Draw& draw, const std::vector<double>& p, const std::vector<double>& guess,
           std::span<const int32_t> before) {
    ++drawn;
    guessed += draw.guess >= 0 ? 1 : 0;
    right += draw.guess == draw.token ? 1 : 0;
    near_a_cut += p.empty() || guess.empty() ? 1 : 0;
    if (p.empty() || guess.empty()) return;
    impossible += p[static_cast<size_t>(draw.token)] == 0 ? 1 : 0;
    ChiSquare::Cells cells{};
    const auto latest = before.last(std::min<size_t>(before.size(), kMostGuesses));
    size_t next = 2, of_token = 0;
    for (const int32_t token : by_likelihood(p)) {
      const auto t = static_cast<size_t>(token);
      const bool late = std::ranges::find(latest, token) != latest.end();
      const size_t cell = late ? 1 : std::min(next, ChiSquare::kCells - 1);
      cells[0] += guess[t];
      cells[cell] += p[t] - guess[t];
      if (token == draw.token && (token != draw.guess || guess[t] == 0)) of_token = cell;
      if (!late && p[t] > guess[t]) ++next;
    }
    (draw.after > 0 ? behind : first).add(cells, of_token);
  }
};

TEST_P(Draws, have_the_models_distribution) {
  for (const auto method : {DraftMethod::kNgram, DraftMethod::kSuffix, DraftMethod::kEagle3, DraftMethod::kDraft}) {
    for (const bool adaptive : {false, true}) {
      SCOPED_TRACE(fmt::format("{}, {}", name_of(method), adaptive ? "as the controller likes" : "all guesses"));
      Tally tally;
      for (const std::vector<Draw>& answer : draws(method, adaptive)) {
        ASSERT_EQ(std::ssize(answer), kAnswerTokens);
        std::vector<int32_t> output;
        for (const Draw& draw : answer) output.push_back(draw.token);
        const std::span<const float> logits = reference_.logits(output);
        // A draft model draws its guess with the noise of the token. Which of them a grammar has cut is not known.
        const bool independent = method != DraftMethod::kDraft, coupled = !independent && !GetParam().grammar;
        const std::span<const float> drafting = coupled ? draft_reference_.logits(output) : logits;
        for (size_t i = 1; i < answer.size(); ++i) {  // the first one comes with the prompt
          const auto of = [&](std::span<const float> all) {
            return probabilities(GetParam(), all.subspan(i * kVocab, kVocab), prompt_, std::span(output).first(i));
          };
          const Draw& draw = answer[i];
          const std::vector<double> p = of(logits);
          std::vector<double> guess(kVocab);
          if (draw.guess >= 0 && independent && !p.empty())
            guess[static_cast<size_t>(draw.guess)] = p[static_cast<size_t>(draw.guess)];
          if (draw.guess >= 0 && coupled && !p.empty()) guess = both(p, of(drafting));
          tally.add(draw, p, guess, std::span(output).first(i));
        }
      }
      const double first = tally.first.p_value(), behind = tally.behind.p_value();
      fmt::print("{}, {}{}: {} draws, {} of {} guesses right; p {:.2g}, of {} behind right guesses {:.2g}\n",
                 GetParam().name, name_of(method), adaptive ? ", adaptive" : "", tally.drawn, tally.right,
                 tally.guessed, first, tally.behind.count(), behind);
      EXPECT_GT(first, 1e-5);
      EXPECT_GT(behind, 1e-5);
      EXPECT_EQ(tally.impossible, 0) << "tokens that cannot be drawn";
      EXPECT_LT(tally.near_a_cut, tally.drawn / 100);
      EXPECT_GT(tally.guessed, tally.drawn / 2);
      EXPECT_GT(tally.right, tally.drawn / 20);
      EXPECT_GT(tally.guessed - tally.right, tally.drawn / 20);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, Draws, testing::ValuesIn(kKinds), [](const auto& tested) { return tested.param.name; });

}  // namespace
}  // namespace nibble
